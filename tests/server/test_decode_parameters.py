"""What callers of `decode` can ask for, through a real tritonserver: one response, usage, penalties and so on."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc

from hiscore.launcher import Server
from tests.server.conftest import StartServer
from tests.server.generation import answers_of, over_grpc, tensors, whole

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


def test_without_logprobs_their_outputs_are_empty_over_grpc(decode: Server) -> None:
    client = tritonclient.grpc.InferenceServerClient(decode.grpc_url)
    config = client.get_model_config("decode", as_json=True)["config"]
    assert {output["name"] for output in config["output"]} == {
        "output_ids", "text_output", "finish_reason", "usage", "matched_stop",
        "output_logprobs", "top_token_ids", "top_logprobs", "num_input_tokens", "num_output_tokens",
    }  # fmt: skip
    (answer,) = answers_of(decode, tensors({"input_ids": PROMPT}), max_tokens=2, stream=False)
    assert answer.as_numpy("output_logprobs").shape == (0,)
    assert answer.as_numpy("top_token_ids").shape == answer.as_numpy("top_logprobs").shape == (0, 0)


def frontend_request(prompt: str, stream: bool, echo: bool = False, **sampling: Any) -> list[Any]:
    """The tensors of the OpenAI frontend's `_create_vllm_inference_request`, to the byte."""
    texts = {"text_input": prompt, "sampling_parameters": json.dumps(sampling)}
    flags = {
        "stream": stream, "exclude_input_in_output": not echo,
        "return_num_input_tokens": True, "return_num_output_tokens": True,
    }  # fmt: skip
    made = []
    for name, text in texts.items():
        made.append(tritonclient.grpc.InferInput(name, [1], "BYTES"))
        made[-1].set_data_from_numpy(np.array([text.encode()], np.object_))
    for name, flag in flags.items():
        made.append(tritonclient.grpc.InferInput(name, [1], "BOOL"))
        made[-1].set_data_from_numpy(np.array([flag]))
    return made


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
