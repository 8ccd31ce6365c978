"""Inputs and outputs of Triton's vLLM backend, which Triton's own OpenAI frontend sends with ``--backend vllm``.

The backend is triton-inference-server/vllm_backend on GitHub, the frontend python/openai of its server repository.
"""

import json
import reprlib
from dataclasses import dataclass
from typing import Any

import numpy as np

from hiscore.arrays import Outputs
from hiscore.errors import RequestError

PLAIN = (
    "max_tokens", "temperature", "top_p", "min_p", "seed", "ignore_eos", "repetition_penalty", "presence_penalty",
    "frequency_penalty", "min_tokens", "include_stop_str_in_output", "skip_special_tokens",
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
        merged |= read_sampling_parameters(sampling_parameters)
    return json.dumps(merged if stream is None else merged | {"stream": stream})


def answer_shape(
    text: str | None,
    stream: bool,
    exclude_input: bool | None,
    num_input: bool | None,
    num_output: bool | None,
) -> "AnswerShape":
    """Read the wishes for responses, None if not sent; like vLLM's backend, refuse the input in a stream."""
    echo = exclude_input is False
    if echo and stream:
        raise RequestError("'exclude_input_in_output' must not be false while 'stream' is true")
    return AnswerShape(text or "" if echo else "", bool(num_input), bool(num_output))


def read_sampling_parameters(text: str) -> dict[str, Any]:
    """Turn the tensor ``sampling_parameters`` into request parameters; raise RequestError for unsupported ones."""
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        given = None
    if not isinstance(given, dict):
        raise RequestError(f"'sampling_parameters' must hold a JSON object, not {reprlib.repr(text)}")
    read: dict[str, Any] = {}
    for name, value in given.items():
        if name in PLAIN:
            read[name] = _number(value)
        elif name == "top_k":
            read[name] = max(0, top_k) if isinstance(top_k := _number(value), int) else value
        elif name == "stop":
            read[name] = json.dumps([value] if isinstance(value, str) else value)
        elif name in ("stop_token_ids", "logit_bias"):
            read[name] = json.dumps(value)
        elif name == "guided_decoding":
            read |= _grammar(value)
        elif name == "logprobs":
            # The frontend's chat sends a flag; what it asks for comes back in `output_logprobs`.
            if not isinstance(value, bool):
                read[name] = _number(value)
        elif name not in NEUTRAL or value not in (None, NEUTRAL[name]):
            raise RequestError(
                f"'sampling_parameters' has '{name[:64]}': {reprlib.repr(value)} is not supported"
            )
    return read


def _number(value: Any) -> Any:
    """Read a number or a flag that is sent as a string; leave anything else to the checks that follow."""
    if not isinstance(value, str):
        return value
    try:
        return json.loads(value.lower())
    except (ValueError, RecursionError):
        return value


def _grammar(value: Any) -> dict[str, Any]:
    """Read ``guided_decoding``: vLLM's GuidedDecodingParams as JSON."""
    given = _number_or_object(value)
    if not isinstance(given, dict):
        raise RequestError(f"'guided_decoding' must hold a JSON object, not {reprlib.repr(value)}")
    asked = {
        name: each for name, each in given.items() if name in (*GRAMMARS, "choice", "json_object") and each
    }
    unknown = sorted(set(asked) - set(GRAMMARS))
    if unknown:
        raise RequestError(f"'guided_decoding' has '{unknown[0]}', which is not supported")
    return {
        GRAMMARS[name]: json.dumps(each) if isinstance(each, dict) else each for name, each in asked.items()
    }


def _number_or_object(value: Any) -> Any:
    try:
        return json.loads(value) if isinstance(value, str) else value
    except (ValueError, RecursionError):
        return None


@dataclass(frozen=True)
class AnswerShape:
    """Additions to responses: the prompt before the first text, and numbers of input and of new output tokens."""

    prefix: str = ""
    num_input_tokens: bool = False
    num_output_tokens: bool = False

    def __call__(self, outputs: Outputs) -> Outputs:
        shaped = dict(outputs)
        if self.prefix:
            shaped["text_output"] = np.array([self.prefix.encode() + outputs["text_output"][0]], np.object_)
        if self.num_input_tokens:
            shaped["num_input_tokens"] = outputs["usage"][:1].astype(np.uint32)
        if self.num_output_tokens:
            shaped["num_output_tokens"] = np.array([len(outputs["output_ids"])], np.uint32)
        return shaped


PLAIN_ANSWER = AnswerShape()
