"""Quantised checkpoints, each with the same weights dequantised for the truth.

Every writer follows the packer of the library that publishes the format, or is that packer. The dequantised
weights come from the integers before they are packed, or from a library's own function, never from what is tested.
"""

import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tests.support.checkpoints import edited_config, edited_tensors

GROUP = 16
"""Inputs that share a scale: a divisor of the tiny models' hidden and intermediate sizes."""
BLOCK = (48, 40)
"""Divides none of those sizes: blocks at the edges are cut."""


@dataclass(frozen=True)
class Written:
    """A linear layer as stored, by last components of names, and the same weight in float32."""

    parts: dict[str, Tensor]
    dense: Tensor


Writer = Callable[[Tensor], Written]


@dataclass(frozen=True)
class Scheme:
    """How a checkpoint is quantised: its quantization_config, and the writer of its linear layers."""

    config: dict[str, Any]
    write: Writer
    beside: bool = False
    """The config is in hf_quant_config.json instead of config.json."""


def _fp8(weight: Tensor, peaks: Tensor, name: str) -> Written:
    """E4m3 with a scale for what each of `peaks`, which broadcasts to the weight, is the largest value of."""
    scales = peaks / 448
    values = (weight / scales).clamp(-448, 448).to(torch.float8_e4m3fn)
    return Written({"weight": values, name: scales}, values.float() * scales)


def fp8_per_tensor(weight: Tensor) -> Written:
    written = _fp8(weight, weight.abs().max(), "weight_scale")
    return Written({**written.parts, "input_scale": torch.tensor(0.037)}, written.dense)


def fp8_per_channel(weight: Tensor) -> Written:
    return _fp8(weight, weight.abs().amax(1, keepdim=True), "weight_scale")


