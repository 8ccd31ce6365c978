"""tritonserver's flags: only what a scoring service needs is open."""

import re
from pathlib import Path

from hiscore.launcher.command import RESTRICTED, tls_flags, trace_flags, tritonserver_flags
from hiscore.launcher.ports import Ports
from hiscore.settings import ServeSettings


def flags(gpu: bool = True) -> list[str]:
    settings = ServeSettings(
        bind_address="10.0.0.1",
        drain_timeout_s=9,
        tls_cert=Path("/c"),
        tls_key=Path("/k"),
        trace_url="http://host",
    )
    return tritonserver_flags(settings, Path("/hiscore-x"), Ports(1, 2, 3), "127.0.0.1", gpu)


def test_every_argument_has_its_flag() -> None:
    assert {
        "--id=hiscore-x", "--model-repository=/hiscore-x/models", "--backend-directory=/hiscore-x/backends",
        "--exit-timeout-secs=9",
        "--http-address=127.0.0.1", "--http-port=1", "--grpc-address=10.0.0.1", "--grpc-port=2",
        "--metrics-address=10.0.0.1", "--metrics-port=3", "--grpc-server-cert=/c",
        "--trace-config=opentelemetry,url=http://host",
        "--backend-config=python,shm-region-prefix-name=hiscore-x",
        "--backend-config=python,shm-default-byte-size=67108864",
        "--backend-config=python,shm-growth-byte-size=67108864",
    } <= set(flags())  # fmt: skip


def test_no_model_is_loaded_or_unloaded_while_it_runs() -> None:
    assert {"--model-control-mode=none", "--strict-readiness=true", "--exit-on-error=true"} <= set(flags())


def test_inner_interfaces_are_locked_with_a_key_that_no_header_can_carry() -> None:
    keys = set()
    for _ in range(2):
        locks = [flag for flag in flags() if "restricted" in flag]
        assert len(locks) == 2
        for flag, name in zip(locks, ("http-restricted-api", "grpc-restricted-protocol"), strict=True):
            match = re.fullmatch(rf"--{name}={RESTRICTED}:hiscore=([0-9a-f]{{32}})\n", flag)
            assert match
            keys.add(match[1])
    assert len(keys) == 2  # a new one for each start


def test_without_a_gpu_what_needs_one_is_off() -> None:
    off = {"--allow-gpu-metrics=false", "--pinned-memory-pool-byte-size=0"}
    assert off <= set(flags(gpu=False))
    assert off.isdisjoint(flags(gpu=True))


def test_tls() -> None:
    cert, key, ca = Path("/c"), Path("/k"), Path("/ca")
    assert tls_flags(None, None, None) == []
    both = ["--grpc-use-ssl=true", "--grpc-server-cert=/c", "--grpc-server-key=/k"]
    assert tls_flags(cert, key, None) == both
    mutual = {*both, "--grpc-use-ssl-mutual=true", "--grpc-root-cert=/ca"}
    assert set(tls_flags(cert, key, ca)) == mutual


def test_traces() -> None:
    assert trace_flags(None, 5) == []
    found = trace_flags("http://host/v1/traces", 5)
    assert all(flag.startswith("--trace-config=") for flag in found)
    assert "--trace-config=opentelemetry,url=http://host/v1/traces" in found
    assert "--trace-config=rate=5" in found
    assert "--trace-config=level=TIMESTAMPS" in found  # TENSORS would send what callers send
    assert not any("TENSORS" in flag for flag in found)
