"""The tensors of a checkpoint, by the names that they have in an unquantised one.

A weight is dequantised when it is read, on the device, so that only one at a time exists in both forms. Weights in
fp8 may be read as they are, too. On the device "meta" nothing is read but headers: for a plan of the memory.
"""

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from hiscore.models.cut import UNCUT, Cut, shape_of
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.quantization.base import Format
from hiscore.models.quantization.bitsandbytes import BitsAndBytes
from hiscore.models.quantization.compressed import CompressedTensors
from hiscore.models.quantization.fp8 import FbgemmFp8, Fp8, Modelopt
from hiscore.models.quantization.gptq import Awq, Gptq
from hiscore.models.quantization.mxfp4 import Mxfp4
from hiscore.models.quantization.schemes import without_scale
from hiscore.models.stored_config import stored_config
from hiscore.models.text_towers import TOWERS, text_config, text_tensor, usual_name
from hiscore.models.weight_files import INDEX, SINGLE, weight_files

log = logging.getLogger(__name__)
T = TypeVar("T")

DTYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16, "I64": torch.int64,
    "I32": torch.int32, "I16": torch.int16, "I8": torch.int8, "U8": torch.uint8, "BOOL": torch.bool,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2, "F8_E8M0": torch.float8_e8m0fnu,
}  # fmt: skip
"""Names of dtypes in the headers of safetensors."""
ROWS_COMPARED = 4_096
FORMATS: Mapping[str, type[Format]] = {
    format_.method: format_
    for format_ in (Fp8, FbgemmFp8, CompressedTensors, Awq, Gptq, Mxfp4, Modelopt, BitsAndBytes)
}


