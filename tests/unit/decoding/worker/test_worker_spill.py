"""SELECTOR=auto over real models: what is on the device as a whole has the bits of SELECTOR=dense.

And where everything is selected, a sequence that is spilled and comes back has them, too.
"""

from typing import Any

import pytest
import torch

from hiscore.decoding.worker import worker as worker_module
from hiscore.decoding.worker.step_runner import Attends
from tests.support.decoding import CONTEXT, build, prompt
from tests.support.worker_driver import Driver

pytestmark = pytest.mark.slow  # whole models

# Selected and buffered: all of the first 256 tokens, and a sequence that may become longer is spilled.
EVERYTHING, FEW = (256, 256), (160, 192)
STEPS = 4


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_on_the_device_as_a_whole_is_dense(path: Any, family: str) -> None:
    worker = build(path(family), "auto", *FEW)
    kinds, attends = [], worker._attends
    worker._attends = lambda rows: (kinds.append(attends(rows)), kinds[-1])[1]  # type: ignore[method-assign]
    found = []
    for driver in (Driver(worker), Driver(build(path(family), "dense"))):
        (long, first), (short, second) = (
            driver.admit(prompt(n, seed=n), m, resident=True) for n, m in ((350, CONTEXT - 350), (10, 40))
        )
        found.append([first, second, *(driver.step([long, short]) for _ in range(STEPS))])
        assert driver.misses == 0
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))
    assert kinds == [Attends.FULL] * STEPS
    # The control: a sequence that selects gives other numbers.
    driver = Driver(worker)
    long, _ = driver.admit(prompt(350, seed=350), CONTEXT - 350)
    short, _ = driver.admit(prompt(10, seed=10), 40, resident=True)
    assert not torch.equal(driver.step([long, short])[0], found[0][2][0])
    assert kinds[-1] is Attends.MIXED


def test_spilled_where_everything_is_selected_is_dense(path: Any) -> None:
    dense = Driver(build(path("qwen3"), "dense"))
    driver = Driver(build(path("qwen3"), "auto", *EVERYTHING))
    expected, found = [], []
    reference, _ = dense.admit(prompt(200), CONTEXT - 200)
    seq_index, _ = driver.admit(prompt(200), CONTEXT - 200, resident=True)
    for resident in (True, False, True):
        sequence = driver.leave(seq_index, preempt=True)
        sequence.resident = resident
        seq_index = driver.resume(sequence)
        for _ in range(STEPS):
            expected.append(dense.step([reference]))
            found.append(driver.step([seq_index], cold=not resident))
    assert driver.misses > 0
    assert torch.equal(torch.stack(found), torch.stack(expected))


@pytest.mark.parametrize("indexed", [True, False])
def test_a_spilled_one_selects_the_same(path: Any, indexed: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """indexed: its index is made when it is spilled; else the control."""
    tokens: list[int] = []
    quest = Driver(build(path("qwen3"), "quest", *FEW))
    one, _ = quest.admit(prompt(350), CONTEXT - 350)
    driver = Driver(build(path("qwen3"), "auto", *FEW))
    other, _ = driver.admit(prompt(350), CONTEXT - 350, resident=True)
    for _ in range(40):  # a page that the prompt's index does not have
        tokens.append(int(driver.worker._runner.input_ids[other]))
        driver.step([other])
    sequence = driver.leave(other, preempt=True)
    sequence.resident = False
    if not indexed:
        monkeypatch.setattr(worker_module, "index_from_staging", lambda *prompt: None)
    other = driver.resume(sequence)
    selected = []
    for each, seq_index in ((quest, one), (driver, other)):
        if each is quest:
            for token in tokens:
                each.step([seq_index], fed=[token])
        pages = torch.from_numpy(each.sequences[seq_index].held.host_pages).long()
        selected.append(each.worker._cache.index[:, pages[: each.sequences[seq_index].length // 32]])
    layers_of_first = selected[0][0].isfinite().all(), selected[1][0].isfinite().all()
    assert layers_of_first[0]
    # Only the first sparse layer sees the same keys in both: later ones follow what was attended to before.
    assert torch.equal(selected[0][0, :10], selected[1][0, :10])
    assert bool(layers_of_first[1]) is indexed
