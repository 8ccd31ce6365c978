"""Workers of several settings over the same weights."""

import gc
import weakref

import numpy as np
import pytest
import torch

from hiscore.parallel.leader import lead
from perf.decoding.closed_loop import ClosedLoop
from perf.decoding.deepseek_setup import Setup
from perf.decoding.rank_arms import arms_of, callers_of, worker_of
from perf.models.geometries import PUBLISHED

SETTINGS = {"selector": "dsa", "sparse_top_k": 64, "device_buffer_size": 64}
LOAD = ClosedLoop(3, 2, 100, 12)


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_arms_share_their_weights_until_their_end(ranks: int, tmp_path) -> None:
    leader = lead([torch.device("cpu")] * ranks)
    setup = Setup(PUBLISHED["tiny-deepseek"], leader, tmp_path, SETTINGS, LOAD, None)
    arms = [setup.arm("ring"), setup.arm("blocking")]
    try:
        with arms_of(leader, setup.checkpoint(1, 1), arms, setup.memory, None):
            weights = {id(worker_of(leader, arm)._model._decoder.weights) for arm in arms}
            assert len(weights) == 1
            held = weakref.ref(worker_of(leader, arms[0])._model._decoder.weights)
            assert len(held().layers[1].mlp.gate_up) == 4 // ranks
            for arm in arms:
                with callers_of(leader, arm) as (engine, callers):
                    found = callers.run(LOAD, setup.config["vocab_size"], np.random.default_rng(0))
                assert found["tokens_per_s"] > 0
                assert len(callers.gaps()) == LOAD.count * (LOAD.tokens - 1)
                # Sequences are longer than their buffers.
                assert engine.stats().misses > 0
            del engine, callers
        gc.collect()
        assert held() is None
    finally:
        leader.close()
