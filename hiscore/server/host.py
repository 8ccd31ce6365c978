"""The memory that this process may still take: the machine's, as far as control groups leave it.

In a container /proc/meminfo shows the whole machine. The limits are those of the process's control group and of
all groups around it, of version 1 or 2; the kernel kills whoever exceeds one of them.
"""

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def available_host_bytes(root: Path = Path("/")) -> int:
    """Bytes that this process and its siblings may still take without swapping or being killed."""
    return max(0, min([_machine(root), *_groups_leave(root)]))


def _machine(root: Path) -> int:
    """Memory that Linux can give without swapping."""
    lines = (root / "proc/meminfo").read_text().splitlines()
    values = {name: int(rest.split()[0]) * 1024 for name, _, rest in (line.partition(":") for line in lines)}
    # Kernels before 3.14 do not say what is available.
    return values.get("MemAvailable", values["MemFree"])


def _groups_leave(root: Path) -> Iterator[int]:
    """Yield the bytes that each control group around this process leaves of its limits."""
    for version, group in control_groups(root):
        yield from _LEFT[version](group)


def control_groups(root: Path = Path("/")) -> Iterator[tuple[int, Path]]:
    """The control groups of this process that may limit memory: version and directory, the innermost first."""
    paths = _groups_of_process(root)
    for mount, inner, version in _mounts(root):
        path = paths.get(version)
        if path is None:
            continue
        # Without a namespace of its own a container sees its path on the machine, mounted further up.
        relative = path.relative_to(inner) if path.is_relative_to(inner) else PurePosixPath()
        for part in (relative, *relative.parents):
            yield version, mount / part


def _groups_of_process(root: Path) -> dict[int, PurePosixPath]:
    """The process's group by version. Lines: ``0::/path`` in version 2, ``4:memory:/path`` in version 1."""
    groups: dict[int, PurePosixPath] = {}
    file = root / "proc/self/cgroup"
    for line in file.read_text().splitlines() if file.is_file() else ():
        _, controllers, path = line.split(":", 2)
        if not controllers:
            groups[2] = PurePosixPath(path)
        elif "memory" in controllers.split(","):
            groups[1] = PurePosixPath(path)
    return groups


def _mounts(root: Path) -> Iterator[tuple[Path, PurePosixPath, int]]:
    """Yield the mounts of groups: the directory, the group that it shows, and the version."""
    file = root / "proc/self/mountinfo"
    for line in file.read_text().splitlines() if file.is_file() else ():
        # "id parent device root mountpoint options [fields] - type source superoptions"
        fields, _, kind = line.partition(" - ")
        inner, mount = fields.split()[3:5]
        type_, *_, options = kind.split()
        if type_ == "cgroup2":
            yield root / mount.lstrip("/"), PurePosixPath(inner), 2
        elif type_ == "cgroup" and "memory" in options.split(","):
            yield root / mount.lstrip("/"), PurePosixPath(inner), 1


def _left_v2(group: Path) -> Iterator[int]:
    # Beyond memory.high the kernel slows processes down and takes pages from them: too late for pools.
    for name in ("memory.max", "memory.high"):
        limit = _number(group / name)
        if limit is not None:
            yield limit - _used(group / "memory.current", group / "memory.stat", "inactive_file")


def _left_v1(group: Path) -> Iterator[int]:
    limit = _number(group / "memory.limit_in_bytes")
    if limit is not None:
        yield limit - _used(group / "memory.usage_in_bytes", group / "memory.stat", "total_inactive_file")


_LEFT = {1: _left_v1, 2: _left_v2}


def _used(usage: Path, statistics: Path, reclaimable: str) -> int:
    """Bytes in use, without the page cache that the kernel gives back first."""
    lines = statistics.read_text().split("\n") if statistics.is_file() else []
    cached = next((int(line.split()[1]) for line in lines if line.startswith(f"{reclaimable} ")), 0)
    return max(0, (_number(usage) or 0) - cached)


def _number(file: Path) -> int | None:
    """A file's number; None if there is no such file or it says "max"."""
    text = file.read_text().strip() if file.is_file() else "max"
    return None if text == "max" else int(text)
