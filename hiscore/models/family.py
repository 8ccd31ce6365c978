"""The kinds of families: the switches in which the families of a kind differ, and the rules that all of them have.

Nothing here imports torch: the launcher reads the table before anything heavy is loaded.
"""

from dataclasses import dataclass
from typing import Literal

from hiscore.models.quantization.schemes import unserved
from hiscore.models.rules import (
    CAUSAL_RULE,
    UNIDIRECTIONAL_RULE,
    Config,
    Rule,
    key_rule,
    one_of,
    one_rope,
    rope_type_rule,
    whole_heads_rotated,
)
from hiscore.settings import Selector

CAUSAL_LM = "ForCausalLM"
CLASSIFIER = "ForSequenceClassification"
TEXT_TOWER = "ForConditionalGeneration"
"""Class of a model of texts and images: its text tower is a causal LM."""
ACTIVATIONS = ("silu", "gelu_pytorch_tanh", "gelu")
"""Every family's default is one of these."""
ROPE_TYPES = ("default", "linear", "llama3", "yarn")
"""Others change frequencies with the length of the sequence, and so with what shares the batch."""


@dataclass(frozen=True, kw_only=True)
class BlockNorms:
    """Names of a layer's norms; None: it has none there."""

    input: str | None = "input_layernorm"
    post_attention: str | None = None
    mlp: str | None = None
    post_mlp: str | None = None


PRE_NORMS = BlockNorms(mlp="post_attention_layernorm")
POST_NORMS = BlockNorms(
    input=None, post_attention="post_attention_layernorm", post_mlp="post_feedforward_layernorm"
)
SANDWICH_NORMS = BlockNorms(
    post_attention="post_attention_layernorm",
    mlp="pre_feedforward_layernorm",
    post_mlp="post_feedforward_layernorm",
)

Flag = bool | str
"""Property of a family: always, never, or as the named key of its configs says."""


@dataclass(frozen=True, kw_only=True)
class ExpertNames:
    """A family's mixture of experts: keys of its config, and names of its tensors.

    Published files have a tensor for each expert's projection, or one for all experts; both are read.
    """

    count_key: str
    width_key: str
    normalise: Flag
    """True: a token's weights are divided by their sum."""
    block: str = "mlp"
    """Name of a layer's block of experts in published files."""
    router: str = "gate"
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    activation: str | None = None
    """None: the config's."""
    dense_layers: bool = False
    """mlp_only_layers and decoder_sparse_step say which layers have an ordinary MLP."""
    interleaved: bool = False
    """Tensors for all experts are [experts, in, out] with gate and up in turn; router and experts have biases."""


