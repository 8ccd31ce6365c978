"""What callers of `decode` can ask for, through a real tritonserver: one response, usage, penalties and so on."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
import tritonclient.grpc
from transformers import AutoModelForCausalLM, AutoTokenizer

from hiscore.launcher import Server
from tests.server.conftest import StartServer
from tests.server.generation import over_grpc, whole
from tests.support.tiny_models import CONTEXT, VOCABULARY

pytestmark = [pytest.mark.server, pytest.mark.exhaustive]

PROMPT = [11, 12, 13, 14, 15]
FREE: dict[str, Any] = {"ignore_eos": True}


@pytest.fixture(scope="module")
def decode(start_server: StartServer, tiny_lm: Path) -> Server:
    """The small random causal LM in float32, attending to everything, as transformers does."""
    return start_server(tiny_lm, models="decode", selector="dense", host_kv_bytes=2**28)


def test_one_response_holds_everything(decode: Server) -> None:
    streamed = over_grpc(decode, {"input_ids": PROMPT}, max_tokens=12, **FREE)
    answer = whole(decode, {"input_ids": PROMPT}, max_tokens=12, **FREE)
    assert (answer["output_ids"], answer["text_output"]) == (streamed.ids, streamed.text)
    assert answer["finish_reason"] == "length"
    assert answer["usage"] == [5, 0, 12]
    assert answer["matched_stop"] == ""


def test_without_max_tokens_the_context_is_the_end(decode: Server) -> None:
    prompt = [5] * (CONTEXT - 20)
    assert whole(decode, {"input_ids": prompt}, **FREE)["usage"] == [CONTEXT - 20, 0, 20]


def test_logprobs_are_those_of_transformers(decode: Server, tiny_lm: Path) -> None:
    answer = whole(decode, {"input_ids": PROMPT}, max_tokens=6, logprobs=3, temperature=1.5, seed=1, **FREE)
    model = AutoModelForCausalLM.from_pretrained(tiny_lm).double().eval()
    with torch.inference_mode():
        logits = model(torch.tensor([PROMPT + answer["output_ids"]])).logits[0, 4:-1]
    truth = torch.log_softmax(logits, -1)
    chosen = truth.gather(-1, torch.tensor(answer["output_ids"])[:, None])[:, 0]
    # float32 through two layers, against float64.
    assert answer["output_logprobs"] == pytest.approx(chosen.tolist(), abs=1e-4)
    best = truth.topk(3)
    assert answer["top_token_ids"] == best.indices.flatten().tolist()
    assert answer["top_logprobs"] == pytest.approx(best.values.flatten().tolist(), abs=1e-4)
    assert any(a != b for a, b in zip(answer["output_ids"], answer["top_token_ids"][::3], strict=True))


def test_penalties_and_biases_change_what_is_generated(decode: Server) -> None:
    def ids(**parameters: Any) -> list[int]:
        return list(whole(decode, {"input_ids": PROMPT}, max_tokens=40, **FREE, **parameters)["output_ids"])

    plain = ids()
    assert ids(logit_bias=json.dumps({7: 100})) == [7] * 40
    # So strong a penalty lets no token come twice; without one they do.
    assert len(set(ids(logit_bias="{}", frequency_penalty=2, presence_penalty=2, temperature=0))) > len(
        set(plain)
    )
    assert not set(ids(repetition_penalty=100.0)) & set(PROMPT)
    banned = json.dumps(dict.fromkeys(plain[:20], -100))
    assert not set(ids(logit_bias=banned)) & set(plain[:20])
    assert ids(min_p=1.0, temperature=1.0) == plain


def test_the_stop_string_is_named_and_sent_on_request(decode: Server) -> None:
    plain = whole(decode, {"input_ids": PROMPT}, max_tokens=30, **FREE)["text_output"]
    stop = plain[len(plain) // 2 :][:3]
    given = {"max_tokens": 30, "stop": json.dumps([stop]), **FREE}
    left_out = whole(decode, {"input_ids": PROMPT}, **given)
    included = whole(decode, {"input_ids": PROMPT}, include_stop_str_in_output=True, **given)
    assert left_out["matched_stop"] == included["matched_stop"] == stop
    assert included["text_output"] == left_out["text_output"] + stop
    assert (left_out["finish_reason"], included["finish_reason"]) == ("stop", "stop")


def test_nothing_ends_a_generation_before_min_tokens(decode: Server) -> None:
    every = json.dumps(list(range(0, VOCABULARY, 2))[:1000])
    assert whole(decode, {"input_ids": PROMPT}, max_tokens=60, stop_token_ids=every)["usage"][2] < 10
    answer = whole(decode, {"input_ids": PROMPT}, max_tokens=60, min_tokens=30, stop_token_ids=every)
    assert answer["usage"][2] > 30
    assert not set(answer["output_ids"][:30]) & set(json.loads(every))


def test_rendered_text_gets_no_special_tokens(decode: Server, tiny_lm: Path) -> None:
    text = "Is this a fruit?"
    tokenizer = AutoTokenizer.from_pretrained(tiny_lm)
    bare = tokenizer(text, add_special_tokens=False)["input_ids"]
    answer = whole(decode, {"text_input": text}, max_tokens=8, add_special_tokens=False, **FREE)
    assert answer["usage"][0] == len(bare)
    assert answer["output_ids"] == whole(decode, {"input_ids": bare}, max_tokens=8, **FREE)["output_ids"]


def test_without_logprobs_their_outputs_are_empty_over_grpc(decode: Server) -> None:

    client = tritonclient.grpc.InferenceServerClient(decode.grpc_url)
    config = client.get_model_config("decode", as_json=True)["config"]
    assert {output["name"] for output in config["output"]} == {
        "output_ids", "text_output", "finish_reason", "usage", "matched_stop",
        "output_logprobs", "top_token_ids", "top_logprobs", "num_input_tokens", "num_output_tokens",
    }  # fmt: skip
    answers: list[Any] = []
    client.start_stream(lambda result, error: answers.append(error or result))
    ids = tritonclient.grpc.InferInput("input_ids", [5], "INT32")
    ids.set_data_from_numpy(np.array(PROMPT, np.int32))
    client.async_stream_infer("decode", [ids], parameters={"max_tokens": 2, "stream": False})
    client.stop_stream()
    (answer,) = answers
    assert answer.as_numpy("output_logprobs").shape == (0,)
    assert answer.as_numpy("top_token_ids").shape == answer.as_numpy("top_logprobs").shape == (0, 0)


SCHEMA = {
    "type": "object",
    "properties": {
        "fruit": {"enum": ["apple", "pear"]},
        "count": {"type": "integer", "minimum": 0, "maximum": 99},
    },
    "required": ["fruit", "count"],
    "additionalProperties": False,
}  # fmt: skip


def test_structured_output_is_of_its_schema_beside_other_calls(decode: Server) -> None:
    drawn: dict[str, Any] = {"max_tokens": 400, "temperature": 1.0}

    def call(seed: int) -> Any:
        if seed % 2:
            return whole(decode, {"input_ids": PROMPT}, seed=seed, **{**drawn, "max_tokens": 40}, **FREE)
        return whole(decode, {"input_ids": PROMPT}, seed=seed, json_schema=json.dumps(SCHEMA), **drawn)

    alone = [call(seed) for seed in range(6)]
    with ThreadPoolExecutor(6) as pool:
        together = list(pool.map(call, range(6)))
    assert together == alone
    for answer in together[::2]:
        assert answer["finish_reason"] == "stop"
        jsonschema.validate(json.loads(answer["text_output"]), SCHEMA)
    # The control: the same model says other things without it.
    with pytest.raises(ValueError, match="Expecting value"):
        json.loads(together[1]["text_output"])


def test_a_regex_and_an_ebnf_over_a_stream(decode: Server) -> None:
    options: dict[str, Any] = {"max_tokens": 100, "temperature": 1.0, "seed": 1}
    assert re.fullmatch(
        "(yes|no)!", over_grpc(decode, {"input_ids": PROMPT}, regex="(yes|no)!", **options).text
    )
    ebnf = 'root ::= "a" ("b" | "cd")+ "!"'
    assert re.fullmatch("a(b|cd)+!", over_grpc(decode, {"input_ids": PROMPT}, ebnf=ebnf, **options).text)


def frontend_request(prompt: str, stream: bool, echo: bool = False, **sampling: Any) -> list[Any]:
    """The tensors of the OpenAI frontend's `_create_vllm_inference_request`, to the byte."""
    texts = {"text_input": prompt, "sampling_parameters": json.dumps(sampling)}
    flags = {
        "stream": stream, "exclude_input_in_output": not echo,
        "return_num_input_tokens": True, "return_num_output_tokens": True,
    }  # fmt: skip
    tensors = []
    for name, text in texts.items():
        tensors.append(tritonclient.grpc.InferInput(name, [1], "BYTES"))
        tensors[-1].set_data_from_numpy(np.array([text.encode()], np.object_))
    for name, flag in flags.items():
        tensors.append(tritonclient.grpc.InferInput(name, [1], "BOOL"))
        tensors[-1].set_data_from_numpy(np.array([flag]))
    return tensors


