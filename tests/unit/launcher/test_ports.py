"""Ports: given ones are kept or refused, free ones are found."""

import socket

import pytest

from hiscore.launcher import ports
from hiscore.launcher.errors import LaunchError
from hiscore.launcher.ports import Ports


def test_free_ports_differ() -> None:
    chosen = Ports().choose("127.0.0.1")
    assert len(set(chosen.all())) == 3
    assert all(chosen.all())


def test_given_ports_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda address, port: True)  # whoever uses them here
    chosen = Ports(grpc=8_001, metrics=8_002).choose("127.0.0.1")
    assert (chosen.grpc, chosen.metrics) == (8_001, 8_002)
    assert chosen.http
    assert Ports(1, 2, 3).choose("127.0.0.1") == Ports(http=1, grpc=2, metrics=3)


def test_ports_in_use_or_equal_are_refused() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(LaunchError, match=f"GRPC_PORT {port} is in use"):
            Ports(grpc=port).choose("127.0.0.1")
    with pytest.raises(LaunchError, match="must differ"):
        Ports(http=port, grpc=port).choose("127.0.0.1")


@pytest.mark.parametrize("address", ["192.0.2.1", "no address"])  # the first is reserved for documentation
def test_an_address_of_no_interface_is_named(address: str) -> None:
    with pytest.raises(LaunchError, match=f"BIND_ADDRESS {address} is not an address of this machine"):
        Ports(grpc=1).choose(address)
