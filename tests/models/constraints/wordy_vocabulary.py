"""A vocabulary with tokens of several bytes, some of which hold others, and special ones; and helpers to walk masks."""

import random

import msgspec

from limelight.generation import SamplingParams
from limelight.models.constraints.compiling import ConstraintCompiler
from limelight.models.constraints.token_table import TokenTable, unpacked
from limelight.parsing.reasoning import Opening

PIECES = [
    *(
        b"the",
        b" the",
        b"ab",
        b"abc",
        b"bc",
        b"cab",
        b"aa",
        b"<th",
        b"think",
        b"</",
        b">",
        b">\n",
        b">{",
        b"\n\n",
        b"</think",
    ),
    *(b'{"', b'":', b'"}', b"true", b"false", b"null", b" a", b"\xc3\xa9t", b"\xf0\x9f", b"12", b"345", b'", "'),
]
END, START, OPEN, CLOSE = 256 + len(PIECES), 257 + len(PIECES), 258 + len(PIECES), 259 + len(PIECES)
SPECIAL = {END: b"<|end|>", START: b"<|start|>", OPEN: b"<call>", CLOSE: b"</call>"}
TOKENS = [*(bytes((byte,)) for byte in range(256)), *PIECES, *SPECIAL.values()]
IDS = {token: token_id for token_id, token in enumerate(TOKENS)}
LONGEST = max(map(len, TOKENS))
VOCAB_SIZE = len(TOKENS) + 5
"""Five logits have no token."""


class WordyVocabulary:
    """The longest token at each place."""

    def encode(self, text, *, add_special_tokens):
        raw, token_ids, place = text.encode(), [], 0
        while place < len(raw):
            pieces = (raw[place : place + length] for length in range(LONGEST, 0, -1))
            token_ids.append(next(IDS[piece] for piece in pieces if piece in IDS))
            place += len(TOKENS[token_ids[-1]])
        return token_ids

    def decode(self, token_ids, *, skip_special_tokens=True):
        kept = [id_ for id_ in token_ids if not (skip_special_tokens and id_ in SPECIAL)]
        return b"".join(map(self.token_bytes, kept)).decode(errors="replace")

    def token_bytes(self, token_id):
        return TOKENS[token_id] if token_id < len(TOKENS) else b""

    def is_special(self, token_id):
        return token_id in SPECIAL


VOCABULARY = WordyVocabulary()
TABLE = TokenTable(VOCABULARY, VOCAB_SIZE)


COMPILER = ConstraintCompiler(VOCABULARY, VOCAB_SIZE, frozenset({END}))


def begin(*, marks=None, begins=Opening.UNKNOWN, **sampling):
    """A constraint at the beginning of an output."""
    constraints = COMPILER.compile(SamplingParams(**sampling), marks)
    return msgspec.structs.replace(constraints, begins=begins).begin()


def encode(text):
    return VOCABULARY.encode(text, add_special_tokens=False)


def allowed(constraint):
    """Ids that may follow."""
    return unpacked(constraint.mask(), VOCAB_SIZE).nonzero()[0].tolist()


def takes(constraint, text):
    """Whether the text, in its usual tokens, is let through as a whole."""
    for token_id in encode(text):
        if token_id not in allowed(constraint):
            return False
        constraint.advance([token_id])
    return True


def walk(constraint, chance=None, *, max_tokens=200, prefers=()):
    """Draw tokens until the end: ids, and whether the end was drawn."""
    chance = chance or random.Random(0)
    drawn = []
    for _ in range(max_tokens):
        ids = allowed(constraint)
        token_id = chance.choice([id_ for id_ in ids if id_ in prefers] or ids)
        if token_id == END:
            return drawn, True
        drawn.append(token_id)
        constraint.advance([token_id])
    return drawn, False


def text_of(token_ids):
    return VOCABULARY.decode(token_ids, skip_special_tokens=False)
