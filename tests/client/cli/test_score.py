"""The command line against a real gRPC endpoint; where the process matters, in its own process."""

import codecs
import io
import json
import os
import pty
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from hiscore_client.cli import offline, show
from tests.client.cli.command import COMMAND, lines, run, run_process
from tests.client.faulty_server import FaultyServer, abort, checksum, until_cancelled, when
from tests.support.processes import start_heeding_sigint
from tests.support.timeouts import TIMEOUT_S, wait_until

LABELS = ["--label", " Yes", "--label", " No"]
QUESTION = ["--query", "fruit?", *LABELS]


def expected(query: str, items: list[str]) -> list[list[float]]:
    # Rounded to float32, as on the wire.
    return [
        [float(np.float32(checksum(query.encode(), item.encode(), label))) for label in (b" Yes", b" No")]
        for item in items
    ]


@pytest.mark.slow
def test_items_as_arguments_give_one_line_of_json(url: str) -> None:
    done = run_process("score", *QUESTION, "apple", "Hämmer", url=url)
    assert done.returncode == 0, done.stderr
    (line,) = lines(done.stdout)
    assert line["scores"] == expected("fruit?", ["apple", "Hämmer"])
    assert line["usage"] == {"prompt_tokens": len("fruit?appleHämmer".encode()), "cached_tokens": 1}
    assert set(line) == {"scores", "usage", "request_id"}
    assert done.stderr == b""


def test_items_come_one_per_line_from_a_file_or_stdin(url: str, tmp_path: Path) -> None:
    file = tmp_path / "items"
    # A byte order mark is no text, and a carriage return alone ends no line.
    file.write_bytes(codecs.BOM_UTF8 + "apple\r\n\nl\ra\u2028st\r".encode())
    from_file = run("score", *QUESTION, "--file", str(file), url=url)
    from_stdin = run("score", *QUESTION, url=url, stdin=file.read_bytes() + b"\n")
    assert lines(from_file.stdout)[0]["scores"] == expected("fruit?", ["apple", "", "l\ra\u2028st\r"])
    assert lines(from_stdin.stdout)[0]["scores"] == expected("fruit?", ["apple", "", "l\ra\u2028st"])
    file.write_bytes(codecs.BOM_UTF8 + b'{"query": "fruit?",\r"items": ["apple"]}\r\n')
    of_json = run("score", *LABELS, "--file", str(file), url=url)
    assert lines(of_json.stdout)[0]["scores"] == expected("fruit?", ["apple"])


@pytest.mark.slow
def test_input_is_utf8_whatever_the_locale(url: str) -> None:
    done = run_process("score", *QUESTION, url=url, stdin="Hämmer 🍎".encode(), PYTHONIOENCODING="latin-1")
    assert lines(done.stdout)[0]["scores"] == expected("fruit?", ["Hämmer 🍎"])


def test_options_reach_the_server(url: str, server: FaultyServer) -> None:
    options = "--query q --label-id 5 --softmax --temperature 2 --item-first --timeout 30"
    done = run("score", *options.split(), "a", url=url)
    assert done.returncode == 0, done.stderr
    assert set(server.requests[0].parameters) == {"apply_softmax", "temperature", "item_first", "timeout"}
    assert [tensor.name for tensor in server.requests[0].inputs] == ["query", "label_token_ids", "items"]


def test_json_lines_keep_their_order_and_ids_while_many_are_in_flight(url: str, server: FaultyServer) -> None:
    # The first is answered after others, and still comes out first.
    server.faults.append(when(lambda: len(server.requests) >= 4))
    records = [{"id": {"n": n}, "query": f"q{n}", "items": ["a", f"{n}"]} for n in range(40)]
    stdin = "\n".join(map(json.dumps, records)).encode()
    done = run("score", *LABELS, "--in-flight", "4", url=url, stdin=stdin)
    assert done.returncode == 0, done.stderr
    found = lines(done.stdout)
    assert [line["id"] for line in found] == [record["id"] for record in records]
    assert [line["scores"] for line in found] == [expected(f"q{n}", ["a", f"{n}"]) for n in range(40)]
    assert 2 <= server.most_running <= 4


