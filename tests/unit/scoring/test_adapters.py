"""Items under adapters get the scores that transformers gives them alone, whoever shares the call or the batch."""

import re
from collections.abc import Callable
from itertools import chain
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from torch import nn

from hiscore.errors import RequestError
from hiscore.layers.adapters import AdaptedTorchOps
from hiscore.models.adapter_files import AdapterFiles
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.prefill import cuda_runner, row_counts
from hiscore.scoring.pair_scorer import make_scorer
from hiscore.scoring.scorer import Scorer
from hiscore.server.server_resources import ServerResources
from hiscore.settings import Limits
from tests.support.adapters import PREFIX, AdaptedTruth, Adapter, Call, score, write
from tests.support.comparison import INVARIANCE
from tests.support.cuda_runner import use_cuda_runner
from tests.support.strategies import random_tokens
from tests.support.tiers import first_of
from tests.support.tiny_models import VOCABULARY

DEVICE = "cpu"
INVOCATION = (7, 9, 7)
ADAPTERS = {
    "all": Adapter(),
    "some": Adapter(("q_proj", "v_proj"), 2, 3),
    "grade": Adapter(("k_proj", "down_proj"), 8, 4, labels=4),
    "fit": Adapter(labels=1),
    "late": Adapter(config={"alora_invocation_tokens": list(INVOCATION)}),
}


class Judged:
    """A checkpoint with `ADAPTERS`, its scorer, and the truth."""

    def __init__(self, checkpoint: Path, directory: Path, adapters: dict[str, Adapter]) -> None:
        model = AdaptedTruth(checkpoint, {}).base.model
        self.directories = {
            name: write(adapter, model, directory / name, seed)
            for seed, (name, adapter) in enumerate(adapters.items())
        }
        self.truth = AdaptedTruth(checkpoint, self.directories)
        self.checkpoint = checkpoint

    def scorer(self, budget: int = 2_048, cache: int | None = None) -> Scorer:
        return make_scorer(
            *(self.checkpoint, DEVICE, "float32", budget, cache, None, ServerResources()),
            adapters=self.directories,
        )


@pytest.fixture(scope="module")
def judged(checkpoints: Callable[..., Any], tmp_path_factory: pytest.TempPathFactory) -> Judged:
    return Judged(checkpoints("llama")[0], tmp_path_factory.mktemp("adapters"), ADAPTERS)


def mixed_calls(softmax: bool) -> list[Call]:
    rng = np.random.default_rng(0)
    texts = [random_tokens(rng, query, items, VOCABULARY) for query, items in ((70, [9, 40, 0, 3]), (5, [6]))]
    (long, few), names = texts, ["all", "", "some", "all"]
    late = [[*few.items[0], *INVOCATION, 3], [4, 5], [*INVOCATION[1:], 8], [*INVOCATION, 1, *INVOCATION]]
    options = {"apply_softmax": softmax}
    return [
        Call(long.query, long.items, names, **options),
        Call(long.query, long.items, [""] * 4, **options),
        Call(long.query, long.items, ["grade", "fit", "grade", "fit"], by_heads=True, **options),
        Call(few.query, few.items, ["some"], **options),
        # Invocations that begin in the query and end in an item, of one token there or of two; and one that would
        # begin in an item and end in the next.
        Call([*long.query, 7], late, ["late"] * 4, **options),
        Call([*long.query, *INVOCATION[:2]], [[5, 7, 9], [7, 3], late[3], []], ["late"] * 4, **options),
        Call(
            [*INVOCATION, *long.query, *INVOCATION],
            [*late, []],
            ["late", "late", "late", "", "late"],
            **options,
        ),
    ]


@pytest.mark.parametrize("softmax", [False, True])
def test_scores_are_those_of_transformers_alone(
    judged: Judged, request_reader: ModuleType, softmax: bool
) -> None:
    calls = mixed_calls(softmax)
    for budget in (2_048, 32):
        scorer = judged.scorer(budget)
        # Again from the cache.
        for found in (score(scorer, calls, request_reader), score(scorer, calls[::-1], request_reader)[::-1]):
            for call, scores in zip(calls, found, strict=True):
                np.testing.assert_allclose(scores, call.expected(judged.truth), atol=INVARIANCE, rtol=1e-3)


