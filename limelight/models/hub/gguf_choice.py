"""Which GGUF file of a repository is meant. Pure: works on names and sizes.

The label of a quantisation stands in the file's name, or in its folder's (`BF16/model-00001-of-00002.gguf`).
"""

import re
from collections.abc import Iterable, Mapping

import msgspec

from limelight.errors import CheckpointError
from limelight.models.gguf.parts import PART_NAME
from limelight.models.wording import as_size, listed
from limelight.quoting import quoted

LABEL = re.compile(
    r"(?<![A-Za-z0-9])((?:UD-)?(?:I?Q[1-8](?:_[0-9A-Z]+)*|TQ[12]_0|MXFP4(?:_MOE)?|NVFP4|BF16|FP?16|FP?32))(?![A-Za-z0-9])",
    re.IGNORECASE,
)
PREFERRED = (
    "Q4_K_M", "Q4_K_S", "Q4_K_L", "Q4_K_XL", "Q4_1", "Q4_0", "IQ4_NL", "MXFP4_MOE", "MXFP4", "Q4", "Q5_K_M", "Q5_K_S",
    "Q5_K_L", "Q5_1", "Q5_0", "Q6_K", "Q8_0", "Q3_K_L", "Q3_K_M", "Q3_K_S", "Q2_K", "BF16", "F16", "FP16", "F32",
)  # fmt: skip
"""Where nobody chose: 4 bits first, with Q4_K_M the usual trade of size and quality, then upwards, then downwards."""
MAX_LISTED = 40


class GgufModel(msgspec.Struct, frozen=True):
    """A model that a repository has as one GGUF file, or as the parts of one.

    Attributes:
        files: paths in the repository; parts in their order.
        label: the quantisation in capitals ("Q4_K_M"), or None where the name says none.
        num_bytes: of all files; 0 where unknown.
    """

    files: tuple[str, ...]
    label: str | None
    num_bytes: int

    def __str__(self) -> str:
        size = f" ({as_size(self.num_bytes)})" if self.num_bytes else ""
        return f"{self.label or self.files[0]}{size}"


def choose_gguf(sizes: Mapping[str, int], repository: str, selection: str | None) -> tuple[GgufModel, str | None]:
    """The model that is meant, and a sentence about the choice where nobody made it.

    Args:
        sizes: path -> bytes (0 if unknown) of all files of the repository.
        selection: a quantisation or the path of a file, in any case; None takes the sensible one.

    Raises:
        CheckpointError: none or several match; lists what is there.
    """
    models = gguf_models(sizes)
    if not models:
        raise CheckpointError(
            f"{repository} has no GGUF file to choose {quoted(selection)} from; leave :{selection} out"
        )
    if selection is None:
        return _by_preference(models, repository)
    matching = _matching(models, selection)
    if not matching:
        raise CheckpointError(f"{repository} has no GGUF file {quoted(selection)}; it has {_listed(models)}")
    if len(matching) > 1:
        raise _ambiguous(f"{repository}:{selection}", repository, matching)
    return _whole(matching[0], repository), None


def gguf_models(sizes: Mapping[str, int]) -> list[GgufModel]:
    """All models in GGUF files; what else comes in that format (image encoders, statistics for quantisers) left out."""
    by_stem: dict[str, list[str]] = {}
    for path in sorted(sizes):
        if path.lower().endswith(".gguf") and not _is_no_model(path):
            part = PART_NAME.fullmatch(path)
            by_stem.setdefault(f"{part['name']}-of-{part['count']}" if part else path, []).append(path)
    return [
        GgufModel(tuple(files), label_of(files[0]), sum(sizes[path] for path in files)) for files in by_stem.values()
    ]


def label_of(path: str) -> str | None:
    """The quantisation that a path names: the last one in the file's name, else in its folder's."""
    folder, _, name = path.rpartition("/")
    found = LABEL.findall(name) or LABEL.findall(folder)
    return str(found[-1]).upper() if found else None


def _is_no_model(path: str) -> bool:
    name = path.rpartition("/")[2].lower()
    # "imat" also stands in the names of models that were quantised with the help of such statistics.
    return "mmproj" in name or name.startswith("imatrix") or ("imatrix" in name and label_of(name) is None)


def _matching(models: list[GgufModel], selection: str) -> list[GgufModel]:
    wanted = selection.lower()
    if wanted.endswith(".gguf"):
        by_path = [model for model in models if any(path.lower() == wanted for path in model.files)]
        return by_path or [
            model for model in models if any(path.lower().rpartition("/")[2] == wanted for path in model.files)
        ]
    exact = [model for model in models if (model.label or "").lower() == wanted]
    return exact or [model for model in models if (model.label or "").lower() == f"ud-{wanted}"]


def _by_preference(models: list[GgufModel], repository: str) -> tuple[GgufModel, str | None]:
    if len(models) == 1:
        return _whole(models[0], repository), None
    for label in PREFERRED:
        matching = _matching(models, label)
        if len(matching) > 1:
            raise _ambiguous(repository, repository, matching)
        if matching:
            chosen = _whole(matching[0], repository)
            return (
                chosen,
                f"{repository} has {len(models)} GGUF files: chose {chosen}; {repository}:QUANT takes another",
            )
    raise CheckpointError(
        f"{repository} has several GGUF files and none of a usual quantisation; choose one of {_listed(models)} "
        f"with {repository}:FILE"
    )


def _whole(model: GgufModel, repository: str) -> GgufModel:
    """`model`, none of whose parts is missing."""
    part = PART_NAME.fullmatch(model.files[0])
    if part is None:
        return model
    count = int(part["count"])
    expected = [f"{part['name']}-{number:05}-of-{count:05}.gguf" for number in range(1, count + 1)]
    missing = sorted(set(expected) - set(model.files))
    if missing:
        raise CheckpointError(
            f"{repository} lacks {len(missing)} of the {len(expected)} parts of {model.files[0]}: "
            f"{listed(missing)}; choose another file"
        )
    return msgspec.structs.replace(model, files=tuple(expected))


def _ambiguous(name: str, repository: str, models: list[GgufModel]) -> CheckpointError:
    files = listed((f"{model.files[0]} ({as_size(model.num_bytes)})" for model in models), MAX_LISTED)
    return CheckpointError(f"{name} may mean {files}; name the file: {repository}:{models[0].files[0]}")


def _listed(models: Iterable[GgufModel]) -> str:
    by_size = sorted(models, key=lambda model: model.num_bytes)
    return listed(by_size, MAX_LISTED)
