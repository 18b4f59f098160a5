"""`tokenizer_config.json` and the small files beside it, in one shape: special tokens, added tokens, chat templates.

Follows transformers 5: `chat_template.jinja` wins over the configuration, and `special_tokens_map.json` and
`added_tokens.json` only fill what older exports left out of it.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from limelight.errors import CheckpointError
from limelight.models.fields import Fields, read_json_object
from limelight.quoting import explanation


class AddedTokenSettings(msgspec.Struct, frozen=True, kw_only=True):
    """A token beside the model's own vocabulary; the flags mean what they mean in `tokenizers.AddedToken`."""

    content: str
    special: bool = False
    normalized: bool = True
    lstrip: bool = False
    rstrip: bool = False
    single_word: bool = False


class TokenizerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What a model folder says about its tokenizer, beside the vocabulary itself.

    Attributes:
        named_tokens: "bos_token" -> "<s>" and the like; template variables of the same names.
        extra_special_tokens: further control tokens, by content.
        added_tokens: token id -> token.
        add_bos_token, add_eos_token: what to add to a text, where `tokenizer.json` itself adds nothing; None if the
            files leave it open.
        legacy: what follows a special token begins like a text of its own (SentencePiece).
        chat_templates: name -> source; "default" is the one without a name.
    """

    named_tokens: Mapping[str, str] = {}
    extra_special_tokens: tuple[str, ...] = ()
    added_tokens: Mapping[int, AddedTokenSettings] = {}
    add_bos_token: bool | None = None
    add_eos_token: bool | None = None
    legacy: bool = True
    chat_templates: Mapping[str, str] = {}


def read_tokenizer_settings(folder: Path) -> TokenizerSettings:
    """The settings in `folder`; all empty where it has no such files.

    Raises:
        CheckpointError: a file is unreadable or holds something impossible.
    """
    config = _object(folder / "tokenizer_config.json")
    source = str(folder / "tokenizer_config.json")
    values = {**_object(folder / "special_tokens_map.json"), **{k: v for k, v in config.items() if v is not None}}
    fields = Fields(values, source)
    return TokenizerSettings(
        named_tokens={
            name: content
            for name, value in values.items()
            if name.endswith("_token") and (content := _content(value)) is not None
        },
        extra_special_tokens=_extra_special_tokens(values),
        added_tokens=_added_tokens(fields, folder),
        add_bos_token=fields.flag("add_bos_token", default=False) if "add_bos_token" in fields else None,
        add_eos_token=fields.flag("add_eos_token", default=False) if "add_eos_token" in fields else None,
        legacy=fields.flag("legacy", default=True),
        chat_templates={**_configured_templates(fields), **_template_files(folder)},
    )


def _object(path: Path) -> dict[str, Any]:
    return read_json_object(path) if path.is_file() else {}


def _content(value: object) -> str | None:
    """A token may be written as its content or as an object with a `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) and value else None


def _extra_special_tokens(values: Mapping[str, Any]) -> tuple[str, ...]:
    found: list[str] = []
    for name in ("additional_special_tokens", "extra_special_tokens"):
        listed = values.get(name) or ()
        tokens = listed.values() if isinstance(listed, dict) else listed
        found += [content for token in tokens if (content := _content(token)) is not None]
    return tuple(dict.fromkeys(found))


def _added_tokens(fields: Fields, folder: Path) -> dict[int, AddedTokenSettings]:
    entries = fields.group("added_tokens_decoder")
    try:
        if entries is not None:
            return {
                int(token_id): msgspec.convert(token, AddedTokenSettings) for token_id, token in entries.values.items()
            }
        ids = _object(folder / "added_tokens.json")
        return {int(token_id): AddedTokenSettings(content=content) for content, token_id in ids.items()}
    except (TypeError, ValueError) as error:  # msgspec.ValidationError is a ValueError
        raise CheckpointError(
            f"{fields.source}: an added token is malformed ({explanation(error)}); download the file again"
        ) from error


def _configured_templates(fields: Fields) -> dict[str, str]:
    """`chat_template` is one template, or a list of `{"name", "template"}` objects."""
    value = fields.values.get("chat_template")
    if value is None:
        return {}
    if isinstance(value, str):
        return {"default": value}
    if isinstance(value, dict):
        value = [{"name": name, "template": template} for name, template in value.items()]
    try:
        return {entry.name: entry.template for entry in msgspec.convert(value, list[_NamedTemplate])}
    except msgspec.ValidationError as error:
        raise fields.refusal(
            "chat_template",
            value,
            f"it must be a string or a list of named templates ({explanation(error)})",
        ) from error


class _NamedTemplate(msgspec.Struct, frozen=True):
    name: str
    template: str


def _template_files(folder: Path) -> dict[str, str]:
    paths = {"default": folder / "chat_template.jinja"}
    paths |= {path.stem: path for path in sorted((folder / "additional_chat_templates").glob("*.jinja"))}
    try:
        return {name: path.read_text(encoding="utf-8") for name, path in paths.items() if path.is_file()}
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{folder}: a chat template file cannot be read ({error}); download it again") from error
