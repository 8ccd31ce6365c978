"""Models of one server share what was free when the first of them planned."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hiscore.memory.ledger import Ledger
from hiscore.memory.plan import MemoryExceeded, MemoryLine, MemoryPlan


def takes(size: int) -> Callable[[int], MemoryPlan]:
    return lambda free: MemoryPlan("host", (MemoryLine("all", size, ("X",)),))


def never() -> int:
    raise AssertionError("what is free is measured once")


def test_claims_add_up_across_processes(tmp_path: Path) -> None:
    first, second = Ledger(tmp_path), Ledger(tmp_path)
    first.claim("host", "scorer", lambda: 100, takes(60))
    with pytest.raises(MemoryExceeded, match=r"host has 0.0 MiB left, 0.0 MiB are needed"):
        second.claim("host", "decode", never, takes(41))
    second.claim("host", "decode", never, takes(40))
    # Another device has its own account.
    second.claim("cuda:0", "decode", lambda: 10, takes(10))


def test_a_claim_replaces_that_of_the_same_owner(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.claim("host", "scorer", lambda: 100, takes(60))
    ledger.claim("host", "scorer", never, takes(100))


def test_shares_are_of_what_was_free_before_any_claim(tmp_path: Path) -> None:
    seen: list[int] = []

    def share(free: int) -> MemoryPlan:
        seen.append(free)
        return takes(10)(free)

    for owner in "abc":
        Ledger(tmp_path).claim("host", owner, lambda: 100, share)
    assert seen == [100, 100, 100]


def test_a_restarted_server_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Ledger(tmp_path).claim("host", "scorer", lambda: 100, takes(100))
    monkeypatch.setattr("os.getppid", lambda: 1)
    Ledger(tmp_path).claim("host", "decode", lambda: 50, takes(50))


def test_a_process_without_a_server_plans_alone() -> None:
    for _ in range(2):
        Ledger().claim("host", "scorer", lambda: 100, takes(100))


def test_the_directory_is_the_launchers(tmp_path: Path) -> None:
    model = tmp_path / "models" / "scorer"
    model.mkdir(parents=True)
    Ledger.of_server(str(model)).claim("host", "scorer", lambda: 7, takes(5))
    (file,) = tmp_path.glob("memory-*.json")
    assert json.loads(file.read_text()) == {"host": {"free": 7, "claims": {"scorer": 5}}}
