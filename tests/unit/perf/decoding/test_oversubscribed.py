"""The budget fits the given number of dense sequences and no more."""

import pytest

from hiscore.decoding.memory.sizing import MemoryBudget, plan_cache
from hiscore.settings import CacheSettings
from perf.decoding import arms
from perf.decoding.arms import PLENTY
from perf.decoding.device_bytes import model_shape, slot_bytes
from perf.decoding.engine_load import Load
from perf.decoding.oversubscribed import budget
from perf.models.geometries import GEOMETRIES


@pytest.mark.parametrize("fit", [1, 3])
def test_a_budget_holds_so_many_dense_streams_and_no_more(fit: int) -> None:
    load = Load(5 * fit, 1_000, 24)
    config = GEOMETRIES["qwen3-0.6b"]
    model = model_shape(config, load.context)
    memory = MemoryBudget(PLENTY, budget(config, load, fit), load.streams)
    _, planned = plan_cache(CacheSettings(selector="dense"), model, memory, arms.dtype(), 1)
    assert planned.host_pages == fit * load.context // planned.page_size
    assert slot_bytes(model) == 114_688
