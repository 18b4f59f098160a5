"""A SentencePiece BPE model -> a `tokenizers.Tokenizer` with the same tokens. Knows no file format.

SentencePiece (Kudo and Richardson 2018) merges over the whole text, spaces written as ▁, the pair with the best score
first; characters that it has no piece for become bytes. User-defined pieces are cut out first and never merged.
"""

import enum
from collections.abc import Container, Sequence

import msgspec
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers
from tokenizers.models import BPE

SPACE = "▁"


class TokenKind(enum.IntEnum):
    """What a token is for, by the numbers of SentencePiece's `ModelProto.SentencePiece.Type` and of GGUF."""

    NORMAL = 1
    UNKNOWN = 2
    CONTROL = 3
    USER_DEFINED = 4
    UNUSED = 5
    BYTE = 6


class SentencePieceModel(msgspec.Struct, frozen=True, kw_only=True):
    """What decides about the tokens of a text.

    Attributes:
        pieces, kinds, scores: by token id; the kinds are `TokenKind`s. A better piece has a higher score.
        add_space_prefix: a text, and what follows a special or user-defined token in it, begins with a space more.
        remove_extra_whitespaces: no spaces at either end of a text, and one for several between its words.
        stripping: special tokens that take the spaces after them.
    """

    pieces: Sequence[str]
    kinds: Sequence[int]
    scores: Sequence[float]
    add_space_prefix: bool = True
    remove_extra_whitespaces: bool = False
    stripping: Container[str] = ()


def sentencepiece_tokenizer(model: SentencePieceModel) -> Tokenizer:
    """The tokenizer, with the special and the user-defined tokens that a text may have written out."""
    vocabulary = first_ids(model.pieces, model.kinds)
    unknown = next((p for p, kind in zip(model.pieces, model.kinds, strict=True) if kind == TokenKind.UNKNOWN), None)
    tokenizer = Tokenizer(
        BPE(
            vocab=vocabulary,
            merges=_merges_by_score(model),
            unk_token=unknown,
            fuse_unk=True,
            byte_fallback=all(f"<0x{byte:02X}>" in vocabulary for byte in range(256)),
        )
    )
    tokenizer.normalizer = _normalizer(model)
    tokenizer.decoder = decoders.Sequence([decoders.Replace(SPACE, " "), decoders.ByteFallback(), decoders.Fuse()])
    # With a normalized token, runs of spaces are found where ▁ stands for them. A prefix would be put before the token.
    normalized = not (model.add_space_prefix or model.remove_extra_whitespaces)
    add_whole_tokens(tokenizer, model.pieces, model.kinds, normalized=normalized, stripping=model.stripping)
    return tokenizer


def first_ids(tokens: Sequence[str], kinds: Sequence[int]) -> dict[str, int]:
    """Written form -> id, unused tokens left out. Of equal ones the first counts: the others are only ever read."""
    vocabulary = dict(zip(reversed(tokens), range(len(tokens) - 1, -1, -1), strict=True))
    for token_id, kind in enumerate(kinds):
        if kind == TokenKind.UNUSED and vocabulary.get(tokens[token_id]) == token_id:
            del vocabulary[tokens[token_id]]
    return vocabulary


def add_whole_tokens(
    tokenizer: Tokenizer,
    tokens: Sequence[str],
    kinds: Sequence[int],
    *,
    normalized: bool = False,
    stripping: Container[str] = (),
) -> None:
    """Lets control, unknown and user-defined tokens match as a whole where a text has them written out.

    Args:
        normalized: user-defined tokens are looked for in the normalised text; the others in the text as it is, always.
        stripping: the tokens that take the spaces after them.
    """
    tokenizer.add_tokens(
        [
            AddedToken(
                token,
                special=kind != TokenKind.USER_DEFINED,
                normalized=normalized and kind == TokenKind.USER_DEFINED,
                rstrip=token in stripping,
            )
            for token, kind in zip(tokens, kinds, strict=True)
            if kind in (TokenKind.CONTROL, TokenKind.UNKNOWN, TokenKind.USER_DEFINED)
        ]
    )


def _normalizer(model: SentencePieceModel) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = [normalizers.Replace(" ", SPACE)]
    if model.add_space_prefix:
        steps.insert(0, normalizers.Prepend(SPACE))
    if model.remove_extra_whitespaces:
        # At the end, and only there, the sign for a space counts as one.
        extra = [normalizers.Replace(Regex(r"\A +"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
        steps = [*extra, *steps, normalizers.Replace(Regex(rf"{SPACE}+\z"), "")]
    return normalizers.Sequence(steps)


def _merges_by_score(model: SentencePieceModel) -> list[tuple[str, str]]:
    """Every way to put a normal piece together from two, best piece first.

    SentencePiece merges the pair whose result has the highest score, the leftmost of equals. Pairs with the same result
    have the same score, so their order among each other can only matter where two of them overlap.
    """
    normal_ids = [token_id for token_id, kind in enumerate(model.kinds) if kind == TokenKind.NORMAL]
    normal_ids.sort(key=model.scores.__getitem__, reverse=True)  # stable: of equal scores the lower id comes first
    ranked = [model.pieces[token_id] for token_id in normal_ids]
    normal = set(ranked)
    return [
        (left, right)
        for piece in ranked
        for cut in range(1, len(piece))
        if (left := piece[:cut]) in normal and (right := piece[cut:]) in normal
    ]
