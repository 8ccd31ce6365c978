"""``make image-test``: build docker/Dockerfile on a stand-in for NVIDIA's image, start it, and use it.

Needs root, buildah, debootstrap, iproute2 and util-linux; Debian and Ubuntu have them as packages. Nothing is
reachable from outside: the container has a loopback of its own.
"""

import fcntl
import math
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
from buildah import CACHE, ROOT, build, buildah, config_of
from container import Container, as_json, start
from standin import stand_in

PROGRAMS = ("buildah", "debootstrap", "ip", "nsenter", "setpriv", "unshare")
IMAGE = "localhost/hiscore:image-test"
# Every model gets its pools out of it.
MEMORY = 4 * 2**30
READY_SECONDS = 300
DRAIN_SECONDS = 10
VARIABLES = {
    "MODEL": "/models",
    "DEVICE": "cpu",
    "DRAIN_TIMEOUT_S": str(DRAIN_SECONDS),
    # The stand-in's Triton is old, and nobody else reaches the container.
    "ALLOW_KNOWN_CVES": "1",
}


def every_model_gets_ready(container: Container) -> None:
    """And the image's own health check agrees."""
    models = [f"--model={name}" for name in ("score", "tokenizer", "scorer", "decode")]
    command = ["hiscore", "wait-ready", "--timeout", str(READY_SECONDS), *models]
    done = container.run(*command, timeout=READY_SECONDS + 30)
    assert done.returncode == 0, done.stderr
    assert container.run("canary", "60").returncode == 0
    # The control: nobody listens there.
    assert container.run("env", "HISCORE_URL=127.0.0.1:9", "canary", "3").returncode == 1


def its_processes_are_harmless(container: Container) -> None:
    """An ordinary user without capabilities, from the launcher to the models."""
    statuses = container.statuses()
    assert len(statuses) >= 5, statuses
    for status in statuses:
        assert status["Uid"].split() == ["1000"] * 4
        assert {int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")} == {0}
        assert status["NoNewPrivs"] == "1"


def its_root_is_read_only(container: Container) -> None:
    """It writes to /tmp and to its volume alone."""
    done = container.run("touch", "/opt/hiscore/file")
    assert "Read-only file system" in done.stderr, done.stderr
    for directory in ("/tmp", "/var/cache/hiscore"):
        assert container.run("touch", f"{directory}/file").returncode == 0
        assert container.run("rm", f"{directory}/file").returncode == 0


def it_scores(container: Container) -> None:
    """Over gRPC, by the image's own command: probabilities, the likelier label ahead."""
    done = container.run(
        "hiscore", "score", "--json", "--query", "The capital of France is", "--label", " Paris",
        "--label", " Bread", "--softmax", ""
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (scores,) = as_json(done.stdout)["scores"]
    assert math.isclose(sum(scores), 1, abs_tol=1e-5)
    assert scores[0] > 0.9


def it_generates(container: Container) -> None:
    """Some text."""
    done = container.run("hiscore", "generate", "--max-tokens", "4", "The capital of France is")
    assert done.returncode == 0, done.stderr
    assert "Paris" in done.stdout


def it_answers_over_http(container: Container) -> None:
    """The launcher's probes and the HTTP API."""
    get = "import sys, urllib.request as r; [r.urlopen(url, timeout=60) for url in sys.argv[1:]]"
    urls = ["http://127.0.0.1:8003/readyz", "http://127.0.0.1:8003/metrics", "http://127.0.0.1:8080/health"]
    done = container.run("python", "-c", get, *urls)
    assert done.returncode == 0, done.stderr


def it_keeps_to_its_memory(container: Container) -> None:
    """The kernel has killed none of its processes for lack of memory."""
    assert container.oom_kills() == 0


def it_stops_cleanly(container: Container) -> None:
    """A SIGTERM ends it in time, with exit code 0, and nothing of it is left."""
    began = time.monotonic()
    # The API's drain, the models', and what the launcher takes to clean up.
    assert container.terminate(2 * DRAIN_SECONDS + 20) == 0, container.log.read_text()[-2000:]
    print(f"    {time.monotonic() - began:.1f} s", file=sys.stderr)
    assert "Traceback" not in container.log.read_text()
    assert container.statuses() == []


CHECKS: tuple[Callable[[Container], None], ...] = (
    every_model_gets_ready,
    its_processes_are_harmless,
    its_root_is_read_only,
    it_scores,
    it_generates,
    it_answers_over_http,
    it_keeps_to_its_memory,
    it_stops_cleanly,
)


def check(image: str, model: Path) -> int:
    """Start a container and run all checks; returns how many failed."""
    config: Any = config_of(image)
    container_id = buildah("from", image)
    failed = 0
    try:
        root = Path(buildah("mount", container_id))
        with (
            tempfile.TemporaryDirectory(prefix="hiscore-image-test-") as work,
            start(root, config, VARIABLES, model, Path(work), MEMORY) as container,
        ):
            for each in CHECKS:
                try:
                    each(container)
                except (AssertionError, subprocess.TimeoutExpired) as error:
                    failed += 1
                    print(f"FAILED {each.__name__}: {error}", file=sys.stderr)
                    print(container.log.read_text()[-4000:], file=sys.stderr)
                    break
                print(f"passed {each.__name__}", file=sys.stderr)
    finally:
        buildah("umount", container_id)
        buildah("rm", container_id)
    return failed


def main() -> int:
    """Build, then check; 0 if everything held."""
    missing = [program for program in PROGRAMS if shutil.which(program) is None]
    if missing or os.geteuid() != 0:
        print(f"error: this needs root and {', '.join(PROGRAMS)}; missing: {missing}", file=sys.stderr)
        return 2
    free = psutil.virtual_memory().available
    if free < MEMORY:
        print(
            f"error: the container may take {MEMORY >> 30} GiB, and {free >> 20} MiB are free",
            file=sys.stderr,
        )
        return 2
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        return build_and_check()


def build_and_check() -> int:
    """0 if everything held; one run at a time, since they share the stand-in."""
    command = [sys.executable, "-m", "hiscore.checkpoint"]
    model = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT).stdout.strip()
    base = stand_in()
    build(IMAGE, base)
    try:
        return 1 if check(IMAGE, Path(model)) else 0
    finally:
        buildah("rmi", "--force", IMAGE)


if __name__ == "__main__":
    sys.exit(main())
