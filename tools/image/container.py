"""A container as the deployment files ask for it: namespaces, a control group and a chroot."""

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MEMORY = Path("/sys/fs/cgroup/memory")
UNIFIED = Path("/sys/fs/cgroup")
# In the container: no capability, nor a way to get one.
DROP = "--clear-groups --no-new-privs --bounding-set=-all --inh-caps=-all --ambient-caps=-all"

SETUP_SECONDS = 60

# Runs in the new namespaces as root, and becomes the container's first process.
SETUP = """
mount --make-rprivate /
mount --bind {root} {root}
mount -t proc proc {root}/proc
mount --rbind -o ro /sys {root}/sys
mount -t tmpfs -o mode=755 tmpfs {root}/dev
for device in null zero random urandom; do
    touch {root}/dev/$device
    mount --bind /dev/$device {root}/dev/$device
done
mkdir {root}/dev/shm
mount -t tmpfs -o mode=1777,size={shm} tmpfs {root}/dev/shm
mount -t tmpfs -o mode=1777 tmpfs {root}/tmp
mount --bind {cache} {root}/var/cache/hiscore
mount --bind {model} {root}/models
mount -o remount,bind,ro {root}/models
mount -o remount,bind,ro {root}
ip link set lo up
exec chroot {root} {command}
"""


@dataclass
class Container:
    """A running container.

    Args:
        root: Its root directory, on this machine.
        process: ``unshare``, whose only child is the container's first process.
        enter: What a command of the container begins with.
        group: Its control group's directory.
        log: Its output.
    """

    root: Path
    process: "subprocess.Popen[bytes]"
    enter: list[str]
    group: Path
    log: Path

    @property
    def pid(self) -> int:
        """Of its first process, on this machine."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        return int(children.read_text().split()[0])

    def wait_until_set_up(self) -> None:
        """Wait until the first process runs as its user.

        Raises:
            RuntimeError: It ends before, or takes too long; with the log.
        """
        deadline = time.monotonic() + SETUP_SECONDS
        while not any(status["Uid"].split()[0] != "0" for status in self.statuses()):
            if self.process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the container was not set up: {self.log.read_text()}")
            time.sleep(0.1)

    def run(self, *command: str, timeout: float = 120) -> "subprocess.CompletedProcess[str]":
        """Run a command inside, as the container's own user."""
        inside = ["nsenter", "--target", str(self.pid), "--mount", "--pid", "--net", "--ipc", "--"]
        return subprocess.run(
            [*inside, *self.enter, *command], capture_output=True, text=True, timeout=timeout, check=False
        )

    def statuses(self) -> list[dict[str, str]]:
        """``/proc/PID/status`` of each of its processes."""
        found = []
        for pid in (self.group / "cgroup.procs").read_text().split():
            if int(pid) != self.process.pid:
                with suppress(OSError):  # it has just ended
                    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
                    pairs = (line.partition(":") for line in lines)
                    found.append({name: value.strip() for name, _, value in pairs})
        return found

    def oom_kills(self) -> int:
        """How many of its processes the kernel has killed for lack of memory."""
        for name in ("memory.oom_control", "memory.events"):
            if (self.group / name).exists():
                pairs = (line.split() for line in (self.group / name).read_text().splitlines())
                return int(dict(pairs)["oom_kill"])
        raise RuntimeError(f"{self.group} does not count kills")

    def terminate(self, timeout: float) -> int:
        """Send the first process a SIGTERM and wait; the exit code."""
        os.kill(self.pid, signal.SIGTERM)
        return self.process.wait(timeout)


@contextmanager
def start(
    root: Path, config: dict[str, Any], variables: dict[str, str], model: Path, work: Path, memory: int
) -> Iterator[Container]:
    """Run an image's command as its user: read-only root, no capabilities, no network but its own loopback.

    Args:
        root: The image's files.
        config: The image's own Env, User, WorkingDir, Entrypoint and Cmd.
        variables: What is added to its environment.
        model: Mounted as /models.
        work: An empty directory, for its cache and its log.
        memory: Limit in bytes.
    """
    cache, log = work / "cache", work / "log"
    user, group_id = map(int, config["User"].split(":"))
    cache.mkdir()
    os.chown(cache, user, group_id)
    (root / "models").mkdir(exist_ok=True)
    environment = {**dict(entry.split("=", 1) for entry in config["Env"]), **variables}
    settings = [f"{name}={value}" for name, value in environment.items()]
    enter = ["setpriv", f"--reuid={user}", f"--regid={group_id}", *DROP.split()]
    enter += ["env", "--ignore-environment", f"--chdir={config['WorkingDir']}", *settings]
    first = shlex.join([*enter, *config["Entrypoint"], *config["Cmd"]])
    paths = {"root": root, "cache": cache, "model": model}
    quoted = {name: shlex.quote(str(path)) for name, path in paths.items()}
    setup = SETUP.format(**quoted, shm=2**30, command=first)
    group = _memory_group(memory)
    # The group first, so that everything belongs to it.
    unshare = f"unshare --mount --pid --net --ipc --fork sh -ec {shlex.quote(setup)}"
    script = f"set -e; echo $$ > {group}/cgroup.procs; exec {unshare}"
    with (
        log.open("wb") as output,
        subprocess.Popen(["sh", "-c", script], stdout=output, stderr=output) as process,
    ):
        container = Container(root, process, ["chroot", str(root), *enter], group, log)
        try:
            container.wait_until_set_up()
            yield container
        finally:
            process.kill()
            process.wait()
            _remove(group)


def _memory_group(limit: int) -> Path:
    """A control group of version 1 or 2 with a limit of memory."""
    version_1 = MEMORY.is_dir()
    group = (MEMORY if version_1 else UNIFIED) / f"hiscore-image-test-{os.getpid()}"
    group.mkdir()
    (group / ("memory.limit_in_bytes" if version_1 else "memory.max")).write_text(str(limit))
    return group


def _remove(group: Path) -> None:
    """Kill what is left of the container: since it became another user, it outlives ``unshare``."""
    deadline = time.monotonic() + 10
    while (pids := (group / "cgroup.procs").read_text().split()) and time.monotonic() < deadline:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.1)
    group.rmdir()


def as_json(text: str) -> Any:
    """The last line of a command's output, parsed."""
    return json.loads(text.splitlines()[-1])
