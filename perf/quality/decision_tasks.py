"""Questions with known answers, from archives on PyPI: 281 of MMLU's, and texts whose tone people have rated.

The archives are used as data: downloaded, but never installed or imported. The few-shot examples of MMLU are those
of lm-eval; the ratings those of VADER (Hutto and Gilbert 2014; means of twenty people, from -4 to 4). Both are MIT
licensed; the repository holds none of them.
"""

import hashlib
import io
import json
import random
import re
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

from hiscore.checkpoint.download_cache import cached

WHEEL = ("lm-eval==0.4.13", "5daaa1973bf874005f64f28d3834b875f6886f0d6475878e6a6c821994a5286a")
MMLU = "lm_eval/tasks/mmlu/flan_cot_fewshot/_cot_prompts.json"
ARCHIVE = ("vaderSentiment==3.3.2", "5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9")
INNER = "vaderSentiment-3.3.2/additional_resources/hutto_ICWSM_2014.tar.gz"
KINDS = ("amazonReviewSnippets", "movieReviewSnippets", "nytEditorialSnippets", "tweets")
ANSWER = re.compile(r"The answer is \(([A-E])\)")
OPTION = re.compile(r"\s\([A-E]\) ")


@dataclass(frozen=True)
class MultipleChoice:
    """One question of MMLU; `answer` is the number of the right option."""

    subject: str
    question: str
    options: list[str]
    answer: int


@dataclass(frozen=True)
class Rated:
    """A text, and the mean of people's ratings of its tone: -4 to 4."""

    text: str
    rating: float


def multiple_choice() -> list[MultipleChoice]:
    """All few-shot examples that have their options in line, subject by subject."""
    with zipfile.ZipFile(_file(*WHEEL, binary=True)) as archive:
        prompts = json.loads(archive.read(MMLU))
    found = []
    for subject, text in prompts.items():
        for block in text.split("\n\nQ: ")[1:]:
            asked, _, explained = block.partition("\nA: ")
            answer = ANSWER.search(explained)
            question, *options = OPTION.split(asked)
            # One question has the same option twice.
            if answer and len({*options}) == len(options) > 1:
                right = "ABCDE".index(answer[1])
                found.append(
                    MultipleChoice(
                        subject.replace("_", " "), question.strip(), [x.strip() for x in options], right
                    )
                )
    return found


def rated(count: int, seed: int = 0) -> list[Rated]:
    """A random sample, as many of each kind of text."""
    with tarfile.open(_file(*ARCHIVE, binary=False)) as outer:
        inner = outer.extractfile(INNER)
        assert inner is not None
        with tarfile.open(fileobj=io.BytesIO(inner.read())) as archive:
            texts = {kind: _read(archive, kind) for kind in KINDS}
    rng = random.Random(seed)
    chosen = [each for kind in KINDS for each in rng.sample(texts[kind], count // len(KINDS))]
    rng.shuffle(chosen)
    return chosen


def _read(archive: tarfile.TarFile, kind: str) -> list[Rated]:
    file = archive.extractfile(f"hutto_ICWSM_2014/{kind}_GroundTruth.txt")
    assert file is not None
    rows = (line.split("\t", 2) for line in file.read().decode("utf-8", "replace").splitlines() if line)
    return [Rated(text.strip(), float(rating)) for _, rating, text in rows]


def _file(requirement: str, digest: str, binary: bool) -> Path:
    """A distribution's file, downloaded once."""

    def download(directory: Path) -> None:
        with tempfile.TemporaryDirectory(dir=directory) as scratch:
            pip = [
                sys.executable,
                "-m",
                "pip",
                "--quiet",
                "--disable-pip-version-check",
                "download",
                "--no-deps",
            ]
            kind = "--only-binary=:all:" if binary else "--no-binary=:all:"
            subprocess.run([*pip, kind, "--dest", scratch, requirement], check=True)
            (path,) = Path(scratch).iterdir()
            if hashlib.sha256(path.read_bytes()).hexdigest() != digest:
                raise SystemExit(f"{path.name} is not the expected file: its SHA-256 differs")
            path.rename(directory / path.name)

    (path,) = cached(requirement.replace("==", "-"), download).iterdir()
    return path
