"""What is refused before a worker is built."""

from pathlib import Path
from typing import Any, cast

import pytest
import torch

from hiscore.decoding.worker.build import make_worker
from hiscore.parallel.leader import Ranks
from hiscore.settings import DecodeSettings


def test_kernels_for_a_prefill_on_the_cpu_are_refused_by_the_settings_name(tmp_path: Path) -> None:
    settings = DecodeSettings(checkpoint=str(tmp_path), selector="dsa", indexer_prefill="kernels")
    with (
        Ranks([torch.device("cpu")]) as leader,
        pytest.raises(ValueError, match=r"INDEXER_PREFILL is kernels.*set it to torch"),
    ):
        make_worker(settings, leader, cast(Any, None))
