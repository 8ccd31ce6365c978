"""Every kernel compiles for a GPU: the interpreter, in which the other tests run, takes more than the compiler."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("triton", reason="the Triton language is not installed")

ROOT = Path(__file__).parents[3]
# Of a multiprocessor of an H100 or H200, for one program.
SHARED_BYTES = 227 * 1024
# Gemma 2's attention, whose heads are as wide as 256, keeps some of its numbers on the stack.
STACK = {"packed_attention": 128}


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=500,
    )


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    done = python("-m", "tests.support.ahead_of_time")
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_every_kernel_that_is_launched_compiles(found: list[dict[str, Any]]) -> None:
    sources = [path.read_text() for path in (ROOT / "hiscore").rglob("*.py")]
    kernels = set(re.findall(r"^@triton\.jit.*?\ndef (\w+)", "\n".join(sources), re.MULTILINE | re.DOTALL))
    launched = kernels & set(re.findall(r"(\w+)\[\(", "\n".join(sources)))
    assert len(launched) > 15
    assert {each["kernel"] for each in found} == launched


@pytest.mark.slow
def test_they_fit_a_multiprocessor_and_its_registers(found: list[dict[str, Any]]) -> None:
    for each in found:
        assert each["shared"] <= SHARED_BYTES, each
        assert each["stack"] <= STACK.get(each["kernel"], 0), each


def test_control_what_the_interpreter_takes_and_the_compiler_does_not() -> None:
    done = python(
        "-c",
        "import torch\n"
        "from tests.support.ahead_of_time import main\n"
        "from hiscore.kernels.elementwise import embed\n"
        "x = torch.zeros(8)\n"
        "main(lambda: embed[(1,)](x.int(), x, x, x, x, x, 1.0, 1e-6, WIDTH=6, BLOCK=6, FP8=False, CHAINED=False))",
    )
    assert done.returncode != 0
    assert "power of 2" in done.stderr
