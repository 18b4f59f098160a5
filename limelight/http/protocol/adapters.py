"""Bodies of the two routes that load and unload LoRA adapters; vLLM's names."""

from collections.abc import Mapping

import msgspec

from limelight.http.protocol.decoding import Decoder
from limelight.http.protocol.fields import Effect, Field

_NAME = {"lora_name": Field(Effect.WORKS)}
LOAD_FIELDS: Mapping[str, Field] = {
    **_NAME,
    "lora_path": Field(Effect.WORKS, "an absolute path below an allowed folder, or a hub id"),
    "load_inplace": Field(
        Effect.REFUSED, "unload the adapter first: live requests then finish with the old one", (False,)
    ),
}
UNLOAD_FIELDS: Mapping[str, Field] = {
    **_NAME,
    "lora_int_id": Field(Effect.NO_EFFECT, "the name says which adapter"),
}


class LoadAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/load_lora_adapter`."""

    lora_name: str
    lora_path: str
    load_inplace: bool | None = None


class UnloadAdapter(msgspec.Struct, frozen=True, kw_only=True):
    """Body of `POST /v1/unload_lora_adapter`."""

    lora_name: str
    lora_int_id: int | None = None


LOAD_DECODER = Decoder(LoadAdapter, LOAD_FIELDS)
UNLOAD_DECODER = Decoder(UnloadAdapter, UNLOAD_FIELDS)
