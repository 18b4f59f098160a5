"""A hub of its own on a local port: the protocol as far as huggingface_hub speaks it for downloads, Xet left out.

Large files come from another path by a redirect, as from the hub's content network, and may be asked for in ranges.
Every answer closes its connection (HTTP/1.0), so that no thread outlives a test.
"""

import hashlib
import http.server
import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from urllib.parse import unquote, urlsplit

from tests.quiet_server import QuietServer

COMMIT = "0123456789abcdef0123456789abcdef01234567"
LARGE_BYTES = 200_000
"""Files from here on are in large-file storage."""


class Hub(QuietServer):
    """One model repository, `maker/model`, and how it behaves.

    Attributes:
        files: path -> content.
        asked: "METHOD path" of every request.
        sent_bytes: of large files, over all answers.
        ranges: the Range headers of requests for large files.
        tokens: the Authorization headers of requests to the hub itself; `cdn_tokens` of those for large files.
        refusal: (status, X-Error-Code) for everything the hub itself is asked.
        refused_headers: beside a refusal.
        gated: files are refused (403), their list is not.
        cuts: each answer with a large file ends after the first of these, which is then removed.
        hold_after: answers with large files stop after so many bytes, until `release` is set.
        knows_ranges: whether a Range is honoured.
        refuses_ranges: a Range is answered with 416.
        moved_to: the commit of the main branch after it has been asked for once.
        lost: files that are listed and not there.
        agents: the User-Agent headers.
        corrupt: large files arrive with other bytes than their checksum says.
        renamed_to: `maker/model` is answered with a redirect to this name.
    """

    def __init__(self, files: Mapping[str, bytes]) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.files = dict(files)
        self.asked: list[str] = []
        self.sent_bytes = 0
        self.ranges: list[str | None] = []
        self.tokens: set[str | None] = set()
        self.cdn_tokens: set[str | None] = set()
        self.refusal: tuple[int, str] | None = None
        self.refused_headers: dict[str, str] = {}
        self.gated = False
        self.cuts: list[int] = []
        self.hold_after: int | None = None
        self.release = threading.Event()
        self.knows_ranges = True
        self.refuses_ranges = False
        self.moved_to: str | None = None
        self.corrupt = False
        self.lost: set[str] = set()
        self.agents: set[str | None] = set()
        self.renamed_to: str | None = None

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class Answer(http.server.BaseHTTPRequestHandler):
    server: Hub

    def log_message(self, *arguments: object) -> None:
        pass

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        hub, path = self.server, unquote(urlsplit(self.path).path)
        hub.asked.append(f"{self.command} {path}")
        hub.agents.add(self.headers.get("User-Agent"))
        if path.startswith("/cdn/"):
            self.send_large(path.removeprefix("/cdn/"))
            return
        hub.tokens.add(self.headers.get("Authorization"))
        names = ["maker/model", *([hub.renamed_to] if hub.renamed_to else [])]
        name = next((name for name in names if path.startswith((f"/api/models/{name}", f"/{name}/"))), None)
        if hub.refusal is not None:
            status, code = hub.refusal
            self.answer(status, b"{}", {**({"X-Error-Code": code} if code else {}), **hub.refused_headers})
        elif name is None:
            self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        elif hub.renamed_to and name == "maker/model":
            self.answer(307, b"", {"Location": self.path.replace("maker/model", hub.renamed_to, 1)})
        elif "/revision/" in path and path.rsplit("/", 1)[1] not in ("main", "v1", COMMIT):
            self.answer(404, b"{}", {"X-Error-Code": "RevisionNotFound"})
        elif "/tree/" in path:
            self.answer(200, json.dumps([tree_entry(name, content) for name, content in hub.files.items()]).encode())
        elif path.startswith("/api/models/"):
            siblings = [sibling(path, content) for path, content in hub.files.items()]
            again = sum(line.startswith("GET /api/models/") for line in hub.asked) > 1
            moved = hub.moved_to is not None and COMMIT not in path and again
            sha = hub.moved_to if moved else COMMIT
            self.answer(200, json.dumps({"id": name, "sha": sha, "siblings": siblings}).encode())
        elif hub.gated:
            self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        else:
            self.send_file(path.removeprefix(f"/{name}/resolve/{COMMIT}/"))

    def send_file(self, path: str) -> None:
        content = self.server.files[path]
        if path in self.server.lost:
            self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
            return
        if len(content) < LARGE_BYTES:
            self.answer(200, content, {"X-Repo-Commit": COMMIT, "ETag": f'"{git_id(content)}"'})
            return
        checksum = hashlib.sha256(content).hexdigest()
        linked = {"X-Linked-Etag": f'"{checksum}"', "X-Linked-Size": str(len(content)), "X-Repo-Commit": COMMIT}
        # Another host name: huggingface_hub follows redirects within the hub by itself, and keeps the token there.
        self.answer(302, b"", {"Location": f"http://localhost:{self.server.server_port}/cdn/{checksum}", **linked})

    def send_large(self, checksum: str) -> None:
        hub = self.server
        content = next(body for body in hub.files.values() if hashlib.sha256(body).hexdigest() == checksum)
        if hub.corrupt:
            content = bytes(len(content))
        stated = self.headers.get("Range")
        if self.command == "GET":
            hub.ranges.append(stated)
            hub.cdn_tokens.add(self.headers.get("Authorization"))
        if stated and hub.refuses_ranges:
            self.answer(416, b"")
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", stated or "") if hub.knows_ranges else None
        start = int(asked[1]) if asked else 0
        whole = len(content)
        content = content[: int(asked[2]) + 1] if asked and asked[2] else content
        self.send_response(206 if asked else 200)
        if asked:
            self.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{whole}")
        self.send_header("Content-Length", str(len(content) - start))
        self.end_headers()
        if self.command == "HEAD":
            return
        end = start + hub.cuts.pop(0) if hub.cuts else len(content)
        held = len(content) if hub.hold_after is None else hub.hold_after
        for piece in (content[start : min(end, held)], content[max(start, held) : end]):
            try:
                self.wfile.write(piece)
            except OSError:  # the reader was killed
                return
            hub.sent_bytes += len(piece)
            if hub.hold_after is not None:
                hub.release.wait(timeout=30)

    def answer(self, status: int, body: bytes, headers: Mapping[str, str] = {}) -> None:
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), "Content-Type": "application/json", **headers}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)


def git_id(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content, usedforsecurity=False).hexdigest()


def tree_entry(path: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"type": "file", "path": path, "size": len(content), "oid": git_id(content)}
    if len(content) >= LARGE_BYTES:
        entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return entry


def sibling(path: str, content: bytes) -> dict[str, object]:
    entry: dict[str, object] = {"rfilename": path, "size": len(content), "blobId": git_id(content)}
    if len(content) >= LARGE_BYTES:
        entry["lfs"] = {"sha256": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 134}
    return entry


@contextmanager
def running_hub(files: Mapping[str, bytes]) -> Iterator[Hub]:
    """The server, until the end of the block."""
    server = Hub(files)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.release.set()
        server.shutdown()
        thread.join()
        server.server_close()


class Reported:
    """Collects what is reported."""

    def __init__(self) -> None:
        self.calls: list[tuple[str, float | None]] = []

    def __call__(self, what: str, fraction: float | None) -> None:
        self.calls.append((what, fraction))

    @property
    def sentences(self) -> list[str]:
        """What was said without a fraction."""
        return [what for what, fraction in self.calls if fraction is None]
