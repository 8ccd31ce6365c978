"""Tests of adapters on a GPU, by its kernels in captured graphs, in float32."""

import pytest
import torch

from tests.unit.layers.test_adapters import test_kernels_give_what_pytorch_does  # noqa: F401
from tests.unit.scoring import test_adapters
from tests.unit.scoring.conftest import request_reader  # noqa: F401
from tests.unit.scoring.test_adapters import (  # noqa: F401
    judged,
    test_controls_wrong_adapters_fail,
    test_every_design_of_a_layer_is_adapted,
    test_judges_that_are_activated_share_a_query_and_its_cache,
    test_labels_of_several_tokens_are_their_items_adapters,
    test_scores_are_those_of_transformers_alone,
)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]


@pytest.fixture(autouse=True)
def _on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(test_adapters, "DEVICE", "cuda")
