"""Text <-> token ids, over the `tokenizers` library. Imports transformers only for folders without a `tokenizer.json`.

A token's bytes come from the token alone, so decoding is joining bytes: streamed and whole text agree by construction.
"""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec
from tokenizers import AddedToken, Tokenizer

from limelight.errors import CheckpointError, InvalidRequest, UnsupportedModel
from limelight.models.text.control_finder import ControlFinder, without_marks
from limelight.models.text.sentencepiece_bpe import SPACE, TokenKind, sentencepiece_tokenizer
from limelight.models.text.sentencepiece_file import read_sentencepiece_file
from limelight.models.text.token_pieces import is_byte_level, piece_reader
from limelight.models.text.tokenizer_settings import TokenizerSettings, read_tokenizer_settings
from limelight.quoting import explanation, quoted

MAX_CHARACTERS_HOLDING_INTERPRETER = 1024
"""Longer texts are encoded as a batch of one, during which the library lets other threads run (it takes about 0.6 us
per character, in which `Tokenizer.encode` would hold the interpreter lock)."""
MAX_TOKEN_ID = 2**32 - 1


class TokenizersVocabulary:
    """A `Vocabulary` over a `tokenizers.Tokenizer`, which it owns from now on. Thread-safe.

    `decode` joins the tokens' own bytes. It does not clean up spaces before punctuation, and keeps the space that a
    SentencePiece model puts before the first word: both are what a running text after a prompt looks like.

    Args:
        special_token_ids: control tokens, beside those that the tokenizer itself marks as special.
        prefix, suffix: ids that `add_special_tokens` puts around a text, beside what the tokenizer itself adds.
        eos_token_ids: ends of a text by the tokenizer's own settings.
        text_prefix: stands before a text that does not begin with a special token.
        piece_of: token id -> written form or None; default: the tokenizer's own table.

    Raises:
        UnsupportedModel: the tokenizer's decoder gives its tokens no text of their own.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        special_token_ids: Iterable[int] = (),
        prefix: Sequence[int] = (),
        suffix: Sequence[int] = (),
        eos_token_ids: Iterable[int] = (),
        text_prefix: str = "",
        piece_of: Callable[[int], str | None] | None = None,
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        added_tokens = tokenizer.get_added_tokens_decoder()
        self.eos_token_ids = frozenset(eos_token_ids)
        self._tokenizer = tokenizer
        self._prefix = list(prefix)
        self._suffix = list(suffix)
        self._text_prefix = text_prefix
        self._piece_of = piece_of or tokenizer.id_to_token
        self._read_piece = piece_reader(tokenizer.decoder)
        self._special_token_ids = frozenset(special_token_ids) | {
            token_id for token_id, token in added_tokens.items() if token.special
        }
        self._special_tokens = tuple(token.content for token in added_tokens.values() if token.special)
        self._controls = ControlFinder(added_tokens)
        # An added token of a byte-level model is written as plain text, not in the alphabet of bytes.
        self._bytes: dict[int, bytes] = (
            {token_id: token.content.encode() for token_id, token in added_tokens.items()}
            if is_byte_level(tokenizer.decoder)
            else {}
        )

    @property
    def size(self) -> int:
        """Number of tokens. The model may have more logits: their ids have no text."""
        size: int = self._tokenizer.get_vocab_size(with_added_tokens=True)
        return size

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """See `Vocabulary.encode`."""
        text = self._prepared(text)
        if len(text) <= MAX_CHARACTERS_HOLDING_INTERPRETER:
            encoding = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        else:
            (encoding,) = self._tokenizer.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        token_ids: list[int] = encoding.ids
        return [*self._prefix, *token_ids, *self._suffix] if add_special_tokens else token_ids

    def mark_controls(self, text: str, mark: str) -> str:
        """See `MarksControls`."""
        return self._controls.marked(text, mark)

    def encode_marked(self, mark: str, text: str, *, add_special_tokens: bool) -> list[int]:
        """See `MarksControls`."""
        text = self._prepared(text)
        (encoding,) = self._tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        token_ids = without_marks(text, mark, encoding)
        if token_ids is None:  # a tokenizer that does not keep unknown characters apart: cut there, then
            token_ids = []
            for number, piece in enumerate(filter(None, text.split(mark))):
                special = add_special_tokens and not number
                token_ids += self._tokenizer.encode(piece, add_special_tokens=special).ids
        return [*self._prefix, *token_ids, *self._suffix] if add_special_tokens else token_ids

    def _prepared(self, text: str) -> str:
        """As the tokenizer wants it.

        Raises:
            InvalidRequest: it is not valid Unicode.
        """
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise InvalidRequest(
                f"the text has a lone surrogate (U+{ord(text[error.start]):04X}) at character {error.start}; "
                "send valid Unicode"
            ) from error
        if self._text_prefix and text and not text.startswith(self._special_tokens):
            return self._text_prefix + text
        return text

    def decode(self, token_ids: Sequence[int], *, skip_special_tokens: bool = True) -> str:
        """See `Vocabulary.decode`."""
        hidden = self._special_token_ids if skip_special_tokens else frozenset()
        raw = b"".join([self.token_bytes(token_id) for token_id in token_ids if token_id not in hidden])
        return raw.decode("utf-8", errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """See `Vocabulary.token_bytes`."""
        known = self._bytes.get(token_id)
        if known is None:
            piece = self._piece_of(token_id) if 0 <= token_id <= MAX_TOKEN_ID else None
            known = b"" if piece is None else self._read_piece(piece)
            self._bytes[token_id] = known
        return known

    def is_special(self, token_id: int) -> bool:
        """See `Vocabulary.is_special`."""
        return token_id in self._special_token_ids


def load_vocabulary(folder: Path) -> TokenizersVocabulary:
    """The vocabulary of a model folder in Hugging Face layout.

    `tokenizer.json` decides; where it adds no special tokens itself, `add_bos_token` and `add_eos_token` of
    `tokenizer_config.json` do. Named special tokens that the vocabulary lacks are ignored: the model has no row for
    them. A folder with a SentencePiece model only is read here, too, if it is exact; one with other tokenizer files
    only is converted by transformers.

    Raises:
        CheckpointError: the files are missing, corrupt or contradict each other.
        UnsupportedModel: the tokenizer is of a kind that Limelight does not support.
    """
    settings = read_tokenizer_settings(folder)
    path = folder / "tokenizer.json"
    if path.is_file():
        return _vocabulary(_read_tokenizer(path), settings, folder)
    sentencepiece = _sentencepiece_vocabulary(folder, settings)
    return sentencepiece or _vocabulary(_convert_tokenizer(folder), settings, folder)


def _vocabulary(
    tokenizer: Tokenizer, settings: TokenizerSettings, folder: Path, text_prefix: str = ""
) -> TokenizersVocabulary:
    _add_tokens(tokenizer, settings, folder)
    special_token_ids = _add_special_tokens(tokenizer, settings)
    eos_token_ids = _token_ids(tokenizer, settings, "eos_token")
    adds_nothing = tokenizer.num_special_tokens_to_add(False) == 0
    return TokenizersVocabulary(
        tokenizer,
        special_token_ids=special_token_ids,
        prefix=_token_ids(tokenizer, settings, "bos_token") if adds_nothing and settings.add_bos_token else (),
        suffix=eos_token_ids if adds_nothing and settings.add_eos_token else (),
        eos_token_ids=eos_token_ids,
        text_prefix=text_prefix,
    )


def _sentencepiece_vocabulary(folder: Path, settings: TokenizerSettings) -> TokenizersVocabulary | None:
    """The vocabulary in `tokenizer.model`; None if there is none, or none whose tokens would be those of the original.

    Beginning-of-text is added unless the settings say no, as the tokenizer classes of such models do.
    """
    path = folder / "tokenizer.model"
    if not path.is_file() or (file := read_sentencepiece_file(path)) is None:
        return None
    model = file.model
    if model.add_space_prefix:
        # A prefix after each special token is put after each user-defined one, too; spaces are removed in front of it.
        hindrance = TokenKind.USER_DEFINED in model.kinds if settings.legacy else model.remove_extra_whitespaces
        if hindrance:
            return None
    named = {
        name: model.pieces[token_id]
        for name, token_id in (("bos_token", file.bos_id), ("eos_token", file.eos_id))
        if token_id is not None
    }
    settings = msgspec.structs.replace(
        settings,
        named_tokens={**named, **settings.named_tokens},
        add_bos_token=settings.add_bos_token is not False,
    )
    text_prefix = SPACE if model.add_space_prefix and not settings.legacy else ""
    if text_prefix:
        model = msgspec.structs.replace(model, add_space_prefix=False)
    return _vocabulary(sentencepiece_tokenizer(model), settings, folder, text_prefix)


def _read_tokenizer(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as error:  # the library raises plain Exception for every kind of fault
        raise CheckpointError(f"{path} is not a usable tokenizer ({explanation(error)}); download it again") from error


def _convert_tokenizer(folder: Path) -> Tokenizer:
    """A folder that has `tokenizer.model`, or `vocab.json` and `merges.txt`, read by transformers."""
    names = ("tokenizer.model", "vocab.json", "tekken.json", "tiktoken.model")
    present = [name for name in names if (folder / name).is_file()]
    if not present:
        raise CheckpointError(f"{folder} has no tokenizer.json (nor {', '.join(names)}); download the whole model")
    from transformers import AutoTokenizer

    try:
        converted = AutoTokenizer.from_pretrained(str(folder), local_files_only=True, trust_remote_code=False)
    except Exception as error:  # whatever a foreign file makes of it; the library underneath raises plain Exception
        raise CheckpointError(f"{folder}: transformers cannot convert {present[0]} ({explanation(error)})") from error
    backend = getattr(converted, "backend_tokenizer", None)
    if not isinstance(backend, Tokenizer):
        raise UnsupportedModel(f"{folder}: {type(converted).__name__} has no fast tokenizer; add a tokenizer.json")
    return backend


def _add_tokens(tokenizer: Tokenizer, settings: TokenizerSettings, folder: Path) -> None:
    """Adds the configured tokens that the vocabulary lacks."""
    for token_id, token in sorted(settings.added_tokens.items()):
        if tokenizer.token_to_id(token.content) is not None:
            continue
        tokenizer.add_tokens([AddedToken(**msgspec.structs.asdict(token))])
        if tokenizer.token_to_id(token.content) != token_id:
            raise CheckpointError(
                f"{folder}: the added token {quoted(token.content)} should have the id {token_id}, which does not "
                "follow on those of tokenizer.json; the tokenizer's files do not belong together"
            )


def _add_special_tokens(tokenizer: Tokenizer, settings: TokenizerSettings) -> set[int]:
    """Makes the special tokens that the vocabulary has match as a whole in a text; returns their ids."""
    named = dict.fromkeys((*settings.named_tokens.values(), *settings.extra_special_tokens))
    known = {content: token_id for content in named if (token_id := tokenizer.token_to_id(content)) is not None}
    matched = tokenizer.get_added_tokens_decoder()
    unmatched = [content for content, token_id in known.items() if token_id not in matched]
    tokenizer.add_special_tokens([AddedToken(content, special=True, normalized=False) for content in unmatched])
    return set(known.values())


def _token_ids(tokenizer: Tokenizer, settings: TokenizerSettings, name: str) -> list[int]:
    """The id of a named token, if the model has it."""
    token_id = tokenizer.token_to_id(settings.named_tokens.get(name, ""))
    return [] if token_id is None else [token_id]
