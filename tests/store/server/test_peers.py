from __future__ import annotations

from ipaddress import IPv4Address, IPv6Address
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headwater.store.server.peers import host_of, limited_address

PEERS = {
    "ipv4:127.0.0.1:51234": "127.0.0.1",
    "ipv6:[::1]:5123": "::1",
    "ipv6:%5B::1%5D:5123": "::1",
    "ipv6:[::ffff:192.0.2.7]:80": "192.0.2.7",
    "ipv6:%5Bfe80::2%25eth0%5D:80": "fe80::2",
    "ipv6:[fe80::2%25eth0]:80": "fe80::2",
    "127.0.0.1:9": "127.0.0.1",
    "127.0.0.1": "127.0.0.1",
    "2001:db8::5": "2001:db8::5",
    "unix:/run/store.sock": "unix",
    "unix:": "unix",
    "unix-abstract:name": "unix",
    "": "unknown",
    "ipv4:": "unknown",
    "ipv4:300.1.1.1:4": "unknown",
    "ipv6:[::1": "::1",
    "name:4": "unknown",
}


@pytest.mark.parametrize(("peer", "host"), PEERS.items())
def test_the_host_of_a_peer(peer: str, host: str) -> None:
    assert host_of(peer) == host


@given(st.ip_addresses(v=4), st.integers(0, 65535))
def test_every_ipv4_peer_counts_for_itself(address: IPv4Address, port: int) -> None:
    assert limited_address(f"ipv4:{address}:{port}") == host_of(f"ipv4:{address}:{port}") == str(address)


@given(st.ip_addresses(v=6), st.integers(0, 65535), st.integers(0, 2**64 - 1))
def test_all_of_an_ipv6_slash_64_counts_as_one(address: IPv6Address, port: int, interface: int) -> None:
    neighbour = IPv6Address(int(address) >> 64 << 64 | interface)
    mine, theirs = (f"ipv6:{quote(f'[{one}]', safe=':')}:{port}" for one in (address, neighbour))
    special = any(one.ipv4_mapped or one.is_loopback for one in (address, neighbour))
    assert special or limited_address(mine) == limited_address(theirs)
    assert limited_address(mine) == limited_address(f"ipv6:[{address}]:1")


def test_another_slash_64_counts_apart() -> None:
    assert limited_address("ipv6:[2001:db8:0:1::1]:1") == "2001:db8:0:1::/64"
    assert limited_address("ipv6:[2001:db8:0:2::1]:1") == "2001:db8:0:2::/64"


@given(st.text())
def test_no_peer_is_too_odd(peer: str) -> None:
    for text in (peer, "ipv4:" + peer, "ipv6:" + peer, "ipv6:[" + peer):
        assert host_of(text)
        assert limited_address(text)
