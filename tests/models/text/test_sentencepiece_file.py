"""A folder with nothing but `tokenizer.model` gives the tokens of the SentencePiece library."""

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
from hypothesis import given
from hypothesis import strategies as st

from limelight.errors import CheckpointError
from limelight.models.text.sentencepiece_file import read_sentencepiece_file
from limelight.models.text.vocabulary import TokenizersVocabulary, load_vocabulary
from tests.models.text.hard_strings import HARD_STRINGS
from tests.models.text.sentencepiece_models import TRAINING, trained, without_special_tokens

SYMBOLS = ["<x>", "\n", "\n\n", "▁▁", "▁▁▁", "▁▁▁▁", "the", "12"]
"""User-defined pieces in the manner of Gemma's."""
MODELS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "prefix": ({}, {}),
    "prefix once": ({}, {"legacy": False}),
    "no prefix": ({"add_dummy_prefix": False}, {}),
    "spaces removed": ({"remove_extra_whitespaces": True}, {}),
    "spaces removed, no prefix": ({"remove_extra_whitespaces": True, "add_dummy_prefix": False}, {}),
    "user-defined": ({"add_dummy_prefix": False, "user_defined_symbols": SYMBOLS}, {}),
    "user-defined, prefix once": ({"user_defined_symbols": SYMBOLS}, {"legacy": False}),
    "no bytes": ({"byte_fallback": False, "vocab_size": 300}, {}),
}
"""Options of the trainer, and `tokenizer_config.json`."""


def write(folder: Path, model: bytes, config: dict[str, Any]) -> Path:
    (folder / "tokenizer.model").write_bytes(model)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture(scope="module", params=MODELS)
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[TokenizersVocabulary, sentencepiece.SentencePieceProcessor]:
    options, config = MODELS[request.param]
    model = trained(**options)
    folder = write(tmp_path_factory.mktemp("model"), model, config)
    assert read_sentencepiece_file(folder / "tokenizer.model") is not None
    return load_vocabulary(folder), sentencepiece.SentencePieceProcessor(model_proto=model)


def test_hard_texts_have_the_tokens_of_the_original(
    both: tuple[TokenizersVocabulary, sentencepiece.SentencePieceProcessor],
) -> None:
    vocabulary, original = both
    for text in [*HARD_STRINGS, *TRAINING[:7], "  <x> the  <x>12 \n\n\n the\n"]:
        text = without_special_tokens(text)
        assert vocabulary.encode(text, add_special_tokens=False) == original.encode(text), text


@given(text=st.text(st.sampled_from(list("aabbthe  \n▁<x>12.é日😀\u200d\x00")), max_size=30))
def test_any_text_has_the_tokens_of_the_original(
    text: str, both: tuple[TokenizersVocabulary, sentencepiece.SentencePieceProcessor]
) -> None:
    vocabulary, original = both

    assert vocabulary.encode(text, add_special_tokens=False) == original.encode(text)


@pytest.mark.parametrize(
    ("config", "num_bos", "num_eos"),
    [
        ({}, 1, 0),
        ({"add_bos_token": False}, 0, 0),
        ({"add_bos_token": True, "add_eos_token": True}, 1, 1),
        ({"bos_token": "<s>", "eos_token": "</s>"}, 1, 0),
    ],
)
def test_bos_is_added_unless_the_settings_say_no(
    tmp_path: Path, config: dict[str, Any], num_bos: int, num_eos: int
) -> None:
    vocabulary = load_vocabulary(write(tmp_path, trained(), config))

    ids = vocabulary.encode("the fox", add_special_tokens=True)

    assert (ids.count(1), ids.count(2)) == (num_bos, num_eos)
    assert vocabulary.eos_token_ids == {2}


@pytest.mark.parametrize(("legacy", "expected"), [(True, " fox"), (False, "fox")])
def test_what_follows_a_special_token_has_a_prefix_in_the_old_way_only(
    tmp_path: Path, legacy: bool, expected: str
) -> None:
    vocabulary = load_vocabulary(write(tmp_path, trained(), {"legacy": legacy}))

    ids = vocabulary.encode("<s>fox</s>fox", add_special_tokens=False)

    assert vocabulary.decode(ids) == expected * 2


@pytest.mark.parametrize(
    "options",
    [
        {"model_type": "unigram", "vocab_size": 340},
        {"normalization_rule_name": "nmt_nfkc"},
        {"treat_whitespace_as_suffix": True},
    ],
    ids=["unigram", "normalised", "suffix"],
)
def test_models_of_other_rules_are_left_to_transformers(tmp_path: Path, options: dict[str, Any]) -> None:
    (tmp_path / "tokenizer.model").write_bytes(trained(**options))

    assert read_sentencepiece_file(tmp_path / "tokenizer.model") is None


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\x0a",
        b"\x0a\xff\xff\xff\xff\x7f",
        b"\xff" * 30,
        b"\x0b",
        b"\x0a\x02\x0a\x05",
        b"\x0a\x03\x0a\x01\xff",
        b"\x08\x01",
        b"\x0a\x02\x08\x01",
        b"\x0a\x02\x10\x01",
        b"\x0a\x04\x1a\x02ab",
        b"\x0a\x06\x0a\x01a\x12\x01b",
        b"\x0a\x0c\x0a\x01a\x11abcdefgh",
        b"\x0a\x08\x0a\x01a\x15\x00\x00\xc0\x7f",
        b"not a model at all",
    ],
)
def test_a_malformed_file_is_a_fault_of_the_model(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(content)

    with pytest.raises(CheckpointError, match="not a SentencePiece model"):
        read_sentencepiece_file(tmp_path / "tokenizer.model")


@given(cut=st.integers(0, 4000), changed=st.integers(0, 255))
def test_a_damaged_file_is_read_or_refused(cut: int, changed: int, damaged: tuple[Path, bytes]) -> None:
    path, model = damaged
    path.write_bytes(model[:cut] + bytes([changed]) + model[cut + 1 :])
    with suppress(CheckpointError):
        read_sentencepiece_file(path)


@pytest.fixture(scope="module")
def damaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, bytes]:
    return tmp_path_factory.mktemp("damaged") / "tokenizer.model", trained()
