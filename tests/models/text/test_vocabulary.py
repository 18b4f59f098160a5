"""Vocabularies of model folders: exact bytes per token, special tokens whole, clear refusals."""

import json
import subprocess
import sys
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from limelight.errors import CheckpointError, InvalidRequest, UnsupportedModel
from limelight.models.text.detokenizer import Detokenizer
from limelight.models.text.token_pieces import byte_level_alphabet
from limelight.models.text.vocabulary import TokenizersVocabulary, load_vocabulary

HARD_TEXTS = [
    "",
    " ",
    "a    b  c ",
    "  leading",
    "def f(x):\n        return x\n\n\tpass\r\n",
    "👩\u200d🚀 and 😀😀 ď你",
    "e\u0301 é Å Å",
    "\x00\x01\x7f\u200b\ufeff",
    "12 345,678 ½ ² ٣",
    "<|end|> <|END|> <| end|><s>",
    "don't DON'T we'LL",
    "日本語のテキスト مرحبا हिन्दी",
    "\U0010ffff\ud7ff\ue000",
]
MERGES = [("t", "h"), ("th", "e"), ("Ġ", "the"), ("Ġ", "Ġ"), ("Ã", "©"), ("ð", "Ł")]


def byte_level_tokenizer() -> Tokenizer:
    alphabet = byte_level_alphabet()
    pieces = [*alphabet, *("".join(merge) for merge in MERGES)]
    tokenizer = Tokenizer(models.BPE(vocab={piece: index for index, piece in enumerate(pieces)}, merges=MERGES))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken("<|end|>", special=True, normalized=False)])
    tokenizer.add_tokens([AddedToken("<thïnk>", special=False, normalized=False)])
    return tokenizer


def sentencepiece_tokenizer() -> Tokenizer:
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *"▁abtheé",
        "▁a",
        "th",
        "the",
        "▁the",
    ]
    merges = [("▁", "a"), ("t", "h"), ("th", "e"), ("▁", "the")]
    vocabulary = {piece: index for index, piece in enumerate(pieces)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges, unk_token="<unk>", byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in pieces[:3]])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return tokenizer


def metaspace_tokenizer() -> Tokenizer:
    tokenizer = sentencepiece_tokenizer()
    tokenizer.normalizer = normalizers.Sequence([])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="first")])
    return tokenizer


