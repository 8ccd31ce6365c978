"""Where the tritonserver binary, its Python backend and the libraries of both are."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from hiscore.launcher.errors import LaunchError

STUB = "triton_python_backend_stub"
SCRIPTS = Path(sys.executable).parent
INTERPRETER_LIBRARIES = Path(str(sysconfig.get_config_var("LIBDIR")))
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Distribution:
    """A tritonserver with a Python backend whose stub embeds the running Python's version.

    python_backend: the directory with the backend's library and its ``triton_python_backend_utils.py``;
    libraries: directories that the dynamic loader is to search; is_wheel: it comes from the nvidia-pytriton wheel.
    """

    tritonserver: Path
    python_backend: Path
    stub: Path
    libraries: tuple[str, ...]
    is_wheel: bool = False

    def environment(self, libpython: Path) -> dict[str, str]:
        """The environment for the server and its stubs; libpython: the directory that the interpreter's is in.

        The stub takes its packages from the environment whose ``python3`` comes first on PATH, and its
        interpreter from the libpython that the dynamic loader finds; it ignores PYTHONPATH.
        """
        path = [str(SCRIPTS), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
        loader = [
            str(libpython),
            *self.libraries,
            *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)),
        ]
        return {
            **os.environ,
            "PATH": os.pathsep.join(path),
            "LD_LIBRARY_PATH": os.pathsep.join(dict.fromkeys(loader)),
        }

    def link_backends(self, directory: Path) -> None:
        """Build a ``--backend-directory`` of links: the Python backend with our stub and our package.

        The backend's directory is on every model's ``sys.path``, so the models import the very package that
        launches them, installed or not.
        """
        python = directory / "python"
        python.mkdir(parents=True)
        for source in self.python_backend.iterdir():
            if source.name not in (STUB, "__pycache__"):
                (python / source.name).symlink_to(source.resolve())
        (python / STUB).symlink_to(self.stub.resolve())
        (python / "hiscore").symlink_to(Path(__file__).resolve().parents[1])

    def link_libpython(self, directory: Path) -> None:
        """Fill a directory with a link to the interpreter's library, for `environment`.

        The directory where that library lies may be the system's own. Put first, it would hide what others have
        put before it: in a container the driver of CUDA's forward compatibility.
        """
        directory.mkdir()
        library = INTERPRETER_LIBRARIES / str(sysconfig.get_config_var("INSTSONAME"))
        if library.exists():  # if not, the loader has found it elsewhere: preflight looks
            (directory / library.name).symlink_to(library)

    def missing_libraries(self) -> list[str]:
        """What the dynamic loader does not find for the server and the stub, by name."""
        missing: list[str] = []
        # This is what ldd does; the program itself is not run.
        trace = self.environment(INTERPRETER_LIBRARIES) | {"LD_TRACE_LOADED_OBJECTS": "1"}
        for binary in (self.tritonserver, self.stub):
            listing = subprocess.run([binary], env=trace, capture_output=True, text=True, check=False).stdout
            missing += [line.split()[0] for line in listing.splitlines() if line.endswith("not found")]
        return list(dict.fromkeys(missing))


def find_distribution() -> Distribution:
    """Find a tritonserver: the one that TRITONSERVER names, else the installed nvidia-pytriton wheel's.

    TRITON_BACKENDS is then the directory of its backends and TRITON_LIBS a search path for libraries.

    Raises:
        LaunchError: there is none, or a part of it is missing.
    """
    named = os.environ.get("TRITONSERVER")
    found = _named(Path(named)) if named else _wheel()
    for part in (found.tritonserver, found.python_backend, found.stub):
        if not part.exists():
            raise LaunchError(f"{part} does not exist: it should come with {found.tritonserver}")
    return found


def _named(tritonserver: Path) -> Distribution:
    backends = Path(os.environ.get("TRITON_BACKENDS") or tritonserver.parents[1] / "backends")
    return Distribution(
        tritonserver=tritonserver,
        python_backend=backends / "python",
        stub=backends / "python" / STUB,
        libraries=tuple(filter(None, os.environ.get("TRITON_LIBS", "").split(os.pathsep))),
    )


def _wheel() -> Distribution:
    # Looked up and not imported: importing pytriton takes seconds and changes the process's logging.
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise LaunchError(
            "no tritonserver found: install one with `pip install 'hiscore[server]'`, "
            "or set TRITONSERVER, TRITON_BACKENDS and TRITON_LIBS"
        )
    package = Path(spec.origin).parent
    root = package / "tritonserver"
    return Distribution(
        tritonserver=root / "bin" / "tritonserver",
        python_backend=root / "backends" / "python",
        stub=root / "python_backend_stubs" / PYTHON / STUB,
        libraries=(str(package.parent / "nvidia_pytriton.libs"),),
        is_wheel=True,
    )
