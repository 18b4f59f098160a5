"""Random prompts: of the length that was asked for, and the same ones for the same seed."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing

from limelight.bench.prompts import WORDS, token_counter, token_prompts, word_prompts
from limelight.errors import ConfigError


def test_prompts_of_tokens_have_the_length_asked_for_and_depend_on_the_seed() -> None:
    drawn = token_prompts(3, 50, prefix_len=7, seed=4)
    assert [len(prompt) for prompt in drawn] == [57, 57, 57]
    assert drawn[0][:7] == drawn[1][:7] == drawn[2][:7]
    assert drawn[0][7:12] != drawn[1][7:12]
    assert drawn == token_prompts(3, 50, prefix_len=7, seed=4)
    assert drawn != token_prompts(3, 50, prefix_len=7, seed=5)


@pytest.mark.parametrize("vocab_size", [30, 258, 1500, 150_000])
def test_token_ids_lie_within_the_vocabulary(vocab_size: int) -> None:
    assert {token_id < vocab_size for token_id in token_prompts(1, 500, vocab_size=vocab_size)[0]} == {True}


def test_prompts_of_words_share_their_prefix() -> None:
    first, second = (prompt.split() for prompt in word_prompts(2, 20, prefix_len=5))
    assert len(first) == len(second) == 25
    assert first[:5] == second[:5]
    assert first != second


@pytest.fixture
def tokenizer_folder(tmp_path: Path) -> Path:
    """Two tokens for the word `people`, and a special one before every text."""
    vocabulary = {word: number for number, word in enumerate([*WORDS, "peo", "ple", "[B]", "[U]"])}
    tokenizer = Tokenizer(WordLevel(vocabulary, unk_token="[U]"))
    tokenizer.pre_tokenizer = Whitespace()
    tokenizer.post_processor = TemplateProcessing(single="[B] $A", special_tokens=[("[B]", vocabulary["[B]"])])
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    return tmp_path


def test_words_are_counted_by_a_tokenizer(tokenizer_folder: Path) -> None:
    for place in (tokenizer_folder, tokenizer_folder / "tokenizer.json"):
        count = token_counter(str(place))
        assert {count(prompt) for prompt in word_prompts(5, 40, prefix_len=3, count_tokens=count)} == {43}


def test_a_wrong_tokenizer_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--tokenizer: there is no file .*tokenizer\.json"):
        token_counter(str(tmp_path))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ConfigError, match="is no tokenizer"):
        token_counter(str(tmp_path))
