"""GGUF metadata -> `TokenizersVocabulary`. The keys are those of ggml's `docs/gguf.md`; nothing in there is trusted.

Two kinds of vocabulary: "gpt2" is byte-level BPE with merges; "llama" is SentencePiece BPE, whose merges follow from
the scores of its pieces.
"""

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tokenizers import AddedToken, Tokenizer, decoders, normalizers
from tokenizers.models import BPE

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.fields import Fields
from limelight.models.gguf.pre_tokenizers import byte_pre_tokenizer
from limelight.models.vocabulary import TokenizersVocabulary

PREFIX = "tokenizer.ggml."
SPACE = "▁"


class TokenKind(enum.IntEnum):
    """`tokenizer.ggml.token_type`, one per token."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


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
        add_bos = pre_tokenizer.add_bos
    elif kind == "llama":
        tokenizer = _sentencepiece_tokenizer(fields, tokens, kinds)
        add_bos = True
    else:
        raise UnsupportedModel(
            f"{PREFIX}model is {kind!r}; Limelight reads gpt2 (byte-level BPE) and llama (SentencePiece BPE)"
        )
    special_token_ids = _add_special_tokens(tokenizer, tokens, kinds)
    return TokenizersVocabulary(
        tokenizer,
        special_token_ids=special_token_ids,
        prefix=_around(fields, "bos_token", len(tokens), default=add_bos),
        suffix=_around(fields, "eos_token", len(tokens), default=False),
        piece_of=_piece_reader(tokens, kinds),
    )


def _byte_level_model(fields: Fields, tokens: Sequence[str], kinds: Sequence[int], *, ignore_merges: bool) -> BPE:
    vocabulary = _vocabulary(tokens, kinds)
    merges: list[tuple[str, str]] = []
    for merge in _strings(fields, "merges"):
        left, _, right = merge.partition(" ")
        if left not in vocabulary or right not in vocabulary or left + right not in vocabulary:
            raise CheckpointError(
                f"{fields.source}: {PREFIX}merges[{len(merges)}] is {merge!r}; it must be two tokens of the "
                "vocabulary whose concatenation is a token too"
            )
        merges.append((left, right))
    return BPE(vocab=vocabulary, merges=merges, ignore_merges=ignore_merges)


def _sentencepiece_tokenizer(fields: Fields, tokens: Sequence[str], kinds: Sequence[int]) -> Tokenizer:
    """SentencePiece as its converters write it: spaces become ▁, unknown characters fall back to bytes."""
    vocabulary = _vocabulary(tokens, kinds)
    unknown = next((token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenKind.UNKNOWN), None)
    has_bytes = all(f"<0x{byte:02X}>" in vocabulary for byte in range(256))
    tokenizer = Tokenizer(
        BPE(
            vocab=vocabulary,
            merges=_merges_by_score(tokens, kinds, _scores(fields, len(tokens))),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=has_bytes,
        )
    )
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    if fields.flag(f"{PREFIX}add_space_prefix", default=True):
        steps.insert(0, normalizers.Prepend(SPACE))
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def _merges_by_score(tokens: Sequence[str], kinds: Sequence[int], scores: Sequence[float]) -> list[tuple[str, str]]:
    """Every way to put a normal piece together from two, best piece first.

    SentencePiece merges the pair whose result has the highest score, the leftmost of equals. Pairs with the same result
    have the same score, so their order among each other can only matter where two of them overlap.
    """
    ranked = sorted(
        (-score, token_id)
        for token_id, (kind, score) in enumerate(zip(kinds, scores, strict=True))
        if kind == TokenKind.NORMAL
    )
    normal = {tokens[token_id] for _, token_id in ranked}
    return [
        (left, right)
        for _, token_id in ranked
        for piece in (tokens[token_id],)
        for cut in range(1, len(piece))
        if (left := piece[:cut]) in normal and (right := piece[cut:]) in normal
    ]


def _vocabulary(tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, int]:
    """Written form -> id. Of equal ones the first counts: the others are never produced, only read."""
    used = [(token, token_id) for token_id, token in enumerate(tokens) if kinds[token_id] != TokenKind.UNUSED]
    return dict(reversed(used))


def _add_special_tokens(tokenizer: Tokenizer, tokens: Sequence[str], kinds: Sequence[int]) -> list[int]:
    """Lets control and user-defined tokens match as a whole; returns the ids of those that are special."""
    special = [i for i, kind in enumerate(kinds) if kind in (TokenKind.CONTROL, TokenKind.UNKNOWN)]
    user_defined = [i for i, kind in enumerate(kinds) if kind == TokenKind.USER_DEFINED]
    tokenizer.add_special_tokens([AddedToken(tokens[i], special=True, normalized=False) for i in special])
    tokenizer.add_tokens([AddedToken(tokens[i], special=False, normalized=False) for i in user_defined])
    return special


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
    if not isinstance(values, list) or not values or not all(isinstance(value, str) for value in values):
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
    if not isinstance(values, list) or len(values) != num_tokens or not all(isinstance(v, int | float) for v in values):
        raise CheckpointError(f"{fields.source}: {PREFIX}scores must hold one number for each of {num_tokens} tokens")
    return values
