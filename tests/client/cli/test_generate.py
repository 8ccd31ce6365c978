import json
import os
import pty
import select
import subprocess
import time
from functools import partial
from typing import Any

import pytest

from hiscore_client import RetryPolicy, config
from tests.client.cli.command import COMMAND, lines, run
from tests.client.cli.test_score import on_terminal
from tests.client.faulty_server import FaultyServer, until_cancelled, when
from tests.support.timeouts import TIMEOUT_S, wait_until

TEXT = "The größte 🍎"
RESULT = {"text": TEXT, "token_ids": [11, 12, 13, 14], "finish_reason": "stop"}


def without_request_id(line: dict[str, Any]) -> dict[str, Any]:
    assert len(line.pop("request_id")) == 32
    return line


def test_a_prompt_gives_one_line_of_json(url: str, server: FaultyServer) -> None:
    done = run("generate", "größer?", url=url)
    assert done.returncode == 0, done.stderr
    (line,) = lines(done.stdout)
    assert without_request_id(line) == RESULT
    assert done.stderr == b""
    assert server.requests[0].raw_input_contents[0][4:].decode() == "größer?"


def test_options_reach_the_server(url: str, server: FaultyServer) -> None:
    given = "generate q -n 5 --temperature 0.5 --top-k 4 --top-p 0.5 --seed 3 --ignore-eos --stop a --stop b"
    more = "--min-p 0.1 --repetition-penalty 1.5 --presence-penalty 1 --frequency-penalty -1 --min-tokens 2"
    last = "--json-schema {} --logprobs 3 --include-stop --rendered --stop-id 7 --full --timeout 1000"
    done = run(*f"{given} {more} {last}".split(), "--logit-bias", '{"5": -100}', url=url)
    assert done.returncode == 0, done.stderr
    parameters = {
        name: getattr(value, value.WhichOneof("parameter_choice"))
        for name, value in server.requests[0].parameters.items()
    }
    assert 500e6 < parameters.pop("timeout") <= 1_000e6
    assert parameters == {
        "max_tokens": 5,
        "temperature": 0.5,
        "top_k": 4,
        "top_p": 0.5,
        "seed": 3,
        "ignore_eos": True,
        "stop": '["a", "b"]',
        "stop_token_ids": "[7]",
        "sparse": False,
        "min_p": 0.1,
        "repetition_penalty": 1.5,
        "presence_penalty": 1.0,
        "frequency_penalty": -1.0,
        "min_tokens": 2,
        "logit_bias": '{"5": -100}',
        "json_schema": "{}",
        "logprobs": 3,
        "include_stop_str_in_output": True,
        "add_special_tokens": False,
    }


def test_json_lines_keep_their_order_and_a_failure_its_place(url: str, server: FaultyServer) -> None:
    # The first is answered after others, and still comes out first.
    server.faults.append(when(lambda: len(server.requests) >= 4))
    records: list[Any] = [{"id": n, "prompt": f"q{n}" if n % 2 else [n, 5]} for n in range(20)]
    records[7] = {"id": 7, "prompt": 5}
    records[8] = {"id": 8, "prompt": [2**40]}
    stdin = "\n".join(map(json.dumps, records)).encode()
    done = run("generate", "--in-flight", "4", url=url, stdin=stdin)
    assert done.returncode == 2
    found = lines(done.stdout)
    assert len(found) == 20
    assert found.pop(7) == {
        "id": 7,
        "error": {
            "type": "InvalidRequest",
            "message": "line 8 needs 'prompt', a string or a list of token ids",
        },
    }
    assert found.pop(7)["error"]["message"].startswith("'prompt' holds an id beyond")
    assert [line.pop("id") for line in found] == [n for n in range(20) if n not in (7, 8)]
    assert all(without_request_id(line) == RESULT for line in found)


def test_nobody_there_is_3_and_two_sources_of_prompts_are_2(
    dead_url: str, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "RetryPolicy", partial(RetryPolicy, first_pause=0.001))
    assert run("generate", "a", url=dead_url).returncode == 3
    assert run("generate", "a", "--file", "-", url=url).returncode == 2


@pytest.mark.slow
def test_a_terminal_sees_text_as_it_comes(url: str, server: FaultyServer) -> None:
    server.stream.insert(1, until_cancelled)
    master, slave = pty.openpty()
    environment = {**os.environ, "HISCORE_URL": url, "TERM": "xterm"}
    with subprocess.Popen(
        [*COMMAND, "generate", "a"], stdin=slave, stdout=slave, stderr=slave, env=environment
    ) as process:
        os.close(slave)
        shown, end = b"", time.monotonic() + TIMEOUT_S
        while b"The " not in shown and time.monotonic() < end:
            if select.select([master], [], [], 0.1)[0]:
                shown += os.read(master, 65536)
        assert b"The " in shown
        assert server.running == 1
        # Ctrl-C ends it, at the server too.
        os.write(master, b"\x03")
        process.send_signal(2)
        assert process.wait(timeout=TIMEOUT_S) != 0
    os.close(master)
    wait_until(lambda: server.cancelled > 0)
    assert server.cancelled == 1


@pytest.mark.slow
def test_a_model_cannot_drive_the_terminal(url: str, server: FaultyServer) -> None:
    server.stream = [([1], b"a\x1b[31mb\x07c\nd", b""), ([2], b"", b"stop")]
    shown = on_terminal("generate", "q", url=url, tells_progress=False)
    assert shown.replace("\r\n", "\n") == "a\ufffd[31mb\ufffdc\nd\n"
