"""``/pooling`` and ``/classify`` in vLLM's bodies, ``/predict`` in TEI's: labels of texts, or of tokens."""

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import msgspec
import numpy as np
from tokenizers import Encoding, Tokenizer

from hiscore.api.http.encoding import off_loop
from hiscore.api.http.errors import bad_request
from hiscore.api.models import Models, few_at_once, rows
from hiscore.api.ranking.relevance import ACTIVATIONS
from hiscore.api.wire import SOME, Ignored, Listed, ModelCall, Request, TokenId, usage
from hiscore.arrays import Float32
from hiscore.models.adapter_files import AdapterFacts
from hiscore.models.cross_encoder import Refused, read_cross_encoder
from hiscore.models.family import RANKING, REWARD_MODEL, guard_labels, is_classifier, scores_tokens
from hiscore.models.stored_config import stored_config
from hiscore.models.support import label_names
from hiscore.prompts.token_limits import TokenLimits, TooMuchText
from hiscore.tokenization.file import read_backend
from hiscore.tokenization.panics import CannotEncode, panics_refused


class ClassifyRequest(Request):
    input: str | list[str | TokenId | list[TokenId]]
    use_activation: bool | None = None
    add_special_tokens: bool = True
    padding: Literal["do_not_pad"] | None = None
    cache_salt: Ignored = None


class PoolingRequest(ClassifyRequest):
    """Without a `task` it is the one that the model is for."""

    task: Literal["classify", "token_classify"] | None = None
    encoding_format: Literal["float"] = "float"


class Classified(msgspec.Struct):
    index: int
    label: str
    probs: list[float]
    num_classes: int


class ClassifyResponse(Listed, kw_only=True):
    data: list[Classified]


class Pooled(msgspec.Struct, tag_field="object", tag="pooling"):
    index: int
    data: list[float | list[float]]


class PoolingResponse(Listed, kw_only=True):
    data: list[Pooled]


class PredictRequest(Request):
    """A text, a pair as a list of two texts, or a list of lists of one text or two; none is cut."""

    inputs: str | Annotated[list[str | list[str]], SOME]
    truncate: Literal[False] | None = None
    truncation_direction: Ignored = None
    raw_scores: bool = False


class Prediction(msgspec.Struct):
    score: float
    label: str


