"""The common fields of requests for generated text: sampling, and when to stop."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from hiscore.api.chat.structured_outputs import FIELD, Grammar, StructuredOutputs, confinement, for_grammar
from hiscore.api.http.errors import bad_request
from hiscore.api.wire import Ignored, Request, TokenId
from hiscore.prompts.chat import read_json

Parameter: TypeAlias = bool | int | float | str
# Of one request: each choice is a sequence of its own.
MAX_CHOICES = 128
INT32_MAX, INT64_MAX = 2**31 - 1, 2**63 - 1
# As `decode` checks its parameters, too.
GeneratedTokens: TypeAlias = Annotated[int, Meta(ge=1, le=INT32_MAX)]
Bias: TypeAlias = Annotated[float, Meta(ge=-100, le=100)]
StopString: TypeAlias = Annotated[str, Meta(min_length=1, max_length=256)]
Salt: TypeAlias = Annotated[str, Meta(min_length=1, max_length=2**16)]
# Of generation_config.json, what a request may leave to the checkpoint; as vLLM and SGLang read it.
GRAMMARS = {"json_schema", "regex", "ebnf"}
SUGGESTED = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")


class StreamOptions(msgspec.Struct, forbid_unknown_fields=True):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None
    include_obfuscation: Ignored = None


class JsonSchema(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    schema: dict[str, Any]
    description: Ignored = None
    strict: bool | None = None


class ResponseFormat(msgspec.Struct, forbid_unknown_fields=True):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema: dict[str, Any] | None = None


class GenerationRequest(Request, kw_only=True):
    """Fields of OpenAI's completions and chat, and those that SGLang and vLLM have added to both."""

    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=MAX_CHOICES)] | None = None
    max_tokens: GeneratedTokens | None = None
    min_tokens: Annotated[int, Meta(ge=0, le=INT32_MAX)] | None = None
    temperature: Annotated[float, Meta(ge=0)] | None = None
    top_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    top_k: Annotated[int, Meta(ge=-1, le=INT32_MAX)] | None = None
    min_p: Annotated[float, Meta(ge=0, le=1)] | None = None
    repetition_penalty: Annotated[float, Meta(ge=0.01, le=100)] | None = None
    presence_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    frequency_penalty: Annotated[float, Meta(ge=-2, le=2)] | None = None
    logit_bias: Annotated[dict[str, Bias], Meta(max_length=1_024)] | None = None
    seed: Annotated[int, Meta(ge=-INT64_MAX - 1, le=INT64_MAX)] | None = None
    stop: Annotated[str, Meta(max_length=256)] | Annotated[list[StopString], Meta(max_length=64)] | None = (
        None
    )
    stop_token_ids: Annotated[list[TokenId], Meta(max_length=1_024)] | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    response_format: ResponseFormat | None = None
    regex: Grammar | None = None
    ebnf: Grammar | None = None
    structured_outputs: StructuredOutputs | None = None
    sparse: bool | None = None
    cache_salt: Salt | None = None
    use_beam_search: Literal[False] | None = None
    no_stop_trim: Literal[False] | None = None
    return_hidden_states: Literal[False] | None = None
    return_token_ids: Literal[False] | None = None
    return_tokens_as_token_ids: Literal[False] | None = None
    store: Ignored = None
    service_tier: Ignored = None
    safety_identifier: Ignored = None
    prompt_cache_key: Ignored = None
    prompt_cache_options: Ignored = None
    prompt_cache_retention: Ignored = None

    @property
    def choices(self) -> int:
        return self.n or 1

    @property
    def words(self) -> dict[str, str]:
        """The names that the request has for the grammars of `decode`."""
        if self.structured_outputs is None:
            return {"'json_schema'": "'response_format'"}
        return {f"'{name}'": f"'{FIELD}'" for name in GRAMMARS}

    @property
    def tells_usage(self) -> bool:
        return bool(self.stream_options and self.stream_options.include_usage)


class Sampling:
    """Turns requests into parameters of `decode`; generation_config.json says what a request leaves open."""

    def __init__(self, checkpoint: Path) -> None:
        suggested = read_json(checkpoint / "generation_config.json")
        # Greedy is the models' own default, and random that of OpenAI's routes.
        self._defaults = {"temperature": 1.0} | {
            name: suggested[name] for name in SUGGESTED if isinstance(suggested.get(name), int | float)
        }

    def parameters(self, request: GenerationRequest) -> dict[str, Parameter]:
        """Make the parameters of a request, or raise `ApiError`: the fields contradict each other."""
        names = (*SUGGESTED, "max_tokens", "min_tokens", "presence_penalty", "frequency_penalty", "seed",
                 "include_stop_str_in_output", "ignore_eos", "regex", "ebnf", "sparse", "cache_salt")  # fmt: skip
        given: dict[str, Parameter] = dict(self._defaults)
        given |= {name: value for name in names if (value := getattr(request, name)) is not None}
        if given.get("top_p") == 0:  # the likeliest token alone
            given |= {"top_p": 1.0, "top_k": 1}
        if given.get("top_k") == -1:  # off, as vLLM and SGLang write it
            given["top_k"] = 0
        if request.logit_bias:
            given["logit_bias"] = json.dumps(_biases(request.logit_bias))
        if request.stop:
            given["stop"] = json.dumps([request.stop] if isinstance(request.stop, str) else request.stop)
        if request.stop_token_ids:
            given["stop_token_ids"] = json.dumps(request.stop_token_ids)
        if (schema := _schema(request.response_format)) is not None:
            given["json_schema"] = schema
        if request.structured_outputs is not None:
            if twice := GRAMMARS & given.keys():
                other = "response_format" if "json_schema" in twice else min(twice)
                raise bad_request(
                    f"'structured_outputs' and '{other}' exclude each other", "structured_outputs"
                )
            given |= confinement(request.structured_outputs)
        if not request.stream:
            given["stream"] = False
        return given


def of_choice(parameters: Mapping[str, Parameter], index: int) -> dict[str, Parameter]:
    """Make the parameters of one of several choices, each with a seed of its own."""
    seed = parameters.get("seed")
    if seed is None or not index:
        return dict(parameters)
    assert isinstance(seed, int)
    return {**parameters, "seed": (seed + index + INT64_MAX + 1) % 2**64 - INT64_MAX - 1}


def _biases(given: dict[str, float]) -> dict[str, float]:
    wrong = next((name for name in given if not (name.isascii() and name.isdecimal())), None)
    if wrong is not None:
        raise bad_request(f"'logit_bias' names {wrong[:64]!r}: not a token id", "logit_bias")
    return given


def _schema(wanted: ResponseFormat | None) -> str | None:
    if wanted is None or wanted.type == "text":
        return None
    if wanted.type == "json_object":
        return json.dumps({"type": "object"} if wanted.schema is None else for_grammar(wanted.schema, False))
    if wanted.json_schema is None:
        raise bad_request("'response_format.json_schema' is needed for its type", "response_format")
    return json.dumps(for_grammar(wanted.json_schema.schema, bool(wanted.json_schema.strict)))
