"""Fetching from a hub, over the wire from a small one on loopback that speaks the few routes in use."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from hiscore.checkpoint import published_name
from tests.support.timeouts import TIMEOUT_S

NAMED = "additional_chat_templates/tool_use.jinja"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
FILES = {
    "config.json": b"{}",
    "model.safetensors": b"weights",
    "tokenizer.json": b"{ }",
    "chat_template.jinja": b"{{ messages }}",
    "modules.json": b"[]",
    "1_LogitScore/config.json": b"{   }",
    NAMED: b"{{ tools }}",
    "pytorch_model.bin": b"pickle",
    "modeling_custom.py": b"raise SystemExit",
    "README.md": b"hello",
    "consolidated.safetensors": b"weights once more",
    "onnx/model.safetensors": b"weights for something else",
    "2_Dense/config.json": b"{  }",
    "2_Dense/model.safetensors": b"weights of a module",
    "original/config.json": b"{}",
}


@contextmanager
def hub(files: dict[str, bytes]) -> Iterator[tuple[str, list[str]]]:
    fetched: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            path = self.path.split("?")[0]
            prefix = f"/org/name/resolve/{COMMIT}/"
            if path.startswith("/api/models/org/name/tree/"):
                tree = [{"type": "file", "path": f, "size": len(c), "oid": _sha(c)} for f, c in files.items()]
                self.answer(json.dumps(tree).encode())
            elif path.startswith("/api/models/org/name"):
                self.answer(json.dumps({"id": "org/name", "sha": COMMIT}).encode())
            elif path.startswith(prefix) and (name := path.removeprefix(prefix)) in files:
                if self.command == "GET":
                    fetched.append(name)
                self.answer(files[name])
            else:
                self.send_response(404)
                self.send_header("X-Error-Code", "RepoNotFound")
                self.send_header("Content-Length", "0")
                self.end_headers()

        do_HEAD = do_GET

        def answer(self, content: bytes) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("ETag", f'"{_sha(content)}"')
            self.send_header("X-Repo-Commit", COMMIT)
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", fetched
        server.shutdown()


def _sha(content: bytes) -> str:
    return hashlib.sha1(content).hexdigest()


def resolve(model: str, endpoint: str, home: Path) -> subprocess.CompletedProcess[str]:
    """In its own process, since the hub's client reads its settings when it is imported."""
    env = {**os.environ, "HF_ENDPOINT": endpoint, "HF_HOME": str(home), "NO_PROXY": "127.0.0.1"}
    command = [sys.executable, "-m", "hiscore.checkpoint", model]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=TIMEOUT_S)


@pytest.mark.slow
def test_only_weights_and_tokenizer_are_fetched(tmp_path: Path) -> None:
    with hub(FILES) as (endpoint, fetched):
        done = resolve("org/name", endpoint, tmp_path)
        assert done.returncode == 0, done.stderr
        directory = Path(done.stdout.strip())
        assert published_name(directory) == "org/name"
        wanted = {
            "config.json",
            "model.safetensors",
            "tokenizer.json",
            "chat_template.jinja",
            "modules.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "1_LogitScore/config.json",
            NAMED,
        }
        assert {str(f.relative_to(directory)) for f in directory.rglob("*") if f.is_file()} == wanted
        assert sorted(fetched) == sorted(wanted)
        assert (directory / "model.safetensors").read_bytes() == b"weights"
    offline = resolve("org/name", endpoint, tmp_path)
    assert offline.stdout == done.stdout, "what was fetched once is there without a hub"


@pytest.mark.slow
def test_a_repository_with_an_adapter_alone_is_named(tmp_path: Path) -> None:
    files = {
        "adapter_config.json": b'{"base_model_name_or_path": "org/base"}',
        "adapter_model.bin": b"pickle",
    }
    with hub(files) as (endpoint, _):
        done = resolve("org/name", endpoint, tmp_path)
    assert done.returncode == 1
    assert "is an adapter of 'org/base'" in done.stderr


@pytest.mark.slow
def test_a_repository_with_pickle_alone_is_refused(tmp_path: Path) -> None:
    with hub({"config.json": b"{}", "pytorch_model.bin": b"pickle"}) as (endpoint, fetched):
        done = resolve("org/name", endpoint, tmp_path)
    assert done.returncode == 1
    assert "'org/name' has no safetensors weights on the hub" in done.stderr
    assert fetched == ["config.json"]


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address at which nothing listens, and nothing else can."""
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{holder.getsockname()[1]}"


@pytest.mark.slow
@pytest.mark.parametrize("reason", ["RepositoryNotFoundError", ""], ids=["no repository", "no hub"])
def test_no_repository_or_no_hub(reason: str, nobody: str, tmp_path: Path) -> None:
    with hub(FILES) as (address, _):
        done = resolve("org/other", address if reason else nobody, tmp_path)
    assert done.returncode == 1
    assert "'org/other' is not a local directory, and fetching it from the hub failed" in done.stderr
    assert reason in done.stderr
    assert "set MODEL to a local directory" in done.stderr
    assert "Traceback" not in done.stderr
