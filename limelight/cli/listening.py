"""The socket of a server, and room for its connections."""

import contextlib
import socket
import sys

from limelight.errors import LimelightError

OTHER_FILES = 128
"""That a server has open beside its connections."""


class PortUnavailable(LimelightError):
    """The address cannot be listened on."""


def bind(host: str, port: int) -> socket.socket:
    """A socket bound to the address, not listening yet: while the model loads, clients are refused at once.

    Raises:
        PortUnavailable: names the address, the reason and the option.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise PortUnavailable(f"cannot listen on --host {host}: {error.strerror or error}") from None
    try:
        if sys.platform != "win32":  # there it would let two servers share the port
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        raise unavailable(host, port, error) from None
    return listener


def unavailable(host: str, port: int, error: OSError) -> PortUnavailable:
    """What to tell of an address that a socket did not get."""
    advice = "choose another --port (0 takes a free one)" if port else "choose another --host"
    return PortUnavailable(f"cannot listen on {host} port {port}: {error.strerror or error}; {advice}")


def room_for_connections(wanted: int) -> int:
    """How many of them the system's limit of open files leaves room for, once it is as high as it may be."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return wanted
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = wanted + OTHER_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return min(wanted, max(soft - OTHER_FILES, 1))
    return wanted
