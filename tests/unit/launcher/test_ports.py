"""Ports: given ones are kept or refused, free ones are found."""

import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from hiscore.launcher import ports
from hiscore.launcher.errors import LaunchError
from hiscore.launcher.ports import Ports, free_ports


def test_free_ports_differ() -> None:
    chosen = Ports().choose("127.0.0.1")
    assert len(set(chosen.all())) == 3
    assert all(chosen.all())


def test_free_ports_are_none_that_outgoing_connections_get(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    outgoing = tmp_path / "range"
    for first in (10_000, 11_000):
        monkeypatch.setattr(ports, "FIRST", first)
        outgoing.write_text(f"{first + 100}\t60999\n")
        chosen = free_ports("127.0.0.1", 20, outgoing)
        assert len(set(chosen)) == 20
        assert set(chosen) <= set(range(first, first + 100))


def test_a_port_that_is_held_is_not_chosen(tmp_path: Path) -> None:
    outgoing = tmp_path / "range"
    outgoing.write_text("10010\t60999\n")
    with ExitStack() as stack:
        for port in range(10_000, 10_010):
            with suppress(OSError):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
        assert free_ports("127.0.0.1", 1, outgoing)[0] >= 10_010


@pytest.mark.parametrize("content", [None, "", "no number"])
def test_any_free_port_will_do_where_the_range_is_not_known(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "range").write_text(content)
    assert all(free_ports("127.0.0.1", 2, tmp_path / "range"))


def test_given_ports_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ports, "is_free", lambda address, port: True)  # whoever uses them here
    chosen = Ports(grpc=8_001, metrics=8_002).choose("127.0.0.1")
    assert (chosen.grpc, chosen.metrics) == (8_001, 8_002)
    assert chosen.http
    assert Ports(1, 2, 3).choose("127.0.0.1") == Ports(http=1, grpc=2, metrics=3)


def test_ports_in_use_are_refused() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(LaunchError, match=f"GRPC_PORT {port} is in use"):
            Ports(grpc=port).choose("127.0.0.1")
