"""Bodies of the two routes that load and unload LoRA adapters; vLLM's names."""

import msgspec

from limelight.http.protocol.decoding import Decoder
from limelight.http.protocol.fields.adapters import LOAD_FIELDS, UNLOAD_FIELDS


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
