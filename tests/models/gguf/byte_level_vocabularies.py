"""Metadata of byte-level vocabularies, as a GGUF file has them."""

from typing import Any

from limelight.models.text.sentencepiece_bpe import TokenKind
from limelight.models.text.token_pieces import byte_level_alphabet


def byte_level_metadata(pre: str, texts: list[str]) -> dict[str, Any]:
    """A vocabulary whose merges build every word of `texts`, however it is cut: each prefix of a line is a token."""
    alphabet = byte_level_alphabet()
    tokens, merges = list(alphabet), []
    known = set(tokens)
    for text in texts:
        written = "".join(alphabet[byte] for byte in text.encode())
        for start in range(len(written)):
            for end in range(start + 2, min(start + 5, len(written)) + 1):
                piece = written[start:end]
                if piece not in known:
                    known.add(piece)
                    tokens.append(piece)
                    merges.append(f"{piece[:-1]} {piece[-1]}")
    tokens += ["<|im_start|>", "<|im_end|>", "<think>", "[PAD0]"]
    kinds = [TokenKind.NORMAL] * (len(tokens) - 4)
    kinds += [TokenKind.CONTROL, TokenKind.CONTROL, TokenKind.USER_DEFINED, TokenKind.UNUSED]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [int(kind) for kind in kinds],
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.bos_token_id": len(tokens) - 4,
        "tokenizer.ggml.eos_token_id": len(tokens) - 3,
    }
