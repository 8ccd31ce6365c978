"""A matrix product of cuBLASLt by a kernel that the caller names, instead of the library's own choice.

Only kernels of a Hopper that form each sum in one piece, so that all of them give the same bits.
"""

import ctypes
import os
from ctypes import byref, c_float, c_int, c_int64, c_size_t, c_uint16, c_uint32, c_uint64, c_void_p
from dataclasses import dataclass
from functools import cache
from math import prod

import torch
from torch import Tensor

TYPES = {torch.float16: 2, torch.bfloat16: 14}
"""cudaDataType_t by dtype."""
FLOAT32_SUMS, FLOAT32_SCALES = 68, 0
"""cublasComputeType_t and cudaDataType_t."""
TRANSPOSE_A, EPILOGUE, BIAS_POINTER = 3, 7, 8
"""cublasLtMatmulDescAttributes_t."""
ADD_BIAS = 4
"""cublasLtEpilogue_t."""
HOPPER_KERNELS, TMA_STAGES = 66, 35
"""The id of a family of kernels, not documented, and cublasLtMatmulStages_t."""
TILE, SPLIT_K, OPTION, STAGES, CLUSTER = 1, 2, 5, 6, 8
"""cublasLtMatmulAlgoConfigAttributes_t."""
CLUSTERS = (2, 3, 5)
"""cublasLtClusterShape_t: of one multiprocessor, of two along the outputs, of two along the rows."""
OPTIONS = range(8)
"""Variants; what they do is not documented."""

# cublasLtMatmulTile_t of so many outputs, by rows from 32 to 256 in steps of 8.
_BY_OUTPUTS = {
    64: (13, 314, 315, 316, 15, 317, 318, 319, 26, 320, 321, 322, 17, 323, 324, 325, 326, 327, 328, 329, 116,
         330, 331, 332, 333, 334, 335, 336, 19),
    128: (16, 396, 397, 398, 18, 399, 400, 401, 33, 402, 403, 404, 20, 405, 406, 407, 29, 408, 409, 410, 32,
          411, 412, 413, 414, 415, 416, 417, 23),
    192: (451, 452, 453, 454, 208, 455, 456, 457, 458, 459, 460, 461, 31, 462, 463, 464, 465, 466, 467, 468, 209,
          469, 470, 471, 472, 473, 474, 475, 210),
    256: (35, 489, 490, 491, 21, 492, 493, 494, 495, 496, 497, 498, 24, 499, 500, 501, 502, 503, 504, 505, 232,
          506, 507, 508, 509, 510, 511, 512, 513),
}  # fmt: skip
# Of so many rows, by outputs.
_BY_ROWS = {
    64: (12, 80, 92, 104, 15, 124, 134, 143, 27, 157, 164, 170, 18, 178, 183, 188, 193, 196, 200, 204, 208,
         211, 214, 217, 220, 223, 226, 229, 21),
    128: (14, 81, 93, 105, 17, 125, 135, 144, 28, 158, 165, 171, 20, 179, 184, 189, 30, 197, 201, 205, 31,
          212, 215, 218, 221, 224, 227, 230, 24),
}  # fmt: skip
_STEPS = range(32, 257, 8)
_NUMBERS = {
    (outputs, rows): tile
    for outputs, of in _BY_OUTPUTS.items()
    for rows, tile in zip(_STEPS, of, strict=True)
}
_NUMBERS |= {
    (outputs, rows): tile for rows, of in _BY_ROWS.items() for outputs, tile in zip(_STEPS, of, strict=True)
}
TILES = {shape: tile for shape, tile in _NUMBERS.items() if prod(shape) <= 176 * 256}
"""cublasLtMatmulTile_t by outputs and rows: those for tensor cores whose sums fit into registers."""


@dataclass(frozen=True)
class Kernel:
    """A kernel, in the library's own numbers.

    Attributes:
        tile: One of `TILES`.
        cluster: One of `CLUSTERS`.
        option: One of `OPTIONS`.
    """

    tile: int
    cluster: int
    option: int


class Refused(Exception):
    """The library does not compute a product by this kernel."""


class _Algorithm(ctypes.Structure):
    _fields_ = (("data", c_uint64 * 8),)


class _CheckResult(ctypes.Structure):
    _fields_ = (
        ("algorithm", _Algorithm),
        ("workspace_bytes", c_size_t),
        ("state", c_int),
        ("waves", c_float),
        ("reserved", c_int * 4),
    )


