"""Who is asking, and whether they may: API keys and the `Host` allow-list."""

import hashlib
import hmac
from collections.abc import Iterable, Mapping
from typing import Any

from litestar.enums import ScopeType
from litestar.middleware import ASGIMiddleware
from litestar.types import ASGIApp, Receive, Scope, Send

from limelight.errors import Forbidden, LimelightError, Unauthorized
from limelight.http.keys.key_ring import KeyRing
from limelight.http.keys.principal import ADMIN, ANONYMOUS, INFER, OBSERVE, STRANGER, Principal
from limelight.http.unread_body import discard_body
from limelight.quoting import quoted

PUBLIC = {"public": True}
"""`opt` of a route that answers without a key."""
NEEDS_OBSERVE = {"scope": OBSERVE}
"""`opt` of a route that shows what the server does, also for others."""
NEEDS_ADMIN = {"scope": ADMIN}
"""`opt` of a route that changes what is served."""


class Authenticator:
    """Turns headers into a `Principal`. Holds hashes of the keys, not the keys.

    Args:
        api_keys: name -> key of those who may use the models.
        admin_keys: the same of those who may also change what is served.
        key_ring: more of them, from a file. With it nobody is let in without a key, even if the file has none.
    """

    def __init__(
        self,
        api_keys: Mapping[str, str],
        admin_keys: Mapping[str, str] | None = None,
        key_ring: KeyRing | None = None,
    ) -> None:
        self._open = not api_keys and key_ring is None
        self._key_ring = key_ring
        users = [(key, Principal(name, frozenset({INFER, OBSERVE}))) for name, key in api_keys.items()]
        admins = [
            (key, Principal(name, frozenset({INFER, OBSERVE, ADMIN}))) for name, key in (admin_keys or {}).items()
        ]
        self._principals = tuple((_digest(key.encode()), principal) for key, principal in users + admins)

    def principal(self, headers: Mapping[bytes, bytes]) -> Principal:
        """The principal whose key is in `Authorization: Bearer KEY` or in `x-api-key`.

        Without API keys whoever has no admin's key is anonymous. Every key is compared, each in constant time, so that
        the time taken tells nothing.

        Raises:
            Unauthorized: there are API keys, and the request has none of them.
        """
        given = _key(headers)
        if given is None:
            if self._open:
                return ANONYMOUS
            raise Unauthorized("This server needs an API key: send 'Authorization: Bearer KEY' or 'x-api-key: KEY'")
        digest = _digest(given)
        found = [principal for known, principal in self._known() if hmac.compare_digest(known, digest)]
        if not found:
            if self._open:
                return ANONYMOUS
            raise Unauthorized("The API key is not one of this server's")
        return found[0]

    def principal_or_stranger(self, headers: Mapping[bytes, bytes]) -> Principal:
        """The same for routes that answer everybody, and some in more detail."""
        try:
            return self.principal(headers)
        except Unauthorized:
            return STRANGER

    def check_scope(self, principal: Principal, scope: str) -> None:
        """Whether `principal` may use routes that need `scope`.

        Raises:
            Forbidden: it may not; the message says how to get there.
        """
        if scope in principal.scopes:
            return
        if not any(scope in known.scopes for _, known in self._known()):
            raise Forbidden(
                f"This route needs {_A_KEY[scope]} and this server has none: start it with "
                f"{'--admin-key, with LIMELIGHT_ADMIN_KEY set, or ' if scope == ADMIN else ''}with --key-file; in "
                f"Python, HttpSettings({'admin_keys=... or ' if scope == ADMIN else ''}key_file=...)"
            )
        raise Forbidden(f"This route needs {_A_KEY[scope]}; send 'Authorization: Bearer KEY' with one of this server's")

    def _known(self) -> tuple[tuple[bytes, Principal], ...]:
        return self._principals + (() if self._key_ring is None else self._key_ring.principals())


_A_KEY = {INFER: "a key with the scope infer", OBSERVE: "a key with the scope observe", ADMIN: "an admin key"}


class Gate(ASGIMiddleware):
    """Stands before every route: first the `Host` header, then the key.

    A route that says nothing needs the scope `infer`; those marked `PUBLIC` need no key.
    """

    scopes = (ScopeType.HTTP,)

    def __init__(self, authenticator: Authenticator, allowed_hosts: tuple[str, ...] | None) -> None:
        self._authenticator = authenticator
        self._allowed_hosts = None if allowed_hosts is None else frozenset(host.lower() for host in allowed_hosts)

    async def handle(self, scope: Scope, receive: Receive, send: Send, next_app: ASGIApp) -> None:
        """Let the request through, with its principal as `scope["user"]`.

        Raises:
            Forbidden: the `Host` is not allowed, or the key lacks the scope that the route needs.
            Unauthorized: no key, or a wrong one.
        """
        headers = joined_headers(scope["headers"])
        asker: Any = scope
        try:
            self._check_host(headers.get(b"host", b""))
            route = scope["route_handler"].opt
            if route.get("public"):
                asker["user"] = self._authenticator.principal_or_stranger(headers)
            else:
                asker["user"] = self._authenticator.principal(headers)
                self._authenticator.check_scope(asker["user"], route.get("scope", INFER))
        except LimelightError:
            await discard_body(scope, receive)
            raise
        await next_app(scope, receive, send)

    def _check_host(self, header: bytes) -> None:
        if self._allowed_hosts is None:
            return
        host = host_name(header.decode("latin-1"))
        if host not in self._allowed_hosts:
            allowed = ", ".join(sorted(self._allowed_hosts))
            raise Forbidden(
                f"The Host {quoted(host)} is not allowed (allowed: {allowed}); "
                "use one of these names, or have the server allow this one with --allowed-host"
            )


def joined_headers(headers: Iterable[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """Headers by name. The values of one that comes several times are joined by commas (RFC 9110, section 5.3).

    So no key hides behind another one that a gateway in front has checked: together they are none.
    """
    joined: dict[bytes, bytes] = {}
    for name, value in headers:
        joined[name] = joined[name] + b", " + value if name in joined else value
    return joined


def host_name(header: str) -> str:
    """The name in a `Host` header: lower case, without port, without the brackets of an IPv6 address."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()


def _key(headers: Mapping[bytes, bytes]) -> bytes | None:
    scheme, _, credentials = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer" and credentials.strip():
        return credentials.strip()
    return headers.get(b"x-api-key")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