@pytest.mark.slow
def test_graphs_of_slices_give_the_same(
    judged: Judged, request_reader: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Replayed for other mixtures of adapters than were captured; kernels have tests of their own."""
    calls = mixed_calls(softmax=True)[2:4]
    expected = score(judged.scorer(256), calls, request_reader)
    for name, rows in (("SHORT_ROWS", 128), ("START_ROWS", 0), ("SLICE_ROWS", 96)):
        monkeypatch.setattr(row_counts, name, rows)
    monkeypatch.setattr(cuda_runner, "AdaptedTritonOps", AdaptedTorchOps)
    scorer = judged.scorer(256)
    use_cuda_runner(scorer, monkeypatch, 256, in_slices=True)
    assert len(scorer.runner._graphs[256]) > 1  # type: ignore[attr-defined]
    for found, same in zip(score(scorer, calls, request_reader), expected, strict=True):
        np.testing.assert_allclose(found, same, atol=INVARIANCE, rtol=0)


def test_controls_wrong_adapters_fail(judged: Judged, request_reader: ModuleType) -> None:
    """The neighbour's adapter, its factor ignored, another's head, and an activation a token early."""
    one, _, heads, *_, late = mixed_calls(softmax=True)
    found = dict(
        zip((one, heads, late), score(judged.scorer(), [one, heads, late], request_reader), strict=True)
    )
    wrong = {
        "a neighbour's": (one, {"names": ["some", "", "all", "some"]}),
        "an earlier activation": (late, {"early": 1}),
        "a later one": (late, {"early": -1}),
        "none": (late, {"names": [""] * 5}),
    }
    for name, (call, given) in wrong.items():
        expected = call.expected(judged.truth, **given)
        # Where an invocation is missing, items are the same either way.
        assert np.abs(found[call] - expected).max() > 0.01, name
    unscaled = AdaptedTruth(judged.checkpoint, judged.directories)
    for config, _ in unscaled.adapters.values():
        config["lora_alpha"] = config["r"]
    assert np.abs(found[one] - one.expected(unscaled))[[0, 2, 3]].min(axis=1).max() > 0.01
    swapped = AdaptedTruth(judged.checkpoint, judged.directories)
    head = f"{PREFIX}score.weight"
    tensors = {name: tensors for name, (_, tensors) in swapped.adapters.items()}
    tensors["grade"][head], tensors["fit"][head] = tensors["grade"][head].flip(0), -tensors["fit"][head]
    assert np.abs(found[heads] - heads.expected(swapped)).max(axis=1).min() > 0.01


@pytest.mark.parametrize(
    ("family", "labels"),
    first_of(
        *[("qwen3-hybrid", None), ("gemma2", None), ("cohere", None), ("phi3", 3), ("qwen3-moe", 2)],
        others=pytest.mark.slow,
    ),
)
def test_every_design_of_a_layer_is_adapted(
    family: str,
    labels: int | None,
    checkpoints: Callable[..., Any],
    tmp_path: Path,
    request_reader: ModuleType,
) -> None:
    """Projections made of several layers, in another order or a part of them; and a classifier's own head."""
    checkpoint, truth = checkpoints(family, labels)
    linear = (name for name, module in truth.model.named_modules() if isinstance(module, nn.Linear))
    targets = sorted({name.split(".")[-1] for name in linear if ".layers." in name} - {"gate"})
    adapters = {"mine": Adapter(targets, 4, 6), "grade": Adapter(targets[:2], 2, 3, labels=4)}
    of = Judged(checkpoint, tmp_path, adapters)
    text, names = random_tokens(np.random.default_rng(1), 40, [9, 5, 3], VOCABULARY), ["mine", "", "mine"]
    calls = [
        Call(text.query, text.items, names, by_heads=labels is not None),
        Call(text.query, text.items, ["grade", "mine" if labels else "grade", "grade"], by_heads=True),
    ]
    for call, found in zip(calls, score(of.scorer(), calls, request_reader), strict=True):
        np.testing.assert_allclose(found, call.expected(of.truth), atol=INVARIANCE, rtol=1e-3)
    plain = calls[0].expected(of.truth, names=[""] * 3)
    assert np.abs(plain / calls[0].expected(of.truth) - 1)[[0, 2]].max(axis=1).min() > 0.1


def test_judges_that_are_activated_share_a_query_and_its_cache(
    judged: Judged, request_reader: ModuleType
) -> None:
    """With each other, and with calls of no adapter; a query under another adapter is its own."""
    scorer = judged.scorer()
    query = list(range(10, 80))
    items = [[*INVOCATION, 3, 4], [5, 6]]

    def cost(*names: str, of: list[int] = query) -> tuple[int, int]:
        request = Call(of, items, names).read(scorer, request_reader)
        price = scorer.packing.plan().price(request, 0)
        (answer,), stats = scorer.score([request])
        assert not isinstance(answer, RequestError)
        assert price == stats.tokens
        return stats.tokens, answer.cached_tokens

    own = sum(map(len, items))
    assert cost("late", "") == (70 + own, 0)
    assert cost("late", "late") == (6 + own, 64)
    assert cost("", "") == (6 + own, 64)
    # Item 1 is activated in the query, and computes it from there on; item 0 by itself.
    within = [*query[:40], *INVOCATION, *query[43:]]
    assert cost("late", "late", of=within) == (2 * 38 + own, 32)
    assert cost("", "late", of=within) == (6 + 6 + own, 64)
    assert cost("all", "all") == (70 + own, 0)
    assert cost("all", "some") == (6 + 70 + own, 0)
    assert cost("some", "") == (12 + own, 64)


@pytest.mark.parametrize("names", [["all", "", "some"], ["late", "late", "all"]])
def test_labels_of_several_tokens_are_their_items_adapters(
    judged: Judged, request_reader: ModuleType, names: list[str]
) -> None:
    labels, options = [[5], [77, 8, 9], [77, 8, 30, 2]], {"label_lengths": "[1, 3, 4]"}
    text = random_tokens(np.random.default_rng(3), 40, [4, 300, 5], VOCABULARY)
    items = [[*INVOCATION, *text.items[0]], *text.items[1:]]
    call = Call(text.query, items, names, **options)
    call.tensors["label_token_ids"] = np.array([[token for label in labels for token in label]], np.int32)
    (found,) = score(judged.scorer(), [call], request_reader)
    for name, item, scores in zip(names, items, found, strict=True):
        for label, value in zip(labels, scores, strict=True):
            logs = 0.0
            for at, token in enumerate(label):
                # Invocations are looked for in the query and the item.
                ids, begin = [*text.query, *item, *label[:at]], len(text.query)
                fixed = begin if name == "late" and item[:3] == list(INVOCATION) else None
                logits = judged.truth.logits(name, ids, begin=fixed)
                logs += logits[token] - np.logaddexp.reduce(logits)
            np.testing.assert_allclose(np.log(value), logs, atol=1e-3)


def test_bad_names_are_refused_by_themselves(judged: Judged, request_reader: ModuleType) -> None:
    scorer = judged.scorer()
    query, items = [1, 2], [[3], [4]]
    bad: list[tuple[dict[str, Any], str]] = [
        ({"item_adapters": '["all", "none"]'}, "adapter 'none' is none of all, some, grade, fit, late"),
        ({"item_adapters": '["all"]'}, "'item_adapters' holds 1 names for 2 items"),
        ({"item_adapters": '["all", 1]'}, "must be a string that holds a JSON list of names"),
        ({"item_adapters": "[", "adapter": ""}, "must be a string that holds a JSON list of names"),
        ({"item_adapters": '["", ""]', "adapter": "all"}, "'adapter' and 'item_adapters' exclude each other"),
        (
            {"item_adapters": '["grade", "all"]'},
            "item 0 is read by its adapter's own head, and item 1 by labels",
        ),
        ({"item_adapters": '["grade", "fit"]'}, "'label_token_ids' must be empty"),
        ({"item_adapters": '["grade", "fit"]', "label_counts": "[1, 2]"}, "'label_"),
    ]
    for options, says in bad:
        with pytest.raises(RequestError, match=re.escape(says)):
            Call(query, items, [], **options).read(scorer, request_reader)
    one = Call(query, items, [], **{"item_adapters": None, "adapter": "all"}).read(scorer, request_reader)
    each = Call(query, items, ["all", "all"]).read(scorer, request_reader)
    np.testing.assert_array_equal(one.prompt.tokens, each.prompt.tokens)
    (found, also), _ = scorer.score([one, each])
    assert not isinstance(found, RequestError)
    assert not isinstance(also, RequestError)
    np.testing.assert_array_equal(found.scores, also.scores)


def test_a_call_that_needs_its_query_too_often_is_refused(judged: Judged, request_reader: ModuleType) -> None:
    scorer = judged.scorer()
    call = Call([1] * 50, [[3], [4], [5]], ["all", "some", ""])
    read = request_reader.RequestReader(scorer.facts, Limits(max_call_tokens=152), scorer.packing.prompt).read
    with pytest.raises(
        RequestError, match=r"make 153 tokens to compute, the query 3 times for their adapters: at"
    ):
        read(call)


def test_an_adapter_of_another_checkpoint_is_refused(
    judged: Judged, checkpoints: Callable[..., Any], tmp_path: Path
) -> None:
    other, _ = checkpoints("gemma2")
    says = r"'some': 'model.layers.0.self_attn.q_proj.lora_B.weight' has shape \[64, 2\], .* needs \[128, 2\]"
    directories = {"some": judged.directories["some"]}
    with pytest.raises(UnsupportedCheckpoint, match=says):
        make_scorer(other, "cpu", "float32", 64, 0, None, ServerResources(), adapters=directories)
    moe, _ = checkpoints("qwen3-moe", 2)
    directories = {"routers": write(Adapter(("gate_proj",)), judged.truth.base.model, tmp_path / "a", 0)}
    with pytest.raises(
        UnsupportedCheckpoint, match=r"layers.0.mlp.gate_proj', which this checkpoint does not"
    ):
        make_scorer(moe, "cpu", "float32", 64, 0, None, ServerResources(), adapters=directories)


def test_adapters_hold_what_is_planned(judged: Judged) -> None:
    scorer = judged.scorer()
    held = scorer.computation.runner._decoder.adapters  # type: ignore[attr-defined]
    products = chain.from_iterable(held.products.values())
    numbers = sum(each.down.numel() + each.up.numel() for each in products)
    files = (AdapterFiles.read(name, directory) for name, directory in judged.directories.items())
    assert numbers + held.head.numel() == sum(each.numbers for each in files)