def wordpiece_tokenizer() -> Tokenizer:
    pieces = ["[UNK]", "the", "##re", "is", ".", ",", "n't", "do", "##n"]
    tokenizer = Tokenizer(models.WordPiece({piece: index for index, piece in enumerate(pieces)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(cleanup=True)
    return tokenizer


def word_tokenizer() -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "the": 1, "end": 2}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return tokenizer


KINDS = {
    "byte level": byte_level_tokenizer,
    "sentencepiece": sentencepiece_tokenizer,
    "metaspace": metaspace_tokenizer,
    "wordpiece": wordpiece_tokenizer,
    "words": word_tokenizer,
}


def folder_with(folder: Path, tokenizer: Tokenizer, files: Mapping[str, object] | None = None) -> Path:
    tokenizer.save(str(folder / "tokenizer.json"))
    for name, content in (files or {}).items():
        (folder / name).write_text(json.dumps(content), encoding="utf-8")
    return folder


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60)
@given(data=st.data())
def test_the_text_after_a_prompt_is_the_library_decode_of_both_minus_that_of_the_prompt(
    kind: str, data: st.DataObject
) -> None:
    tokenizer = KINDS[kind]()
    library = KINDS[kind]()
    vocabulary = TokenizersVocabulary(tokenizer)
    ordinary = [
        i for i in range(vocabulary.size) if not vocabulary.is_special(i) and vocabulary.token_bytes(i).isascii()
    ]
    ids = st.lists(st.sampled_from(ordinary), min_size=1, max_size=12)
    prompt, output = data.draw(ids), data.draw(ids)
    detokenizer = Detokenizer(vocabulary, skip_special_tokens=True)

    text = "".join(detokenizer.feed(token_id) for token_id in output) + detokenizer.flush()

    assert library.decode(prompt) + text == library.decode([*prompt, *output])


@pytest.mark.parametrize("kind", ["byte level", "sentencepiece", "metaspace"])
@pytest.mark.parametrize("text", HARD_TEXTS)
def test_decoding_gives_the_encoded_text_back(kind: str, text: str) -> None:
    vocabulary = TokenizersVocabulary(KINDS[kind]())
    token_ids = vocabulary.encode(text, add_special_tokens=False)

    decoded = vocabulary.decode(token_ids, skip_special_tokens=False)

    if kind == "byte level" or not text:
        assert decoded == text
    else:  # the space before the first word, and after each control token, is part of the tokens
        assert decoded.replace(" ", "") == text.replace(" ", "")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_long_texts_are_encoded_like_short_ones(kind: str, add_special_tokens: bool) -> None:
    text = " the end.\n" * 500

    token_ids = TokenizersVocabulary(KINDS[kind]()).encode(text, add_special_tokens=add_special_tokens)

    assert token_ids == KINDS[kind]().encode(text, add_special_tokens=add_special_tokens).ids


def test_many_threads_may_encode_at_once() -> None:
    vocabulary = TokenizersVocabulary(byte_level_tokenizer())
    texts = [f"the {number} " * (1 + 40 * (number % 20)) for number in range(200)]

    with ThreadPoolExecutor(8) as threads:
        together = list(threads.map(lambda text: vocabulary.encode(text, add_special_tokens=False), texts))

    assert together == [vocabulary.encode(text, add_special_tokens=False) for text in texts]


def test_each_byte_has_a_token_with_exactly_that_byte() -> None:
    for kind in (byte_level_tokenizer, sentencepiece_tokenizer):
        vocabulary = TokenizersVocabulary(kind())
        single = {vocabulary.token_bytes(token_id) for token_id in range(vocabulary.size)}

        assert {bytes([byte]) for byte in range(256)} <= single


def test_sentencepiece_bytes_and_spaces() -> None:
    vocabulary = TokenizersVocabulary(sentencepiece_tokenizer())
    ids = vocabulary.encode("the 😀", add_special_tokens=False)

    assert [vocabulary.token_bytes(i) for i in ids] == [b" the", b" ", b"\xf0", b"\x9f", b"\x98", b"\x80"]


def test_an_added_token_of_a_byte_level_model_is_literal() -> None:
    vocabulary = TokenizersVocabulary(byte_level_tokenizer())
    (token_id,) = vocabulary.encode("<thïnk>", add_special_tokens=False)

    assert vocabulary.token_bytes(token_id) == "<thïnk>".encode()
    assert not vocabulary.is_special(token_id)


@pytest.mark.parametrize("token_id", [-1, 300, 50_000, 2**32, 2**70])
def test_ids_beyond_the_tokenizer_have_no_text(token_id: int) -> None:
    vocabulary = TokenizersVocabulary(byte_level_tokenizer())

    assert vocabulary.token_bytes(token_id) == b""
    assert not vocabulary.is_special(token_id)
    assert vocabulary.decode([token_id]) == ""


def test_special_tokens_are_left_out_unless_asked_for() -> None:
    vocabulary = TokenizersVocabulary(byte_level_tokenizer())
    ids = vocabulary.encode("the<|end|> the", add_special_tokens=False)

    assert vocabulary.decode(ids) == "the the"
    assert vocabulary.decode(ids, skip_special_tokens=False) == "the<|end|> the"


def test_invalid_bytes_become_replacement_characters() -> None:
    vocabulary = TokenizersVocabulary(byte_level_tokenizer())
    raw = b"a\xf0\x9fb\xa7 \xff"
    ids = [next(i for i in range(256) if vocabulary.token_bytes(i) == bytes([byte])) for byte in raw]

    assert vocabulary.decode(ids) == raw.decode("utf-8", errors="replace")


@pytest.mark.parametrize("text", ["\ud800", "a\udfff", "x" * 5000 + "\ud83d"])
def test_lone_surrogates_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest, match=f"surrogate.*character {len(text) - 1}"):
        TokenizersVocabulary(byte_level_tokenizer()).encode(text, add_special_tokens=False)


def test_truncation_and_padding_of_the_file_are_switched_off(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.enable_truncation(2)
    tokenizer.enable_padding(length=50)

    vocabulary = load_vocabulary(folder_with(tmp_path, tokenizer))

    assert vocabulary.decode(vocabulary.encode("the end of it", add_special_tokens=True)) == "the end of it"


@pytest.mark.parametrize(
    ("decoder", "name"),
    [
        (decoders.BPEDecoder(), "BPEDecoder"),
        (decoders.CTC(), "CTC"),
        (decoders.Sequence([decoders.Strip(" ", 1, 0), decoders.Fuse()]), "Strip"),
        (decoders.Sequence([decoders.Fuse(), decoders.Strip(" ", 0, 1)]), "Strip"),
        (decoders.Replace(Regex("a+"), "b"), "Replace"),
    ],
)
def test_decoders_without_bytes_per_token_are_refused_by_name(tmp_path: Path, decoder: Any, name: str) -> None:
    tokenizer = byte_level_tokenizer()
    tokenizer.decoder = decoder

    with pytest.raises(UnsupportedModel, match=name):
        load_vocabulary(folder_with(tmp_path, tokenizer))


BOS = {"bos_token": "<|end|>", "eos_token": {"content": "<|end|>"}}


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({}, "the"),
        ({**BOS, "add_bos_token": False}, "the"),
        ({**BOS, "add_bos_token": True}, "<|end|>the"),
        ({**BOS, "add_eos_token": True}, "the<|end|>"),
        ({"bos_token": "<missing>", "add_bos_token": True}, "the"),
        ({"add_bos_token": True}, "the"),
    ],
)
def test_the_configuration_adds_bos_and_eos_where_the_tokenizer_does_not(
    tmp_path: Path, config: Mapping[str, object], expected: str
) -> None:
    vocabulary = load_vocabulary(folder_with(tmp_path, byte_level_tokenizer(), {"tokenizer_config.json": config}))

    ids = vocabulary.encode("the", add_special_tokens=True)

    assert vocabulary.decode(ids, skip_special_tokens=False) == expected
    assert vocabulary.decode(vocabulary.encode("the", add_special_tokens=False), skip_special_tokens=False) == "the"


