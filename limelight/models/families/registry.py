"""All families, and which one a model belongs to."""

from limelight.models.families.family import Family
from limelight.models.families.gemma import GEMMA1, GEMMA2, GEMMA3, GEMMA3_TEXT_PART
from limelight.models.families.gpt_oss import GPT_OSS
from limelight.models.families.llama import LLAMA, MISTRAL
from limelight.models.families.phi import PHI3
from limelight.models.families.qwen import QWEN2, QWEN3
from limelight.models.families.qwen_moe import QWEN2_MOE, QWEN3_MOE

FAMILIES: tuple[Family, ...] = (
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    GEMMA1,
    GEMMA2,
    GEMMA3,
    GEMMA3_TEXT_PART,
    PHI3,
    QWEN2_MOE,
    QWEN3_MOE,
    GPT_OSS,
)

_BY_ARCHITECTURE = {architecture: family for family in FAMILIES for architecture in family.architectures}
ARCHITECTURES = tuple(_BY_ARCHITECTURE)
"""`model_type`s that Limelight runs with layers of its own."""


def family_of(architecture: str) -> Family:
    """The family of one of `ARCHITECTURES`."""
    return _BY_ARCHITECTURE[architecture]
