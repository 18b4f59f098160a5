"""Blocks of every format that the gguf package can read, as bytes and as the values that the package makes of them."""

import gguf
import numpy as np

from limelight.models.gguf.blocks import FORMATS

SCALES_AT = {
    "Q4_0": (0,), "Q4_1": (0, 2), "Q5_0": (0,), "Q5_1": (0, 2), "Q8_0": (0,), "Q2_K": (80, 82), "Q3_K": (108,),
    "Q4_K": (0, 2), "Q5_K": (0, 2), "Q6_K": (208,), "IQ4_NL": (0,), "IQ4_XS": (0,), "MXFP4": (),
}  # fmt: skip
"""Bytes at which a block has its float16 scales."""
FORMAT_OF = {number_format.name: number_format for number_format in FORMATS.values()}
BLOCKED = [name for name, number_format in FORMAT_OF.items() if number_format.block_size > 1]


def random_blocks(name: str, num_blocks: int, random: np.random.Generator) -> np.ndarray:
    """[num_blocks, bytes of a block] uint8: random numbers behind scales from -0.01 to 0.01."""
    raw = random.integers(0, 256, (num_blocks, FORMAT_OF[name].block_bytes), np.uint8)
    for start in SCALES_AT[name]:
        raw[:, start : start + 2] = random.uniform(-0.01, 0.01, (num_blocks, 1)).astype(np.float16).view(np.uint8)
    if name == "MXFP4":
        raw[:, 0] = random.integers(118, 128, num_blocks)
    return raw


def stored(values: np.ndarray, name: str) -> np.ndarray:
    """`values` [..., width] float32 in a format, uint8 [..., bytes]: near to them where the gguf package has a way
    to quantise them, else blocks of random ones.
    """
    kind = gguf.GGMLQuantizationType[name]
    try:
        return gguf.quants.quantize(values, kind).view(np.uint8)
    except NotImplementedError:
        blocks = random_blocks(name, values.size // FORMAT_OF[name].block_size, np.random.default_rng(3))
        return blocks.reshape(*values.shape[:-1], -1)


def values_of(raw: np.ndarray, name: str) -> np.ndarray:
    """What the gguf package reads from bytes of a format."""
    kind = gguf.GGMLQuantizationType[name]
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(raw, kind)
