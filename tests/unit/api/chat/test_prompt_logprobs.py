"""`/v1/completions` of prompts whose own tokens are asked for, and the routes of tokens."""

import asyncio
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from tokenizers import Tokenizer

from hiscore.api.chat.logprobs import LogprobsReader
from hiscore.api.chat.prompt_logprobs import ScoredPrompt
from hiscore.api.chat.tokenize import PromptCoder
from hiscore_client.results import TokenLogprobs
from tests.client.faulty_server import FaultyServer, abort
from tests.support import tiny_tokenizers

Client = TestClient
ECHO = {"echo": True, "logprobs": 1, "max_tokens": 0}


@pytest.fixture(scope="module")
def tokenizer(checkpoint) -> Tokenizer:
    return Tokenizer.from_file(str(checkpoint / "tokenizer.json"))


def complete(client: Client, prompt: Any, **fields: Any) -> dict[str, Any]:
    reply = client.post("/v1/completions", json={"prompt": prompt, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_tokens_of_prompts_are_in_turn_and_the_likeliest_follows(
    client: Client, models: FaultyServer, tokenizer: Tokenizer
) -> None:
    """As lm-evaluation-harness asks: token ids, several at once, one token behind each."""
    prompts = [[9, 300, 12], [9, 300, 13, 14], [20, 21], [9, 300, 12]]
    answer = complete(client, prompts, echo=True, logprobs=2, max_tokens=1, temperature=0)
    assert [each["index"] for each in answer["choices"]] == [0, 1, 2, 3]
    for prompt, choice in zip(prompts, answer["choices"], strict=True):
        told = choice["logprobs"]
        # The token behind is the likeliest, by the fake's word 1.
        assert told["token_logprobs"] == [None, *(pytest.approx(-each / 1000) for each in prompt[1:]), -0.125]
        assert told["top_logprobs"][0] is None
        assert choice["text"] == tokenizer.decode([*prompt, 1])
        assert [len(each) for each in told.values()] == [len(prompt) + 1] * 4
        if prompt[0] == 9:
            assert set(told["top_logprobs"][1].values()) >= {-0.125, -0.25}
    assert answer["usage"]["prompt_tokens"] == sum(map(len, prompts))
    assert answer["usage"]["completion_tokens"] == 4
    # Prompts that begin alike are one call, those that are the same one label of it.
    sent = sorted(each.parameters["label_lengths"].string_param for each in models.requests)
    assert sent == ["[2]", "[3, 4]"]


def test_a_text_is_echoed_as_it_is_with_offsets(client: Client, tokenizer: Tokenizer) -> None:
    text = "An apple is é fruit"
    ids = tokenizer.encode(text).ids
    (choice,) = complete(client, text, **ECHO)["choices"]
    assert choice["text"] == text
    assert choice["finish_reason"] == "length"
    told = choice["logprobs"]
    assert len(told["tokens"]) == len(ids)
    for token, begin in zip(told["tokens"], told["text_offset"], strict=True):
        assert token.startswith("bytes:") or text[begin:].startswith(token)
    (bare,) = complete(client, text, echo=True, max_tokens=0)["choices"]
    assert (bare["text"], bare["logprobs"]) == (text, None)
    (nothing,) = complete(client, text, logprobs=1, max_tokens=0)["choices"]
    assert (nothing["text"], set(map(len, nothing["logprobs"].values()))) == ("", {0})


@pytest.mark.parametrize("build", [tiny_tokenizers.smollm2, tiny_tokenizers.llama2])
@pytest.mark.parametrize("text", ["An apple<|im_end|> is é fruit", "<|im_end|><|im_end|>苹 a"])
def test_offsets_are_those_of_the_text_that_was_sent(build, text: str, tmp_path: Path) -> None:
    """Special tokens that stand in it count, those and the space that the tokenizer adds do not."""
    directory = tiny_tokenizers.save(tiny_tokenizers.train(build()), tmp_path)
    ids = Tokenizer.from_file(str(directory / "tokenizer.json")).encode(text).ids
    told = ScoredPrompt(ids, len(ids), text, "", told_of(ids), "length").logprobs(
        LogprobsReader(directory), 0, 0
    )
    # Token by token the text is read to its end.
    assert told.text_offset[0] == 0
    ends = [*told.text_offset[1:], len(text)]
    for token, begin, end in zip(told.tokens, told.text_offset, ends, strict=True):
        assert token.startswith("bytes:") or text[begin:end] in (token, token[1:], ""), (token, begin, end)
    assert text[told.text_offset[-1] :]


def told_of(ids: list[int]) -> TokenLogprobs:
    values = np.zeros(len(ids) - 1, np.float32)
    return TokenLogprobs(values, values.astype(np.int32), *np.empty((2, len(ids) - 1, 0)))


def test_a_character_that_the_new_token_completes_is_new_text(
    client: Client, models: FaultyServer, tokenizer: Tokenizer
) -> None:
    *prompt, last = tokenizer.encode("An apple 👩").ids
    models.change = lambda outputs: outputs["token_top_ids"].fill(last)
    asked = {"max_tokens": 1, "temperature": 0}
    assert complete(client, prompt, **asked, echo=True)["choices"][0]["text"] == "An apple 👩"
    assert complete(client, prompt, **asked, prompt_logprobs=0)["choices"][0]["text"] == "👩"


def test_other_callers_do_not_wait_for_what_is_told_of_long_prompts(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The logarithms of 32,000 tokens take seconds to write, a million token ids a second to decode."""
    monkeypatch.setattr("hiscore.api.http.encoding.LARGE_CHARACTERS", 1)
    on_loop: list[str] = []

    def noting(name: str, of: Any) -> Any:
        def noted(*given: Any, **named: Any) -> Any:
            with suppress(RuntimeError):
                asyncio.get_running_loop()
                on_loop.append(name)
            return of(*given, **named)

        return noted

    for owner, name in (
        (ScoredPrompt, "logprobs"),
        (ScoredPrompt, "prompt_logprobs"),
        (PromptCoder, "decode"),
    ):
        monkeypatch.setattr(owner, name, noting(name, getattr(owner, name)))
    assert complete(client, [5, 6], **ECHO | {"max_tokens": 1}, temperature=0, prompt_logprobs=1)
    assert client.post("/detokenize", json={"tokens": [5, 6]}).status_code == 200
    assert on_loop == []


def test_prompt_logprobs_are_vllms(client: Client, tokenizer: Tokenizer) -> None:
    (choice,) = complete(client, [9, 300], prompt_logprobs=2, max_tokens=1, temperature=0, logprobs=0)[
        "choices"
    ]
    first, second = choice["prompt_logprobs"]
    assert first is None
    assert list(second) == ["300", "1", "2"]
    assert second["300"] == {
        "logprob": pytest.approx(-0.3),
        "rank": 1,
        "decoded_token": tokenizer.decode([300]),
    }
    assert [second[each]["rank"] for each in ("1", "2")] == [1, 2]
    # Without echo there is the new token alone.
    assert choice["text"] == tokenizer.decode([9, 300, 1]).removeprefix(tokenizer.decode([9, 300]))
    assert choice["logprobs"]["token_logprobs"] == [-0.125]
    assert choice["logprobs"]["text_offset"] == [0]


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({**ECHO, "max_tokens": None}, "'max_tokens' 0 or 1"),
        ({**ECHO, "max_tokens": 2}, "'max_tokens' 0 or 1"),
        ({**ECHO, "stream": True}, "'stream' does not go with"),
        ({**ECHO, "n": 2}, "'n' does not go with"),
        ({**ECHO, "max_tokens": 1}, "'temperature' must be 0"),
        ({**ECHO, "max_tokens": 1, "temperature": 0, "stop": ["a"]}, "'stop' does not go with"),
        ({**ECHO, "max_tokens": 1, "temperature": 0, "presence_penalty": 1}, "'presence_penalty' does not"),
        ({**ECHO, "prompt": ""}, "'prompt' is empty"),
        ({**ECHO, "prompt": [1] * 300}, "'prompt' has 300 tokens: at most 256"),
        (
            {**ECHO, "prompt": [1] * 256, "max_tokens": 1, "temperature": 0},
            "'prompt' has 256 tokens: at most 255",
        ),
        ({**ECHO, "prompt": "\ud800"}, "surrogate"),
        ({"prompt_logprobs": 21, "max_tokens": 0}, "prompt_logprobs"),
    ],
)
def test_what_scoring_a_prompt_does_not_answer_is_refused(client: Client, fields: Any, says: str) -> None:
    # With escapes, as a lone surrogate is sent.
    body = json.dumps({"prompt": "An apple", **fields})
    reply = client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
    assert reply.status_code == 400
    assert says in reply.text


def test_refusals_of_the_scorer_name_the_prompt(client: Client, models: FaultyServer) -> None:
    for theirs, ours in (
        ("'label_token_ids' holds 9: ids of", "'prompt' holds 9: ids of"),
        ("query, items and their labels make 9 tokens", "prompts make 9 tokens"),
    ):
        models.faults.append(abort("INVALID_ARGUMENT", theirs))
        reply = client.post("/v1/completions", json={"prompt": [1, 9], **ECHO})
        assert (reply.status_code, ours in reply.text) == (400, True), reply.text


def test_a_server_that_only_scores_tells_of_prompts_and_generates_nothing(make_client) -> None:
    client = make_client(served_models="score,scorer")
    assert complete(client, "An apple", **ECHO)["choices"][0]["logprobs"]
    reply = client.post("/v1/completions", json={"prompt": "An apple"})
    assert reply.status_code == 400
    assert "generates nothing" in reply.text
    only_decode = make_client(served_models="decode")
    refused = only_decode.post("/v1/completions", json={"prompt": "An apple", **ECHO})
    assert "need the model scorer" in refused.text


def test_texts_and_conversations_to_tokens_and_back(client: Client, tokenizer: Tokenizer) -> None:
    text = "An apple<|im_end|> 苹"
    found = client.post("/tokenize", json={"prompt": text, "return_token_strs": True}).json()
    encoded = tokenizer.encode(text)
    assert found == {
        "count": len(encoded.ids),
        "max_model_len": 256,
        "tokens": encoded.ids,
        "token_strs": encoded.tokens,
    }
    assert client.post("/detokenize", json={"tokens": encoded.ids}).json() == {"prompt": text}
    messages = [{"role": "user", "content": "a"}]
    chat = client.post("/tokenize", json={"messages": messages}).json()["tokens"]
    open_end = client.post("/tokenize", json={"messages": messages, "add_generation_prompt": False}).json()
    assert tokenizer.decode(chat, skip_special_tokens=False).endswith("<|im_start|>assistant\n")
    assert chat[: open_end["count"]] == open_end["tokens"] != chat
    for body, says in (
        ({}, "exactly one of 'prompt' and 'messages'"),
        ({"prompt": "a", "messages": messages}, "exactly one of"),
        ({"messages": messages, "add_special_tokens": True}, "add_special_tokens"),
    ):
        reply = client.post("/tokenize", json=body)
        assert (reply.status_code, says in reply.text) == (400, True), reply.text
