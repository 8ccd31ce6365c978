"""A sample of reviews is read as it was written."""

from pathlib import Path

from perf.quality.reviews import Review, Sample, read, write


def test_a_sample_is_read_as_it_was_written(tmp_path: Path) -> None:
    sample = Sample([Review("Así “así”\n", True)], [Review("no", False), Review("yes", True)])
    write(tmp_path / "reviews.json", sample)
    assert read(tmp_path / "reviews.json") == sample
