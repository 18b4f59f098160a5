"""The settings of compressed-tensors: groups, the modules that each targets, and how their weights are stored."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.fields import Fields
from limelight.models.quantization.fp8 import read_block
from limelight.models.spec import MAX_WIDTH
from limelight.quoting import quoted

FORMATS = (
    "pack-quantized", "int-quantized", "float-quantized", "naive-quantized", "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
)  # fmt: skip
PATTERN = "re:"
MAX_PATTERN = 1000
REPEATED_GROUP = re.compile(r"\)[*+{]")
"""What can make a pattern take exponential time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheme:
    """How the weights of a group are stored.

    Attributes:
        targets: names of modules, patterns of names after "re:", or names of classes.
        group_size: inputs that share a scale, or None.
        block: (outputs, inputs) that share a scale, or None.
        by_output: without both, each output has a scale of its own; else all have the same.
    """

    targets: tuple[str, ...]
    format: str
    bits: int
    is_float: bool
    symmetric: bool
    group_size: int | None
    block: tuple[int, int] | None
    by_output: bool


def scheme_of(module: str, schemes: Sequence[Scheme]) -> Scheme:
    """The scheme of a quantised module: by its name before patterns, by these before its class.

    Raises:
        CheckpointError: no group targets it.
    """
    if len(schemes) == 1:
        return schemes[0]
    class_name = "Embedding" if module.rpartition(".")[2] == "embed_tokens" else "Linear"
    found: tuple[list[Scheme], list[Scheme], list[Scheme]] = ([], [], [])
    for scheme in schemes:
        patterns = [target.removeprefix(PATTERN) for target in scheme.targets if target.startswith(PATTERN)]
        by_name, by_pattern, by_class = found
        if module in scheme.targets:
            by_name.append(scheme)
        if any(re.match(pattern, module) for pattern in patterns):
            by_pattern.append(scheme)
        if class_name in scheme.targets:
            by_class.append(scheme)
    for candidates in found:
        if candidates:
            return candidates[0]
    raise CheckpointError(f"{module} is quantised, but no group of config_groups targets it")


def read_schemes(settings: Fields) -> tuple[Scheme, ...]:
    """The groups of a `quantization_config`.

    Raises:
        CheckpointError: a value is impossible.
        UnsupportedModel: Limelight does not read this kind.
    """
    for name, kept in (("sparsity_config", ("", "dense")), ("transform_config", ())):
        group = settings.group(name)
        if group is not None and (name == "transform_config" or (group.text("format") or "") not in kept):
            raise UnsupportedModel(
                f"{settings.source}: {name} is set; Limelight reads neither sparse nor rotated weights: "
                "use a repository that is only quantised"
            )
    groups = settings.group("config_groups")
    if groups is None:
        raise CheckpointError(f"{settings.source}: config_groups is missing; it must describe the quantised modules")
    schemes = []
    for name in groups.values:
        group = groups.group(name)
        weights = group.group("weights") if group is not None else None
        if group is not None and weights is not None:
            schemes.append(_scheme(group, weights, group.text("format") or settings.text("format") or ""))
    if not schemes:
        raise CheckpointError(f"{settings.source}: no group of config_groups quantises weights")
    return tuple(schemes)


def _scheme(group: Fields, weights: Fields, format_: str) -> Scheme:
    if format_ not in FORMATS:
        raise UnsupportedModel(
            f"{group.source}: format is {quoted(format_)}; Limelight reads compressed-tensors as {', '.join(FORMATS)}: "
            "use a repository in one of these, the unquantised one, or a GGUF file"
        )
    bits = weights.integer("num_bits", 1, 64, 8)
    type_ = (weights.text("type") or "int").lower()
    allowed = {"pack-quantized": ("int", range(2, 9)), "int-quantized": ("int", range(2, 9))}
    wanted_type, wanted_bits = allowed.get(format_, ("float", range(4, 5) if "fp4" in format_ else range(8, 9)))
    if format_ == "naive-quantized" and type_ == "int":
        wanted_type, wanted_bits = allowed["int-quantized"]
    if type_ != wanted_type or bits not in wanted_bits:
        raise UnsupportedModel(f"{weights.source}: {format_} has weights of type {quoted(type_)} in {bits} bits")
    group_size = weights.integer("group_size", -1, MAX_WIDTH) if "group_size" in weights else None
    block = read_block(weights, "block_structure")
    inferred = "tensor" if group_size is None else "channel" if group_size == -1 else "group"
    strategy = (weights.text("strategy") or ("block" if block else inferred)).lower()
    if strategy not in ("tensor", "channel", "group", "tensor_group", "block"):
        raise UnsupportedModel(
            f"{weights.source}: strategy is {quoted(strategy)}; Limelight knows tensor, channel, group, block"
        )
    grouped = strategy in ("group", "tensor_group")
    if grouped and (group_size is None or group_size < 1):
        raise weights.refusal("group_size", group_size, f"with strategy {strategy} it must be at least 1")
    if strategy == "block" and (block is None or format_ == "pack-quantized"):
        raise weights.refusal("block_structure", block, f"{format_} with strategy block must have unpacked blocks")
    return Scheme(
        targets=_targets(group),
        format=format_,
        bits=bits,
        is_float=type_ == "float",
        symmetric=weights.flag("symmetric", default=True),
        group_size=group_size if grouped else None,
        block=block if strategy == "block" else None,
        by_output=strategy == "channel",
    )


def _targets(group: Fields) -> tuple[str, ...]:
    targets: Any = group.values.get("targets")
    if not isinstance(targets, list) or not all(isinstance(target, str) for target in targets):
        raise group.refusal("targets", targets, "it must be a list of names")
    for target in targets:
        if not target.startswith(PATTERN):
            continue
        pattern = target.removeprefix(PATTERN)
        if len(pattern) > MAX_PATTERN or REPEATED_GROUP.search(pattern):
            raise group.refusal(
                "targets", target, f"a pattern has at most {MAX_PATTERN} characters and repeats no group in brackets"
            )
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError) as error:
            raise group.refusal("targets", target, f"it is no pattern ({error})") from error
    return tuple(targets)
