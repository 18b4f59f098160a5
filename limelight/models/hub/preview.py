"""A model of the hub without its weights: configuration and the headers of its files, enough to say whether it runs.

Each weight file is stood in for by a file of the same size that has the real header and holes for the rest (a sparse
file takes no room for them), so that everything which checks files checks these alike.
"""

import struct
from pathlib import Path

from limelight.errors import CheckpointError
from limelight.models.gguf.file import GgufFile
from limelight.models.gguf.rope import FACTOR_TENSORS
from limelight.models.hub.listing import AGENT, Listing
from limelight.models.hub.needed_files import Needed
from limelight.models.quantization.settings import FILES as QUANTIZATION_FILES
from limelight.models.safetensors.checkpoint import INDEX

CONFIGURATION = ("config.json", "generation_config.json", INDEX, *QUANTIZATION_FILES)
FIRST_BYTES = 2**20
MAX_SAFETENSORS_HEADER_BYTES = 100_000_000
"""The format's own bound."""
GGUF_HEADER_BYTES = (2**22, 2**23, 2**24, 2**26)
"""Tried in turn: the header holds the vocabulary, and nothing at its beginning says how long it is."""
MAX_FACTOR_BYTES = 2**16
"""Of a tensor of rotary factors: its few values are part of the configuration."""


class HeaderSource:
    """Beginnings of a repository's files.

    Args:
        listing: of the repository.
        endpoint: the hub's address; None: huggingface_hub's.
    """

    def __init__(self, listing: Listing, endpoint: str | None) -> None:
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        self._listing = listing
        self._endpoint = endpoint
        self._headers = build_hf_headers(**AGENT)

    def fetch_text(self, path: str, folder: Path) -> Path:
        """A small file, whole, in `folder`."""
        from huggingface_hub import hf_hub_download

        return Path(
            hf_hub_download(
                self._listing.repository,
                path,
                revision=self._listing.commit,
                local_dir=folder,
                endpoint=self._endpoint,
                **AGENT,
            )
        )

    def write_stand_ins(self, needed: Needed, folder: Path) -> Path:
        """The model that `needed` describes, as far as headers go; returns what to open.

        Raises:
            CheckpointError: a header is longer than possible.
            HTTPError, OSError: as they come.
        """
        for path in needed.files:
            if path.endswith(".safetensors"):
                self._write_safetensors(path, folder / path)
            elif path.lower().endswith(".gguf"):
                self._write_gguf(path, folder / path)
            elif path in CONFIGURATION and not (folder / path).is_file():
                self.fetch_text(path, folder)
        return folder / needed.gguf if needed.gguf else folder

    def _write_safetensors(self, path: str, target: Path) -> None:
        begin = self._read(path, 0, FIRST_BYTES)
        (length,) = struct.unpack("<Q", begin[:8].ljust(8, b"\0"))
        if length > MAX_SAFETENSORS_HEADER_BYTES:
            raise CheckpointError(f"{path} claims a header of {length:,} bytes; the file is corrupt")
        if length + 8 > len(begin):
            begin += self._read(path, len(begin), length + 8 - len(begin))
        self._write(target, path, begin[: length + 8])

    def _write_gguf(self, path: str, target: Path) -> None:
        begin = b""
        for num_bytes in GGUF_HEADER_BYTES:
            begin += self._read(path, len(begin), num_bytes - len(begin))
            self._write(target, path, begin)
            try:
                tensors = GgufFile(target).tensors.values()
            except CheckpointError:
                continue  # perhaps only because it is cut; whoever opens it will say so otherwise
            with target.open("r+b") as content:
                for tensor in tensors:
                    if tensor.name in FACTOR_TENSORS and tensor.num_bytes <= MAX_FACTOR_BYTES:
                        content.seek(tensor.start)
                        content.write(self._read(path, tensor.start, tensor.num_bytes))
            return

    def _write(self, target: Path, path: str, begin: bytes) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as content:
            content.write(begin)
            content.truncate(max(self._listing.files[path].num_bytes, len(begin)))

    def _read(self, path: str, start: int, num_bytes: int) -> bytes:
        """So many bytes of a file, or fewer where it ends."""
        from huggingface_hub import constants, get_session, hf_hub_url
        from huggingface_hub.utils import hf_raise_for_status  # type: ignore[attr-defined]

        num_bytes = min(num_bytes, self._listing.files[path].num_bytes - start)
        if num_bytes <= 0:
            return b""
        url = hf_hub_url(self._listing.repository, path, revision=self._listing.commit, endpoint=self._endpoint)
        ranged = {**self._headers, "Accept-Encoding": "identity", "Range": f"bytes={start}-{start + num_bytes - 1}"}
        timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
        received = b""
        with get_session().stream("GET", url, headers=ranged, timeout=timeout, follow_redirects=True) as response:
            if response.is_error:
                response.read()
            hf_raise_for_status(response)
            skip = 0 if response.status_code == 206 else start  # without ranges, everything comes from the beginning
            for chunk in response.iter_bytes():
                received += chunk
                if len(received) >= skip + num_bytes:
                    break
        return received[skip : skip + num_bytes]
