"""The chat page and the page of requests: static files, held in memory, with strict headers and relative links."""

from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from litestar import Request, Response, get
from litestar.exceptions import NotFoundException
from litestar.handlers import HTTPRouteHandler
from litestar.response import Redirect

from limelight.http.auth import PUBLIC
from limelight.http.exchange import UNTRACED

_MEDIA_TYPES = {
    "html": "text/html",
    "css": "text/css",
    "js": "text/javascript",
    "svg": "image/svg+xml",
}
PAGE_HEADERS = {
    "cache-control": "no-cache",
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


def page_routes() -> list[HTTPRouteHandler]:
    """The pages and their files, all public: the key is asked for when a page talks to the API."""
    files = dict(_files_below(resources.files("limelight.http") / "ui"))

    @get("/", opt=PUBLIC | UNTRACED)
    async def page(request: Request[Any, Any, Any]) -> Response[Any]:
        """Links are relative: under a mount the address must end with a slash, or they would miss the prefix."""
        path = _path_as_sent(request)
        if path and not path.endswith("/"):
            return Redirect(f"{path.rpartition('/')[2]}/", status_code=307)
        return _file("index.html", files)

    @get("/ui/requests", opt=PUBLIC | UNTRACED)
    async def requests_page(request: Request[Any, Any, Any]) -> Response[Any]:
        """Its links are relative to its folder: with a slash at its end, the address would be one too deep."""
        if _path_as_sent(request).endswith("/"):
            return Redirect("../requests", status_code=307)
        return _file("requests.html", files)

    @get("/ui/{name:path}", opt=PUBLIC | UNTRACED)
    async def file(request: Request[Any, Any, Any]) -> Response[Any]:
        name = str(request.path_params["name"]).removeprefix("/")
        if name not in files:
            raise NotFoundException
        return _file(name, files)

    return [page, requests_page, file]


def _files_below(folder: Traversable, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    """Path below `folder`, with slashes, and content of every file."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files_below(entry, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry.read_bytes()


def _path_as_sent(request: Request[Any, Any, Any]) -> str:
    return bytes(request.scope.get("raw_path") or b"/").decode("latin-1")


def _file(name: str, files: dict[str, bytes]) -> Response[Any]:
    media_type = _MEDIA_TYPES[name.rpartition(".")[2]]
    return Response(files[name], media_type=media_type, headers=PAGE_HEADERS)
