"""A head of sentence-transformers' modules: rows to scores, by modules that read and write named tensors."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional

from hiscore.device.numerics import at_least_float32
from hiscore.models.cross_encoder import CrossEncoderFiles, Module, read_cross_encoder
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.quantization.tensors import check_shape

ACTIVATIONS: Mapping[str, Callable[[Tensor], Tensor]] = {
    "Identity": lambda x: x,
    "Tanh": torch.tanh,
    "GELU": functional.gelu,
    "ReLU": functional.relu,
    "SiLU": functional.silu,
    "Sigmoid": torch.sigmoid,
}
WEIGHTS = "model.safetensors"
EPS = 1e-5
"""The default of torch's LayerNorm."""


class ModularHead:
    """All modules of a head; `weight` is what an LMHead behind it multiplies the scores by: nothing changes."""

    bias = None

    def __init__(
        self, checkpoint: Path, files: CrossEncoderFiles, device: torch.device, dtype: torch.dtype
    ) -> None:
        """Load the modules' weights, in float32 at least, or raise `UnsupportedCheckpoint`."""
        self._modules = [(each, _weights(checkpoint, each, device, dtype)) for each in files.head]
        self.labels = files.labels
        self.weight = torch.eye(self.labels, device=device, dtype=at_least_float32(dtype))

    def __call__(self, rows: Tensor, lengths: Tensor | None = None) -> Tensor:
        """Compute the scores, [pairs, labels], of rows of pairs of these lengths, int64 [pairs]; None: 1 each."""
        if lengths is None:
            lengths = torch.ones(len(rows), dtype=torch.int64, device=rows.device)
        made = {"token_embeddings": rows.to(self.weight.dtype)}
        for module, weights in self._modules:
            config = module.config
            x = made[module.reads]
            if module.kind == "Pooling":
                x = pool(x, lengths, module.modes)
            elif module.kind == "Dense":
                linear = functional.linear(x, weights["linear.weight"], weights.get("linear.bias"))
                activated = ACTIVATIONS[config["activation_function"]](linear)
                if config["use_residual"]:
                    projection = weights.get("residual.weight")
                    activated = activated + (x if projection is None else functional.linear(x, projection))
                x = activated
            elif module.kind == "LayerNorm":
                x = functional.layer_norm(x, x.shape[1:], weights["norm.weight"], weights["norm.bias"], EPS)
            elif module.kind == "Normalize":
                x = functional.normalize(x, dim=-1)
            made[module.writes] = x
        return made["scores"]


def pool(rows: Tensor, lengths: Tensor, modes: Sequence[str]) -> Tensor:
    """Pool the rows of each pair, [R, hidden], by all modes: [pairs, modes * hidden].

    Args:
        lengths: int64 [pairs], which add up to R; pairs without rows get any numbers.
    """
    ends = lengths.cumsum(0)
    starts, last = ends - lengths, len(rows) - 1

    def reduced(values: Tensor, how: str) -> Tensor:
        return torch.segment_reduce(values, how, lengths=lengths, unsafe=True)

    def weighted() -> Tensor:
        place = torch.arange(1, len(rows) + 1, device=rows.device)
        place = place - torch.repeat_interleave(starts, lengths, output_size=len(rows))
        sums = lengths * (lengths + 1) / 2
        return reduced(rows * place[:, None], "sum") / sums[:, None]

    by_mode: Mapping[str, Callable[[], Tensor]] = {
        "cls": lambda: rows[starts.clamp(max=last)],
        "lasttoken": lambda: rows[(ends - 1).clamp(min=0)],
        "mean": lambda: reduced(rows, "mean"),
        "max": lambda: reduced(rows, "max"),
        "mean_sqrt_len_tokens": lambda: reduced(rows, "sum") / lengths[:, None].sqrt(),
        "weightedmean": weighted,
    }
    return torch.cat([by_mode[mode]() for mode in modes], dim=1)


def head_bytes(checkpoint: Path) -> int:
    """Bytes of a head's weights at most: they are stored in two bytes a number or more, and computed in four."""
    return 2 * sum(
        (checkpoint / each.folder / WEIGHTS).stat().st_size
        for each in read_cross_encoder(checkpoint).head
        if (checkpoint / each.folder / WEIGHTS).is_file()
    )


def _weights(checkpoint: Path, module: Module, device: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    config = module.config
    shapes: dict[str, tuple[int, ...]] = {}
    if module.kind == "Dense":
        size = config["out_features"], config["in_features"]
        shapes = {"linear.weight": size, **({"linear.bias": size[:1]} if config["bias"] else {})}
        if config["use_residual"] and size[0] != size[1]:
            shapes["residual.weight"] = size
    elif module.kind == "LayerNorm":
        shapes = dict.fromkeys(("norm.weight", "norm.bias"), (config["dimension"],))
    if not shapes:
        return {}
    file = checkpoint / module.folder / WEIGHTS
    if not file.is_file():
        raise UnsupportedCheckpoint(f"'{module.folder}/{file.name}' is missing: copy the checkpoint again")
    found = load_file(file)
    if found.keys() != shapes.keys():
        wrong = min(found.keys() ^ shapes.keys())
        raise UnsupportedCheckpoint(f"'{wrong}' is not in both '{module.folder}/{file.name}' and its config")
    for name, shape in shapes.items():
        check_shape(f"{module.folder}: {name}", found[name].shape, shape)
    return {name: tensor.to(device, at_least_float32(dtype)) for name, tensor in found.items()}
