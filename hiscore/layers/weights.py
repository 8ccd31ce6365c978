"""Weights on the device: projections, and the tensors of a layer."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol

from torch import Tensor

from hiscore.layers.products import linear
from hiscore.recurrence.gated_delta_net import RecurrentWeights


class Projection(Protocol):
    """A linear layer; reads a Tensor, or in fp8 a `Quantised`."""

    reads_fp8: ClassVar[bool]

    def __call__(self, x: Any) -> Tensor: ...


@dataclass(frozen=True)
class Linear:
    """A projection in the model's dtype."""

    weight: Tensor  # [out, in]
    bias: Tensor | None = None  # [out]
    reads_fp8: ClassVar[bool] = False

    def __call__(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


@dataclass(frozen=True)
class Scales:
    """Scales of a weight in fp8, for products of `scaled_fp8`: a block is its values times a scale."""

    of_blocks: Tensor  # float32 [..., blocks of rows, blocks of columns]; the last of each may be smaller
    rows: int
    columns: int
    powers_of_two: bool
    """True: scales are powers of two, and those of activations must be, too."""

    def __getitem__(self, index: int) -> "Scales":
        """Scales of one of several weights."""
        return replace(self, of_blocks=self.of_blocks[index])


@dataclass(frozen=True)
class Mlp:
    gate_up: Projection  # [2 F, hidden]: gate, then up
    down: Projection  # [hidden, F]


@dataclass(frozen=True)
class Routing:
    """Rule by which experts are chosen and weighted.

    By softmax: the `per_token` experts of the largest logits, with their probabilities among all experts or,
    normalised, among the chosen ones. By sigmoid (DeepSeek): only experts of the best groups are candidates; a
    group is as good as the sum of its two best experts; a correction affects the choice but not the weights.
    """

    per_token: int
    normalise: bool
    """True: a token's weights add up to 1 before `scale` multiplies them."""
    sigmoid: bool = False
    scale: float = 1.0
    groups: int = 1
    groups_per_token: int = 1


@dataclass(frozen=True)
class Experts:
    """A layer's router, for all E experts, and the experts that a rank holds, each an MLP of F neurons."""

    routing: Routing
    activation: str
    router: Tensor  # float32 [E, hidden]; with `gates_shared` a further row, of the shared expert's gate
    gate_up: Tensor  # [E, 2 F, hidden]: gate, then up
    down: Tensor  # [E, hidden, F]
    router_bias: Tensor | None = None  # float32 [E]
    correction: Tensor | None = None  # float32 [E]; with sigmoid alone
    gate_up_bias: Tensor | None = None  # [E, 2 F]
    down_bias: Tensor | None = None  # [E, hidden]
    shared: Mlp | None = None
    first: int = 0
    """Index of the first expert held."""
    gates_shared: bool = False
    """True: the sigmoid of one more logit of the router multiplies the shared expert's output."""
    factors: Tensor | None = None  # float32 [E]: of an expert's weight; with softmax alone
    gate_up_scales: Scales | None = None
    down_scales: Scales | None = None

    @property
    def is_part(self) -> bool:
        """True if other ranks hold some of the experts."""
        return len(self.gate_up) < len(self.router) - self.gates_shared


@dataclass(frozen=True)
class OwnInput:
    """Block behind the MLP that reads a layer's own input, of W numbers a token."""

    gate: Projection  # [W, hidden]
    output: Projection  # [hidden, W]
    norm: Tensor  # float32 [hidden]


@dataclass(frozen=True)
class ExpertsBeside:
    """Experts that read the residual stream beside the MLP. Norms are float32 [hidden]."""

    experts: Experts
    router_norm: Tensor
    input_norm: Tensor
    output_norm: Tensor
    mlp_norm: Tensor
    """Norm of the MLP's output, to which that of the experts is added."""


@dataclass(frozen=True)
class Gemma4Layer:
    """Parts of a layer that Gemma 4 alone has."""

    keys_as_values: bool
    """Values are keys before their norm, and qkv gives queries and keys alone."""
    factor: Tensor  # float32 [1]: of the residual stream behind the layer
    own_input: OwnInput | None
    beside: ExpertsBeside | None


@dataclass(frozen=True)
class OwnInputs:
    """Tables of the inputs of all layers."""

    table: Tensor  # [vocabulary, layers W]
    projection: Projection  # [layers W, hidden]
    norm: Tensor  # float32 [W]


@dataclass(frozen=True)
class LayerWeights:
    """One layer. Norms are float32 [hidden], or None where the family has none.

    A layer with `recurrent` is a gated delta net: qkv is its joint projection, [`RecurrentShape.inputs`, hidden],
    output [hidden, values]. In any other an `output_gate` is [heads head_dim, hidden],
    qkv is [(heads + 2 kv_heads) head_dim, hidden] ([heads head_dim, hidden] where another layer's keys are read),
    output [hidden, heads head_dim], sinks float32 [heads]. q_norm and k_norm are [head_dim]: of each head;
    [heads, head_dim] and [kv_heads, head_dim]: of each head, with weights of its own; [heads head_dim] and
    [kv_heads head_dim]: of all heads together.
    """

    input_norm: Tensor | None
    qkv: Projection
    q_norm: Tensor | None
    k_norm: Tensor | None
    output: Projection
    post_attention_norm: Tensor | None
    mlp_norm: Tensor | None
    mlp: Mlp | Experts
    post_mlp_norm: Tensor | None
    sinks: Tensor | None = None
    output_gate: Projection | None = None
    recurrent: RecurrentWeights | None = None
    gemma4: Gemma4Layer | None = None


@dataclass(frozen=True)
class Weights:
    """A whole checkpoint on one device; only projections may be in fp8."""

    embedding: Tensor  # [vocabulary, hidden]
    layers: tuple[LayerWeights, ...]
    final_norm: Tensor  # float32 [hidden]
    head: Tensor  # [vocabulary, hidden] for a causal LM, [labels, hidden] for a classifier
    head_bias: Tensor | None = None  # float32 [labels]
    head_input: Projection | None = None
    """The head's first layer, [inner, hidden], with a ReLU or a norm behind it; None: the head has one layer."""
    head_norm: Tensor | None = None
    """float32 [parts, inner / parts]: a norm of each part of the first layer's outputs."""
    own_inputs: OwnInputs | None = None
