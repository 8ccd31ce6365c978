"""Every kernel compiles for a GPU: the interpreter, in which the other tests run, takes more than the compiler."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.kernels.conftest import CACHED, digest

ROOT = Path(__file__).parents[3]
# Shared memory that one program may use on an H100 or H200.
SHARED_BYTES = 227 * 1024
# Bytes of stack per thread. Compilers differ by a few spilled registers: `select_pages` spills four under Triton
# 3.6 and none under 3.7 to 3.9. A block size that does not fit spills many more; see the control below. Gemma 2's
# attention, with heads of 256, always keeps some values on the stack, and so does attention of 64 heads to lists.
# With twice as many warps the kernels of gated delta nets keep none and take 1.3 to 2 times as long.
SPILL_BYTES = 32
# With a scale for each row of the weight a tile of block fp8 keeps 56 bytes; what that costs was not timed.
SPILL_BYTES_OF = {
    "packed_attention": 128,
    "attend_lists": 128,
    "chunk_systems": 256,
    "chain_states": 192,
    "multiply_scaled": 64,
}
# Compiling every kernel takes minutes on one busy core; only a hang takes this long.
HANGS_AFTER_S = 3_000

pytestmark = pytest.mark.timeout(2 * HANGS_AFTER_S)


def python(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        timeout=HANGS_AFTER_S,
    )


@pytest.fixture(scope="module")
def compiled_kernels() -> list[dict[str, Any]]:
    done = python("-m", "tests.support.ahead_of_time")
    assert done.returncode == 0, done.stderr[-3000:]
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.slow
def test_every_kernel_that_is_launched_compiles(compiled_kernels: list[dict[str, Any]]) -> None:
    sources = [path.read_text() for path in (ROOT / "hiscore").rglob("*.py")]
    kernels = set(re.findall(r"^@triton\.jit.*?\ndef (\w+)", "\n".join(sources), re.MULTILINE | re.DOTALL))
    launched = kernels & set(re.findall(r"(\w+)\[\(", "\n".join(sources)))
    assert len(launched) > 15
    assert {each["kernel"] for each in compiled_kernels} == launched


@pytest.mark.slow
def test_no_parameter_has_the_name_of_one_of_the_launcher() -> None:
    """Triton writes a launcher of a kernel's parameters and `**options`: what compiles could not be launched."""
    kernels = [
        function
        for path in (ROOT / "hiscore").rglob("*.py")
        for function in ast.walk(ast.parse(path.read_text()))
        if isinstance(function, ast.FunctionDef) and "triton.jit" in map(_name, function.decorator_list)
    ]
    assert len(kernels) > 30
    for kernel in kernels:
        assert "options" not in [argument.arg for argument in kernel.args.args], kernel.name


def _name(decorator: ast.expr) -> str:
    return ast.unparse(decorator.func if isinstance(decorator, ast.Call) else decorator)


@pytest.mark.slow
def test_they_fit_a_multiprocessor_and_its_registers(
    compiled_kernels: list[dict[str, Any]], pytestconfig: pytest.Config
) -> None:
    for each in compiled_kernels:
        assert each["shared"] <= SHARED_BYTES, each
        assert each["stack"] <= SPILL_BYTES_OF.get(each["kernel"], SPILL_BYTES), each
        # More would leave no room for as many programs as are launched on a multiprocessor.
        assert each["registers"] <= each["options"].get("maxnreg", 255), each
    assert pytestconfig.cache is not None
    pytestconfig.cache.set(CACHED, digest())


@pytest.mark.exhaustive
def test_control_a_block_too_large_for_the_registers_spills() -> None:
    """128 tokens in float32 on four warps, where the launch takes 16 tokens on eight."""
    done = python(
        "-c",
        "import torch\n"
        "from tests.support.ahead_of_time import main\n"
        "from hiscore.kernels.page_scores import indexer_scores\n"
        "x, i = torch.zeros(4096), torch.zeros(8, dtype=torch.int32)\n"
        "main(lambda: indexer_scores[(1, 1)](x, x, x, x, i, i, i, 512, 512, 512, 512, HEADS=64, HEAD_DIM=128,"
        " PADDED=128, M=64, N=128, PRECISION='ieee', num_warps=4))",
    )
    assert done.returncode == 0, done.stderr[-3000:]
    (kernel,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert kernel["stack"] > 2 * SPILL_BYTES, kernel


@pytest.mark.exhaustive
def test_control_what_the_interpreter_takes_and_the_compiler_does_not() -> None:
    done = python(
        "-c",
        "import torch\n"
        "from tests.support.ahead_of_time import main\n"
        "from hiscore.kernels.elementwise import embed\n"
        "x = torch.zeros(8)\n"
        "main(lambda: embed[(1,)](x.int(), x, x, x, x, x, 1.0, 1e-6, WIDTH=6, NORMED=True, CENTRED=False,"
        " BLOCK=6, FP8=False, CHAINED=False))",
    )
    assert done.returncode != 0
    assert "power of 2" in done.stderr
