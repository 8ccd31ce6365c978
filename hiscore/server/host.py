"""The memory and the cores that this process may take: the machine's, as far as control groups leave them.

In a container /proc/meminfo shows the whole machine. The limits are those of the process's control group and of
all groups around it, of version 1 or 2; the kernel kills whoever exceeds one of them.
"""

import os
from collections.abc import Iterator
from math import ceil
from pathlib import Path, PurePosixPath

# By version: files of limits and of what is in use, and the name of the page cache that is given back first.
# Beyond memory.high the kernel slows processes down and takes pages from them: too late for pools.
_MEMORY = {
    1: (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file"),
    2: (("memory.max", "memory.high"), "memory.current", "inactive_file"),
}


def available_host_bytes(root: Path = Path("/")) -> int:
    """Bytes that this process and its siblings may still take without swapping or being killed."""
    left = (left for group in control_groups(root) for left in _left(*group))
    return max(0, min([_machine(root), *left]))


def usable_cores(root: Path = Path("/")) -> int:
    """Cores on which this process may run, at most those of its groups' quotas, rounded up.

    More threads than that only wait for each other once the quota of a period is used up.
    """
    quotas = (_quota(*group) for group in control_groups(root, "cpu"))
    return max(1, min(len(os.sched_getaffinity(0)), *(ceil(quota) for quota in quotas if quota), 2**16))


def _machine(root: Path) -> int:
    """Memory that Linux can give without swapping."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    values = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    # Kernels before 3.14 do not say what is available.
    return values.get("MemAvailable", values["MemFree"])


def control_groups(root: Path = Path("/"), controller: str = "memory") -> Iterator[tuple[int, Path]]:
    """The control groups of this process that may limit it: version and directory, the innermost first."""
    paths = _groups_of_process(root, controller)
    for mount, inner, version in _mounts(root, controller):
        path = paths.get(version)
        if path is None:
            continue
        # Without a namespace of its own a container sees its path on the machine, mounted further up.
        relative = path.relative_to(inner) if path.is_relative_to(inner) else PurePosixPath()
        for part in (relative, *relative.parents):
            yield version, mount / part


def _groups_of_process(root: Path, controller: str) -> dict[int, PurePosixPath]:
    """The process's group by version. Lines: ``0::/path`` in version 2, ``4:memory:/path`` in version 1."""
    groups: dict[int, PurePosixPath] = {}
    file = root / "proc/self/cgroup"
    for line in file.read_text().splitlines() if file.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            groups[2] = PurePosixPath(path)
        elif controller in controllers.split(","):
            groups[1] = PurePosixPath(path)
    return groups


def _mounts(root: Path, controller: str) -> Iterator[tuple[Path, PurePosixPath, int]]:
    """Yield the mounts of groups: the directory, the group that it shows, and the version."""
    file = root / "proc/self/mountinfo"
    for line in file.read_text().splitlines() if file.is_file() else ():
        # "id parent device root mountpoint options [fields] - type source superoptions"
        fields, _, kind = line.partition(" - ")
        inner, mount = fields.split()[3:5]
        type_, *_, options = kind.split()
        if type_ == "cgroup2":
            yield root / mount.lstrip("/"), PurePosixPath(inner), 2
        elif type_ == "cgroup" and controller in options.split(","):
            yield root / mount.lstrip("/"), PurePosixPath(inner), 1


def _left(version: int, group: Path) -> Iterator[int]:
    limits, usage, reclaimable = _MEMORY[version]
    for name in limits:
        if (limit := _number(group / name)) is not None:
            yield limit - _used(group / usage, group / "memory.stat", reclaimable)


def _quota(version: int, group: Path) -> float:
    """Cores of a group; 0: all."""
    if version == 1:
        quota = _number(group / "cpu.cfs_quota_us") or -1
        return max(quota, 0) / (_number(group / "cpu.cfs_period_us") or 1)
    file = group / "cpu.max"
    most, period = file.read_text().split() if file.is_file() else ("max", "1")
    return 0 if most == "max" else int(most) / int(period)


def _used(usage: Path, statistics: Path, reclaimable: str) -> int:
    """Bytes in use, without the page cache that the kernel gives back first."""
    lines = statistics.read_text().split("\n") if statistics.is_file() else []
    cached = next((int(line.split()[1]) for line in lines if line.startswith(f"{reclaimable} ")), 0)
    return max(0, (_number(usage) or 0) - cached)


def _number(file: Path) -> int | None:
    """A file's number; None if there is no such file or it says "max"."""
    text = file.read_text().strip() if file.is_file() else "max"
    return None if text == "max" else int(text)
