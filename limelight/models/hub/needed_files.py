"""Which files of a repository a model consists of. Pure: works on names and sizes.

Never among them: pickled weights, which run code when they are opened, and other frameworks' formats.
"""

import re
from collections.abc import Callable, Collection, Mapping

import msgspec

from limelight.errors import CheckpointError
from limelight.models.hub.gguf_choice import choose_gguf, gguf_models
from limelight.models.lora import adapter_config
from limelight.models.safetensors.checkpoint import INDEX, SINGLE
from limelight.models.wording import listed

TEXT = re.compile(
    r"[^/]+\.(json|jinja)|tokenizer\.model|merges\.txt|vocab\.txt|1_Pooling/config\.json|additional_chat_templates/[^/]+\.jinja"
)
"""Configuration, tokenizer and chat templates; of folders, only the ones with further templates and with what
sentence-transformers says about pooling."""
MAX_TEXT_BYTES = 256 * 2**20
"""Far above any tokenizer. A larger JSON file is a data set, a log, or an attack."""
MAX_TEXTS = 256
"""Models have a dozen. A repository with many more keeps something else beside its model."""
SAFETENSORS = re.compile(r"(?!consolidated|adapter_model)[^/]+\.safetensors")
"""Mistral keeps a second copy of its weights as `consolidated`."""
PICKLED = re.compile(r"[^/]+\.(bin|pth?|ckpt|pkl)")
ADAPTER = (adapter_config.CONFIG, adapter_config.WEIGHTS)


class Needed(msgspec.Struct, frozen=True):
    """What has to be on this machine.

    Attributes:
        files: paths in the repository.
        gguf: the one of them to open (of parts, the first), or None: open the folder.
        note: a sentence for the user about a choice that was made, or None.
    """

    files: tuple[str, ...]
    gguf: str | None = None
    note: str | None = None


def needed_files(
    sizes: Mapping[str, int], repository: str, selection: str | None, read_index: Callable[[], Collection[str]]
) -> Needed:
    """Choose the files of a model.

    Args:
        sizes: path -> bytes (0 if unknown) of all files of the repository.
        selection: of GGUF files; None: safetensors where there are any.
        read_index: fetches `model.safetensors.index.json` and says which files it names; called if there is one.

    Raises:
        CheckpointError: there is no such model in the repository.
    """
    weights = [path for path in sizes if SAFETENSORS.fullmatch(path)]
    if selection is not None or (not weights and gguf_models(sizes)):
        chosen, note = choose_gguf(sizes, repository, selection)
        return Needed(chosen.files, chosen.files[0], note)
    if not weights:
        raise _nothing_to_load(sizes, repository)
    if "config.json" not in sizes:
        raise CheckpointError(f"{repository} has no config.json; it is no model that can be loaded by its id")
    if INDEX in sizes:
        weights = sorted(read_index())
        absent = [path for path in weights if path not in sizes]
        if absent:
            raise CheckpointError(
                f"{repository} lacks files that its {INDEX} names: {listed(absent)}; choose another revision"
            )
    elif SINGLE in sizes:
        weights = [SINGLE]
    elif len(weights) > 1:
        raise CheckpointError(
            f"{repository} has several safetensors files ({listed(sorted(weights))}) but no {INDEX}; "
            "download the right one into a folder with config.json, and give that folder"
        )
    text = [path for path, size in sizes.items() if TEXT.fullmatch(path) and size <= MAX_TEXT_BYTES]
    if len(text) > MAX_TEXTS:
        raise CheckpointError(
            f"{repository} has {len(text):,} JSON and template files beside its weights, and at most {MAX_TEXTS} are "
            "fetched with a model; download the model's own files into a folder, and give that folder"
        )
    return Needed((*sorted(text), *weights))


def needed_adapter_files(sizes: Mapping[str, int], repository: str) -> Needed:
    """The files of a LoRA adapter.

    Raises:
        CheckpointError: the repository holds none, or only a pickled one.
    """
    missing = [path for path in ADAPTER if path not in sizes]
    if not missing:
        return Needed(ADAPTER)
    if adapter_config.PICKLED in sizes:
        raise CheckpointError(
            f"{repository} holds its adapter only pickled ({adapter_config.PICKLED}), which can run code when opened "
            "and is never loaded; convert it with peft's save_pretrained"
        )
    raise CheckpointError(f"{repository} is no LoRA adapter: it has no {' and no '.join(missing)}")


def _nothing_to_load(sizes: Mapping[str, int], repository: str) -> CheckpointError:
    if adapter_config.CONFIG in sizes:
        return CheckpointError(
            f"{repository} is a LoRA adapter, no whole model; serve the model that it was made for and load it as an "
            "adapter"
        )
    pickled = sorted(path for path in sizes if PICKLED.fullmatch(path))
    if pickled:
        return CheckpointError(
            f"{repository} has only pickled weights ({pickled[0]}), which can run code when opened and are never "
            "loaded; look for a revision or a conversion with safetensors or GGUF files (nothing was downloaded)"
        )
    return CheckpointError(f"{repository} has neither safetensors nor GGUF files; choose another repository")
