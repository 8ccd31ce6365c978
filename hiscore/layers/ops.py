"""The operations of a decoder layer around attention: the interface.

`torch_ops` is the reference in PyTorch, `triton_ops` runs kernels on CUDA. Rows are new tokens, of any number of
sequences; no operation mixes rows.
"""

from typing import Any, Protocol

from torch import Tensor

from hiscore.layers.fp8 import Quantised
from hiscore.layers.moe import moe
from hiscore.layers.rope import Rope
from hiscore.layers.weights import Experts, LayerWeights, Projection


class Ops(Protocol):
    """Operations on T rows.

    Names used throughout:
        x: The residual stream, [T, hidden] in `numerics.at_least_float32`.
        h: The normalised input of a block, [T, hidden] in the model's dtype.
        Norm weights are float32.

    What a projection reads (h, and the result of `gate`) is a Tensor, or under `fp8` a `Quantised`. An
    implementation may hand itself something else from one operation to the next, so callers only pass it on.
    """

    def embed(
        self, ids: Tensor, table: Tensor, scale: float, weight: Tensor | None, fp8: bool = False
    ) -> tuple[Tensor, Any]:
        """Look up embeddings and normalise them for the first layer; returns x and h.

        Args:
            ids: int32 [T].
            table: [vocabulary, hidden].
            scale: Multiplies the embeddings.
            weight: [hidden], of the first layer's input norm; None where the family has none.
        """
        ...

    def rope_and_cache(
        self,
        layer: LayerWeights,
        rope: Rope | None,
        qkv: Tensor,
        positions: Tensor,
        pool: Tensor,
        slot_mapping: Tensor,
    ) -> None:
        """Normalise (where the layer has norms for it) and rotate q and k in place; write k and v to the KV pool.

        Args:
            rope: Rotary tables of this layer; None: it does not rotate.
            qkv: [T, (heads + 2 kv_heads) head_dim], updated in place.
            positions, slot_mapping: int32 [T]; a slot of -1 writes no key and value.
            pool: [slots, 2, kv_heads, head_dim], updated in place.
        """

    def add_norm(
        self,
        x: Tensor,
        update: Tensor,
        post_weight: Tensor | None,
        weight: Tensor | None,
        fp8: bool = False,
    ) -> Any:
        """Add a block's output to x, in place, and normalise the sum for the next block: h.

        `post_weight` is of a norm of the output, [T, hidden], itself; None where the family has none. Without
        `weight`, h is the sum itself.
        """
        ...

    def project(self, projection: Projection, h: Any) -> Tensor:
        """Apply a projection to the result of another operation: [T, in] to [T, out]."""
        out: Tensor = projection(h)
        return out

    def project_add_norm(
        self,
        x: Tensor,
        projection: Projection,
        h: Any,
        post_weight: Tensor | None,
        weight: Tensor | None,
        fp8: bool = False,
    ) -> Any:
        """`add_norm` of a projection of h, [T, in] to [T, hidden]; the result is only for `project` and `gate`."""
        return self.add_norm(x, self.reduce(self.project(projection, h)), post_weight, weight, fp8)

    def reduce(self, partial: Tensor) -> Tensor:
        """The sum over ranks of what each adds to the residual stream; partial may be overwritten."""
        return partial

    def gate(self, projection: Projection, h: Any, fp8: bool = False) -> Any:
        """act(gate) * up of a joint projection to gate and up, [T, in] to [T, 2 F], gate first: [T, F]."""
        return self.activate(self.project(projection, h), fp8)

    def experts(self, experts: Experts, h: Tensor) -> Tensor:
        """A mixture of experts: [T, hidden] to [T, hidden]."""
        return moe(experts, h)

    def activate(self, gate_up: Tensor, fp8: bool = False) -> Any:
        """act(gate) * up: [T, 2 F] to [T, F]."""
        ...

    def quantise(self, x: Tensor) -> Quantised:
        """Quantise what no other operation quantises, for a projection in fp8: [T, width]."""
        ...
