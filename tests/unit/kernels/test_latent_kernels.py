"""A decode step with an indexer by kernels, interpreted, compared with the same step in plain torch."""

from pathlib import Path

import pytest
import torch

from tests.support import tiny_dsa
from tests.support.dsa_sequences import CAPACITY, Sequences, prompts

pytest.importorskip("triton", reason="the Triton language is not installed")
pytestmark = pytest.mark.skipif(
    torch.cuda.is_available(), reason="where there is a GPU, kernels take no tensors of the CPU"
)


@pytest.mark.slow
@torch.inference_mode()
def test_kernels_select_move_and_attend_as_plain_torch_does(tmp_path: Path) -> None:
    from hiscore.decoding.sparse.triton_cache_ops import TritonCacheOps

    checkpoint = tiny_dsa.make("glm-shared", tmp_path)
    plain, kernels = Sequences(checkpoint, prompts()), Sequences(checkpoint, prompts())
    decoder = kernels.decoder
    kernels.ops = TritonCacheOps(
        kernels.cache, decoder.attention_shape, CAPACITY, value_dim=decoder.architecture.latent_rank
    )
    fed = torch.arange(3)
    for _ in range(3):
        expected = plain.decode(fed, [0, 1, 2])
        # Kernels add up in float32; a wrong row among those seen is 1e-3.
        torch.testing.assert_close(kernels.decode(fed, [0, 1, 2]), expected, atol=1e-4, rtol=0)
        fed = expected.argmax(dim=1)
    assert int(kernels.cache.misses) == int(plain.cache.misses) > 50
    assert torch.equal(kernels.cache.host_page_of, plain.cache.host_page_of)
    assert torch.equal(kernels.cache.last_use, plain.cache.last_use)
