"""Values that models write without quotes, as JSON."""

import json

PYTHON_CONSTANTS = {"True": "true", "False": "false", "None": "null"}


def quoted(text: str) -> str:
    """`text` as a JSON string."""
    return json.dumps(text, ensure_ascii=False)


def json_value(written: str) -> object:
    """The value of JSON, or of a constant of Python.

    Raises:
        ValueError: it is neither.
    """
    try:
        return json.loads(PYTHON_CONSTANTS.get(written, written), parse_constant=_refuse)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def _refuse(name: str) -> None:
    """`NaN` and `Infinity` are no JSON."""
    raise ValueError(name)
