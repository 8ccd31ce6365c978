"""What a process may still take, from made-up trees of /proc and /sys."""

import os
from pathlib import Path

import pytest

from hiscore.server.host import available_host_bytes, usable_cores

GIB = 2**30
MACHINE = {
    "proc/meminfo": f"MemTotal: {64 * GIB >> 10} kB\nMemFree: 1000 kB\nMemAvailable: {40 * GIB >> 10} kB\n"
}
V2 = "30 24 0:26 {inner} /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1 = (
    "31 24 0:27 / /sys/fs/cgroup/cpu rw shared:9 - cgroup cgroup rw,cpu\n"
    "32 24 0:28 {inner} /sys/fs/cgroup/memory rw shared:10 - cgroup cgroup rw,memory\n"
)


def write(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)


def machine(root: Path, files: dict[str, str]) -> int:
    write(root, MACHINE | files)
    return available_host_bytes(root)


def v2(group: str, limit: object, used: int, high: object = "max", cached: int = 0) -> dict[str, str]:
    directory = f"sys/fs/cgroup{group.rstrip('/')}"
    return {
        f"{directory}/memory.max": f"{limit}\n",
        f"{directory}/memory.high": f"{high}\n",
        f"{directory}/memory.current": f"{used}\n",
        f"{directory}/memory.stat": f"anon {used - cached}\nfile {cached}\ninactive_file {cached}\n",
    }


def v1(group: str, limit: int, used: int, cached: int = 0) -> dict[str, str]:
    directory = f"sys/fs/cgroup/memory{group.rstrip('/')}"
    return {
        f"{directory}/memory.limit_in_bytes": f"{limit}\n",
        f"{directory}/memory.usage_in_bytes": f"{used}\n",
        f"{directory}/memory.stat": f"cache 5\ninactive_file 1\ntotal_inactive_file {cached}\n",
    }


def in_v2(group: str = "/", inner: str = "/") -> dict[str, str]:
    return {"proc/self/cgroup": f"0::{group}\n", "proc/self/mountinfo": V2.format(inner=inner)}


def in_v1(group: str, inner: str = "/") -> dict[str, str]:
    lines = f"5:cpu,cpuacct:/else\n4:memory:{group}\n1:name=systemd:{group}\n"
    return {"proc/self/cgroup": lines, "proc/self/mountinfo": V1.format(inner=inner)}


NONE = 2**63 - 4_096  # version 1's way to say that there is no limit


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 40 * GIB),
        (in_v2() | v2("/", 3 * GIB, GIB), 2 * GIB),
        (in_v2() | v2("/", "max", GIB), 40 * GIB),
        (in_v2() | v2("/", "max", GIB, high=2 * GIB), GIB),
        (in_v2() | v2("/", 3 * GIB, 2 * GIB, cached=GIB), 2 * GIB),
        (in_v2() | v2("/", 3 * GIB, 4 * GIB), 0),
        (in_v2() | v2("/", 100 * GIB, GIB), 40 * GIB),
        (in_v2("/a/b") | v2("/a", 8 * GIB, 7 * GIB) | v2("/a/b", 4 * GIB, GIB), GIB),
        (in_v2("/a/b") | v2("/a", 8 * GIB, 2 * GIB) | v2("/a/b", 4 * GIB, GIB), 3 * GIB),
        (in_v2("/a/b") | v2("/a", "max", 7 * GIB), 40 * GIB),
        # A container that sees its path on the machine; its own group is what is mounted.
        (in_v2("/docker/x", inner="/docker/x") | v2("/", 3 * GIB, GIB), 2 * GIB),
        (in_v1("/docker/x", inner="/docker/x") | v1("/", 3 * GIB, GIB), 2 * GIB),
        (in_v1("/a/b") | v1("/a", 8 * GIB, 7 * GIB) | v1("/a/b", NONE, GIB), GIB),
        (in_v1("/a/b") | v1("/a/b", 4 * GIB, 3 * GIB, cached=GIB), 2 * GIB),
        (in_v1("/a") | v1("/a", NONE, GIB), 40 * GIB),
    ],
)
def test_the_tightest_limit_counts(files: dict[str, str], expected: int, tmp_path: Path) -> None:
    assert machine(tmp_path, files) == expected


def test_this_machine_has_some() -> None:
    assert 0 < available_host_bytes() < 2**60


def quota_v1(group: str, quota: int) -> dict[str, str]:
    directory = f"sys/fs/cgroup/cpu{group}"
    return {f"{directory}/cpu.cfs_quota_us": f"{quota}\n", f"{directory}/cpu.cfs_period_us": "100000\n"}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 8),
        (in_v2() | {"sys/fs/cgroup/cpu.max": "max 100000\n"}, 8),
        (in_v2() | {"sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2),
        (in_v2() | {"sys/fs/cgroup/cpu.max": "150000 100000\n"}, 2),
        (in_v2() | {"sys/fs/cgroup/cpu.max": "5000 100000\n"}, 1),
        (in_v2() | {"sys/fs/cgroup/cpu.max": "6400000 100000\n"}, 8),
        (in_v2("/a/b") | {"sys/fs/cgroup/a/cpu.max": "300000 100000\n"}, 3),
        (in_v1("/a") | quota_v1("/else", -1), 8),
        (in_v1("/a") | quota_v1("/else", 250_000), 3),
    ],
)
def test_the_tightest_quota_counts(
    files: dict[str, str], expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: set(range(8)))
    write(tmp_path, files)
    assert usable_cores(tmp_path) == expected
