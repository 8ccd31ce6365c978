"""Compiles, without a GPU, every kernel that the code launches.

usage: python -m tests.support.ahead_of_time

A line of JSON for each kernel and its specialisation: name, constants, registers of a thread, bytes of stack and
of shared memory. Specialised is what Triton would specialise: numbers that 16 divides, pointers, and 1 for itself.
"""

import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)  # it is read when a kernel is defined

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction
from triton.tools.tensor_descriptor import TensorDescriptor

TARGET = GPUTarget("cuda", 90, 32)
CUOBJDUMP = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
TYPES = {
    torch.bfloat16: "bf16", torch.float32: "fp32", torch.float64: "fp64", torch.float8_e4m3fn: "fp8e4nv",
    torch.int8: "i8", torch.int32: "i32", torch.int64: "i64", torch.uint32: "u32", torch.uint8: "u8",
    torch.bool: "i1",
}  # fmt: skip


class Compiler:
    """Compiles instead of launching; `kernels` has one entry per specialisation."""

    def __init__(self) -> None:
        self.kernels: dict[str, dict[str, Any]] = {}

    def launch(self, kernel: Any, *args: Any, grid: Any, warmup: bool, **keywords: Any) -> None:
        names = kernel.arg_names
        given = dict(zip(names, args, strict=False)) | {
            name: value for name, value in keywords.items() if name in names
        }
        assert set(given) == set(names), set(names) ^ set(given)
        options = {name: value for name, value in keywords.items() if name not in names}
        signature, constants, attributes = {}, {}, {}
        for at, parameter in enumerate(kernel.params):
            value = given[parameter.name]
            kind, divisible = (
                ("constexpr", False) if parameter.is_constexpr else _specialise(parameter, value)
            )
            signature[parameter.name] = kind
            if kind == "constexpr":
                constants[at,] = value
            elif divisible:
                attributes[at,] = [["tt.divisibility", 16]]
        key = repr((kernel.fn.__name__, signature, constants, attributes, options))
        if key not in self.kernels:
            source = ASTSource(kernel, signature, constants, attributes)
            compiled = triton.compile(source, target=TARGET, options=options)
            constexprs = {names[at]: value for (at,), value in constants.items()}
            self.kernels[key] = {
                "kernel": kernel.fn.__name__, "constants": constexprs, "options": options,
                "shared": compiled.metadata.shared, **_resources(compiled.asm["cubin"]),
            }  # fmt: skip


def _specialise(parameter: Any, value: Any) -> tuple[str, bool]:
    """A parameter's type, and whether it is known to be a multiple of 16."""
    if isinstance(value, torch.Tensor):
        return f"*{TYPES[value.dtype]}", True
    if isinstance(value, TensorDescriptor):
        return f"tensordesc<{TYPES[value.base.dtype]}{value.block_shape}>", False
    if isinstance(value, bool):
        return "i1", False
    if isinstance(value, int):
        if value == 1 and not parameter.do_not_specialize:
            return "constexpr", False
        wide = not -(2**31) <= value < 2**31
        return "i64" if wide else "i32", value % 16 == 0 and not parameter.do_not_specialize
    return "fp32", False


def _resources(cubin: bytes) -> dict[str, int]:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        shown = subprocess.run(
            [CUOBJDUMP, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    match = re.search(r"REG:(\d+) STACK:(\d+)", shown)
    assert match, shown
    return {"registers": int(match[1]), "stack": int(match[2])}


@contextmanager
def compiled() -> Iterator[Compiler]:
    """Inside the context, a launch compiles its kernel and runs nothing."""
    compiler, run = Compiler(), JITFunction.run
    JITFunction.run = lambda kernel, *args, **keywords: compiler.launch(kernel, *args, **keywords)
    try:
        yield compiler
    finally:
        JITFunction.run = run


def main(launches: Callable[[], None]) -> None:
    with compiled() as compiler:
        launches()
    for kernel in compiler.kernels.values():
        print(json.dumps(kernel, default=str))


if __name__ == "__main__":
    from tests.support.launches import launch_everything

    main(launch_everything)
