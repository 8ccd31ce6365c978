"""A tritonserver as its users start it, without our launcher."""

import json
import os
import signal
import subprocess
import tempfile
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from hiscore.launcher.distribution import find_distribution
from hiscore.launcher.ports import free_ports
from hiscore.launcher.workspace import shared_memory
from hiscore.server.run_directory import PREFIX
from tests.server.wire import Refused
from tests.support.timeouts import TIMEOUT_S, wait_until


@dataclass(frozen=True)
class PlainTriton:
    """A running server; its attributes are those of `Server` that calls need."""

    process: "subprocess.Popen[bytes]"
    log: Path
    ports: list[int]
    name: str

    @property
    def http_address(self) -> str:
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def http_url(self) -> str:
        return f"http://{self.http_address}"

    @property
    def grpc_url(self) -> str:
        return f"127.0.0.1:{self.ports[1]}"

    def get(self, path: str) -> Any:
        with urllib.request.urlopen(self.http_url + path, timeout=TIMEOUT_S) as answer:
            return json.loads(answer.read() or "null")

    def control(self, model: str, action: str, parameters: Mapping[str, str] | None = None) -> None:
        """Load or unload a model; parameters: those of its config.pbtxt, in place of the written ones."""
        body: dict[str, Any] = {}
        if parameters is not None:
            config = self.config_of(model) | {
                "parameters": {name: {"string_value": value} for name, value in parameters.items()}
            }
            body = {"parameters": {"config": json.dumps(config)}}
        url = f"{self.http_url}/v2/repository/models/{model}/{action}"
        try:
            urllib.request.urlopen(url, json.dumps(body).encode(), TIMEOUT_S).close()
        except urllib.error.HTTPError as error:
            raise Refused(str(error.code), json.load(error)["error"]) from None

    def config_of(self, model: str) -> dict[str, Any]:
        return dict(self.get(f"/v2/models/{model}/config"))

    def states(self) -> dict[str, str]:
        """The state of each model that was ever loaded."""
        index = urllib.request.Request(f"{self.http_url}/v2/repository/index", method="POST")
        with urllib.request.urlopen(index, timeout=TIMEOUT_S) as answer:
            return {each["name"]: each.get("state", "") for each in json.load(answer)}

    def stubs(self, model: str) -> list[psutil.Process]:
        """The processes of a model."""
        children = psutil.Process(self.process.pid).children(recursive=True)
        return [each for each in children if f"/{model}/1/model.py" in " ".join(each.cmdline())]

    def claims(self) -> dict[str, dict[str, Any]]:
        """The owners that have claimed memory on the host, by process."""
        (file,) = self.run_directory().glob("memory-*.json")
        return dict(json.loads(file.read_text())["host"]["claims"])

    def run_directory(self) -> Path:
        (directory,) = Path(tempfile.gettempdir()).glob(f"{PREFIX}{self.process.pid}-*")
        return directory


@contextmanager
def plain_triton(
    repository: Path, directory: Path, *flags: str, ready: str = "/v2/health/ready", **settings: str
) -> Iterator[PlainTriton]:
    """Start the wheel's tritonserver as its manual says; `settings` are variables of its environment."""
    distribution = find_distribution()
    # In NVIDIA's image the stub is beside the backend; the wheel has one for each version of Python.
    backend = directory / "backends/python"
    backend.mkdir(parents=True)
    for part in (*distribution.python_backend.iterdir(), distribution.stub):
        link = backend / part.name
        link.unlink(missing_ok=True)
        link.symlink_to(part)
    distribution.link_libpython(directory / "lib")
    environment = distribution.environment(directory / "lib") | settings
    ports, log = free_ports("127.0.0.1", 3), directory / "triton.log"
    names = ("http", "grpc", "metrics")
    name = f"plain-{os.getpid()}-{ports[0]}"
    command = [
        str(distribution.tritonserver),
        f"--model-repository={repository}",
        f"--backend-directory={directory / 'backends'}",
        *(f"--{each}-address=127.0.0.1" for each in names),
        *(f"--{each}-port={port}" for each, port in zip(names, ports, strict=True)),
        f"--backend-config=python,shm-region-prefix-name={name}",
        *flags,
    ]
    with open(log, "wb") as output:
        process = subprocess.Popen(command, env=environment, stdout=output, stderr=output, cwd=os.path.sep)
    server = PlainTriton(process, log, ports, name)
    try:
        wait_until(lambda: _answers(server, ready), lambda: log.read_text()[-2_000:])
        yield server
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(TIMEOUT_S)
        finally:
            process.kill()
            # Triton leaves that of a model that was killed.
            for region in shared_memory(name):
                region.unlink()


def _answers(server: PlainTriton, path: str) -> bool:
    assert server.process.poll() is None, server.log.read_text()[-2_000:]
    try:
        server.get(path)
    except OSError:
        return False
    return True
