"""A stand-in for NVIDIA's image: Debian with the tritonserver of the nvidia-pytriton wheel, without a registry.

It has what docker/Dockerfile relies on: /opt/tritonserver, a python3 that the Python stub embeds, an entry point
that replaces itself with the command, and the user 1000. Its Triton is old, and its Python may be another version.
"""

import hashlib
import importlib.util
import shutil
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from buildah import CACHE, buildah, has_image, remove_leftovers

SUITE = "bookworm"
MIRROR = "http://deb.debian.org/debian"
PACKAGES = "ca-certificates,python3"
# What the wheel has, as `TRITON_VERSION` of a release says it.
TRITON_VERSION = "2.51.0"
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
ENTRYPOINT = "/opt/nvidia/nvidia_entrypoint.sh"


def stand_in() -> str:
    """The name of the image, after making it if it is not there yet."""
    made_of = f"{SUITE} {PACKAGES} {version('nvidia-pytriton')} {Path(__file__).read_text()}"
    name = f"localhost/hiscore-stand-in:{hashlib.sha256(made_of.encode()).hexdigest()[:12]}"
    found = has_image(name)
    remove_leftovers(images=not found)
    if not found:
        root = CACHE / "stand-in"
        shutil.rmtree(root, ignore_errors=True)
        _debootstrap(root)
        _add_triton(root)
        _commit(root, name)
        shutil.rmtree(root)
    return name


def _debootstrap(root: Path) -> None:
    command = ["debootstrap", "--variant=minbase", f"--include={PACKAGES}", SUITE, root, MIRROR]
    subprocess.run(command, check=True, stdout=sys.stderr)


def _add_triton(root: Path) -> None:
    spec = importlib.util.find_spec("pytriton")
    assert spec is not None, "make install first"
    assert spec.origin is not None
    package = Path(spec.origin).parent
    wheel, triton = package / "tritonserver", root / "opt/tritonserver"
    python = _inside(root, "python3", "-c", "import sys; print('%d.%d' % sys.version_info[:2])")
    shutil.copytree(wheel / "bin", triton / "bin")
    shutil.copytree(
        wheel / "backends/python", triton / "backends/python", ignore=shutil.ignore_patterns("__pycache__")
    )
    shutil.copy(
        wheel / "python_backend_stubs" / python / "triton_python_backend_stub", triton / "backends/python"
    )
    shutil.copytree(package.parent / "nvidia_pytriton.libs", triton / "lib")
    (triton / "TRITON_VERSION").write_text(TRITON_VERSION)
    (root / "etc/ld.so.conf.d/tritonserver.conf").write_text("/opt/tritonserver/lib\n")
    _inside(root, "ldconfig")
    _inside(root, "useradd", "--uid", "1000", "triton-server")
    entrypoint = root / ENTRYPOINT.lstrip("/")
    entrypoint.parent.mkdir()
    entrypoint.write_text('#!/bin/sh\nexec "$@"\n')
    entrypoint.chmod(0o755)


def _inside(root: Path, *command: str) -> str:
    done = subprocess.run(["chroot", root, *command], check=True, stdout=subprocess.PIPE, text=True)
    return done.stdout.strip()


def _commit(root: Path, name: str) -> None:
    container = buildah("from", "scratch")
    buildah("copy", "--quiet", container, root, "/")
    buildah("config", "--entrypoint", f'["{ENTRYPOINT}"]', "--env", f"PATH={PATH}", container)
    buildah("commit", "--quiet", "--rm", container, name)