class CheckpointTensors:
    def __init__(self, checkpoint: Path, device: torch.device, within: str = "") -> None:
        """Open the files of a checkpoint, whose scheme must be one of those served.

        Args:
            within: Beginning of the names in a model with a head, which a model saved without one lacks.
        """
        self._device, self._within = device, within
        self._files = {
            name: handle
            for handle in _open_shards(checkpoint)
            for name in handle.keys()  # noqa: SIM118
        }
        of_texts = text_config(stored_config(checkpoint))
        quantised = of_texts.get("quantization_config")
        self.format: Format | None = FORMATS[quantised["quant_method"]](quantised) if quantised else None
        self._parts = self._by_weight(of_texts.get("model_type"))
        self._stored = self._dequantised = self._kept = 0

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def read(self, name: str, shape: Sequence[int] | None = None, cut: Cut = UNCUT) -> Tensor:
        """Read a tensor, which must be there and have this shape, or a part of it.

        All of a quantised weight is read and dequantised before it is cut, unless what is stored can be cut alike.
        """
        stored, last = self._parts[name], name.rpartition(".")[2]
        if stored.keys() == {last}:
            source = self._slice(stored[last])
            self._check_dtype(name, source)
            check_shape(name, shape_of(source), shape)
            return cut.of(source).to(self._device)
        if shape is not None and self._device.type == "meta":
            return cut.of(torch.empty(shape, device="meta"))
        inside = cut if self.format is not None and self.format.parts_have_rows else UNCUT
        parts = self._parts_of(name, inside)
        weight = self._by_format(name, lambda of, module: of.dequantise(module, parts))
        self._stored += sum(part.nbytes for part in parts.values())
        self._dequantised += weight.numel()
        if inside is UNCUT:
            check_shape(name, shape_of(weight), shape)
        return weight if inside is cut else cut.of(weight)

    def read_fp8(self, name: str) -> tuple[Tensor, Tensor, int] | None:
        """Read a weight as it is stored, or raise like `read`; None if that is not fp8. See `Format.in_fp8`."""
        parts, last = self._parts_of(name), name.rpartition(".")[2]
        if parts.keys() == {last}:
            return None
        return self._by_format(name, lambda of, module: of.in_fp8(module, parts))

    def kept(self, weights: int) -> None:
        self._kept += weights

    def _parts_of(self, name: str, cut: Cut = UNCUT) -> dict[str, Tensor]:
        return {part: self._part(stored, cut).to(self._device) for part, stored in self._parts[name].items()}

    def _part(self, stored: str, cut: Cut) -> Tensor:
        if cut is not UNCUT:
            return cut.of(self._slice(stored))
        whole: Tensor = (
            self._slice(stored) if self._device.type == "meta" else self._files[stored].get_tensor(stored)
        )
        return whole

    def _slice(self, stored: str) -> Any:
        source = self._files[stored].get_slice(stored)
        if self._device.type != "meta":
            return source
        if (dtype := DTYPES.get(source.get_dtype())) is None:
            raise UnsupportedCheckpoint(f"'{stored}' is {source.get_dtype()}, which is not served")
        return torch.empty(source.get_shape(), dtype=dtype, device="meta")

    def _by_format(self, name: str, work: Callable[[Format, str], T]) -> T:
        """Result of the format for a module, named as it is stored; errors name the tensor."""
        assert self.format is not None
        try:
            return work(self.format, self.format.split(next(iter(self._parts[name].values())))[0])
        except (KeyError, ValueError) as error:
            missing = f"it has no {error}" if isinstance(error, KeyError) else error
            raise UnsupportedCheckpoint(
                f"'{name}' cannot be read as {self.format.method}: {missing}"
            ) from None

    def equal(self, one: str, other: str) -> bool:
        """True if two tensors, which must be there, hold the same values; never loads more than slices of them."""
        if len(self._parts[one]) > 1 or len(self._parts[other]) > 1:
            return False
        names = [stored for name in (one, other) for stored in self._parts[name].values()]
        first, second = (self._files[name].get_slice(name) for name in names)
        if (first.get_shape(), first.get_dtype()) != (second.get_shape(), second.get_dtype()):
            return False
        starts = range(0, first.get_shape()[0], ROWS_COMPARED)
        slices = (slice(start, start + ROWS_COMPARED) for start in starts)
        return all(torch.equal(first[rows], second[rows]) for rows in slices)

    def report(self, dtype: torch.dtype) -> None:
        if self._device.type == "meta":
            return
        if self.format is not None and self._kept:
            log.info("%d MiB of %s weights stay in fp8", self._kept >> 20, self.format.method)
        if self.format is not None and self._dequantised:
            log.info(
                "dequantised %s weights while loading: %d MiB became %d MiB of %s",
                self.format.method, self._stored >> 20, self._dequantised * dtype.itemsize >> 20,
                str(dtype).removeprefix("torch."),
            )  # fmt: skip

    def _check_dtype(self, name: str, source: Any) -> None:
        dtype = source.dtype if isinstance(source, Tensor) else DTYPES.get(source.get_dtype())
        if dtype is None or not dtype.is_floating_point or dtype.itemsize == 1:
            said = str(dtype or source.get_dtype()).removeprefix("torch.")
            raise UnsupportedCheckpoint(without_scale(name, said, self.format is not None))

    def _by_weight(self, model_type: str | None) -> dict[str, dict[str, str]]:
        """Names of each tensor's stored parts, under the names that most models of texts have."""
        parts: dict[str, dict[str, str]] = {}
        within = "" if any(name.startswith(self._within) for name in self._files) else self._within
        for stored in self._files:
            name = text_tensor(stored) if model_type in TOWERS else usual_name(within + stored, model_type)
            if name is None:
                continue
            if self.format is None:
                parts[name] = {name.rpartition(".")[2]: stored}
                continue
            module, last = self.format.split(name)
            if last not in self.format.dropped:
                weight = self.format.companions.get(last, last)
                parts.setdefault(f"{module}.{weight}" if module else weight, {})[last] = stored
                if weight != last and self.format.is_excluded(self.format.split(stored)[0]):
                    raise UnsupportedCheckpoint(
                        f"the config leaves '{module}' unquantised, but the checkpoint holds '{stored}'"
                    )
        return parts


def check_shape(name: str, found: Sequence[int], announced: Sequence[int] | None) -> None:
    """Raise `UnsupportedCheckpoint` if a tensor has another shape than the config says; None: any will do."""
    if announced is not None and list(found) != list(announced):
        raise UnsupportedCheckpoint(
            f"'{name}' has shape {list(found)}, the config announces {list(announced)}"
        )


def _open_shards(checkpoint: Path) -> Iterator[safe_open]:
    try:
        files = weight_files(checkpoint)
    except ValueError as error:
        raise UnsupportedCheckpoint(str(error)) from None
    if not files:
        raise UnsupportedCheckpoint(f"'{checkpoint}' has neither '{SINGLE}' nor '{INDEX}'")
    for file in files:
        try:
            yield safe_open(file, framework="pt", device="cpu")
        except (OSError, SafetensorError) as error:
            raise UnsupportedCheckpoint(f"'{file}' cannot be read as safetensors: {error}") from None
