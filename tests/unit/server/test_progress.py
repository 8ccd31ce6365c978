import subprocess
import sys
from pathlib import Path

import numpy as np

from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from hiscore.server.progress import Progress, read_progress
from hiscore.server.server_resources import ServerResources
from tests.support.scoring import score
from tests.support.strategies import random_tokens
from tests.support.tiny_models import SIZES, VOCABULARY


def test_nothing_has_happened_where_no_model_has_started(tmp_path: Path) -> None:
    assert read_progress(tmp_path, "scorer") == 0


def test_another_process_sees_each_advance(tmp_path: Path) -> None:
    progress = Progress(tmp_path, "scorer")
    seen = []
    for _ in range(3):
        progress.advance()
        code = (
            f"from hiscore.server.progress import *; print(read_progress(Path({str(tmp_path)!r}), 'scorer'))"
        )
        seen.append(int(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout))
    assert seen == [1, 2, 3]
    assert read_progress(tmp_path, "decode") == 0


def test_every_layer_of_a_forward_counts(tmp_path: Path, checkpoints) -> None:
    checkpoint, _ = checkpoints("llama")
    progress = Progress(tmp_path, "scorer")
    scorer = load_decoder_scorer(
        checkpoint, "cpu", "float32", 64, 0, resources=ServerResources(progress=progress.advance)
    )
    call = random_tokens(np.random.default_rng(0), 40, [20] * 5, VOCABULARY)
    score(scorer, [call], ScoreOptions())
    forwards = 3  # 140 tokens, 64 at a time
    assert read_progress(tmp_path, "scorer") == forwards * SIZES["num_hidden_layers"]
