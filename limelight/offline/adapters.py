"""LoRA adapters of offline calls: vLLM's `lora_request`, loaded when a call first names it."""

import threading
from collections.abc import Sequence

import msgspec

from limelight.errors import InvalidRequest
from limelight.offline.background_engine import BackgroundEngine
from limelight.quoting import quoted


class LoRARequest(msgspec.Struct, frozen=True):
    """A LoRA adapter that an offline call runs with; vLLM's class of the same name.

    Attributes:
        lora_name: what it is called here; one name stands for one path.
        lora_int_id: vLLM's own number; nothing depends on it.
        lora_path: a folder as peft writes it, or a hub id.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str


LoRARequests = LoRARequest | Sequence[LoRARequest | None] | None
"""One for all prompts, one each, or none."""


class OfflineAdapters:
    """Which adapters have been loaded for calls. Safe to use from several threads."""

    def __init__(self, background: BackgroundEngine) -> None:
        self._background = background
        self._paths: dict[str, str] = {}
        self._loading = threading.Lock()

    def names(self, requests: LoRARequests, num_prompts: int) -> list[str | None]:
        """Name of each prompt's adapter, all of them loaded.

        Raises:
            InvalidRequest: not one for each prompt, one name for two paths, or too many adapters.
            ModelError: an adapter cannot be loaded.
        """
        each = [requests] * num_prompts if isinstance(requests, LoRARequest) or requests is None else list(requests)
        if len(each) != num_prompts:
            raise InvalidRequest(
                f"there are {num_prompts} prompts and {len(each)} lora_request entries; give one for all, or one each",
                param="lora_request",
            )
        with self._loading:
            for request in dict.fromkeys(each):
                if request is not None:
                    self._ensure(request)
        return [None if request is None else request.lora_name for request in each]

    def _ensure(self, request: LoRARequest) -> None:
        name, path = request.lora_name, request.lora_path
        known = self._paths.get(name)
        if known is None:
            self._background.load_adapter(name, path)
            self._paths[name] = path
        elif known != path:
            raise InvalidRequest(
                f"lora_request names {quoted(name)} for {quoted(path)}, which stands for {quoted(known)}; give each "
                "its own name",
                param="lora_request",
            )
