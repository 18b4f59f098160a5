"""Forms over a vocabulary that puts a space before a text: the space is the tokenizer's, not the form's."""

import random

import pytest

from limelight.generation import SamplingParams
from limelight.models.constraints.compiling import ConstraintCompiler
from limelight.models.constraints.token_table import unpacked
from limelight.models.text.sentencepiece_bpe import SPACE, SentencePieceModel, TokenKind, sentencepiece_tokenizer
from limelight.models.text.vocabulary import TokenizersVocabulary
from limelight.structured_outputs import StructuredOutputsParams

WORDS = [
    "true",
    "false",
    "yes",
    "no",
    '{"',
    '":',
    "name",
    SPACE + "yes",
    SPACE + "the",
    SPACE,
    SPACE * 2,
    "ye",
    "es",
    "s",
    "y",
    "e",
]
PIECES = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
KINDS = [
    TokenKind.UNKNOWN,
    TokenKind.CONTROL,
    TokenKind.CONTROL,
    *[TokenKind.BYTE] * 256,
    *[TokenKind.NORMAL] * len(WORDS),
]
END = 2
SIZE = len(PIECES)


@pytest.fixture(scope="module", params=["in the tokenizer", "before the text"])
def vocabulary(request):
    inside = request.param == "in the tokenizer"
    scores = [0.0] * 259 + [-float(number) for number in range(len(WORDS))]
    model = SentencePieceModel(pieces=PIECES, kinds=KINDS, scores=scores, add_space_prefix=inside)
    return TokenizersVocabulary(
        sentencepiece_tokenizer(model), special_token_ids=(0, 1, 2), text_prefix="" if inside else SPACE
    )


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "boolean"}},
    "required": ["name"],
    "additionalProperties": False,
}
FORMS = [
    ({"json": SCHEMA, "disable_any_whitespace": True}, {'{"name":true}', '{"name":false}'}),
    ({"choice": ["yes", "no the yes"]}, {"yes", "no the yes"}),
    ({"regex": " yes  no"}, {" yes  no"}),
]


@pytest.mark.parametrize(("params", "outputs"), FORMS)
def test_forms_begin_where_they_say(vocabulary, params, outputs):
    compiler = ConstraintCompiler(vocabulary, SIZE, frozenset({END}))
    constraints = compiler.compile(SamplingParams(structured_outputs=StructuredOutputsParams(**params)), None)
    found = set()
    for seed in range(30):
        chance, constraint, drawn = random.Random(seed), constraints.begin(), []
        while True:
            token_id = chance.choice(unpacked(constraint.mask(), SIZE).nonzero()[0].tolist())
            if token_id == END:
                break
            drawn.append(token_id)
            constraint.advance([token_id])
        found.add(b"".join(map(vocabulary.token_bytes, drawn)).decode())
    assert found == outputs
