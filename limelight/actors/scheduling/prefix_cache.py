"""Which page holds the keys and values of which token history.

A full page is known by a digest chained over (parent page's digest, its tokens), the first parent being derived from
the cache salt and the adapter's id. Digests are 256-bit blake2b, so a collision can't be constructed; the two kinds of
input are kept apart by blake2b's personalisation and tokens have a fixed width, so no two histories share an encoding.
No salt and an empty salt differ. Keys depend on tokens, salt and adapter alone: an entry stays right when its parent's
entry is gone.
"""

from array import array
from collections.abc import Iterator, Sequence
from hashlib import blake2b


class PageChain:
    """Digests of one sequence's full pages, computed once and only as far as asked for."""

    __slots__ = ("_digests", "_root")

    def __init__(self, salt: str | None, adapter: int | None = None) -> None:
        """Begin a chain that only sequences of the same salt and adapter share (ids are never given twice)."""
        adapter_part = b"base" if adapter is None else b"worn" + adapter.to_bytes(8)
        salt_part = b"absent" if salt is None else b"salt:" + salt.encode("utf-8", "surrogatepass")
        self._root = blake2b(adapter_part + salt_part, digest_size=32, person=b"root").digest()
        self._digests: list[bytes] = []

    def digest(self, index: int, token_ids: Sequence[int], page_size: int) -> bytes:
        """Digest of page `index` of the sequence with tokens `token_ids`, which must fill that page.

        A chain belongs to one sequence: the tokens of pages asked for before must not change.
        """
        while len(self._digests) <= index:
            start = len(self._digests) * page_size
            assert start + page_size <= len(token_ids), "a page gets a digest when all its tokens are known"
            parent = self._digests[-1] if self._digests else self._root
            tokens = array("q", token_ids[start : start + page_size]).tobytes()
            self._digests.append(blake2b(parent + tokens, digest_size=32, person=b"page").digest())
        return self._digests[index]


class PrefixCache:
    """A one-to-one mapping between digests and pages. Knows nothing of who uses a page."""

    __slots__ = ("_digest_of", "_page_of")

    def __init__(self) -> None:
        self._page_of: dict[bytes, int] = {}
        self._digest_of: dict[int, bytes] = {}

    def __len__(self) -> int:
        return len(self._digest_of)

    def __contains__(self, page: object) -> bool:
        return page in self._digest_of

    def __iter__(self) -> Iterator[int]:
        return iter(self._digest_of)

    def find(self, digest: bytes) -> int | None:
        """The page with this history, or None."""
        return self._page_of.get(digest)

    def insert(self, digest: bytes, page: int) -> None:
        """Remember `page`, unless another page has the same history already: the first one stays."""
        if digest not in self._page_of:
            assert page not in self._digest_of, f"page {page} is rewritten while it is in the prefix cache"
            self._page_of[digest] = page
            self._digest_of[page] = digest

    def forget(self, page: int) -> None:
        """Drop `page`, if it is known."""
        digest = self._digest_of.pop(page, None)
        if digest is not None:
            del self._page_of[digest]

    def digest_of(self, page: int) -> bytes | None:
        """The history of `page`, or None."""
        return self._digest_of.get(page)
