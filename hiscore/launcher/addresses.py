"""Ways to write an address: IPv4, IPv6, and the addresses that mean all interfaces."""

import socket

# Where this machine reaches what listens on all interfaces.
LOOPBACK = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def is_ipv6(address: str) -> bool:
    """Tell whether an address is one of IPv6."""
    return ":" in address


def family(address: str) -> socket.AddressFamily:
    """The family of an address's sockets."""
    return socket.AF_INET6 if is_ipv6(address) else socket.AF_INET


def reachable(address: str) -> str:
    """The host at which this machine reaches what listens on an address."""
    return LOOPBACK.get(address, address)


def in_url(address: str) -> str:
    """Write an address as it stands before a port."""
    return f"[{address}]" if is_ipv6(address) else address


def for_evhtp(address: str) -> str:
    """Write an address for Triton's HTTP and metrics, which answer IPv6 alone on ``::``; gRPC answers both."""
    return f"ipv6:{address}" if is_ipv6(address) else address
