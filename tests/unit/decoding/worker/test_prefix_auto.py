"""PREFIX_CACHE=auto: on, but off for a checkpoint with layers that keep a window only."""

from pathlib import Path

import pytest

from hiscore.settings import CacheSettings, PrefixCaching
from tests.support.decode_client import serving
from tests.support.decoding import build, checkpoint, prompt
from tests.support.windows import FEW, WINDOW, checkpoints
from tests.unit.decoding.worker.test_prefix import run

pytestmark = pytest.mark.slow  # whole models


@pytest.mark.parametrize(
    ("family", "given", "found", "says"),
    [
        ("llama", "auto", 128, "is on: PREFIX_CACHE is auto"),
        ("llama", False, 0, "is off: PREFIX_CACHE is off"),
        ("gemma3", "auto", 0, "is off: PREFIX_CACHE is auto, but "),
        ("gemma3", True, 0, "is off: PREFIX_CACHE is on, but "),
    ],
)
@pytest.mark.parametrize("selector", ["auto", "dense"])
def test_whether_a_prompt_is_found_again(
    selector: str,
    family: str,
    given: PrefixCaching,
    found: int,
    says: str,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The same prompt twice, of four blocks of 32 and some tokens."""
    assert CacheSettings().prefix_cache == "auto"
    if family == "llama":
        directory = checkpoint(family, tmp_path)
    else:
        directory = checkpoints(lambda: tmp_path)(f"{family}@{WINDOW}")
    with caplog.at_level("INFO", "hiscore"):
        worker = build(directory, selector, *FEW, chunk=64, prefix_cache=given)
    assert f"the prefix cache of decode {says}" in caplog.text
    assert any(each.levelname == "WARNING" for each in caplog.records) == (given is True)
    with serving(worker) as client:
        first, second = (run(client, prompt(150))[0].tokens for _ in range(2))
        assert client.stats.cached_tokens == found
    assert first == second
