"""Buildah without a daemon, a registry or containers of its own: images are built in a chroot."""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hiscore/image-test"
COMMAND = ["buildah", "--storage-driver", "vfs", "--root", CACHE / "storage", "--runroot", CACHE / "run"]
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")


def buildah(*arguments: str | Path) -> str:
    """Run a command that prints little; returns its standard output.

    Raises:
        CalledProcessError: It failed; it has said why on standard error.
    """
    return subprocess.run(
        [*COMMAND, *arguments], check=True, stdout=subprocess.PIPE, text=True
    ).stdout.strip()


def has_image(name: str) -> bool:
    """Whether there is an image of this name."""
    return subprocess.run([*COMMAND, "inspect", name], capture_output=True, check=False).returncode == 0


def remove_leftovers(images: bool) -> None:
    """Remove what an interrupted run has left: containers, stages without a name, or all images."""
    buildah("rm", "--all")
    if images:
        buildah("rmi", "--all", "--force")
    else:
        buildah("rmi", "--prune", "--force")


def config_of(name: str) -> dict[str, object]:
    """What an image says about how it is run: Env, User, Entrypoint, Cmd and so on."""
    config: dict[str, object] = json.loads(buildah("inspect", "--type", "image", name))["Docker"]["config"]
    return config


def build(name: str, base: str) -> None:
    """Build docker/Dockerfile on a base image, with this machine's way to package indexes."""
    options = [f"--volume={path}:{path}:ro" for path in sorted(_pip_paths())]
    if CERTIFICATES.exists():
        options.append(f"--volume={CERTIFICATES}:{CERTIFICATES}:ro")
    pip_conf = CACHE / "pip.conf"
    pip_conf.write_text(_pip_conf())
    command = [
        *COMMAND,
        "build",
        "--isolation=chroot",
        "--format=docker",
        "--layers=false",
        f"--volume={pip_conf}:/etc/pip.conf:ro",
        *options,
        f"--build-arg=TRITON_IMAGE={base}",
        f"--ignorefile={ROOT / 'docker/Dockerfile.dockerignore'}",
        f"--file={ROOT / 'docker/Dockerfile'}",
        f"--tag={name}",
        ROOT,
    ]
    subprocess.run(command, check=True, stdout=sys.stderr)


def _pip_settings() -> dict[str, str]:
    """This machine's settings of pip; those of the environment come last and win."""
    listing = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], check=True, capture_output=True, text=True
    ).stdout
    pairs = (line.partition("=") for line in listing.splitlines())
    return {name.rpartition(".")[2]: value.strip("'") for name, _, value in pairs}


def _pip_conf() -> str:
    return "\n".join(["[global]", *(f"{name} = {value}" for name, value in _pip_settings().items()), ""])


def _pip_paths() -> set[Path]:
    """Directories of packages on this machine that pip is told to use. The files of an index are beside it."""
    words = " ".join(_pip_settings().values()).split()
    paths = {Path(word.removeprefix("file://")) for word in words if word.startswith(("/", "file://"))}
    return {path.parent if path.name == "simple" else path for path in paths if path.is_dir()}
