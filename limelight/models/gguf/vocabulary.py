"""GGUF metadata -> `TokenizersVocabulary`. The keys are those of ggml's `docs/gguf.md`; nothing in there is trusted.

Two kinds of vocabulary: "gpt2" is byte-level BPE with merges; "llama" is SentencePiece BPE, whose merges follow from
the scores of its pieces.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.fields import Fields
from limelight.models.gguf.pre_tokenizers import byte_pre_tokenizer
from limelight.models.text.sentencepiece_bpe import (
    SentencePieceModel,
    TokenKind,
    add_whole_tokens,
    first_ids,
    sentencepiece_tokenizer,
)
from limelight.models.text.vocabulary import TokenizersVocabulary
from limelight.quoting import quoted

PREFIX = "tokenizer.ggml."
PHI3_KEEPING = frozenset({"<unk>", "<s>", "<|endoftext|>"})


def vocabulary_from_gguf(metadata: Mapping[str, Any]) -> TokenizersVocabulary:
    """The vocabulary that the file's metadata describe; its tokens are those of the original tokenizer.

    Control tokens are special; they and user-defined tokens are recognised as a whole when written out in a text.
    Unused tokens (the padding of a vocabulary) have no text.

    Raises:
        CheckpointError: a value is missing, or contradicts another one.
        UnsupportedModel: the kind of vocabulary, or its pre-tokenizer, is not known here.
    """
    fields = Fields(metadata, "GGUF metadata")
    kind = fields.text(f"{PREFIX}model")
    tokens = _strings(fields, "tokens")
    kinds = _kinds(fields, len(tokens))
    if kind == "gpt2":
        pre_tokenizer = byte_pre_tokenizer(fields.text(f"{PREFIX}pre") or "default")
        tokenizer = Tokenizer(_byte_level_model(fields, tokens, kinds, ignore_merges=pre_tokenizer.ignore_merges))
        tokenizer.pre_tokenizer = pre_tokenizer.pre_tokenizer()
        if (normalizer := pre_tokenizer.normalizer()) is not None:
            tokenizer.normalizer = normalizer
        tokenizer.decoder = decoders.ByteLevel()
        add_whole_tokens(tokenizer, tokens, kinds)
        add_bos = pre_tokenizer.add_bos
    elif kind == "llama":
        tokenizer = sentencepiece_tokenizer(_sentencepiece_model(fields, tokens, kinds))
        add_bos = True
    else:
        raise UnsupportedModel(
            f"{PREFIX}model is {quoted(kind)}; Limelight reads gpt2 (byte-level BPE) and llama (SentencePiece BPE)"
        )
    return TokenizersVocabulary(
        tokenizer,
        special_token_ids=[i for i, kind in enumerate(kinds) if kind in (TokenKind.CONTROL, TokenKind.UNKNOWN)],
        prefix=_around(fields, "bos_token", len(tokens), default=add_bos),
        suffix=_around(fields, "eos_token", len(tokens), default=False),
        piece_of=_piece_reader(tokens, kinds),
    )


def _byte_level_model(fields: Fields, tokens: Sequence[str], kinds: Sequence[int], *, ignore_merges: bool) -> BPE:
    vocabulary = first_ids(tokens, kinds)
    merges: list[tuple[str, str]] = []
    for merge in _strings(fields, "merges"):
        left, _, right = merge.partition(" ")
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise CheckpointError(
                f"{fields.source}: {PREFIX}merges[{len(merges)}] is {quoted(merge)}; it must be two tokens of the "
                "vocabulary whose concatenation is a token too"
            )
        merges.append((left, right))
    return BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore_merges)


def _sentencepiece_model(fields: Fields, tokens: Sequence[str], kinds: Sequence[int]) -> SentencePieceModel:
    # Phi-3's special tokens take the spaces after them, all but these; no file says so.
    phi3 = fields.text("general.architecture") == "phi3"
    return SentencePieceModel(
        pieces=tokens,
        kinds=kinds,
        scores=_scores(fields, len(tokens)),
        add_space_prefix=fields.flag(f"{PREFIX}add_space_prefix", default=True),
        remove_extra_whitespaces=fields.flag(f"{PREFIX}remove_extra_whitespaces", default=False),
        stripping={t for t, k in zip(tokens, kinds, strict=True) if k == TokenKind.CONTROL} - PHI3_KEEPING
        if phi3
        else (),
    )


def _piece_reader(tokens: Sequence[str], kinds: Sequence[int]) -> Callable[[int], str | None]:
    def piece_of(token_id: int) -> str | None:
        if token_id >= len(tokens) or kinds[token_id] == TokenKind.UNUSED:
            return None
        return tokens[token_id]

    return piece_of


def _around(fields: Fields, name: str, num_tokens: int, *, default: bool) -> list[int]:
    """The token to put before or after a text, if the file wants one there and has it."""
    if not fields.flag(f"{PREFIX}add_{name}", default=default):
        return []
    return sorted(fields.token_ids(f"{PREFIX}{name}_id", num_tokens))[:1]


def _strings(fields: Fields, name: str) -> list[str]:
    values = fields.values.get(f"{PREFIX}{name}")
    if not isinstance(values, list) or not values or set(map(type, values)) != {str}:
        raise CheckpointError(f"{fields.source}: {PREFIX}{name} must be a non-empty list of strings")
    return values


def _kinds(fields: Fields, num_tokens: int) -> list[int]:
    values = fields.values.get(f"{PREFIX}token_type")
    if values is None:
        return [TokenKind.NORMAL] * num_tokens
    if not isinstance(values, list) or len(values) != num_tokens:
        raise CheckpointError(
            f"{fields.source}: {PREFIX}token_type must hold one number for each of {num_tokens} tokens"
        )
    return values


def _scores(fields: Fields, num_tokens: int) -> list[float]:
    values = fields.values.get(f"{PREFIX}scores")
    if not isinstance(values, list) or len(values) != num_tokens or not set(map(type, values)) <= {int, float}:
        raise CheckpointError(f"{fields.source}: {PREFIX}scores must hold one number for each of {num_tokens} tokens")
    return values
