"""Inputs and outputs of Triton's vLLM backend, which Triton's own OpenAI frontend sends with ``--backend vllm``.

The backend is triton-inference-server/vllm_backend on GitHub, the frontend python/openai of its server repository.
"""

import json
import reprlib
from collections.abc import Callable
from typing import Any

import numpy as np

from hiscore.arrays import Outputs
from hiscore.errors import RequestError

PLAIN = (
    "max_tokens", "temperature", "top_p", "min_p", "seed", "ignore_eos", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "min_tokens", "include_stop_str_in_output", "skip_special_tokens", "logprobs",
)  # fmt: skip
"""vLLM's names that mean the same here; the backend takes numbers as strings too."""
NEUTRAL = {
    "n": 1,
    "best_of": 1,
    "use_beam_search": False,
    "length_penalty": 1,
    "echo": False,
    "top_logprobs": 0,
}
"""Names that are accepted as long as they ask for nothing."""
GRAMMARS = {"json": "json_schema", "regex": "regex", "grammar": "ebnf"}
"""Grammars of ``guided_decoding``, and our names."""


def merge_parameters(parameters: str, sampling_parameters: str | None, stream: bool | None) -> str:
    """Merge a request's parameters with its tensors, which win; raise RequestError for unsupported ones."""
    if sampling_parameters is None and stream is None:
        return parameters
    merged = json.loads(parameters) if parameters else {}
    if sampling_parameters is not None:
        for name, value in _object("sampling_parameters", sampling_parameters).items():
            merged |= _read(name, value)
    return json.dumps(merged if stream is None else merged | {"stream": stream})


def answer_shape(
    text: str | None,
    stream: bool,
    exclude_input: bool | None,
    num_input: bool | None,
    num_output: bool | None,
) -> Callable[[Outputs], Outputs]:
    """Read the wishes for responses, None if not sent; like vLLM's backend, refuse the input in a stream.

    The returned function adds the prompt before the text, and numbers of input and of new output tokens.
    """
    echo = exclude_input is False
    if echo and stream:
        raise RequestError("'exclude_input_in_output' must not be false while 'stream' is true")
    prefix = (text or "").encode() if echo else b""

    def shape(outputs: Outputs) -> Outputs:
        shaped = dict(outputs)
        if prefix:
            shaped["text_output"] = np.array([prefix + outputs["text_output"][0]], np.object_)
        if num_input:
            shaped["num_input_tokens"] = outputs["usage"][:1].astype(np.uint32)
        if num_output:
            shaped["num_output_tokens"] = np.array([len(outputs["output_ids"])], np.uint32)
        return shaped

    return shape


def _read(name: str, value: Any) -> dict[str, Any]:
    """Turn one of vLLM's parameters into ours, whose checks follow; raise RequestError for an unsupported one."""
    if name == "guided_decoding":
        return _grammar(value)
    if name == "logprobs" and isinstance(value, bool):
        return {}  # the frontend's chat sends a flag; what it asks for comes back in `output_logprobs`
    if name in NEUTRAL and value in (None, NEUTRAL[name]):
        return {}
    if name not in READERS:
        raise RequestError(f"'sampling_parameters' has '{name[:64]}': {reprlib.repr(value)} is not supported")
    return {name: READERS[name](value)}


def _number(value: Any) -> Any:
    """Read a number or a flag that is sent as a string; leave anything else to the checks that follow."""
    try:
        return json.loads(value.lower()) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return value


def _top_k(value: Any) -> Any:
    return max(0, top_k) if isinstance(top_k := _number(value), int) else value


def _stop(value: Any) -> str:
    return json.dumps([value] if isinstance(value, str) else value)


READERS: dict[str, Callable[[Any], Any]] = dict.fromkeys(PLAIN, _number) | {
    "top_k": _top_k,
    "stop": _stop,
    "stop_token_ids": json.dumps,
    "logit_bias": json.dumps,
}


def _grammar(value: Any) -> dict[str, Any]:
    """Read ``guided_decoding``: vLLM's GuidedDecodingParams as JSON."""
    given = _object("guided_decoding", value)
    for name in ("choice", "json_object"):
        if given.get(name):
            raise RequestError(f"'guided_decoding' has '{name}', which is not supported")
    asked = {ours: given[name] for name, ours in GRAMMARS.items() if given.get(name)}
    return {name: json.dumps(each) if isinstance(each, dict) else each for name, each in asked.items()}


def _object(name: str, value: Any) -> dict[str, Any]:
    """Read a JSON object, as it is or as text."""
    try:
        given = json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise RequestError(f"'{name}' must hold a JSON object, not {reprlib.repr(value)}")
    return given
