"""Completions and chat with the default model: the text is decode's, the log-probabilities are transformers'."""

import json
import os
import re
import signal
import socket
import threading
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch
from transformers import AutoTokenizer

from hiscore.launcher import Server
from hiscore.launcher.api import Api
from tests.server import counters
from tests.server.api import api_of, call, wait_for_metric
from tests.server.generation import over_grpc
from tests.server.raw_http import connect, leak, post
from tests.server.sse import all_events, events
from tests.support.client_environment import ask
from tests.support.comparison import truth_of
from tests.support.timeouts import TIMEOUT_S, wait_until

pytestmark = pytest.mark.server

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
PROMPT = "The capital of France is"
MESSAGES = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
GREEDY = {"temperature": 0, "max_tokens": 12}


def chat_ids(checkpoint: Path, messages: Any) -> list[int]:
    tokenizer = AutoTokenizer.from_pretrained(checkpoint)
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return list(tokenizer(text, add_special_tokens=False)["input_ids"])


def content_of(chunks: list[Any], index: int = 0) -> str:
    choices = [each for chunk in chunks for each in chunk["choices"] if each["index"] == index]
    return "".join(each["delta"].get("content", "") for each in choices)


def test_a_chat_is_what_decode_says_to_the_same_ids(api: Api, server: Server, smollm: Path) -> None:
    ids = chat_ids(smollm, MESSAGES)
    expected = over_grpc(server, {"input_ids": ids}, max_tokens=12)
    reply = call(api, CHAT, {"messages": MESSAGES, **GREEDY}, x_request_id="mine")
    assert reply.headers["x-request-id"] == "mine"
    answer = reply.json
    (choice,) = answer["choices"]
    assert choice["message"] == {"role": "assistant", "content": expected.text, "refusal": None}
    assert (choice["finish_reason"], choice["logprobs"]) == (expected.reason, None)
    assert answer["usage"]["prompt_tokens"] == len(ids)
    assert answer["usage"]["completion_tokens"] == len(expected.ids)
    assert answer["usage"]["total_tokens"] == len(ids) + len(expected.ids)
    assert (answer["id"], answer["object"]) == ("chatcmpl-mine", "chat.completion")
    # The control: another conversation has another answer.
    other = call(api, CHAT, {"messages": [{"role": "user", "content": "Name a colour."}], **GREEDY})
    assert other.json["choices"][0]["message"]["content"] != expected.text


