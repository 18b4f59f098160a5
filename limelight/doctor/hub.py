"""The way to the Hugging Face hub, and the room for what comes from there."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path

from limelight.doctor.finding import Finding, NoAnswer, State, within
from limelight.models.hub.refusals import network_advice
from limelight.models.wording import as_size

SECONDS = 8.0
"""The hub answers in a fraction of one, also through a proxy; looking up its name can hang for longer."""
LITTLE_ROOM_BYTES = 2 * 2**30
"""Less than a small model takes."""


def cache_folder() -> Path:
    """Where huggingface_hub keeps what it downloads."""
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE).expanduser()


def hub_finding(
    *, needed: bool, environment: Mapping[str, str], endpoint: str | None = None, seconds: float = SECONDS
) -> Finding:
    """Whether the hub answers. That it does not is a problem where a model has to come from there.

    Args:
        needed: the model is not on this machine.
        environment: of this process.
        endpoint: the hub's address; None: huggingface_hub's.
        seconds: for which the answer is waited for.
    """
    from huggingface_hub import constants, errors, get_session

    state = State.PROBLEM if needed else State.NOTE
    shown = "the hub that HF_ENDPOINT names" if environment.get("HF_ENDPOINT") else "huggingface.co"
    if constants.HF_HUB_OFFLINE:
        text = f"offline mode is on (HF_HUB_OFFLINE): {shown} is not asked, and only models in the cache run"
        return Finding("hub", state, text, "unset HF_HUB_OFFLINE" if needed else None)
    address = f"{endpoint or constants.ENDPOINT}/api/models/HuggingFaceTB/SmolLM2-135M-Instruct"
    try:
        answer = within(seconds, lambda: get_session().head(address, timeout=seconds, follow_redirects=True))
    except (NoAnswer, errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]
        why = str(error) if isinstance(error, NoAnswer) else type(error).__name__
        advice = "check the network" if isinstance(error, NoAnswer) else network_advice(error)
        text = f"{shown} cannot be reached ({why}): only models on this machine run"
        return Finding("hub", state, text, advice)
    if answer.status_code >= 500:
        return Finding("hub", state, f"{shown} answers HTTP {answer.status_code}", "try again later")
    return Finding("hub", State.OK, f"{shown} answers")


def token_finding() -> Finding:
    """Whether there is a token for gated and private models. It is not sent anywhere."""
    from huggingface_hub import get_token

    if get_token():
        return Finding("token", State.OK, "there is one for the hub; whether it is valid was not asked")
    text = "there is none for the hub, which gated and private models need (HF_TOKEN, or `hf auth login`)"
    return Finding("token", State.OK, text)


def disk_finding(folder: Path, *, needed_bytes: int = 0) -> Finding:
    """The room for downloads.

    Args:
        folder: of the cache; need not exist.
        needed_bytes: what the model still has to bring.
    """
    there = folder
    while not there.exists() and there != there.parent:
        there = there.parent
    if not os.access(there, os.W_OK):
        state = State.PROBLEM if needed_bytes else State.NOTE
        return Finding("disk", state, f"{folder} cannot be written to", "set HF_HOME to a folder that can")
    free = shutil.disk_usage(there).free
    text = f"{as_size(free)} are free for downloads, in {folder}"
    if free < needed_bytes:
        text = f"{text}, and the model takes {as_size(needed_bytes)}"
        return Finding("disk", State.PROBLEM, text, "make room, or set HF_HOME to a larger disk")
    if free < LITTLE_ROOM_BYTES:
        return Finding("disk", State.NOTE, text, "make room before fetching a model, or set HF_HOME to a larger disk")
    return Finding("disk", State.OK, text)
