"""What a constrained output must look like. No torch, no asyncio."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from limelight.errors import InvalidRequest

KINDS = ("json", "regex", "choice", "grammar", "json_object", "structural_tag")


class StructuredOutputsParams(msgspec.Struct, frozen=True, kw_only=True):
    """Exactly one of the first six says what the output must be; names as in vLLM's class.

    Whether it can be honoured is found out when it is compiled.

    Attributes:
        json: a JSON schema, as an object or as text.
        regex: a regular expression that the whole output matches.
        choice: the output is one of these strings.
        grammar: a grammar in Lark (as llguidance reads it) or GBNF.
        json_object: True: any JSON object.
        structural_tag: free text with schemas between given strings, as xgrammar and vLLM write it (text of JSON).
        disable_any_whitespace: compact JSON.
        disable_additional_properties: objects have no properties but those of the schema, whatever it says.
        whitespace_pattern: regular expression of what may stand between the parts of JSON.
        param: the request field that it stands in; what an error names.

    Raises:
        InvalidRequest: none, or more than one, is given, or one is empty; `param` is the attribute of this name.
    """

    json: str | bool | Mapping[str, Any] | None = None
    regex: str | None = None
    choice: Sequence[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    param: str = "structured_outputs"

    def __post_init__(self) -> None:
        given = self._given
        if len(given) != 1:
            raise InvalidRequest(
                f"structured_outputs has {', '.join(given) or 'none of its kinds'}; "
                f"give exactly one of {', '.join(KINDS)}",
                param=self.param,
            )
        if self.choice is not None and not self.choice:
            raise InvalidRequest("structured_outputs.choice is empty; give at least one string", param=self.param)

    @property
    def kind(self) -> str:
        """Which of the six is given."""
        return self._given[0]

    @property
    def _given(self) -> list[str]:
        return [
            name for name in KINDS if getattr(self, name) is not None and (name != "json_object" or self.json_object)
        ]
