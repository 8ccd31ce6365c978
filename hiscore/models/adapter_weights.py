"""Weights of adapters, checked against the checkpoint's linear layers and laid out as those are."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from hiscore.attention.metadata import TOKEN_BITS
from hiscore.layers.adapters import Adapters, LowRank
from hiscore.layers.weights import LayerWeights, Mlp, Projection, Weights
from hiscore.models.adapter_files import HEAD_TENSOR, PREFIX, WEIGHTS, AdapterFiles
from hiscore.models.config import Architecture
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.loader import load_weights
from hiscore.models.reader import CheckpointReader
from hiscore.models.text_towers import text_tensor


class LayoutReader(CheckpointReader):
    """Keeps how each projection was put together from linear layers; on the device "meta" nothing else is read."""

    def __init__(self, layouts: dict[int, Any], *args: Any) -> None:
        super().__init__(*args)
        self._layouts = layouts

    def projection(self, *args: Any, **more: Any) -> Projection:
        read = super().projection(*args, **more)
        order = args[3] if len(args) > 3 else more.get("order")
        # Kept, so that no other projection gets its id.
        self._layouts[id(read)] = read, *args[:2], order
        return read


def read_files(directories: Mapping[str, Path], a: Architecture) -> list[AdapterFiles]:
    """Read adapters' files for a checkpoint; raises `UnsupportedCheckpoint`."""
    files = [AdapterFiles.read(name, directory) for name, directory in directories.items()]
    other = a.scores_tokens or a.guard_labels or a.modular or a.vocab_size > 1 << TOKEN_BITS
    if files and other:
        raise UnsupportedCheckpoint(
            f"ADAPTERS need a model that scores items, of at most {1 << TOKEN_BITS} tokens: set ADAPTERS=off"
        )
    headed = [each for each in files if each.labels]
    if headed and (a.deep_head or a.head_bias):
        raise headed[0].refused(
            f"it has a head '{HEAD_TENSOR}', and the checkpoint's is more than one matrix"
        )
    return files


def load_adapters(
    files: Sequence[AdapterFiles], checkpoint: Path, a: Architecture, weights: Weights
) -> Adapters:
    """Load adapters beside a checkpoint's weights, in their dtype and on their device."""
    places, projections = _places(checkpoint, a), list(_projections(weights.layers))
    ranks: dict[int, Any] = defaultdict(lambda: defaultdict(dict))
    for number, each in enumerate(files, 1):
        for module in each.modules:
            if not (of_module := places.get(text_tensor(module) or "")):
                raise each.refused(
                    f"it adapts '{module}', which this checkpoint does not have, or which is no linear layer of "
                    "attention or a dense MLP: those alone are adapted"
                )
            for index, columns, _, _, inner in of_module:
                if (projection := projections[index]) is None or projection.reads_fp8:
                    raise each.refused("layers in fp8 are not adapted: set DTYPE=bfloat16 or ADAPTERS=off")
                ranks[index][columns, inner][number] = each.rank(module)
    # Made whole before any is read: the allocator would keep the holes of parts that are joined later.
    products = {
        index: {
            columns: LowRank.empty(slice(*columns), inner, own, len(files), weights.embedding)
            for (columns, inner), own in of_columns.items()
        }
        for index, of_columns in ranks.items()
    }
    heads: list[Tensor] = []
    for number, each in enumerate(files, 1):
        stored = load_file(each.directory / WEIGHTS)
        read = partial(_read, each, {name.removeprefix(PREFIX): tensor for name, tensor in stored.items()})
        for module in each.modules:
            for index, columns, outputs, width, inner in places[text_tensor(module) or ""]:
                down = read(f"{module}.lora_A.weight", columns=inner)
                up = read(f"{module}.lora_B.weight", rows=width)[outputs].T * each.scale(module)
                products[index][columns].fill(number, down, up)
        if each.labels:
            # The final norm has the factor of a language model's logits.
            head = read(HEAD_TENSOR, columns=a.hidden_size) / a.logit_scale
            heads.append(head.to(weights.embedding))
    if heads and a.is_classifier:
        heads.append(weights.head)
    return Adapters(
        {id(projections[index]): [*of_columns.values()] for index, of_columns in products.items()},
        torch.cat(heads) if heads else None,
    )


def _read(
    adapter: AdapterFiles, tensors: Mapping[str, Tensor], name: str, rows: int = 0, columns: int = 0
) -> Tensor:
    """Take a matrix in float32; sizes that are not 0 are the checkpoint's."""
    tensor = tensors[name]
    if not tensor.is_floating_point() or tensor.itemsize == 1:
        raise adapter.refused(f"'{name}' is {tensor.dtype}, not a float of 16 bits or more")
    if tensor.shape != (wanted := (rows or tensor.shape[0], columns or tensor.shape[1])):
        raise adapter.refused(
            f"'{name}' has shape {list(tensor.shape)}, and this checkpoint needs {list(wanted)}: it is an adapter "
            "of another one"
        )
    return tensor.float()


def _projections(layers: Sequence[LayerWeights]) -> Iterator[Projection | None]:
    """The projections that adapters may change, as many of each layer."""
    for layer in layers:
        mlp = (layer.mlp.gate_up, layer.mlp.down) if isinstance(layer.mlp, Mlp) else (None, None)
        yield from (layer.qkv, layer.output, layer.output_gate, *mlp)


def _places(checkpoint: Path, a: Architecture) -> Mapping[str, list[tuple[Any, ...]]]:
    """Find where the outputs of each linear layer are: a projection's index and its columns, the outputs in them,
    int64 [columns], and the layer's outputs and inputs.
    """
    layouts: dict[int, Any] = {}
    make: Callable[..., CheckpointReader] = partial(LayoutReader, layouts)
    layers = load_weights(checkpoint, a, torch.device("meta"), torch.float32, reader=make).layers
    found: dict[str, list[tuple[Any, ...]]] = defaultdict(list)
    for index, projection in enumerate(_projections(layers)):
        if id(projection) not in layouts:
            continue
        _, outs, inner, order = layouts[id(projection)]
        order = torch.arange(sum(outs.values())) if order is None else order
        begin = 0
        for module, width in outs.items():
            columns = torch.nonzero((order >= begin) & (order < begin + width))[:, 0]
            if len(columns):
                first, last = int(columns[0]), int(columns[-1]) + 1
                assert last - first == len(columns)
                found[module].append((index, (first, last), order[first:last] - begin, width, inner))
            begin += width
    return found
