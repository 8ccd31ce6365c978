"""The request parameters of `decode`. An unknown one is refused."""

import secrets
from dataclasses import dataclass, fields

from hiscore.decoding.requests.parameter_values import (
    INT32_MAX,
    between,
    biases,
    ids,
    share,
    strings,
    text,
)
from hiscore.errors import RequestError
from hiscore.parameters import flag, integer, known_only

GRAMMARS = ("json_schema", "regex", "ebnf")
"""Parameters of which a request has one at most; SGLang's names."""
MAX_LOGPROBS = 20
"""Limit of OpenAI's `top_logprobs`, and vLLM's default."""


@dataclass(frozen=True)
class SamplingParams:
    """Sampling of a sequence, and its end; definitions as in vLLM's `SamplingParams`.

    Attributes:
        max_tokens: Most tokens to generate; 0 until it is known how much of the context is left.
        temperature: 0 is greedy.
        top_k: 0 is off.
        top_p: 1 is off.
        seed: Drawn at random if the request gives none.
        ignore_eos: The model's own end tokens do not end the sequence.
        sparse: False attends to everything, whatever the server selects by default.
        cache_salt: Only calls with the same salt find each other's prefixes in the prefix cache.
        min_p: Tokens less likely than this share of the likeliest are never drawn; 0 is off.
        repetition_penalty: Divides positive logits of tokens in the prompt and the output, and multiplies negative
            ones; 1 is off.
        presence_penalty: Subtracted from the logits of tokens in the output; 0 is off.
        frequency_penalty: Subtracted as often as a token is in the output; 0 is off.
        logit_bias: Token ids, and what is added to their logits.
        min_tokens: Tokens before which nothing ends the sequence.
        logprobs: Number of alternatives to report with each token's log-probability; -1: not even that.
        stream: False: one response with everything.
        add_special_tokens: False: `text_input` is encoded as it stands.
        include_stop_str_in_output: The stop string that ends the text is part of it.
        skip_special_tokens: False: special tokens have text, too.
        reasoning: Marks around a model's reasoning, or the last alone if the prompt has begun it. Stop strings and
            a grammar hold for what follows.
        json_schema: Schema of the JSON that the text must be; empty: none. So are `regex` and `ebnf`.
    """

    max_tokens: int = 0
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    ignore_eos: bool = False
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    sparse: bool = True
    cache_salt: str = ""
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    min_tokens: int = 0
    logprobs: int = -1
    stream: bool = True
    add_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    skip_special_tokens: bool = True
    reasoning: tuple[str, ...] = ()
    json_schema: str = ""
    regex: str = ""
    ebnf: str = ""

    @property
    def has_penalty(self) -> bool:
        """Return whether logits depend on the tokens before."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1.0, 0.0, 0.0)

    @property
    def has_grammar(self) -> bool:
        """Return whether the text must be of a grammar."""
        return bool(self.json_schema or self.regex or self.ebnf)


NO_DEFAULTS = SamplingParams()


def parse_sampling_params(parameters: str, defaults: SamplingParams = NO_DEFAULTS) -> SamplingParams:
    """Validate a request's parameters, a JSON object or empty; raise RequestError for unknown or invalid ones."""
    given = known_only(parameters, [field.name for field in fields(defaults)])

    def value(name: str) -> object:
        return given.get(name, getattr(defaults, name))

    def switch(name: str) -> bool:
        return flag(name, value(name))

    params = SamplingParams(
        max_tokens=integer("max_tokens", given["max_tokens"], 1, INT32_MAX) if "max_tokens" in given else 0,
        temperature=between("temperature", value("temperature"), 0, None),
        top_k=integer("top_k", value("top_k"), 0, INT32_MAX),
        top_p=share("top_p", value("top_p")),
        seed=integer("seed", given.get("seed", secrets.randbits(63)), -(2**63), 2**63 - 1),
        ignore_eos=switch("ignore_eos"),
        stop=strings("stop", given.get("stop", "[]")),
        reasoning=strings("reasoning", given.get("reasoning", "[]")),
        stop_token_ids=ids("stop_token_ids", given.get("stop_token_ids", "[]")),
        sparse=switch("sparse"),
        min_p=between("min_p", value("min_p"), 0, 1),
        repetition_penalty=between("repetition_penalty", value("repetition_penalty"), 0.01, 100),
        presence_penalty=between("presence_penalty", value("presence_penalty"), -2, 2),
        frequency_penalty=between("frequency_penalty", value("frequency_penalty"), -2, 2),
        logit_bias=biases("logit_bias", given.get("logit_bias", "{}")),
        min_tokens=integer("min_tokens", value("min_tokens"), 0, INT32_MAX),
        logprobs=integer("logprobs", given["logprobs"], 0, MAX_LOGPROBS) if "logprobs" in given else -1,
        stream=switch("stream"),
        add_special_tokens=switch("add_special_tokens"),
        include_stop_str_in_output=switch("include_stop_str_in_output"),
        skip_special_tokens=switch("skip_special_tokens"),
        **{name: text(name, given[name]) for name in (*GRAMMARS, "cache_salt") if name in given},
    )
    _check_together(params)
    return params


def _check_together(params: SamplingParams) -> None:
    if params.max_tokens and params.min_tokens > params.max_tokens:
        raise RequestError(
            f"parameter 'min_tokens' must be at most 'max_tokens', {params.max_tokens}, not {params.min_tokens}"
        )
    if len(params.reasoning) > 2:
        raise RequestError(f"parameter 'reasoning' has {len(params.reasoning)} entries: at most 2")
    grammars = [name for name in GRAMMARS if getattr(params, name)]
    if len(grammars) > 1:
        raise RequestError(f"parameters '{grammars[0]}' and '{grammars[1]}' exclude each other")
    # Where its text is complete, a grammar allows the end alone.
    for name, given in (("ignore_eos", params.ignore_eos), ("min_tokens", params.min_tokens)):
        if grammars and given:
            raise RequestError(f"parameters '{grammars[0]}' and '{name}' exclude each other")
