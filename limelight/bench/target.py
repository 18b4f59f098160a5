"""The address that a benchmark drives, and what it says of itself before the run."""

import json
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass

from limelight.errors import ConfigError, LimelightError

ANSWER_SECONDS = 10.0


class BenchmarkFailed(LimelightError):
    """What was to be measured cannot be: nothing answers, or the model is not there."""


@dataclass(frozen=True, slots=True)
class Target:
    """An OpenAI-compatible server. `prefix` stands before `/v1` in its paths."""

    host: str
    port: int
    prefix: str = ""
    secure: bool = False
    api_key: str | None = None

    @classmethod
    def parse(cls, base_url: str, api_key: str | None = None) -> "Target":
        """The server at `base_url`, with or without `/v1` at its end.

        Raises:
            ConfigError: that is no address.
        """
        url = urllib.parse.urlsplit(base_url)
        try:
            port = url.port
        except ValueError:
            port = -1
        if url.scheme not in ("http", "https") or not url.hostname or port == -1:
            raise ConfigError(f"--base-url {base_url!r} is no address; write http://127.0.0.1:8000")
        secure = url.scheme == "https"
        prefix = url.path.rstrip("/").removesuffix("/v1")
        return cls(url.hostname, port or (443 if secure else 80), prefix, secure, api_key)

    @property
    def url(self) -> str:
        """The address without `/v1`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.secure else 'http'}://{host}:{self.port}{self.prefix}"

    def head(self, path: str, content_length: int) -> bytes:
        """Request line and headers of a POST; the connection serves this request alone."""
        key = f"authorization: Bearer {self.api_key}\r\n" if self.api_key else ""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return (
            f"POST {self.prefix}{path} HTTP/1.1\r\nhost: {host}:{self.port}\r\nconnection: close\r\n{key}"
            f"content-type: application/json\r\ncontent-length: {content_length}\r\n\r\n"
        ).encode()


def chosen_model(target: Target, asked: str | None) -> str:
    """`asked`, or else the first model that the server lists.

    Raises:
        BenchmarkFailed: nothing answers there, the key is refused, or the server lists models and `asked` is not among
            them.
    """
    request = urllib.request.Request(f"{target.url}/v1/models")  # noqa: S310 (http or https: `parse` has looked)
    if target.api_key:
        request.add_header("authorization", f"Bearer {target.api_key}")
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_SECONDS) as response:  # noqa: S310
            listed = [str(model["id"]) for model in json.load(response)["data"]]
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise BenchmarkFailed(f"{target.url} refuses the key; give --api-key KEY") from None
        listed = []
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise BenchmarkFailed(
            f"nothing answers at {target.url} ({reason}); start a server there, give another --base-url, or let "
            "--start-server start one"
        ) from None
    except (ValueError, KeyError, TypeError):
        listed = []
    if asked is None and not listed:
        raise BenchmarkFailed(f"{target.url} lists no models; name one with --model")
    if asked is not None and listed and asked not in listed:
        raise BenchmarkFailed(f"{target.url} has no model {asked!r}; it has {', '.join(listed)}")
    return asked or listed[0]
