"""A plain tritonserver on GPUs: an instance on each, weights loaded once, all memory given back."""

import shutil
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from hiscore.launcher.repository import SHIPPED
from tests.server import generation
from tests.server.plain import PlainTriton, plain_triton
from tests.server.wire import Refused, score_tokens
from tests.support.strategies import Tokens
from tests.support.timeouts import wait_until

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")]

MODELS = ("scorer", "decode")
PROMPT = {"input_ids": [5, 6, 7]}
TOKENS = Tokens([5, 6, 7], [[8, 9], [10]])


def used() -> list[int]:
    """Bytes taken on each GPU, by all processes."""
    memory = [torch.cuda.mem_get_info(gpu) for gpu in range(torch.cuda.device_count())]
    return [total - free for free, total in memory]


@pytest.fixture(scope="module")
def before() -> list[int]:
    """Bytes taken on each GPU before the server starts, contexts of this process among them."""
    for gpu in range(torch.cuda.device_count()):
        torch.zeros(1, device=f"cuda:{gpu}")
    return used()


@pytest.fixture(scope="module")
def plain(checkpoints, before: list[int], tmp_path_factory: pytest.TempPathFactory) -> Iterator[PlainTriton]:
    directory = tmp_path_factory.mktemp("plain")
    for name in MODELS:
        shutil.copytree(SHIPPED / name, directory / "repository" / name)
    flags = ["--disable-auto-complete-config", "--model-control-mode=explicit", "--load-model=*"]
    model = str(checkpoints("qwen3")[0])
    settings = {
        "MODEL": model,
        "DTYPE": "bfloat16",
        "HOST_KV_BYTES": str(2**28),
        "DEVICE_KV_BYTES": str(2**28),
    }
    with plain_triton(directory / "repository", directory, *flags, **settings) as server:
        yield server


def test_triton_makes_an_instance_on_each_gpu(plain: PlainTriton) -> None:
    every = list(range(torch.cuda.device_count()))
    for model in MODELS:
        (group,) = plain.config_of(model)["instance_group"]
        assert (group["kind"], group["gpus"]) == ("KIND_GPU", every)
        assert len(plain.stubs(model)) == len(every)


def test_every_instance_answers_the_same(plain: PlainTriton) -> None:
    """More calls at once than one instance is given."""
    calls = 32 * torch.cuda.device_count()
    with ThreadPoolExecutor(calls) as pool:
        answers = list(pool.map(lambda _: score_tokens(plain, TOKENS, [1, 2]).scores, range(calls)))
    # The head adds up in float32 and in an order that depends on its rows; scores are at most 1.
    np.testing.assert_allclose(answers, np.broadcast_to(answers[0], np.shape(answers)), rtol=0, atol=1e-6)


def test_models_give_back_all_memory_and_come_again(plain: PlainTriton, before: list[int]) -> None:
    answers = []
    for _ in range(3):
        answers.append(generation.over_grpc(plain, PROMPT, max_tokens=5, ignore_eos=True).ids)
        assert all(taken > free for taken, free in zip(used(), before, strict=True))
        for model in MODELS:
            plain.control(model, "unload")
        wait_until(lambda: used() <= before, lambda: (used(), before))
        with pytest.raises(Refused, match="scorer"):
            score_tokens(plain, TOKENS, [1, 2])
        for model in MODELS:
            plain.control(model, "load")
    assert answers[0] == answers[1] == answers[2]
