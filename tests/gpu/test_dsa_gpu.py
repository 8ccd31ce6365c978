"""The decoder with an indexer on one CUDA GPU: what it computes, and that a CUDA graph holds a decode step."""

from pathlib import Path

import pytest
import torch
from torch import Tensor

from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.deepseek.latent_cache import Segment, StagedLatents
from tests.support import tiny_dsa

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

LENGTH = 45


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return tiny_dsa.make("glm-experts", tmp_path)


def prefill(decoder: DsaDecoder, ids: Tensor) -> tuple[Tensor, StagedLatents]:
    """All but the last token in one forward; their hidden states."""
    staged = StagedLatents(decoder.architecture, len(ids), decoder.device, decoder.dtype)
    end = len(ids) - 1
    staged.plan([Segment(torch.arange(end, device=decoder.device), end)])
    positions = torch.arange(end, device=decoder.device).int()
    return decoder.tail(*decoder.body(ids[:end].to(decoder.device).int(), positions, staged)), staged


def prompt() -> Tensor:
    return torch.randint(tiny_dsa.VOCABULARY, (LENGTH,), generator=torch.Generator().manual_seed(3))


@torch.inference_mode()
def test_float32_equals_the_cpu(checkpoint: Path) -> None:
    on_gpu, on_cpu = (DsaDecoder(checkpoint, torch.device(name), torch.float32) for name in ("cuda", "cpu"))
    found, expected = prefill(on_gpu, prompt())[0].cpu(), prefill(on_cpu, prompt())[0]
    # As between any two float32 implementations here.
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@torch.inference_mode()
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_graph_of_a_step_equals_the_step(checkpoint: Path, dtype: torch.dtype) -> None:
    """Captured with one token and replayed with another: no shape or choice may hang on the first."""
    decoder = DsaDecoder(checkpoint, torch.device("cuda"), dtype)
    _, staged = prefill(decoder, prompt())
    staged.plan([Segment(torch.arange(LENGTH, device="cuda"), 1)])
    position = torch.tensor([LENGTH - 1], device="cuda").int()
    fed = torch.tensor([3], device="cuda").int()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        decoder.tail(*decoder.body(fed, position, staged))
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = decoder.tail(*decoder.body(fed, position, staged))
    seen = []
    for token in (3, 200):
        fed.fill_(token)
        expected = decoder.tail(*decoder.body(fed, position, staged))
        graph.replay()
        torch.testing.assert_close(captured, expected, atol=0, rtol=0)
        seen.append(expected.clone())
    assert not torch.equal(*seen)
