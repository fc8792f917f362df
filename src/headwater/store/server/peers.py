"""The other end of a connection: gRPC's and HTTP's ways to write it, and the address that limits count by."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address
from urllib.parse import unquote

UNKNOWN = "unknown"


# A connection's peer comes again with each of its requests, and parsing an address takes microseconds.
@lru_cache(4096)
def host_of(peer: str) -> str:
    """The host in `ipv4:127.0.0.1:51234`, `ipv6:%5B::1%5D:5123`, `unix:...`, or a bare address.

    `unix` for a local socket, `unknown` for what is none of these; never raises.
    """
    if peer.startswith(("unix:", "unix-abstract:")):
        return "unix"
    found = _address(peer)
    return UNKNOWN if found is None else str(found)


@lru_cache(4096)
def limited_address(peer: str) -> str:
    """What a limit counts by: a host, and for IPv6 its /64, since one machine owns all of that."""
    found = _address(peer)
    if not isinstance(found, IPv6Address) or found.is_loopback:
        return host_of(peer)
    return str(IPv6Network((int(found), 64), strict=False))


def endpoint_of(peer: str) -> tuple[str, int] | None:
    """Address and port of the other end; None where it has none."""
    found, port = _address(peer), unquote(peer).rpartition(":")[2]
    return (str(found), int(port)) if found is not None and port.isascii() and port.isdigit() else None


def _address(peer: str) -> IPv4Address | IPv6Address | None:
    text = unquote(peer.removeprefix("ipv4:").removeprefix("ipv6:"))
    if text.startswith("["):
        text = text[1:].partition("]")[0]
    elif text.count(":") == 1:
        text = text.partition(":")[0]
    # The zone of a link-local address names our own interface.
    return as_address(text.partition("%")[0])


def as_address(text: str) -> IPv4Address | IPv6Address | None:
    """The address, an IPv4 one also where it is written as IPv6; None for a name."""
    try:
        found = ip_address(text)
    except ValueError:
        return None
    mapped = found.ipv4_mapped if isinstance(found, IPv6Address) else None
    return mapped or found
