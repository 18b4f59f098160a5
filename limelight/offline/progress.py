"""The progress bar of offline generation, on stderr."""

from types import TracebackType
from typing import Any, Self

from tqdm import tqdm

from limelight.generation import Usage


class OfflineProgress:
    """Counts finished prompts and the speed of their tokens.

    Args:
        num_prompts: how many there are to do.
        shown: whether anything is printed.
    """

    def __init__(self, num_prompts: int, *, shown: bool) -> None:
        self._bar = _Bar(total=num_prompts, desc="Processed prompts", dynamic_ncols=True, disable=not shown)
        self._num_prompt_tokens = 0
        self._num_output_tokens = 0

    def add(self, usage: Usage) -> None:
        """One more prompt is done."""
        self._num_prompt_tokens += usage.prompt_tokens
        self._num_output_tokens += usage.completion_tokens
        elapsed_seconds = self._bar.format_dict.get("elapsed")
        if elapsed_seconds:
            self._bar.set_postfix_str(
                f"est. speed input: {self._num_prompt_tokens / elapsed_seconds:.2f} toks/s, "
                f"output: {self._num_output_tokens / elapsed_seconds:.2f} toks/s",
                refresh=False,
            )
        self._bar.update()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.close()


class _Bar(tqdm):  # type: ignore[misc]
    # tqdm's monitor would leave a thread and an exit handler behind in the caller's program.
    monitor_interval = 0

    @property
    def format_dict(self) -> dict[str, Any]:
        return dict(super().format_dict)
