"""The server's three TCP ports, as set or free ones."""

import random
import socket
from contextlib import ExitStack, suppress
from dataclasses import dataclass, fields
from pathlib import Path

from hiscore.launcher.addresses import family
from hiscore.launcher.errors import BadSetting, LaunchError

FIRST = 10_000
"""First port to choose from: most services have lower ones."""
TRIES = 100
"""Ports to try before any will do."""
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""The first and the last port that Linux gives to outgoing connections."""


@dataclass(frozen=True)
class Ports:
    """TCP ports of a server; 0 means any free one, which `choose` picks."""

    http: int = 0
    grpc: int = 0
    metrics: int = 0

    def choose(self, address: str) -> "Ports":
        """Replace zeros by free ports.

        Raises:
            LaunchError: A given port is in use.
        """
        for field in fields(self):
            check_free(f"{field.name.upper()}_PORT", address, getattr(self, field.name))
        return Ports(*(port or free for port, free in zip(self.all(), free_ports(address, 3), strict=True)))

    def all(self) -> tuple[int, int, int]:
        """The ports: http, grpc, metrics."""
        return self.http, self.grpc, self.metrics

    def taken(self, address: str) -> bool:
        """Tell whether one of them is in use."""
        return not all(is_free(address, port) for port in self.all())


def free_ports(address: str, count: int, ephemeral: Path = EPHEMERAL) -> list[int]:
    """Find free ports, none of them `ephemeral` unless there are too few others.

    An outgoing connection could take an ephemeral one before the server listens there, and be closed before the
    launcher looks which port was taken.
    """
    numbers = _below(ephemeral)
    with ExitStack() as held:  # at the same time, so that they differ
        return [
            _bind_one(held.enter_context(socket.socket(family(address))), address, numbers)
            for _ in range(count)
        ]


def _bind_one(sock: socket.socket, address: str, numbers: range) -> int:
    for port in random.SystemRandom().sample(numbers, min(len(numbers), TRIES)):
        with suppress(OSError):
            sock.bind((address, port))
            return port
    sock.bind((address, 0))
    return int(sock.getsockname()[1])


def _below(ephemeral: Path) -> range:
    try:
        return range(FIRST, int(ephemeral.read_text().split()[0]))
    except (OSError, ValueError, IndexError):
        return range(0)


def check_address(name: str, address: str) -> None:
    """Refuse an address that is not this machine's."""
    if not is_free(address, 0):
        raise BadSetting(f"{name} {address} is not an address of this machine that can be listened on")


def check_free(name: str, address: str, port: int) -> None:
    """Refuse a port in use."""
    if not is_free(address, port):
        raise LaunchError(f"{name} {port} is in use on {address}: stop what listens there, or choose another")


def is_free(address: str, port: int) -> bool:
    """Tell whether a port can be listened on."""
    with socket.socket(family(address)) as probe:
        # As Triton does: connections left by a server that has just stopped do not block its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((address, port))
        except OSError:
            return False
        return True
