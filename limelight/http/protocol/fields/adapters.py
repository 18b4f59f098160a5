"""Rows of the two routes that change the LoRA adapters."""

from collections.abc import Mapping

from limelight.http.protocol.fields.field import Field, no_effect, refused, works

_NAME = {"lora_name": works()}
LOAD_FIELDS: Mapping[str, Field] = {
    **_NAME,
    "lora_path": works("an absolute path below an allowed folder, or a hub id"),
    "load_inplace": refused("unload the adapter first: live requests then finish with the old one", False),
}
UNLOAD_FIELDS: Mapping[str, Field] = {
    **_NAME,
    "lora_int_id": no_effect("the name says which adapter"),
}