@pytest.mark.parametrize("add_bos_token", [True, False])
def test_a_tokenizer_that_adds_bos_adds_exactly_one(tmp_path: Path, add_bos_token: bool) -> None:
    config = {"bos_token": "<s>", "add_bos_token": add_bos_token}
    vocabulary = load_vocabulary(folder_with(tmp_path, sentencepiece_tokenizer(), {"tokenizer_config.json": config}))

    assert vocabulary.encode("the", add_special_tokens=True).count(1) == 1
    assert vocabulary.encode("the", add_special_tokens=False).count(1) == 0


def test_named_tokens_of_the_vocabulary_are_special_and_whole(tmp_path: Path) -> None:
    config = {"pad_token": "Ġthe", "additional_special_tokens": ["th", {"content": "nowhere"}]}
    vocabulary = load_vocabulary(folder_with(tmp_path, byte_level_tokenizer(), {"tokenizer_config.json": config}))

    (token_id,) = vocabulary.encode("th", add_special_tokens=False)

    assert vocabulary.is_special(token_id)
    assert vocabulary.encode("nowhere", add_special_tokens=False) == TokenizersVocabulary(
        byte_level_tokenizer()
    ).encode("nowhere", add_special_tokens=False)


def test_configured_tokens_that_the_tokenizer_lacks_are_added(tmp_path: Path) -> None:
    size = byte_level_tokenizer().get_vocab_size()
    config = {"added_tokens_decoder": {str(size): {"content": "<tool>", "special": True, "normalized": False}}}
    vocabulary = load_vocabulary(folder_with(tmp_path, byte_level_tokenizer(), {"tokenizer_config.json": config}))

    assert vocabulary.encode("<tool>", add_special_tokens=False) == [size]
    assert vocabulary.is_special(size)


@pytest.mark.parametrize(
    "config",
    [
        {"added_tokens_decoder": {"5000": {"content": "<tool>"}}},
        {"added_tokens_decoder": {"x": {"content": "<tool>"}}},
        {"added_tokens_decoder": {"1": {"special": True}}},
        {"added_tokens_decoder": {"1": "a"}},
        {"added_tokens_decoder": 7},
        {"add_bos_token": "yes"},
    ],
)
def test_impossible_settings_are_faults_of_the_model(tmp_path: Path, config: Mapping[str, object]) -> None:
    folder = folder_with(tmp_path, byte_level_tokenizer(), {"tokenizer_config.json": config})

    with pytest.raises(CheckpointError, match="add"):
        load_vocabulary(folder)


@pytest.mark.parametrize("content", ["", "{", "{}", '{"model": 7}', "\x00"])
def test_a_corrupt_tokenizer_is_a_fault_of_the_model(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)

    with pytest.raises(CheckpointError, match=r"tokenizer\.json is not a usable tokenizer"):
        load_vocabulary(tmp_path)


def test_a_folder_without_a_tokenizer_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no tokenizer\.json"):
        load_vocabulary(tmp_path)


def test_vocabulary_and_merges_files_are_converted(tmp_path: Path) -> None:
    pieces = [*byte_level_alphabet(), *("".join(merge) for merge in MERGES), "<|endoftext|>"]
    (tmp_path / "vocab.json").write_text(json.dumps({piece: index for index, piece in enumerate(pieces)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "\n".join(" ".join(merge) for merge in MERGES))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))

    vocabulary = load_vocabulary(tmp_path)

    assert vocabulary.encode(" the é", add_special_tokens=False) == TokenizersVocabulary(byte_level_tokenizer()).encode(
        " the é", add_special_tokens=False
    )


def test_a_corrupt_file_that_transformers_cannot_convert_is_a_fault_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text("{")
    (tmp_path / "merges.txt").write_text("")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gpt2"}))

    with pytest.raises(CheckpointError, match="cannot convert"):
        load_vocabulary(tmp_path)


def test_the_text_modules_import_neither_torch_nor_transformers() -> None:
    names = ["text.vocabulary", "gguf.vocabulary", "text.chat_format", "text.detokenizer", "text.stop_matcher"]
    program = f"import sys, {', '.join(f'limelight.models.{name}' for name in names)}; print(*sys.modules)"

    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()

    assert {"tokenizers", "jinja2"} <= set(loaded)
    assert not {"torch", "transformers"} & set(loaded)