@pytest.mark.slow
def test_an_answer_is_written_before_the_input_ends(url: str) -> None:
    environment = {**os.environ, "HISCORE_URL": url}
    with subprocess.Popen(
        [*COMMAND, "score", *LABELS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdin
        assert process.stdout
        process.stdin.write(b'{"id": 1, "query": "q", "items": []}\n')
        process.stdin.flush()
        # Blocks for ever, up to the test's timeout, if the answer waits for more input.
        assert json.loads(process.stdout.readline())["id"] == 1
        process.stdin.close()
        assert process.wait(timeout=TIMEOUT_S) == 0


BAD = [
    (b"{", "is not JSON"),
    (b"[1]", "must be a JSON object"),
    (b'{"items": []}', "needs 'query', a string"),
    (b'{"query": "q", "items": "apple"}', "needs 'items', a list of strings"),
    (b'{"query": "q", "items": [1]}', "'items' at place 0 must be a string, not int"),
    (b'{"query": "q", "items": [], "lables": [], "id": 2}', "unknown key 'lables'"),
    (b'{"query": "q", "items": ["\xff"]}', "'items' at place 0 is not valid Unicode"),
]


@pytest.mark.parametrize(("line", "message"), BAD)
def test_a_bad_record_has_an_error_in_its_place_and_the_others_go_on(
    url: str, line: bytes, message: str
) -> None:
    good = b'{"id": "%d", "query": "q", "items": []}'
    done = run("score", *LABELS, url=url, stdin=b"\n".join([good % 1, b"", line, good % 3]))
    assert done.returncode == 2
    first, bad, last = lines(done.stdout)
    assert (first["id"], last["id"]) == ("1", "3")
    assert bad.get("id") == (2 if b'"id": 2' in line else None)
    assert bad["error"]["type"] == "InvalidRequest"
    assert message in bad["error"]["message"]
    assert message.encode() in done.stderr
    assert b"Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("code", "message", "status"),
    [
        ("INVALID_ARGUMENT", "'labels' holds ' Yes': not one token", 2),
        ("UNAVAILABLE", "in ensemble 'score', Request timeout expired", 5),
        ("RESOURCE_EXHAUSTED", "rate limit", 4),
        ("INTERNAL", "internal error", 1),
    ],
)
def test_exit_codes_of_failures(url: str, server: FaultyServer, code: str, message: str, status: int) -> None:
    server.faults.append(abort(code, message))
    done = run("score", *QUESTION, "apple", url=url)
    assert done.returncode == status
    assert lines(done.stdout)[0]["error"]["message"] == message
    assert done.stderr.decode() == f"hiscore: {message}\n"


def test_the_exit_code_is_that_of_the_first_failure(url: str, server: FaultyServer) -> None:
    server.faults.extend([abort("INTERNAL", "broken"), abort("INVALID_ARGUMENT", "bad")])
    stdin = b'{"query": "q", "items": ["a"]}\n' * 3
    done = run("score", *LABELS, "--in-flight", "1", url=url, stdin=stdin)
    assert done.returncode == 1
    assert [line.get("error", {}).get("message") for line in lines(done.stdout)] == ["broken", "bad", None]


@pytest.mark.slow
def test_no_server_is_code_3_even_while_input_is_still_open(dead_url: str) -> None:
    environment = {**os.environ, "HISCORE_URL": dead_url}
    with subprocess.Popen(
        [*COMMAND, "score", *LABELS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment,
    ) as process:
        assert process.stdin
        assert process.stderr
        process.stdin.write(b'{"query": "q", "items": ["a"]}\n')
        process.stdin.flush()
        assert process.wait(timeout=TIMEOUT_S) == 3
        message = process.stderr.read().decode()
    assert message.startswith(f"hiscore: {dead_url} is not reachable: ")
    assert message.count("\n") == 1


@pytest.mark.parametrize(
    "args",
    [
        ["apple"],
        [*QUESTION, "apple", "--file", "x"],
        [*QUESTION, "--file", "no-such-file"],
        [*QUESTION, "apple", "--url", "http://localhost:8000"],
        [*QUESTION, "apple", "--temperature", "hot"],
        [*QUESTION, "apple", "--temperature", "nan"],
        ["--no-such-option"],
    ],
)
def test_wrong_usage_is_code_2(url: str, server: FaultyServer, args: list[str]) -> None:
    done = run("score", *args, url=url)
    assert done.returncode == 2
    assert done.stderr
    assert b"Traceback" not in done.stderr
    assert server.requests == []


@pytest.mark.slow
def test_wait_ready(url: str, dead_url: str, server: FaultyServer) -> None:
    both = run("wait-ready", "--timeout", f"{TIMEOUT_S}", "--model", "score", "--model", "scorer", url=url)
    assert both.returncode == 0
    assert run("wait-ready", "--timeout", "3", "--model", "decode", url=url).returncode == 5
    assert run("wait-ready", "--timeout", "0.1", url=dead_url).returncode == 3
    server.tensors["score"] = []
    assert run("wait-ready", "--timeout", f"{TIMEOUT_S}", url=url).returncode == 1


def on_terminal(*args: str, url: str, tells_progress: bool = True) -> str:
    """Run with a terminal as stdout and stderr; return what it showed.

    tells_progress: False: stderr is nothing, or what takes more than a second would be seen on the terminal, too.
    """
    master, slave = pty.openpty()
    environment = {**os.environ, "HISCORE_URL": url, "COLUMNS": "100", "TERM": "xterm"}
    stderr = slave if tells_progress else subprocess.DEVNULL
    with subprocess.Popen(
        [*COMMAND, *args], stdin=slave, stdout=slave, stderr=stderr, env=environment
    ) as process:
        os.close(slave)
        shown = b""
        try:
            while part := os.read(master, 65536):
                shown += part
        except OSError:
            pass  # Linux's way to say that the other end of a terminal has closed.
        assert process.wait(timeout=TIMEOUT_S) == 0
    os.close(master)
    return shown.decode()


@pytest.mark.slow
def test_people_get_a_table_with_texts_as_they_are(url: str) -> None:
    shown = on_terminal("score", *QUESTION, "apple", "[bold]brackets[/nonsense]", url=url)
    (score, _) = expected("fruit?", ["apple"])[0]
    texts = "fruit?", '" Yes"', '" No"', "apple", "[bold]brackets[/nonsense]", f"{score:.6g}", "prompt tokens"
    assert [text for text in texts if text not in shown] == []


@pytest.mark.parametrize(
    ("terminal", "delay", "shown"), [(True, 0.0, True), (True, 3600.0, False), (False, 0.0, False)]
)
def test_a_bar_appears_on_a_terminal_once_the_work_is_long(
    terminal: bool, delay: float, shown: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(show, "PROGRESS_DELAY", delay)
    err = Console(file=io.StringIO(), force_terminal=terminal)
    with show.progress_bar(err, Console(file=io.StringIO()), "scoring", "items", 2) as progress:
        # As the timer would; it may be later than the end of this block.
        if delay == 0.0:
            progress.start()
    assert isinstance(err.file, io.StringIO)
    assert ("items" in err.file.getvalue()) == shown


@pytest.mark.slow
def test_without_the_extra_the_command_says_how_to_get_it(url: str) -> None:
    script = "import sys; sys.modules['typer'] = None; from hiscore_client.cli import main; main()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=TIMEOUT_S)
    assert done.returncode == 1
    assert (
        done.stderr.decode()
        == "hiscore: the command line needs its extra: pip install './client[cli]' in a checkout\n"
    )


@pytest.mark.slow
def test_the_sdk_imports_nothing_of_the_command_lines() -> None:
    script = "import sys, hiscore_client; print(sorted({'rich', 'typer', 'hiscore'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=TIMEOUT_S, check=True)
    assert done.stdout.strip() == b"[]"


@pytest.mark.slow
def test_an_interrupt_ends_it_at_once(url: str, server: FaultyServer) -> None:
    server.faults.append(until_cancelled)
    environment = {**os.environ, "HISCORE_URL": url}
    command = [*COMMAND, "score", *QUESTION, "apple"]
    with start_heeding_sigint(
        command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
    ) as process:
        wait_until(lambda: server.running > 0)
        process.send_signal(2)
        assert process.wait(timeout=TIMEOUT_S) != 0
        assert process.stderr
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.slow
def test_an_interrupt_while_packages_are_imported_is_quiet(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import sys, time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-c", "from hiscore_command import main; main()", "--version"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    with start_heeding_sigint(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment
    ) as process:
        assert process.stdout
        assert process.stdout.readline() == b"importing\n"
        process.send_signal(2)
        assert process.wait(timeout=TIMEOUT_S) == -2
        assert process.stderr
        assert process.stderr.read() == b""


def test_shells_can_complete_it(dead_url: str) -> None:
    assert b"--install-completion" in run("--help", url=dead_url).stdout


def test_a_job_without_a_server_is_told_so(url: str, dead_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offline, "ANSWER_SECONDS", 0.2)
    assert not offline._answers([dead_url])
    monkeypatch.setattr(offline, "ANSWER_SECONDS", TIMEOUT_S)
    assert offline._answers([url])