class Product:
    """x weight^T + bias, of one shape, by one kernel, on the current device and stream."""

    def __init__(self, rows: int, weight: Tensor, bias: Tensor | None, kernel: Kernel) -> None:
        """Ask the library whether the kernel can compute this product.

        Args:
            rows: Of x.
            weight: [outputs, inputs], of a dtype in `TYPES`: one of those that it may be called with.
            bias: [outputs], of the same dtype: one of those; None: there is none.
            kernel: The kernel.

        Raises:
            Refused: It cannot, or not without a workspace.

        Source: https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api
        """
        self.kernel = kernel
        outputs, inputs = weight.shape
        self._shape = (rows, outputs)
        number = TYPES[weight.dtype]
        # Column by column, which is how the library reads: the weight, x and the result, each transposed.
        self._layouts = (
            _layout(number, inputs, outputs),
            _layout(number, inputs, rows),
            _layout(number, outputs, rows),
        )
        self._algorithm = _algorithm(number, kernel)
        of_weight, of_x, of_out = self._layouts
        found = _CheckResult()
        status = _library().cublasLtMatmulAlgoCheck(
            _handle(), _operation(bias), of_weight, of_x, of_out, of_out, byref(self._algorithm), byref(found)
        )
        if status or found.workspace_bytes:
            raise Refused(f"{kernel} does not multiply {rows}x{inputs} by {inputs}x{outputs}")

    def __call__(self, x: Tensor, weight: Tensor, bias: Tensor | None, out: Tensor | None = None) -> Tensor:
        """Launch the product. All tensors are contiguous, and begin at a multiple of 16 bytes.

        Args:
            x: [rows, inputs].
            weight: [outputs, inputs].
            bias: [outputs]; None if there was none at first.
            out: [rows, outputs]; None: a new one.

        Returns:
            [rows, outputs].

        Raises:
            Refused: Nothing was launched.
        """
        if out is None:
            out = torch.empty(self._shape, dtype=x.dtype, device=x.device)
        of_weight, of_x, of_out = self._layouts
        result = c_void_p(out.data_ptr())
        status = _library().cublasLtMatmul(
            _handle(), _operation(bias), byref(c_float(1.0)),
            c_void_p(weight.data_ptr()), of_weight, c_void_p(x.data_ptr()), of_x, byref(c_float(0.0)),
            result, of_out, result, of_out, byref(self._algorithm), None, c_size_t(0),
            c_void_p(torch.cuda.current_stream(x.device).cuda_stream),
        )  # fmt: skip
        _check(status, "a product")
        return out


def is_available() -> bool:
    """Whether torch has loaded this library."""
    try:
        return torch.version.cuda is not None and bool(_library())
    except OSError:
        return False


@cache
def _library() -> ctypes.CDLL:
    """The library that torch has loaded, and no other: its handles are torch's."""
    name = f"libcublasLt.so.{torch.version.cuda.split('.')[0]}"
    return ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)


def _handle() -> c_void_p:
    """A handle of cuBLAS is one of cuBLASLt."""
    return c_void_p(torch.cuda.current_blas_handle())


def _check(status: int, what: str) -> None:
    if status:
        raise Refused(f"cuBLASLt refuses {what}: status {status}")


def _operation(bias: Tensor | None) -> c_void_p:
    return _operation_with(None if bias is None else bias.data_ptr())


@cache
def _operation_with(bias: int | None) -> c_void_p:
    """A product, and its bias by address."""
    operation = c_void_p()
    status = _library().cublasLtMatmulDescCreate(byref(operation), FLOAT32_SUMS, FLOAT32_SCALES)
    _check(status, "an operation")
    attributes: list[tuple[int, ctypes._SimpleCData[int]]] = [(TRANSPOSE_A, c_int(1))]
    if bias is not None:
        attributes += [(EPILOGUE, c_int(ADD_BIAS)), (BIAS_POINTER, c_void_p(bias))]
    for attribute, value in attributes:
        status = _library().cublasLtMatmulDescSetAttribute(
            operation, attribute, byref(value), c_size_t(ctypes.sizeof(value))
        )
        _check(status, f"attribute {attribute} of an operation")
    return operation


@cache
def _layout(dtype: int, rows: int, columns: int) -> c_void_p:
    layout = c_void_p()
    status = _library().cublasLtMatrixLayoutCreate(
        byref(layout), dtype, c_uint64(rows), c_uint64(columns), c_int64(rows)
    )
    _check(status, "a layout")
    return layout


def _algorithm(dtype: int, kernel: Kernel) -> _Algorithm:
    library, algorithm = _library(), _Algorithm()
    status = library.cublasLtMatmulAlgoInit(
        _handle(), FLOAT32_SUMS, FLOAT32_SCALES, dtype, dtype, dtype, dtype, HOPPER_KERNELS, byref(algorithm)
    )
    if status:
        raise Refused(f"cuBLASLt has no kernels {HOPPER_KERNELS} here: status {status}")
    for attribute, value in (
        (TILE, c_uint32(kernel.tile)),
        (SPLIT_K, c_uint32(1)),
        (OPTION, c_uint32(kernel.option)),
        (STAGES, c_uint32(TMA_STAGES)),
        (CLUSTER, c_uint16(kernel.cluster)),
    ):
        status = library.cublasLtMatmulAlgoConfigSetAttribute(
            byref(algorithm), attribute, byref(value), c_size_t(ctypes.sizeof(value))
        )
        _check(status, f"{kernel}")
    return algorithm
