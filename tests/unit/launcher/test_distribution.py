"""Which tritonserver is taken, and that the dynamic loader finds its libraries."""

import dataclasses
import re
import subprocess
import sysconfig
from pathlib import Path

import pytest

from hiscore.launcher import distribution, preflight
from hiscore.launcher.distribution import STUB, Distribution, find_distribution
from hiscore.launcher.errors import LaunchError


def test_the_installed_tritonserver_is_found_with_all_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRITONSERVER", "TRITON_BACKENDS", "TRITON_LIBS", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    found = find_distribution()
    assert found.missing_libraries() == []
    preflight.check_libraries(found)


def test_the_interpreters_directory_hides_no_library_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container: the interpreter's library is among the system's, the driver to be used elsewhere."""
    found, real = find_distribution(), distribution.INTERPRETER_LIBRARIES
    python = str(sysconfig.get_config_var("INSTSONAME"))
    (math,) = (path for name, path in loaded(found, real) if name.startswith("libm.so"))
    for name in ("system", "compat"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "libm.so.6").symlink_to(math)
    (tmp_path / "system" / python).symlink_to(real / python)
    monkeypatch.setattr(distribution, "INTERPRETER_LIBRARIES", tmp_path / "system")
    monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path / "compat"))
    found.link_libpython(tmp_path / "lib")
    chosen = dict(loaded(found, tmp_path / "lib"))
    assert chosen["libm.so.6"] == str(tmp_path / "compat/libm.so.6")
    assert chosen[python] == str(tmp_path / "lib" / python)
    # The control: the whole directory first, and the environment's library is hidden.
    assert dict(loaded(found, tmp_path / "system"))["libm.so.6"] == str(tmp_path / "system/libm.so.6")


def loaded(found: Distribution, libpython: Path) -> list[tuple[str, str]]:
    """Names and paths of the libraries that the dynamic loader takes for the stub."""
    environment = found.environment(libpython) | {"LD_TRACE_LOADED_OBJECTS": "1"}
    listing = subprocess.run(
        [found.stub], env=environment, capture_output=True, text=True, check=False
    ).stdout
    return re.findall(r"^\s*(\S+) => (\S+) \(0x", listing, re.MULTILINE)


def test_a_libpython_out_of_reach_is_named() -> None:
    found = find_distribution()
    # Of a Python that hiscore does not support, so that it is hardly here.
    other = dataclasses.replace(found, stub=found.stub.parents[1] / "3.8" / STUB)
    with pytest.raises(LaunchError, match=r"does not find libpython3\.8\.so\.1\.0.*--enable-shared"):
        preflight.check_libraries(other)


def test_a_tritonserver_named_by_the_environment_is_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bin/tritonserver", f"backends/python/{STUB}"):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).touch(0o755)
    monkeypatch.setenv("TRITONSERVER", str(tmp_path / "bin/tritonserver"))
    monkeypatch.setenv("TRITON_BACKENDS", str(tmp_path / "backends"))
    monkeypatch.setenv("TRITON_LIBS", "/one:/two")
    found = find_distribution()
    assert found.tritonserver == tmp_path / "bin/tritonserver"
    assert found.libraries == ("/one", "/two")
    (tmp_path / f"backends/python/{STUB}").unlink()
    with pytest.raises(LaunchError, match=f"{STUB} does not exist"):
        find_distribution()
