"""Servers shared by all tests of a session; at its end, none of their processes or files may be left."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest

from hiscore.checkpoint import resolve
from hiscore.launcher import Server
from hiscore.settings import ServeSettings
from tests.server.held import Holdable
from tests.server.leftovers import leftovers
from tests.support import tiny_models, tiny_tokenizers

# Of the files that take about a minute and more, the longest first: workers take one file after another.
LONGEST = (
    "test_tensor_parallel.py",
    "test_watchdog.py",
    "test_soak.py",
    "test_launcher_signals.py",
    "test_score_families.py",
    "test_score_encoders.py",
    "test_launcher.py",
    "test_perf_analyzer.py",
    "test_api_fuzz.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begin with the longest files: one that begins last would keep one worker busy, and the others idle."""
    places = {name: place for place, name in enumerate(LONGEST)}
    here = Path(__file__).parent
    items.sort(key=lambda item: places.get(item.path.name, len(LONGEST)) if item.path.parent == here else -1)


class StartServer(Protocol):
    """Start a server on free ports, or return the running one with the same checkpoint and settings."""

    def __call__(self, checkpoint: Path, **settings: Any) -> Server: ...


@pytest.fixture(scope="session")
def smollm() -> Path:
    """The default checkpoint."""
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
    (directory / "chat_template.jinja").write_text(tiny_tokenizers.CHAT_TEMPLATE)
    return tiny_tokenizers.save(tokenizer, directory)


@contextmanager
def servers(logs: Path) -> Iterator[StartServer]:
    """Servers that are stopped at the end of the context, and must leave nothing behind."""
    running: dict[tuple[object, ...], Server] = {}

    def start(checkpoint: Path, **settings: Any) -> Server:
        key = (checkpoint, *sorted(settings.items()))
        if key not in running:
            chosen = {"http_port": 0, "grpc_port": 0, "metrics_port": 0, "device": "cpu", **settings}
            server = Server(ServeSettings(model=str(checkpoint), **chosen), logs / f"{len(running)}.log")
            server.start()
            running[key] = server
        return running[key]

    try:
        yield start
    finally:
        names = {server.name: server for server in running.values()}
        for server in running.values():
            server.stop()
    assert [entry for name in names for entry in leftovers(name)] == []


@pytest.fixture(scope="module")
def start_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """For servers of one module: a session has too many to keep them all in memory."""
    with servers(tmp_path_factory.mktemp("logs")) as start:
        yield start


@pytest.fixture(scope="module")
def holdable(tmp_path_factory: pytest.TempPathFactory) -> Holdable:
    """For servers whose scorer a test holds: their setting `model_repository`."""
    return Holdable.make(tmp_path_factory.mktemp("holdable"))


@pytest.fixture(scope="session")
def start_shared_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartServer]:
    """For servers of many modules."""
    with servers(tmp_path_factory.mktemp("shared-logs")) as start:
        yield start


@pytest.fixture(scope="session")
def server(start_shared_server: StartServer, smollm: Path) -> Server:
    """The default model behind a real tritonserver."""
    return start_shared_server(smollm)


@pytest.fixture(scope="session")
def lm(start_shared_server: StartServer, tiny_lm: Path) -> Server:
    """The small random causal LM with all models, and a lower limit on the tokens of a call."""
    return start_shared_server(tiny_lm, query_cache_bytes=2**24, max_call_tokens=50_000)


@pytest.fixture(scope="session")
def abused(start_shared_server: StartServer, tiny_lm: Path) -> Server:
    """A server for malicious callers: batches of one call, small pools, a short drain.

    In a batch of several calls, Triton's Python backend answers all of them with the error of one whose text is
    shorter than its tensor says. Triton leaks a stream that is cancelled just as it ends, which delays its stop.
    """
    return start_shared_server(
        tiny_lm,
        max_batch_calls=1,
        max_queue=256,
        query_cache_bytes=2**24,
        host_kv_bytes=2**28,
        max_streams=8,
        drain_timeout_s=5,
    )
