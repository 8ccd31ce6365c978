"""A worker driven without an engine, over a model with layers that keep a window only."""

import numpy as np
import torch

from perf.decoding.worker_driver import Driver
from tests.support.decoding import build, checkpoint, prompt


def test_layers_that_keep_a_window_have_one_for_each_sequence(tmp_path) -> None:
    """Two sequences of several windows: as if their last tokens were prompts, too. The control: other tokens."""
    path = checkpoint("gemma3", tmp_path, sliding_window=40)
    texts = [prompt(150, seed=seed) for seed in range(2)]

    def logits(lengths: list[int]) -> torch.Tensor:
        worker = build(path, "dense")
        assert worker._cache.windowed
        driver = Driver(worker, [text[:length] for text, length in zip(texts, lengths, strict=True)], 100)
        for at in range(100, 150):
            driver.feed(np.array([text[at] for text in texts], np.int32))
        return driver.logits

    def whole(text: np.ndarray) -> torch.Tensor:
        return Driver(build(path, "dense"), [text], 1).logits[0]

    stepped = logits([100, 100])
    prefilled = torch.stack([whole(text) for text in texts])
    # Float32 sums in another order.
    assert torch.allclose(stepped, prefilled, rtol=0, atol=1e-4)
    assert not torch.allclose(stepped, prefilled.flip(0), rtol=0, atol=1e-4)
