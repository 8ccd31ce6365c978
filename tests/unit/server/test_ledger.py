"""Models of one server share what was free when the first of them planned."""

import json
import os
from pathlib import Path

import pytest

from hiscore.server.ledger import Ledger
from hiscore.server.plan import MemoryExceeded, MemoryLine, MemoryPlan


def takes(size: int, place: str = "host") -> MemoryPlan:
    return MemoryPlan(place, (MemoryLine("all", size, ("X",)),))


def shared_takes(weights: int, own: int) -> MemoryPlan:
    return MemoryPlan(
        "host", (MemoryLine("weights", weights, shared="weights"), MemoryLine("all", own, ("X",)))
    )


def never() -> int:
    raise AssertionError("what is free is measured once")


def test_claims_add_up_across_processes(tmp_path: Path) -> None:
    first, second = Ledger(tmp_path), Ledger(tmp_path)
    assert first.free("host", lambda: 100) == 100
    first.claim("scorer", takes(60))
    assert second.free("host", never) == 100, "shares are of what was free before any claim"
    with pytest.raises(MemoryExceeded, match="MiB left"):
        second.claim("decode", takes(41))
    second.claim("decode", takes(40))
    # Another device has its own account.
    second.free("cuda:0", lambda: 10)
    second.claim("decode", takes(10, "cuda:0"))


def test_a_claim_replaces_that_of_the_same_owner(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.free("host", lambda: 100)
    ledger.claim("scorer", takes(60))
    ledger.claim("scorer", takes(100))


def test_a_model_that_is_unloaded_gives_back_its_claims(tmp_path: Path) -> None:
    first, second = (Ledger(tmp_path, process=process) for process in (1, 2))
    first.free("host", lambda: 100)
    first.claim("scorer", shared_takes(60, 30))
    second.claim("decode", shared_takes(60, 10))
    # A second copy of the first, before that has gone.
    third = Ledger(tmp_path, process=3)
    with pytest.raises(MemoryExceeded):
        third.claim("scorer", shared_takes(60, 30))
    first.release()
    third.claim("scorer", shared_takes(60, 30))
    second.release()
    with pytest.raises(MemoryExceeded):
        second.claim("decode", takes(11))
    third.release()
    second.claim("decode", takes(100))


def test_a_restarted_server_begins_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = Ledger(tmp_path)
    old.free("host", lambda: 100)
    old.claim("scorer", takes(100))
    monkeypatch.setattr("os.getppid", lambda: 1)
    new = Ledger(tmp_path)
    assert new.free("host", lambda: 50) == 50
    new.claim("decode", takes(50))


def test_a_process_without_a_server_plans_alone() -> None:
    for _ in range(2):
        ledger = Ledger()
        ledger.free("host", lambda: 100)
        ledger.claim("scorer", takes(100))
        with pytest.raises(MemoryExceeded):
            ledger.claim("decode", takes(1))


def test_the_ledger_is_in_the_servers_directory(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path)
    ledger.free("host", lambda: 7)
    ledger.claim("scorer", takes(5))
    (file,) = tmp_path.glob("memory-*.json")
    claims = {str(os.getpid()): {"scorer": [["", 5]]}}
    assert json.loads(file.read_text()) == {"host": {"claims": claims, "free": 7}}


def test_what_models_share_counts_once(tmp_path: Path) -> None:
    def plan(weights: int, own: int, shared: str = "weights") -> MemoryPlan:
        return MemoryPlan(
            "host", (MemoryLine("weights", weights, shared=shared), MemoryLine("all", own, ("X",)))
        )

    ledger = Ledger(tmp_path)
    ledger.free("host", lambda: 100)
    ledger.claim("scorer", plan(50, 10))
    with pytest.raises(MemoryExceeded):
        ledger.claim("decode", plan(50, 41))
    with pytest.raises(MemoryExceeded):
        ledger.claim("decode", plan(50, 40, shared=""))
    ledger.claim("decode", plan(50, 40))
    with pytest.raises(MemoryExceeded):
        ledger.claim("other", takes(1))
