"""What is refused before any file of a checkpoint is read: devices, ports and TLS files that cannot work."""

import socket
from pathlib import Path
from typing import Any

import pytest

from hiscore.launcher import device_choice, early_checks
from hiscore.launcher.early_checks import check_device, check_ports, check_tls
from hiscore.launcher.errors import LaunchError
from hiscore.settings import ServeSettings
from tests.support.certificates import make_ca, sign


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Why there is no GPU; empty at first: there is one."""
    reasons: list[str] = []
    for module in (early_checks, device_choice):
        monkeypatch.setattr(module, "no_gpu", lambda: reasons[0] if reasons else "")
    return reasons


def test_a_gpu_that_is_not_there_is_refused(gpu: list[str]) -> None:
    check_device(ServeSettings(device="cuda"))  # the control
    gpu.append("this machine has no NVIDIA GPU")
    with pytest.raises(
        LaunchError, match="DEVICE is cuda, but this machine has no NVIDIA GPU: set DEVICE=cpu"
    ):
        check_device(ServeSettings(device="cuda"))
    check_device(ServeSettings(device="auto"))


def test_fp8_needs_a_gpu(gpu: list[str]) -> None:
    check_device(ServeSettings(dtype="fp8"))  # the control
    with pytest.raises(LaunchError, match=r"DTYPE is fp8, which needs a GPU, .*CPU \(DEVICE is set\)"):
        check_device(ServeSettings(dtype="fp8", device="cpu"))
    gpu.append("the installed torch is the CPU build")
    with pytest.raises(LaunchError, match=r"DTYPE is fp8, .*\(the installed torch is the CPU build\)"):
        check_device(ServeSettings(dtype="fp8"))


def test_gpus_must_make_whole_groups(gpu: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3,4,5")
    for ranks in (1, 2, 3):
        check_device(ServeSettings(tensor_parallel=ranks))  # the control
    with pytest.raises(
        LaunchError, match=r"TENSOR_PARALLEL is 4, and 6 GPUs are visible, .*CUDA_VISIBLE_DEVICES"
    ):
        check_device(ServeSettings(tensor_parallel=4))
    check_device(ServeSettings(tensor_parallel=4, device="cpu"))


@pytest.mark.parametrize("other", ["grpc_port", "metrics_port", "health_port", "api_port"])
def test_two_names_for_one_port_are_refused(other: str) -> None:
    settings = ServeSettings(**{"http_port": 34_567, other: 34_567})
    with pytest.raises(LaunchError, match=f"HTTP_PORT and {other.upper()} are both 34567: they must differ"):
        check_ports(settings)


@pytest.mark.parametrize("name", ["http_port", "grpc_port", "metrics_port", "health_port"])
@pytest.mark.parametrize("address", ["127.0.0.1", "::1"])
def test_a_port_in_use_is_refused(name: str, address: str) -> None:
    free = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "bind_address": address}
    check_ports(ServeSettings(**free))  # the control
    with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET) as holder:
        holder.bind((address, 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(LaunchError, match=f"{name.upper()} {port} is in use on {address}"):
            check_ports(ServeSettings(**{**free, name: port}))


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (["tls_cert"], "TLS_CERT and TLS_KEY belong together"),
        (["tls_key"], "TLS_CERT and TLS_KEY belong together"),
        (["tls_client_ca"], "TLS_CLIENT_CA needs TLS_CERT"),
    ],
)
def test_half_a_tls_configuration_is_refused(files: list[str], message: str) -> None:
    given: dict[str, Any] = dict.fromkeys(files, Path(__file__))
    with pytest.raises(LaunchError, match=message):
        check_tls(ServeSettings(**given))


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    settings = ServeSettings(tls_cert=Path(__file__), tls_key=tmp_path / "no.key")
    with pytest.raises(LaunchError, match=r"TLS_KEY names .*no\.key, which is not a file"):
        check_tls(settings)


def pem(directory: Path, name: str, text: str) -> Path:
    path = directory / name
    path.write_text(text)
    return path


@pytest.mark.slow
def test_files_that_tls_cannot_use_are_told_apart(tmp_path: Path) -> None:
    ca = make_ca(tmp_path, "ca")
    one, other = sign(ca, tmp_path, "one"), sign(ca, tmp_path, "other")
    junk = pem(tmp_path, "junk", "no PEM")
    locked = pem(
        tmp_path,
        "locked",
        one.key.read_text().replace("BEGIN PRIVATE", "BEGIN ENCRYPTED PRIVATE"),
    )
    check_tls(ServeSettings(tls_cert=one.cert, tls_key=one.key, tls_client_ca=ca.cert))  # the control
    for cert, key, client_ca, message in (
        (one.cert, other.key, None, "the key is not that of the certificate"),
        (junk, one.key, None, "the first holds no certificate in PEM"),
        (one.cert, junk, None, "the second holds no key in PEM"),
        (one.cert, locked, None, "the key has a password"),
        (one.cert, one.key, junk, "TLS_CLIENT_CA .*junk holds no certificate in PEM"),
    ):
        with pytest.raises(LaunchError, match=message):
            check_tls(ServeSettings(tls_cert=cert, tls_key=key, tls_client_ca=client_ca))
