"""Tests of tests/unit/decoding/worker/test_prefix.py on a GPU, in bfloat16."""

from collections.abc import Callable
from functools import cache

import pytest
import torch

from tests.support.decoding import checkpoint
from tests.unit.decoding.worker.test_prefix import (  # noqa: F401
    Seen,
    maker,
    test_a_prefix_that_was_found_changes_no_bit,
    test_what_stays_on_the_device_has_the_bits_of_what_is_copied_from_the_host,
    test_what_was_generated_stays_on_the_device_in_all_layers,
)

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]


@pytest.fixture(scope="module")
def make(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Seen]:
    path = cache(lambda family: checkpoint(family, tmp_path_factory.mktemp("checkpoint")))
    return maker(path, device="cuda", dtype=torch.bfloat16)