def test_the_events_of_a_chat(api: Api) -> None:
    whole = call(api, CHAT, {"messages": MESSAGES, **GREEDY}).json
    options = {"include_usage": True}
    chunks = all_events(api, CHAT, messages=MESSAGES, **GREEDY, stream_options=options)
    assert content_of(chunks) == whole["choices"][0]["message"]["content"]
    first, *middle, last, usage = chunks
    assert first["choices"] == [
        {"index": 0, "delta": {"role": "assistant", "content": ""}, "logprobs": None, "finish_reason": None}
    ]
    assert all(set(each["choices"][0]["delta"]) == {"content"} for each in middle)
    assert all(each["choices"][0]["finish_reason"] is None and each["usage"] is None for each in middle)
    assert last["choices"] == [{"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}]
    assert (usage["choices"], usage["usage"]) == ([], whole["usage"])
    assert {each["object"] for each in chunks} == {"chat.completion.chunk"}
    assert len({(each["id"], each["created"], each["model"]) for each in chunks}) == 1
    assert all("usage" not in each for each in all_events(api, CHAT, messages=MESSAGES, **GREEDY))


def test_a_completion_and_its_events(api: Api, server: Server) -> None:
    expected = over_grpc(server, {"text_input": PROMPT}, max_tokens=16)
    whole = call(api, TEXT, {"prompt": PROMPT, "temperature": 0}).json
    assert whole["choices"] == [
        {"index": 0, "text": expected.text, "logprobs": None, "finish_reason": "length"}
    ]
    chunks = all_events(api, TEXT, prompt=PROMPT, temperature=0)
    assert "".join(each["choices"][0]["text"] for each in chunks) == expected.text
    assert [each["choices"][0]["finish_reason"] for each in chunks[:-1]] == [None] * (len(chunks) - 1)
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert {each["object"] for each in [whole, *chunks]} == {"text_completion"}


@torch.inference_mode()
def logprobs_of(checkpoint: Path, prompt: list[int], output: list[int]) -> np.ndarray:
    """By transformers in float32: float32 [tokens, vocabulary]."""
    logits = truth_of(checkpoint).model(torch.tensor([prompt + output]), use_cache=False).logits
    return logits[0, len(prompt) - 1 : -1].log_softmax(-1).numpy()


def test_logprobs_are_transformers(api: Api, server: Server, smollm: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(smollm)
    prompt = chat_ids(smollm, MESSAGES)
    output = over_grpc(server, {"input_ids": prompt}, max_tokens=12).ids
    truth = logprobs_of(smollm, prompt, output)
    body = {"messages": MESSAGES, **GREEDY, "logprobs": True, "top_logprobs": 3}
    (choice,) = call(api, CHAT, body).json["choices"]
    found = choice["logprobs"]["content"]
    # The token that ends the answer is no part of it.
    assert "".join(each["token"] for each in found) == choice["message"]["content"]
    for position, each in enumerate(found):
        assert each["logprob"] == pytest.approx(truth[position, output[position]], abs=1e-4)
        best = np.argsort(-truth[position])[:3]
        assert [top["logprob"] for top in each["top_logprobs"]] == pytest.approx(
            truth[position, best], abs=1e-4
        )
        assert [top["token"] for top in each["top_logprobs"]] == [tokenizer.decode([token]) for token in best]
        assert bytes(each["bytes"]).decode() == each["token"]
    # The control: those of a neighbouring position are others.
    assert abs(found[0]["logprob"] - truth[1, output[1]]) > 1e-2
    streamed = all_events(api, CHAT, **body)
    parts = [each["choices"][0]["logprobs"] for each in streamed]
    assert [each for part in parts if part for each in part["content"]] == found
    text = call(api, TEXT, {"prompt": prompt, **GREEDY, "logprobs": 3}).json["choices"][0]
    assert text["logprobs"]["tokens"] == [each["token"] for each in found]
    assert text["logprobs"]["token_logprobs"] == pytest.approx([each["logprob"] for each in found], abs=1e-6)
    offsets = text["logprobs"]["text_offset"]
    for token, offset in zip(text["logprobs"]["tokens"], offsets, strict=True):
        assert text["text"][offset:].startswith(token)


def test_choices_and_prompts_side_by_side(api: Api, server: Server) -> None:
    prompts = [PROMPT, "def fibonacci(n):"]
    expected = [over_grpc(server, {"text_input": each}, max_tokens=8).text for each in prompts]
    body = {"prompt": prompts, "temperature": 0, "max_tokens": 8, "n": 2}
    answer = call(api, TEXT, body).json
    assert [each["text"] for each in answer["choices"]] == [text for text in expected for _ in range(2)]
    assert [each["index"] for each in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["completion_tokens"] == 32
    single = [call(api, TEXT, {**body, "prompt": each, "n": 1}).json["usage"] for each in prompts]
    assert answer["usage"]["prompt_tokens"] == sum(each["prompt_tokens"] for each in single)
    chunks = all_events(api, TEXT, **body)
    for index in range(4):
        parts = [each["choices"][0] for each in chunks if each["choices"][0]["index"] == index]
        assert "".join(part["text"] for part in parts) == expected[index // 2]
        assert parts[-1]["finish_reason"] == "length"


def test_a_seed_gives_the_same_again_and_each_choice_its_own(api: Api) -> None:
    body = {"messages": MESSAGES, "max_tokens": 12, "seed": 7, "n": 3, "temperature": 1.5}
    first, again = (call(api, CHAT, body).json["choices"] for _ in range(2))
    assert first == again
    assert len({each["message"]["content"] for each in first}) == 3
    other = call(api, CHAT, {**body, "seed": 100}).json["choices"]
    assert other[0] != first[0]


def test_what_ends_an_answer(api: Api) -> None:
    whole = call(api, TEXT, {"prompt": PROMPT, **GREEDY}).json["choices"][0]["text"]
    for stop in (" answer", [".\n", " answer"]):
        (choice,) = call(api, TEXT, {"prompt": PROMPT, **GREEDY, "stop": stop}).json["choices"]
        first = min(whole.index(each) for each in ([stop] if isinstance(stop, str) else stop))
        assert (choice["text"], choice["finish_reason"]) == (whole[:first], "stop")
    (kept,) = call(
        api, TEXT, {"prompt": PROMPT, **GREEDY, "stop": " answer", "include_stop_str_in_output": True}
    ).json["choices"]
    assert kept["text"] == whole[: whole.index(" answer") + len(" answer")]
    # `ignore_eos` goes on behind the template's end of a turn.
    going_on = {"messages": MESSAGES, **GREEDY, "max_tokens": 30, "ignore_eos": True}
    answer = call(api, CHAT, going_on).json
    assert answer["usage"]["completion_tokens"] == 30
    assert answer["choices"][0]["finish_reason"] == "length"
    # The rest of the context is the limit if none is given.
    (left,) = call(api, CHAT, {"messages": MESSAGES, "temperature": 0}).json["choices"]
    assert left["finish_reason"] == "stop"


FUNCTION = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def test_openais_client_reads_it_all(api: Api) -> None:
    body = {"messages": MESSAGES, **GREEDY}
    plain = call(api, CHAT, body).json["choices"][0]["message"]["content"]
    found = ask("chat_openai", url=api.url, messages=MESSAGES, prompt=PROMPT)
    assert found["contents"] == [plain] * 2
    assert (found["role"], found["finish"], found["streamed_finish"]) == ("assistant", "stop", "stop")
    assert found["streamed"] == found["final"] == "".join(found["tokens"]) == plain
    assert set(found["tops"]) == {2}
    usage = found["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert found["streamed_usage"]["completion_tokens"] * 2 == usage["completion_tokens"]
    assert {"chunk", "content.delta", "content.done"} <= set(found["events"])
    assert found["text"] == found["text_streamed"] == "".join(found["text_tokens"])
    assert set(found["parsed"]) == {"name", "capital"}
    assert found["errors"] == [
        ["BadRequestError", "messages", 400],
        ["BadRequestError", "lora_path", 400],
    ]


SCHEMA = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "sure": {"type": "boolean"}},
    "required": ["city", "sure"],
    "additionalProperties": False,
}


def test_an_answer_follows_a_schema(api: Api) -> None:
    body = {"messages": MESSAGES, "temperature": 0, "max_tokens": 60}
    wanted = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}
    for given in ({**body, "response_format": wanted}, {**body, "response_format": wanted, "stream": True}):
        if given.pop("stream", False):
            content = content_of(all_events(api, CHAT, **given))
        else:
            (choice,) = call(api, CHAT, given).json["choices"]
            content = choice["message"]["content"]
            assert choice["finish_reason"] == "stop"
        answer = json.loads(content)
        assert set(answer) == {"city", "sure"}
        assert answer["city"] in ("Paris", "Rome")
    # The control: left to itself, the model writes no JSON.
    free = call(api, CHAT, body).json["choices"][0]["message"]["content"]
    with pytest.raises(json.JSONDecodeError):
        json.loads(free)
    for limits in (
        {"regex": "[0-9]{4}"},
        {"ebnf": 'root ::= "yes" | "no"'},
        {"structured_outputs": {"choice": ["yes", "no"]}},
    ):
        short = call(api, TEXT, {"prompt": "It is", "temperature": 0, **limits}).json["choices"][0]["text"]
        assert short in ("yes", "no") or (len(short) == 4 and short.isdecimal())
    wrong = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "nothing"}}}
    reply = call(api, CHAT, {**body, "response_format": wrong})
    assert (reply.status, leak(reply.body.decode())) == (400, "")
    assert "response_format" in reply.body.decode()


IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
BAD: list[tuple[str, Any, str]] = [
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": [{"role": "robot", "content": "a"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"role": "user", "content": "a", "weight": 1}]}, "weight"),
    (CHAT, {"messages": [{"role": "user", "content": [IMAGE]}]}, "image_url"),
    (CHAT, {"messages": MESSAGES, "modalities": ["audio"]}, "modalities"),
    (CHAT, {"messages": MESSAGES, "tools": [FUNCTION]}, "tools"),
    (CHAT, {"messages": MESSAGES, "tool_choice": "required"}, "tool_choice"),
    (CHAT, {"messages": MESSAGES, "top_logprobs": 1}, "top_logprobs"),
    (CHAT, {"messages": MESSAGES, "chat_template_kwargs": {"messages": []}}, "chat_template_kwargs"),
    (CHAT, {"messages": MESSAGES, "max_tokens": 10**6}, "max_tokens"),
    (TEXT, {"prompt": "a", "echo": True}, "echo"),
    (TEXT, {"prompt": "a", "suffix": "b"}, "suffix"),
    (TEXT, {"prompt": "a", "best_of": 2}, "best_of"),
    (TEXT, {"prompt": []}, "prompt"),
    (TEXT, {"prompt": [1, "a"]}, "prompt"),
    (TEXT, {"prompt": ["a"] * 65, "n": 2}, "n"),
    (TEXT, {"prompt": [10**6]}, "1000000"),
    (TEXT, {"prompt": "a", "stream": True, "max_tokens": 10**6}, "max_tokens"),
]