class Pooler:
    def __init__(
        self, models: Models, adapters: Mapping[str, AdapterFacts], checkpoint: Path, limits: TokenLimits
    ) -> None:
        self._models, self._adapters, self._limits = models, adapters, limits
        config = stored_config(checkpoint)
        self._of_tokens = scores_tokens(config.get("architectures"))
        # As in vLLM, a reward is a logit.
        name = str((config.get("architectures") or [""])[0])
        self._activates = not name.endswith((REWARD_MODEL, RANKING))
        self._has_head, self._labels = is_classifier(config.get("architectures")), label_names(checkpoint)
        self._groups = np.cumsum(guard_labels(config), dtype=np.int64)
        self._problem, self._refusal = str(config.get("problem_type") or ""), ""
        try:
            self._activation, _ = read_cross_encoder(checkpoint).activation
        except Refused as refused:
            self._refusal = str(refused)
        has_tokenizer = (checkpoint / "tokenizer.json").is_file()
        self._tokenizer: Tokenizer | None = read_backend(checkpoint) if has_tokenizer else None

    async def classify(self, request: ClassifyRequest, call: ModelCall) -> ClassifyResponse:
        given = {name: getattr(request, name) for name in ClassifyRequest.__struct_fields__}
        pooled = await self.handle(PoolingRequest(**given, task="classify"), call)
        found = [cast("list[float]", each.data) for each in pooled.data]
        return ClassifyResponse(
            id=call.id,
            model=call.model,
            data=[
                Classified(index, self._label(row.index(max(row))), row, len(row))
                for index, row in enumerate(found)
            ],
            usage=pooled.usage,
        )

    async def predict(self, request: PredictRequest, call: ModelCall) -> list[Prediction | list[Prediction]]:
        """Predict the labels of each input, the best first; a call for each, of which few run at once."""
        given = [request.inputs] if isinstance(request.inputs, str) else request.inputs
        texts = [each for each in given if isinstance(each, str)]
        inputs = [texts] if texts else [each for each in given if isinstance(each, list)]
        if not inputs or len(texts) not in (0, len(given)) or not all(1 <= len(each) <= 2 for each in inputs):
            raise bad_request(
                "'inputs' must be a text, a pair, or a list of lists of one text or two", "inputs"
            )
        characters = sum(len(text) for each in inputs for text in each)
        try:
            self._limits.check_characters(characters)
            encodings = await off_loop(partial(self._encoded, inputs, True), characters)
            for each in encodings:
                self._limits.check_ids(0, [len(each)], shared=True)
        except (TooMuchText, CannotEncode) as error:
            raise bad_request(str(error), "inputs") from None
        # An encoder tells the second text of a pair by its type.
        seconds = [each.type_ids.index(1) if 1 in each.type_ids else 0 for each in encodings]
        parts = [(each.ids[:at], [each.ids[at:]]) for each, at in zip(encodings, seconds, strict=True)]
        self._check_head(call)
        score = partial(self._models.score_ids, labels=[], request_id=call.id, adapter=call.adapter)
        results = await few_at_once([partial(score, *part) for part in parts])
        found = np.concatenate([result.scores for result in results])
        predictions: list[Any] = [
            sorted((Prediction(score, self._label(i)) for i, score in enumerate(row)), key=lambda x: -x.score)
            for row in rows(self._activated(found, not request.raw_scores))
        ]
        return predictions[0] if texts else predictions

    def _label(self, index: int) -> str:
        """The name of a label; where a config has none, as in transformers."""
        return self._labels[index] if index < len(self._labels) else f"LABEL_{index}"

    def _check_head(self, call: ModelCall) -> None:
        if not self._has_head and not (call.adapter and self._adapters[call.adapter].labels):
            raise bad_request("this model has no head: name an adapter that has one as 'model'", "model")

    async def handle(self, request: PoolingRequest, call: ModelCall) -> PoolingResponse:
        of_tokens = self._of_tokens if request.task is None else request.task == "token_classify"
        if self._of_tokens and not of_tokens:
            raise bad_request("this model scores tokens: its task is 'token_classify'", "task")
        texts = await self._ids(request)
        # A model of tokens knows itself which ones are read.
        places = "all" if of_tokens and not self._of_tokens else None
        self._check_head(call)
        result = await self._models.score_ids(
            [], texts, [], places=places, request_id=call.id, adapter=call.adapter
        )
        logits = result.place_values if of_tokens else result.scores
        assert logits is not None
        activates = self._activates if request.use_activation is None else request.use_activation
        found: list[Any] = rows(self._activated(logits, activates))
        if of_tokens:
            assert result.places is not None
            edges = result.places.searchsorted(np.cumsum([0, *map(len, texts)])).tolist()
            found = [found[begin:end] for begin, end in pairwise(edges)]
        return PoolingResponse(
            id=call.id,
            model=call.model,
            data=[Pooled(index, each) for index, each in enumerate(found)],
            usage=usage(result.usage.prompt_tokens, result.usage.cached_tokens),
        )

    def _activated(self, logits: Float32, activates: bool) -> Float32:
        """Turn logits, [n, labels], into probabilities by what the files name, or problem_type, as vLLM does."""
        if not activates or self._problem == "regression":
            return logits
        if self._refusal:
            raise bad_request(f"{self._refusal}: only logits are served", "use_activation")
        alone = logits.shape[1] < 2
        if alone and self._activation not in ("", "Sigmoid"):
            return np.array([ACTIVATIONS[self._activation](row) for row in rows(logits)], np.float32)
        if alone or self._activation == "Sigmoid" or self._problem == "multi_label_classification":
            activated: Float32 = 0.5 * (1 + np.tanh(0.5 * logits))
            return activated
        groups = [part for part in np.split(logits, self._groups, axis=1) if part.shape[1]]
        powers = [np.exp(part - part.max(axis=1, keepdims=True)) for part in groups]
        return np.concatenate([part / part.sum(axis=1, keepdims=True) for part in powers], axis=1)

    async def _ids(self, request: ClassifyRequest) -> list[list[int]]:
        given = request.input
        if isinstance(given, str):
            given = [given]
        kinds = set(map(type, given))
        if len(kinds) != 1:
            raise bad_request("'input' must be a text, texts, token ids, or lists of those", "input")
        try:
            if kinds == {str}:
                texts = cast("list[str]", given)
                self._limits.check_characters(sum(map(len, texts)))
                encode = partial(self._encoded, [[text] for text in texts], request.add_special_tokens)
                rows = [each.ids for each in await off_loop(encode, sum(map(len, texts)))]
            else:
                rows = cast("list[list[int]]", [given] if kinds == {int} else given)
            self._limits.check_ids(0, list(map(len, rows)), shared=True)
        except (TooMuchText, CannotEncode) as error:
            raise bad_request(str(error), "input") from None
        if not all(rows):
            raise bad_request(f"'input' has no tokens at index {rows.index([])}", "input")
        return rows

    @panics_refused()
    def _encoded(self, texts: Sequence[list[str]], add_special_tokens: bool) -> list[Encoding]:
        if self._tokenizer is None:
            raise bad_request("this model has no tokenizer: 'input' must be token ids", "input")
        inputs = [tuple(each) if len(each) == 2 else each[0] for each in texts]
        return list(self._tokenizer.encode_batch(inputs, add_special_tokens=add_special_tokens))
