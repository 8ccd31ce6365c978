"""What the launcher finds on the machine, and what it leaves there."""

import dataclasses
import os
import re
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hiscore.launcher import devices, die_with_parent, distribution, preflight
from hiscore.launcher.devices import choose_device
from hiscore.launcher.distribution import STUB, Distribution, find_distribution
from hiscore.launcher.errors import LaunchError
from hiscore.launcher.failure import error_lines
from hiscore.launcher.make import MakeWatch
from hiscore.launcher.ports import Ports
from hiscore.launcher.workspace import SHARED_MEMORY, Workspace, sweep


@pytest.fixture(autouse=True)
def own_temporary_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_a_workspace_is_private_and_removed_with_its_shared_memory() -> None:
    workspace = Workspace()
    region = SHARED_MEMORY / f"{workspace.name}_region"
    region.touch()
    assert workspace.path.stat().st_mode & 0o777 == 0o700
    workspace.remove()
    assert not workspace.path.exists()
    assert not region.exists()


def test_a_sweep_spares_the_living_and_removes_the_dead() -> None:
    workspace = Workspace()
    region = SHARED_MEMORY / f"{workspace.name}_region"
    region.touch()
    sweep()
    assert workspace.path.exists()
    assert region.exists()
    # What the end of the last process that holds the lock does.
    os.close(workspace.lock)
    sweep()
    assert not workspace.path.exists()
    assert not region.exists()


def test_a_temporary_directory_with_a_space_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spaced = tmp_path / "a b"
    spaced.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(spaced))
    with pytest.raises(LaunchError, match="set TMPDIR"):
        Workspace()
    assert list(spaced.iterdir()) == []


def test_free_ports_differ_and_given_ones_stay() -> None:
    chosen = Ports().choose("127.0.0.1")
    assert len(set(chosen.all())) == 3
    assert all(chosen.all())
    again = Ports(grpc=chosen.grpc).choose("127.0.0.1")
    assert again.grpc == chosen.grpc


def test_ports_in_use_or_equal_are_refused() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(LaunchError, match=f"GRPC_PORT {port} is in use"):
            Ports(grpc=port).choose("127.0.0.1")
    with pytest.raises(LaunchError, match="must differ"):
        Ports(http=port, grpc=port).choose("127.0.0.1")


@pytest.mark.parametrize("address", ["192.0.2.1", "no address"])  # the first is reserved for documentation
def test_an_address_of_no_interface_is_named(address: str) -> None:
    with pytest.raises(LaunchError, match=f"BIND_ADDRESS {address} is no address of this machine"):
        Ports(grpc=1).choose(address)


def test_numpy_2_is_refused() -> None:
    preflight.check_numpy("1.26.4")
    with pytest.raises(LaunchError, match=r"NumPy 2\.1\.0 .*numpy<2"):
        preflight.check_numpy("2.1.0")


def test_little_shared_memory_is_refused() -> None:
    preflight.check_shared_memory(needed=128 << 20, free=128 << 20)
    with pytest.raises(LaunchError, match=r"has 64 MiB free, the models need 128 MiB.*--shm-size"):
        preflight.check_shared_memory(needed=128 << 20, free=64 << 20)


def test_the_installed_tritonserver_is_found_with_all_its_libraries(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TRITONSERVER", "TRITON_BACKENDS", "TRITON_LIBS", "LD_LIBRARY_PATH"):
        monkeypatch.delenv(name, raising=False)
    found = find_distribution()
    assert found.missing_libraries() == []
    preflight.check_libraries(found)


def test_the_interpreters_directory_hides_no_library_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a container: the interpreter's library lies among the system's, the driver to be used elsewhere."""
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
        (tmp_path / name).touch()
    monkeypatch.setenv("TRITONSERVER", str(tmp_path / "bin/tritonserver"))
    monkeypatch.setenv("TRITON_BACKENDS", str(tmp_path / "backends"))
    monkeypatch.setenv("TRITON_LIBS", "/one:/two")
    found = find_distribution()
    assert found.tritonserver == tmp_path / "bin/tritonserver"
    assert found.libraries == ("/one", "/two")
    (tmp_path / f"backends/python/{STUB}").unlink()
    with pytest.raises(LaunchError, match=f"{STUB} does not exist"):
        find_distribution()


def test_auto_takes_a_gpu_only_where_all_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices.metadata, "version", lambda name: "2.11.0+cu130")
    monkeypatch.setattr(devices.Path, "glob", lambda self, pattern: iter([Path("/dev/nvidia0")]))
    assert choose_device("auto")[0] == "cuda"
    assert choose_device("cpu")[0] == "cpu"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert choose_device("auto") == ("cpu", "CUDA_VISIBLE_DEVICES hides every GPU")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(devices.metadata, "version", lambda name: "2.13.0+cpu")
    assert choose_device("auto")[0] == "cpu"


def test_the_error_lines_of_a_log_keep_their_continuation() -> None:
    log = (
        'I1121 07:00:00.000001 1 a.cc:1] "fine"\n'
        'E1121 07:00:00.000002 1 b.cc:2] "failed to load: RuntimeError: why"\n\nAt:\n  model.py(3)\n'
        'I1121 07:00:00.000003 1 c.cc:3] "fine again"\nE1121 07:00:00.000004 1 d.cc:4] "and this"\n'
    )
    kept = error_lines(log)
    assert [line.split("] ")[-1] for line in kept] == [
        '"failed to load: RuntimeError: why"',
        "At:",
        "  model.py(3)",
        '"and this"',
    ]


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    # The parent starts a child under the wrapper, says its id and waits; then it is killed.
    script = (
        "import os, subprocess, sys\n"
        f"child = subprocess.Popen([sys.executable, '-IS', {die_with_parent.__file__!r}, str(os.getpid()), "
        "'/bin/sleep', '60'])\nprint(child.pid, flush=True)\nchild.wait()\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = Path("/proc") / parent.stdout.readline().strip()
        wait_for(lambda: (child / "comm").read_text().strip() == "sleep")
        parent.kill()
        wait_for(lambda: not child.exists() or "State:\tZ" in (child / "status").read_text())


def test_a_make_that_got_a_sigint_is_noticed(tmp_path: Path) -> None:
    script = (
        "import time\nfrom hiscore.launcher.make import MakeWatch\nwatch = MakeWatch()\n"
        "print(watch.interrupted(), flush=True)\nwhile not watch.interrupted():\n    time.sleep(0.05)\n"
        "print('noticed', flush=True)\n"
    )
    (tmp_path / "script.py").write_text(script)
    (tmp_path / "Makefile").write_text(f"all:\n\t@exec {sys.executable} script.py\n")
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    with subprocess.Popen(
        ["make", "-C", str(tmp_path)],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
        preexec_fn=heed_sigint,
    ) as make:
        assert make.stdout is not None
        lines = iter(make.stdout.readline, "")
        assert "False" in (line.strip() for line in lines)
        make.send_signal(signal.SIGINT)
        assert "noticed" in make.stdout.read()


def test_a_parent_that_is_no_make_is_not_watched() -> None:
    assert not MakeWatch().interrupted()


def heed_sigint() -> None:
    """Whoever runs the tests in the background has SIGINT ignored, and children inherit that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for(condition: Callable[[], bool], seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)