@pytest.mark.parametrize(("path", "body", "names"), BAD)
def test_bad_requests_are_told_what_is_wrong(api: Api, path: str, body: Any, names: str) -> None:
    reply = call(api, path, body)
    assert reply.status == 400, reply.body
    assert names in reply.body.decode()
    assert reply.json["error"]["type"] == "invalid_request_error"
    assert leak(reply.body.decode()) == ""


def held(server: Server) -> int:
    return counters.read(server)["decode", "hiscore_decode_host_rows"]


LONG = {"prompt": PROMPT, "max_tokens": 8_000, "temperature": 0, "ignore_eos": True}


@pytest.mark.parametrize("stream", [True, False])
def test_a_caller_that_leaves_frees_its_sequence(api: Api, server: Server, stream: bool) -> None:
    wait_until(lambda: held(server) == 0, lambda: "something runs already")
    counters.settled(server)
    before = counters.tokens(server)
    if stream:
        with events(api, TEXT, LONG) as read:
            next(read)
            wait_until(lambda: held(server) > 0, lambda: "the control: it runs")
    else:
        with connect(api.url) as connection:
            connection.sendall(post(TEXT, json.dumps(LONG).encode(), "Content-Type: application/json"))
            wait_until(lambda: held(server) > 0, lambda: "the control: it runs")
    wait_until(lambda: held(server) == 0, lambda: "it still runs")
    # It has not come to its end.
    assert counters.tokens(server) - before < LONG["max_tokens"]
    wait_for_metric(api, f'route="{TEXT}",status="499"')


def test_a_reader_that_does_not_read_holds_up_nobody(lm: Server, tmp_path: Path) -> None:
    # Log-probabilities make events large, so that what nobody reads soon fills the connection.
    body = {**LONG, "max_tokens": 1_000, "logprobs": 20, "stream": True}
    with api_of(lm, tmp_path / "log", labels=("a", "b")) as api, connect(api.url) as connection:
        before = psutil.Process(api.pid).memory_info().rss
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
        connection.sendall(post(TEXT, json.dumps(body).encode(), "Content-Type: application/json"))
        wait_until(lambda: held(lm) > 0, lambda: "the control: it runs")
        for _ in range(3):
            assert call(api, CHAT, {"messages": MESSAGES, **GREEDY}).status == 200
        wait_until(lambda: held(lm) == 0, lambda: "decode waits for the reader")
        assert psutil.Process(api.pid).memory_info().rss - before < 2**26
        # The answer is all there for a reader that reads in the end.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2**20)
        received = b""
        while not received.endswith(b"data: [DONE]\n\n\r\n0\r\n\r\n"):
            block = connection.recv(2**16)
            assert block
            received += block
        parts = [json.loads(each)["choices"][0] for each in re.findall(rb"data: (\{.*\})\n", received)]
        assert sum(len(part["logprobs"]["tokens"]) for part in parts) == body["max_tokens"]


def test_tokens_are_timed(api: Api) -> None:
    all_events(api, CHAT, messages=MESSAGES, **GREEDY)
    wait_for_metric(api, f'hiscore_api_time_to_first_token_seconds_count{{route="{CHAT}"}}')
    wait_for_metric(api, f'hiscore_api_time_between_tokens_seconds_bucket{{le="0.001",route="{CHAT}"}}')


def test_a_stop_lets_streams_finish(server: Server, tmp_path: Path) -> None:
    with (
        api_of(server, tmp_path / "log", drain_timeout_s=TIMEOUT_S) as api,
        events(api, TEXT, {**LONG, "max_tokens": 100}) as read,
    ):
        first = next(read)
        stopping = threading.Thread(target=lambda: os.kill(api.pid, signal.SIGTERM))
        stopping.start()
        parts = [first, *read]
        stopping.join()
        assert parts[-1]["choices"][0]["finish_reason"] == "length"
        assert len(parts) > 50


def test_a_stream_that_fails_says_so_and_ends(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HISCORE_COMPUTE_TIMEOUT_S", "2")
    with api_of(server, tmp_path / "log", queue_timeout_s=1) as api:
        *_, error = all_events(api, TEXT, **LONG)
        assert error["error"]["code"] == "deadline_exceeded"
        assert "choices" not in error
        assert call(api, TEXT, {**LONG}).status == 504
        wait_for_metric(api, f'hiscore_api_requests_total{{route="{TEXT}",status="504"}} 2.0')