@dataclass(frozen=True, kw_only=True)
class DecoderFamily:
    """Attention over keys and values: one forward (`models/decoder.py`), for scoring and decoding."""

    name: str
    known_as: str
    """Checkpoints that people know by name, for docs/models.md."""
    norm_plus_one: bool = False
    """RMSNorm weights are stored less one."""
    norms: BlockNorms = PRE_NORMS
    layer_norms: bool = False
    """Its norms, those of q and k too, are layer norms without bias."""
    parallel_mlp: bool = False
    """The MLP reads what attention reads, and both are added at once."""
    qk_norm: Flag = False
    """True if heads of q and k are normalised, each by itself."""
    qk_norm_by_head: bool = False
    """Each head has weights of its own."""
    qk_norm_of_all_heads: bool = False
    """One norm is over all heads of q, and one over all of k."""
    qkv_bias: Flag = False
    output_bias: Flag = False
    mlp_bias: Flag = False
    qkv_names: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    gate_up_names: tuple[str, ...] = ("gate_proj", "up_proj")
    interleaved_rope: bool = False
    """Rotary pairs are neighbours instead of the two halves of a head."""
    partial_rope: bool = False
    """Only the first partial_rotary_factor of a head's dimensions are rotated."""
    scaled_queries: bool = False
    """Queries beyond the original context are scaled, as in Llama 4."""
    unrotated: Literal["none", "no_rope_layers", "full_attention"] = "none"
    """Layers without rotation: those that the config lists with a zero, or those without a window."""
    scaled_embedding: bool = False
    """Embeddings are multiplied by the root of the hidden size."""
    windowed: Literal["never", "always", "by layer type"] = "never"
    """Layers with the config's sliding_window: none, all, or those that layer_types names."""
    ropes_by_layer_type: bool = False
    """rope_parameters holds an entry for each of the layer_types."""
    activation_key: str = "hidden_act"
    embedding_scale_key: str | None = None
    residual_scale_key: str | None = None
    """Holds the multiplier of the output of attention and of the MLP."""
    attention_scale_key: str | None = None
    """Holds the inverse square of attention's scale; None: the head dimension."""
    attention_multiplier_key: str | None = None
    """Holds attention's scale itself."""
    attention_soft_cap_key: str | None = None
    logit_scale_key: str | None = None
    """Holds the multiplier of a causal LM's logits."""
    logit_divisor_key: str | None = None
    """Holds the divisor of a causal LM's logits."""
    logit_soft_cap_key: str | None = None
    """Key of the soft cap of a causal LM's logits; no family caps a classifier's."""
    recurrent: bool = False
    """Layers that layer_types names linear_attention are gated delta nets, with a state instead of keys."""
    output_gate: bool = False
    """Attention's output is multiplied by the sigmoid of a gate, which the projection of queries holds, too."""
    sinks: bool = False
    """Each head has a logit of its own in every softmax of attention, without a value."""
    experts: ExpertNames | None = None
    rope_types: tuple[str, ...] = ROPE_TYPES
    own_rules: tuple[Rule, ...] = ()

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """Values of SELECTOR, the default first; none where `decode` does not serve the family."""
        return () if self.recurrent else ("auto", "quest", "dense")

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (
            unserved,
            key_rule(
                self.activation_key,
                one_of(None, "", "default", *ACTIVATIONS),
                f"activation '{{value}}' is none of {', '.join(ACTIVATIONS)}",
            ),
            CAUSAL_RULE,
            UNIDIRECTIONAL_RULE,
            *self.own_rules,
            rope_type_rule(*self.rope_types),
            *(() if self.ropes_by_layer_type else (one_rope,)),
            *(() if self.partial_rope else (whole_heads_rotated,)),
        )


def _one_kv_head_per_head(config: Config) -> str | None:
    of_queries, of_keys = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if of_queries and of_keys and of_queries != of_keys:
        return f"num_key_value_heads {of_keys} is not num_attention_heads {of_queries}, as latent attention has it"
    return None


SELECTING_LAYERS = ({"deepseek_sparse_attention"}, {"indexed_attention"})
"""Names of a layer with an indexer in transformers' configs, before 5.24 and since."""


@dataclass(frozen=True, kw_only=True)
class DsaFamily:
    """Latent attention to what a lightning indexer selects (`models/deepseek/`): for decoding alone."""

    name: str
    known_as: str
    """Checkpoints that people know by name, for docs/models.md."""
    interleaved_indexer: bool = False
    """The indexer's rotary pairs are neighbours instead of the two halves of a head."""

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """Values of SELECTOR, the default first: the other selectors need keys for every head."""
        return "dsa", "dense"

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (
            unserved,
            CAUSAL_RULE,
            key_rule("hidden_act", one_of("silu"), "activation '{value}' is not silu"),
            key_rule(
                "q_lora_rank",
                lambda rank: rank is not None,
                "q_lora_rank is null, and the indexer reads the query's low-rank form",
            ),
            _one_kv_head_per_head,
            key_rule("scoring_func", one_of("sigmoid"), "scoring_func '{value}' is not sigmoid"),
            key_rule("topk_method", one_of("noaux_tc"), "topk_method '{value}' is not noaux_tc"),
            key_rule("moe_layer_freq", one_of(1), "moe_layer_freq is {value}, not 1"),
            key_rule("rope_interleave", one_of(True), "rope_interleave is {value}, not true"),
            key_rule(
                "indexer_rope_interleave",
                one_of(self.interleaved_indexer),
                f"indexer_rope_interleave is {{value}}, and the family's indexer has {self.interleaved_indexer}",
            ),
            key_rule(
                "layer_types",
                lambda kinds: kinds is None or set(kinds) in SELECTING_LAYERS,
                "layer_types names layers that attend otherwise",
            ),
            rope_type_rule("default", "yarn"),
            whole_heads_rotated,
        )