def fp8_in_blocks(weight: Tensor, block: tuple[int, int] = BLOCK) -> Written:
    height, width = block
    rows, columns = -(-weight.shape[0] // height), -(-weight.shape[1] // width)
    scales, each = torch.empty(rows, columns), torch.empty_like(weight)
    for row in range(rows):
        for column in range(columns):
            where = (
                slice(row * height, (row + 1) * height),
                slice(column * width, (column + 1) * width),
            )
            scales[row, column] = weight[where].abs().max() / 448
            each[where] = scales[row, column]
    values = (weight / each).to(torch.float8_e4m3fn)
    return Written({"weight": values, "weight_scale_inv": scales}, values.float() * each)


def _integers(weight: Tensor, of_group: Tensor, symmetric: bool) -> tuple[Tensor, Tensor, Tensor]:
    """Integers of 4 bits [in, out], zero points and float16 scales [groups, out] of a weight [out, in]."""
    groups = int(of_group.max()) + 1
    columns = weight.t()
    low = torch.stack([columns[of_group == group].amin(0) for group in range(groups)])
    high = torch.stack([columns[of_group == group].amax(0) for group in range(groups)])
    if symmetric:
        high = torch.maximum(low.abs(), high.abs())
        low = -high
    scales = ((high - low) / 15).half()
    zeros = torch.full_like(low, 8) if symmetric else (-low / scales).round().clamp(1, 15)
    zeros = zeros.int()
    integers = (columns / scales[of_group] + zeros[of_group]).round().clamp(0, 15).int()
    return integers, zeros, scales


def _words(integers: Tensor, order: tuple[int, ...] = tuple(range(8))) -> Tensor:
    """Pack 4-bit integers [n, 8 m] to int32 [n, m]: nibble i of a word is its integer order[i]."""
    values = integers.numpy().astype(np.uint32)
    packed = np.zeros((values.shape[0], values.shape[1] // 8), np.uint32)
    for word in range(packed.shape[1]):
        for nibble, place in enumerate(order):
            packed[:, word] |= values[:, word * 8 + place] << np.uint32(4 * nibble)
    return torch.from_numpy(packed.view(np.int32))


def awq(weight: Tensor) -> Written:
    """The order of `WQLinear_GEMM.from_linear` of AutoAWQ."""
    of_group = torch.arange(weight.shape[1]) // GROUP
    integers, zeros, scales = _integers(weight, of_group, symmetric=False)
    order = (0, 2, 4, 6, 1, 3, 5, 7)
    parts = {"qweight": _words(integers, order), "qzeros": _words(zeros, order), "scales": scales}
    return Written(parts, _dense(integers, zeros, scales, of_group))


def _gptq(weight: Tensor, of_group: Tensor, symmetric: bool, subtracted: int) -> Written:
    """The order of `QuantLinear.pack` of AutoGPTQ."""
    integers, zeros, scales = _integers(weight, of_group, symmetric)
    parts = {
        "qweight": _words(integers.t()).t().contiguous(),
        "qzeros": _words(zeros - subtracted),
        "scales": scales,
        "g_idx": of_group.int(),
    }
    return Written(parts, _dense(integers, zeros, scales, of_group))


def _dense(integers: Tensor, zeros: Tensor, scales: Tensor, of_group: Tensor) -> Tensor:
    return ((integers - zeros[of_group]) * scales.float()[of_group]).t().contiguous()


def gptq(weight: Tensor) -> Written:
    return _gptq(weight, torch.arange(weight.shape[1]) // GROUP, symmetric=True, subtracted=1)


def gptq_by_activation(weight: Tensor) -> Written:
    """Groups of inputs that are not neighbours, and zero points."""
    order = torch.randperm(weight.shape[1], generator=torch.Generator().manual_seed(1))
    return _gptq(weight, (torch.arange(weight.shape[1]) // GROUP)[order], symmetric=False, subtracted=1)


def gptq_v2(weight: Tensor) -> Written:
    return _gptq(weight, torch.arange(weight.shape[1]) // GROUP, symmetric=False, subtracted=0)


def bitsandbytes(weight: Tensor, nested: bool) -> Written:
    """Codes of blocks of 64, the first of a byte in its upper half; nested scales have codes in blocks of 8."""

    def coded(values: Tensor, block: int, codes: int) -> tuple[Tensor, Tensor, Tensor]:
        """Codes of evenly spaced values, those values, and the scale of each block."""
        table = torch.linspace(-1, 1, codes)
        padded = torch.nn.functional.pad(values, (0, -len(values) % block)).view(-1, block)
        peaks = padded.abs().amax(1)
        nearest = (padded / peaks[:, None] * (codes - 1) / 2 + (codes - 1) / 2).round().long()
        return nearest.flatten()[: len(values)], table, peaks

    codes, table, peaks = coded(weight.flatten(), 64, 16)
    state = {"quant_type": "nf4", "blocksize": 64, "dtype": "float16", "shape": [*weight.shape]}
    parts = {"weight": (codes[0::2] * 16 + codes[1::2]).to(torch.uint8)[:, None], "weight.quant_map": table}
    if nested:
        offset = peaks.mean()
        inner, inner_table, inner_peaks = coded(peaks - offset, 8, 256)
        parts |= {"weight.absmax": inner.to(torch.uint8), "weight.nested_quant_map": inner_table}
        parts["weight.nested_absmax"] = inner_peaks
        state |= {"nested_blocksize": 8, "nested_dtype": "float32", "nested_offset": float(offset)}
        peaks = inner_table[inner] * inner_peaks.repeat_interleave(8)[: len(peaks)] + offset
    else:
        parts["weight.absmax"] = peaks
    text = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    dense = table[codes] * peaks.repeat_interleave(64)[: weight.numel()]
    return Written({**parts, "weight.quant_state.bitsandbytes__nf4": text}, dense.reshape(weight.shape))


def llm_int8(weight: Tensor) -> Written:
    peaks = weight.abs().amax(1)
    values = (weight / peaks[:, None] * 127).round().to(torch.int8)
    parts = {"weight": values, "SCB": peaks, "weight_format": torch.tensor(0, dtype=torch.uint8)}
    return Written(parts, values.float() * (peaks / 127)[:, None])


def modelopt_nvfp4() -> Scheme:
    """The NVFP4 of compressed-tensors under Model Optimizer's names, with the inverse of its scale of a tensor."""
    of_library = nvfp4()

    def write(weight: Tensor) -> Written:
        written = of_library.write(weight)
        names = {"weight": "weight_packed", "weight_scale": "weight_scale"}
        parts = {name: written.parts[other] for name, other in names.items()}
        parts["weight_scale_2"] = 1 / written.parts["weight_global_scale"][0]
        return Written({**parts, "input_scale": torch.tensor(0.037)}, written.dense)

    config = {
        "quant_method": "modelopt",
        "quant_algo": "NVFP4",
        "ignore": ["lm_head", "*layers.1.self_attn*"],
    }
    return Scheme(config, write)


def nvfp4() -> Scheme:
    return compressed("nvfp4-pack-quantized", "tensor_group", num_bits=4, group_size=GROUP)


def compressed(form: str, strategy: str, **weights: Any) -> Scheme:
    """What the library compressed-tensors itself writes and reads with these weight arguments."""
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.compressors.nvfp4.helpers import unpack_fp4_from_uint8
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from compressed_tensors.quantization.lifecycle.forward import dequantize
    from compressed_tensors.quantization.utils import calculate_qparams, generate_gparam

    arguments = QuantizationArgs(**{"type": "float", "num_bits": 8, "strategy": strategy, **weights})
    scheme = QuantizationScheme(targets=["Linear"], weights=arguments, format=form)
    compressor = BaseCompressor.get_value_from_registry(form)

    def write(weight: Tensor) -> Written:
        shape = weight.shape
        if arguments.strategy == "block":
            state = {"weight": weight, "weight_scale": fp8_in_blocks(weight).parts["weight_scale_inv"]}
            parts = compressor.compress(state, scheme)
            return Written(parts, compressor.decompress(parts, scheme)["weight"])
        sizes = {"tensor": weight.numel(), "channel": shape[1], "group": GROUP, "tensor_group": GROUP}
        size = sizes[str(arguments.strategy)]
        grouped = weight.reshape(-1, size)
        low, high = grouped.amin(1), grouped.amax(1)
        of_tensor = generate_gparam(low.min(), high.max()) if arguments.strategy == "tensor_group" else None
        scales, zeros = calculate_qparams(low, high, arguments, of_tensor)
        grid = (1,) if arguments.strategy == "tensor" else (shape[0], shape[1] // size)
        state = {"weight": weight, "weight_scale": scales.reshape(grid)}
        if not arguments.symmetric:
            state["weight_zero_point"] = zeros.reshape(grid)
        if of_tensor is not None:
            state["weight_global_scale"] = of_tensor.reshape(1)
        parts = compressor.compress(state, scheme)
        if of_tensor is None:
            return Written(parts, compressor.decompress(parts, scheme)["weight"])
        # `decompress` rounds to bfloat16.
        values = unpack_fp4_from_uint8(parts["weight_packed"], *shape, torch.float32)
        dense = dequantize(
            values, parts["weight_scale"].float(), args=arguments, dtype=torch.float32, global_scale=of_tensor
        )
        return Written(parts, dense)

    config = {
        "quant_method": "compressed-tensors",
        "format": form,
        "ignore": ["lm_head", "re:.*layers\\.1\\.self_attn\\..*"],
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": arguments.model_dump(mode="json")}},
    }
    return Scheme(config, write)


def make_mxfp4(dense: Path, quantised: Path) -> Path:
    """Give a GPT-OSS checkpoint random MXFP4 experts, and the original the same as transformers reads them."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    shutil.copytree(dense, quantised)
    generator = torch.Generator().manual_seed(3)
    with edited_tensors(dense) as tensors, edited_tensors(quantised) as stored:
        for name in [
            name for name in tensors if name.endswith(("experts.gate_up_proj", "experts.down_proj"))
        ]:
            count, inputs, outputs = stored.pop(name).shape
            blocks = torch.randint(
                256, (count, outputs, inputs // 32, 16), generator=generator, dtype=torch.uint8
            )
            # Weights of about 0.1 each.
            scales = torch.randint(120, 125, blocks.shape[:-1], generator=generator, dtype=torch.uint8)
            stored |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
            tensors[name] = convert_moe_packed_tensors(blocks, scales, dtype=torch.float32)
    with edited_config(quantised) as config:
        config["quantization_config"] = MXFP4
    return quantised


MXFP4 = {
    "quant_method": "mxfp4",
    "modules_to_not_convert": [
        "model.layers.*.self_attn",
        "model.layers.*.mlp.router",
        "model.embed_tokens",
        "lm_head",
    ],
}
"""Of openai/gpt-oss-20b."""
NF4: dict[str, Any] = {"method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"}
INT4: dict[str, Any] = {"type": "int", "num_bits": 4, "group_size": GROUP}


def written_by(write: Writer, method: str, beside: bool = False, **config: Any) -> Callable[[], Scheme]:
    return lambda: Scheme({"quant_method": method, **config}, write, beside)


SCHEMES: dict[str, Callable[[], Scheme]] = {
    "fp8-tensor": written_by(fp8_per_tensor, "fp8", activation_scheme="static", ignored_layers=["lm_head"]),
    "fp8-channel": written_by(fp8_per_channel, "fp8", activation_scheme="dynamic"),
    "fbgemm-fp8": written_by(
        fp8_per_channel, "fbgemm_fp8", activation_scale_ub=1200.0, modules_to_not_convert=["lm_head"]
    ),
    "modelopt-fp8": written_by(fp8_per_tensor, "modelopt", quant_algo="FP8", ignore=["lm_head"]),
    "modelopt-fp8-beside": written_by(
        *(fp8_per_tensor, "modelopt", True),
        **{"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]},
    ),
    "modelopt-nvfp4": modelopt_nvfp4,
    "bitsandbytes-nf4": written_by(partial(bitsandbytes, nested=False), **NF4),
    "bitsandbytes-nested": written_by(partial(bitsandbytes, nested=True), **NF4),
    "bitsandbytes-int8": written_by(llm_int8, "bitsandbytes", load_in_8bit=True),
    "fp8-block": written_by(fp8_in_blocks, "fp8", fmt="e4m3", weight_block_size=list(BLOCK)),
    "fp8-block-32": written_by(partial(fp8_in_blocks, block=(32, 32)), "fp8", weight_block_size=[32, 32]),
    "awq": written_by(awq, "awq", bits=4, group_size=GROUP, version="gemm", zero_point=True),
    "gptq": written_by(gptq, "gptq", bits=4, group_size=GROUP, sym=True),
    "gptq-desc-act": written_by(gptq_by_activation, "gptq", bits=4, desc_act=True, sym=False),
    "gptq-v2": written_by(gptq_v2, "gptq", bits=4, checkpoint_format="gptq_v2"),
    "compressed-fp8-tensor": partial(compressed, "naive-quantized", "tensor"),
    "compressed-fp8-channel": partial(compressed, "float-quantized", "channel"),
    "compressed-fp8-block": partial(compressed, "float-quantized", "block", block_structure=list(BLOCK)),
    "compressed-nvfp4": nvfp4,
    "compressed-int8": partial(compressed, "int-quantized", "channel", type="int", symmetric=False),
    "compressed-int4": partial(compressed, "pack-quantized", "group", **INT4),
    "compressed-int4-zeros": partial(compressed, "pack-quantized", "group", **INT4, symmetric=False),
    "compressed-int8-one-zero": partial(compressed, "pack-quantized", "tensor", type="int", symmetric=False),
}


def make(dense: Path, scheme: Scheme, quantised: Path, leave: tuple[str, ...] = ()) -> Path:
    """Write a checkpoint quantised, and give the original the dequantised weights.

    Modules with a part of `leave` in their name stay as they are, as embedding and head do.
    """
    shutil.copytree(dense, quantised)
    kept = ("embed_tokens", "lm_head", *leave)
    with edited_tensors(dense) as tensors, edited_tensors(quantised) as stored:
        for name, tensor in list(tensors.items()):
            module, _, last = name.rpartition(".")
            router = module.endswith(("mlp.gate", "block_sparse_moe.gate"))
            if tensor.ndim != 2 or last != "weight" or router or any(part in module for part in kept):
                continue
            written = scheme.write(stored.pop(name))
            stored |= {f"{module}.{part}": value.contiguous() for part, value in written.parts.items()}
            tensors[name] = written.dense.float().contiguous()
    if scheme.beside:
        (quantised / "hf_quant_config.json").write_text(json.dumps({"quantization": scheme.config}))
        return quantised
    with edited_config(quantised) as config:
        config["quantization_config"] = scheme.config
    return quantised