def answers_of(server: Server, tensors: list[Any]) -> list[Any]:
    answers: list[Any] = []
    client = tritonclient.grpc.InferenceServerClient(server.grpc_url)
    client.start_stream(lambda result, error: answers.append(error or result))
    client.async_stream_infer("decode", tensors)
    client.stop_stream()
    return answers


def test_the_tensors_of_tritons_openai_frontend(decode: Server) -> None:
    prompt = "Is this a fruit?"
    sampling = {
        "temperature": 0.0,
        "top_p": 1.0,
        "n": 1,
        "logprobs": False,
        "max_tokens": 12,
        "ignore_eos": True,
    }
    plain = whole(decode, {"text_input": prompt}, max_tokens=12, **FREE)
    (answer,) = answers_of(decode, frontend_request(prompt, stream=False, **sampling))
    assert answer.as_numpy("text_output")[0].decode() == plain["text_output"]
    assert answer.as_numpy("num_input_tokens").tolist() == plain["usage"][:1]
    assert answer.as_numpy("num_output_tokens").tolist() == [12]
    assert answer.as_numpy("num_output_tokens").dtype == np.uint32
    (echoed,) = answers_of(decode, frontend_request(prompt, stream=False, echo=True, **sampling))
    assert echoed.as_numpy("text_output")[0].decode() == prompt + plain["text_output"]
    streamed = answers_of(decode, frontend_request(prompt, stream=True, **sampling))
    assert "".join(each.as_numpy("text_output")[0].decode() for each in streamed) == plain["text_output"]
    assert sum(int(each.as_numpy("num_output_tokens")[0]) for each in streamed) == 12
    assert {int(each.as_numpy("num_input_tokens")[0]) for each in streamed} == {plain["usage"][0]}
    # Others are not sent what they did not ask for.
    assert "num_input_tokens" not in plain
    (refused,) = answers_of(decode, frontend_request(prompt, stream=True, n=2))
    assert "'sampling_parameters' has 'n': 2 is not supported" in str(refused)
