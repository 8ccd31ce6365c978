"""Servers shared by all tests of a session; none of their processes or files may be left when they stop."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol
from unittest import mock

import pytest

from hiscore.checkpoint import resolve
from hiscore.launcher import Server
from hiscore.launcher.api import Api
from hiscore.launcher.repository import SHIPPED
from hiscore.settings import ServeSettings
from tests.server import analyzer
from tests.server.api import api_of
from tests.server.held import Holdable
from tests.server.leftovers import leftovers
from tests.support import chat_templates, tiny_models, tiny_tokenizers

# Of the files that take about a minute and more, the longest first: workers take one file after another.
LONGEST = (
    "test_tensor_parallel.py",
    "test_watchdog.py",
    "test_plain_triton.py",
    "test_soak.py",
    "test_launcher_signals.py",
    "test_score_encoders.py",
    "test_launcher.py",
    "test_perf_analyzer.py",
    "test_api_decisions.py",
    "test_api_chat.py",
    "test_api.py",
    "test_decode_stream.py",
)


# Servers of many files, which are run one after the other.
SHARED = ("server", "lm", "abused")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files: one that begins last would keep one worker busy, and the others idle."""
    here = Path(__file__).parent
    places = {here / name: place for place, name in enumerate(LONGEST)}
    for shared in SHARED:
        for item in items:
            if shared in getattr(item, "fixturenames", ()):
                places.setdefault(item.path, len(LONGEST) + SHARED.index(shared))
    last = len(LONGEST) + len(SHARED)
    items.sort(key=lambda item: places.get(item.path, last) if item.path.parent == here else -1)


class StartServer(Protocol):
    """Start a server on free ports, or return the running one with the same checkpoint and settings."""

    def __call__(self, checkpoint: Path, model_repository: Path = SHIPPED, **settings: Any) -> Server: ...


@pytest.fixture(scope="session")
def smollm() -> Path:
    return resolve()


@pytest.fixture(scope="session")
def tiny_llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random causal LM without a tokenizer: served by `scorer` and `decode` only."""
    return tiny_models.make("llama", tmp_path_factory.mktemp("tiny-llama"))


@pytest.fixture(scope="session")
def tiny_lm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random causal LM with a tokenizer: served by all models."""
    directory = tiny_models.make("llama", tmp_path_factory.mktemp("tiny-lm"))
    tokenizer = tiny_tokenizers.train(tiny_tokenizers.smollm2(), tiny_models.VOCABULARY)
    (directory / "chat_template.jinja").write_text(chat_templates.CHATML)
    return tiny_tokenizers.save(tokenizer, directory)


def settings_of(checkpoint: Path, **chosen: Any) -> ServeSettings:
    """Settings of a server on the CPU and on free ports, unless others are chosen."""
    usual = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "device": "cpu"}
    return ServeSettings(model=str(checkpoint), **{**usual, **chosen})


class Servers:
    """Servers by checkpoint and settings: three stay alive, but for a module that uses more at once."""

    ALIVE = 3

    def __init__(self, logs: Path) -> None:
        self._logs, self._starts = logs, 0
        self._running: dict[tuple[object, ...], Server] = {}  # the one used last comes last
        self._in_use: set[tuple[object, ...]] = set()

    def __call__(self, checkpoint: Path, model_repository: Path = SHIPPED, **settings: Any) -> Server:
        """Return the running server with this checkpoint and these settings, or start it on free ports."""
        key = (checkpoint, model_repository, *sorted(settings.items()))
        if key in self._running and key not in self._in_use and self._running[key].fault():
            self._stop(key)
        if key in self._running:
            server = self._running.pop(key)
        else:
            self._stop_unused(self.ALIVE - 1)
            self._starts += 1
            server = Server(settings_of(checkpoint, **settings), self._logs / f"{self._starts}.log")
            with mock.patch.dict(os.environ, HISCORE_MODEL_REPOSITORY=str(model_repository)):
                server.start()
        self._running[key] = server
        self._in_use.add(key)
        return server

    def end_of_module(self) -> None:
        self._in_use.clear()
        self._stop_unused(self.ALIVE)

    def stop(self) -> None:
        self._in_use.clear()
        self._stop_unused(0)

    def _stop_unused(self, left: int) -> None:
        unused = [key for key in self._running if key not in self._in_use]
        self._stop(*unused[: max(0, len(self._running) - left)])

    def _stop(self, *keys: tuple[object, ...]) -> None:
        stopped = [self._running.pop(key) for key in keys]
        names = [server.name for server in stopped]
        for server in stopped:
            server.stop()
        assert [entry for name in names for entry in leftovers(name)] == []


@contextmanager
def servers(logs: Path) -> Iterator[StartServer]:
    """Servers that are stopped at the end of the context, and must leave nothing behind."""
    started = Servers(logs)
    try:
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def kept_servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    kept = Servers(tmp_path_factory.mktemp("logs"))
    yield kept
    kept.stop()


@pytest.fixture(scope="module")
def start_server(kept_servers: Servers) -> Iterator[StartServer]:
    """Servers that run at least until the module ends."""
    yield kept_servers
    kept_servers.end_of_module()


@pytest.fixture(scope="session")
def perf_analyzer() -> list[str]:
    return analyzer.installed()


@pytest.fixture(scope="module")
def holdable(tmp_path_factory: pytest.TempPathFactory) -> Holdable:
    """For servers whose scorer a test holds: their `model_repository`."""
    return Holdable.make(tmp_path_factory.mktemp("holdable"))


@pytest.fixture(scope="module")
def server(start_server: StartServer, smollm: Path) -> Server:
    """The default model behind a real tritonserver."""
    return start_server(smollm)


@pytest.fixture(scope="module")
def api(server: Server, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Api]:
    """The HTTP API in front of the default model."""
    with api_of(server, tmp_path_factory.mktemp("api") / "api.log") as running:
        yield running


@pytest.fixture(scope="module")
def lm(start_server: StartServer, tiny_lm: Path) -> Server:
    """The small random causal LM with all models, and a lower limit on the tokens of a call."""
    return start_server(tiny_lm, query_cache_bytes=2**24, max_call_tokens=50_000)


@pytest.fixture(scope="module")
def abused(start_server: StartServer, tiny_lm: Path) -> Server:
    """A server for malicious callers: batches of one call, small pools, a short drain.

    In a batch of several calls, Triton's Python backend answers all of them with the error of one whose text is
    shorter than its tensor says. Triton leaks a stream that is cancelled just as it ends, which delays its stop.
    """
    return start_server(
        tiny_lm,
        max_batch_calls=1,
        max_queue=256,
        query_cache_bytes=2**24,
        host_kv_bytes=2**28,
        max_streams=8,
        drain_timeout_s=5,
    )
