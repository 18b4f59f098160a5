"""Limits of time that a client sets: in the body, or in headers, which gateways can add."""

from collections.abc import Mapping

from limelight.errors import InvalidRequest
from limelight.generation import Deadlines
from limelight.quoting import quoted

HEADERS = {
    "x-limelight-max-queue-ms": "max_queue_ms",
    "x-limelight-max-ttft-ms": "max_ttft_ms",
    "x-limelight-max-total-ms": "max_total_ms",
}
"""Header -> the field of `Deadlines`, and of a body, that it stands for."""


def deadlines(headers: Mapping[str, str], body: object) -> Deadlines | None:
    """The limits of a request, the shorter one where body and header have one; None: there are none.

    Args:
        body: a decoded body; its fields with the names of `Deadlines` are read, if it has them.

    Raises:
        InvalidRequest: a header is no number; `param` names it. Numbers that make no sense are refused at admission.
    """
    limits: dict[str, float] = {}
    for header, field in HEADERS.items():
        given = [limit for limit in (getattr(body, field, None), _number(headers, header)) if limit is not None]
        if given:
            limits[field] = min(given)
    return Deadlines(**limits) if limits else None


def _number(headers: Mapping[str, str], header: str) -> float | None:
    text = headers.get(header)
    if text is None:
        return None
    try:
        return float(text)
    except ValueError:
        raise InvalidRequest(f"{header} is {quoted(text)}; it must be milliseconds", param=header) from None
