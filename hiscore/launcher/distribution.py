"""Find the tritonserver binary, its Python backend and their libraries."""

import importlib.util
import os
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

from hiscore.launcher.errors import BadSetting
from hiscore.launcher.libraries import LIBRARIES

STUB = "triton_python_backend_stub"
SCRIPTS = Path(sys.executable).parent
INTERPRETER_LIBRARIES = Path(str(sysconfig.get_config_var("LIBDIR")))
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"


@dataclass(frozen=True)
class Distribution:
    """A tritonserver with a Python backend whose stub embeds the running version of Python.

    Args:
        python_backend: Directory of the backend's library and its ``triton_python_backend_utils.py``.
        stub: The binary that runs a model.
        libraries: Directories for the dynamic loader to search.
        is_wheel: The server comes from the nvidia-pytriton wheel.
    """

    tritonserver: Path
    python_backend: Path
    stub: Path
    libraries: tuple[str, ...]
    is_wheel: bool = False

    def environment(self, libpython: Path) -> dict[str, str]:
        """Make the environment for the server and its stubs; directory `libpython` has the interpreter's library.

        The stub takes its packages from the virtual environment whose ``python3`` comes first on PATH, and its
        interpreter from the libpython that the dynamic loader finds. It ignores PYTHONPATH. Settings of the
        libraries that are in the launcher's environment stay.
        """
        path = [str(SCRIPTS), *os.environ.get("PATH", os.defpath).split(os.pathsep)]
        loader = [
            str(libpython),
            *self.libraries,
            *filter(None, os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)),
        ]
        return {
            **LIBRARIES,
            **os.environ,
            "PATH": os.pathsep.join(path),
            "LD_LIBRARY_PATH": os.pathsep.join(dict.fromkeys(loader)),
        }

    def link_backends(self, directory: Path) -> None:
        """Fill a ``--backend-directory`` with links to the Python backend, the stub and our package.

        The backend's directory is on every model's ``sys.path``, so models import the package that launches them,
        whether it is installed or not.
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

        The library's own directory may be the system's. Searched first, it would shadow libraries that the
        environment puts before the system's, such as CUDA's forward-compatible driver in a container.
        """
        directory.mkdir()
        library = INTERPRETER_LIBRARIES / str(sysconfig.get_config_var("INSTSONAME"))
        if library.exists():  # if not, the loader finds it elsewhere, or preflight complains
            (directory / library.name).symlink_to(library)

    def missing_libraries(self) -> list[str]:
        """Names of the libraries that the dynamic loader does not find for the server and the stub."""
        missing: list[str] = []
        # As ldd does it: the program itself does not run.
        trace = self.environment(INTERPRETER_LIBRARIES) | {"LD_TRACE_LOADED_OBJECTS": "1"}
        for binary in (self.tritonserver, self.stub):
            listing = subprocess.run([binary], env=trace, capture_output=True, text=True, check=False).stdout
            missing += [line.split()[0] for line in listing.splitlines() if line.endswith("not found")]
        return list(dict.fromkeys(missing))


def find_distribution() -> Distribution:
    """Find a tritonserver: the one that TRITONSERVER names, else that of the nvidia-pytriton wheel.

    With TRITONSERVER, TRITON_BACKENDS is the directory of its backends, TRITON_LIBS a search path for libraries.

    Raises:
        BadSetting: There is none, or a part of it is missing.
    """
    named = os.environ.get("TRITONSERVER")
    if named and not os.access(named, os.X_OK):
        raise BadSetting(f"TRITONSERVER names {named}, which is no program")
    distribution = _named(Path(named).absolute()) if named else _wheel()
    for part in (distribution.python_backend, distribution.stub):
        if not part.exists():
            raise BadSetting(
                f"{part} does not exist: it should come with {distribution.tritonserver} (TRITONSERVER, "
                "TRITON_BACKENDS)"
            )
    return distribution


def _named(tritonserver: Path) -> Distribution:
    backends = Path(os.environ.get("TRITON_BACKENDS") or tritonserver.parents[1] / "backends")
    return Distribution(
        tritonserver=tritonserver,
        python_backend=backends / "python",
        stub=backends / "python" / STUB,
        libraries=tuple(filter(None, os.environ.get("TRITON_LIBS", "").split(os.pathsep))),
    )


def _wheel() -> Distribution:
    # Not imported: importing pytriton takes seconds and changes the logging of this process.
    spec = importlib.util.find_spec("pytriton")
    if spec is None or spec.origin is None:
        raise BadSetting(
            "no tritonserver found: install one with `pip install '.[triton]' ./client` in a checkout of hiscore, "
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
