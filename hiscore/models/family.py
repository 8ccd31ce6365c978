"""The kinds of families: the switches in which the families of a kind differ, and the rules that all of them have.

Nothing here imports torch: the launcher reads the table before anything heavy is loaded.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from hiscore.models.quantization.schemes import unserved
from hiscore.models.rules import (
    CAUSAL_RULE,
    POOLING_RULE,
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
TOKEN_CLASSIFIER = "ForTokenClassification"
REWARD_MODEL = "ForRewardModel"
"""Class of a classifier with one label and a head of two layers, as Qwen publishes it."""
PROCESS_REWARD_MODEL = "ForProcessRewardModel"
"""The same with two labels, which are read behind each step of a solution."""
RANKING = "ForRanking"
"""Class of jina-reranker-v3, whose labels are the numbers of a projection, read behind documents and query."""
GUARD = "ForGuardModel"
"""Class of Qwen3Guard-Stream: a head for answers and one for queries, each with risks and categories."""
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
ATTENTION_BIASES: dict[str, Any] = {"qkv_bias": "attention_bias", "output_bias": "attention_bias"}
ALL_BIASES: dict[str, Any] = {**ATTENTION_BIASES, "mlp_bias": "mlp_bias"}


@dataclass(frozen=True, kw_only=True)
class ExpertNames:
    """A family's mixture of experts: keys of its config, and names of its tensors.

    Published files have a tensor for each expert's projection, or one for all experts; both are read.
    """

    count_key: str = "num_experts"
    width_key: str = "moe_intermediate_size"
    normalise: Flag = True
    """True: a token's weights are divided by their sum."""
    per_token_key: str = "num_experts_per_tok"
    enabled_key: str | None = None
    """False there: it has no experts."""
    block: str = "mlp"
    """Name of a layer's block of experts in published files."""
    router: str = "gate"
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    activation: str | None = None
    """None: the config's."""
    dense_layers: bool = False
    """mlp_only_layers and decoder_sparse_step say which layers have an ordinary MLP."""
    shared: bool = False
    """Every token also goes to a shared expert, whose output a gate multiplies."""
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
    """Empty: it is silu."""
    norm_eps_key: str = "rms_norm_eps"
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
    convolved: bool = False
    """Recurrent layers, which layer_types names conv, are gated convolutions, whose state is their last inputs."""
    output_gate: bool = False
    """Attention's output is multiplied by the sigmoid of a gate, which the projection of queries holds, too."""
    pooling_key: str | None = None
    """Key of the pooling of a family of classifiers, all of which attend in both directions."""
    both_ways_key: str | None = None
    """Key that has a classifier attend in both directions, beside is_causal."""
    sizes_by_layer: bool = False
    """Gemma 4: heads of layers differ in size, and the last layers may read another's keys and values."""
    sinks: bool = False
    """Each head has a logit of its own in every softmax of attention, without a value."""
    experts: ExpertNames | None = None
    rope_types: tuple[str, ...] = ROPE_TYPES
    own_rules: tuple[Rule, ...] = ()

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """Values of SELECTOR, the default first; none where `decode` does not serve the family."""
        return () if self.pooling_key or self.sizes_by_layer else ("auto", "quest", "dense")

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (
            unserved,
            key_rule(
                self.activation_key,
                one_of(None, "", "default", *ACTIVATIONS),
                f"activation '{{value}}' is none of {', '.join(ACTIVATIONS)}",
            ),
            self._directions,
            *self.own_rules,
            rope_type_rule(*self.rope_types),
            *(() if self.ropes_by_layer_type else (one_rope,)),
            *(() if self.partial_rope else (whole_heads_rotated,)),
        )

    def _directions(self, config: Config) -> str | None:
        """A rule: classifiers alone attend in both directions, where nothing of the family forbids it."""
        if self.pooling_key is not None:
            return None
        reason = CAUSAL_RULE(config) or UNIDIRECTIONAL_RULE(config)
        if reason is None and config.get("modular") in ("first", "all"):
            reason = "modules.json pools other tokens than the last"
        if reason is None or not is_classifier(config.get("architectures")):
            return reason
        if self.recurrent or self.sinks or self.attention_soft_cap_key or "longrope" in self.rope_types:
            return f"{reason}, which is not computed for {self.name}"
        if UNIDIRECTIONAL_RULE(config) and self.both_ways_key is None:
            return reason
        # transformers' own classes never look at it.
        return None if config.get("modular") else POOLING_RULE(config)


def _one_kv_head_per_head(config: Config) -> str | None:
    of_queries, of_keys = config.get("num_attention_heads"), config.get("num_key_value_heads")
    if of_queries and of_keys and of_queries != of_keys:
        return f"num_key_value_heads {of_keys} is not num_attention_heads {of_queries}, as latent attention has it"
    return None


def is_classifier(architectures: Sequence[str] | None) -> bool:
    """True if `architectures`, as config.json has them, name a model with labels of its own."""
    kinds = (CLASSIFIER, TOKEN_CLASSIFIER, REWARD_MODEL, PROCESS_REWARD_MODEL, RANKING, GUARD)
    return bool(architectures and architectures[0].endswith(kinds))


def scores_tokens(architectures: Sequence[str] | None) -> bool:
    """True if such a model is read at tokens, not at the end of a text."""
    kinds = (TOKEN_CLASSIFIER, PROCESS_REWARD_MODEL, RANKING, GUARD)
    return bool(architectures and architectures[0].endswith(kinds))


def guard_labels(config: Config) -> tuple[int, ...]:
    """Count the labels of a guard: risks and categories of an answer, then of a query; of another model: empty."""
    if not (config.get("architectures") or [""])[0].endswith(GUARD):
        return ()
    return tuple(
        int(config[f"num_{of}{kind}"]) for of in ("", "query_") for kind in ("risk_level", "category")
    )


def own_label_count(architectures: Sequence[str]) -> int | None:
    """Labels of a class that has a number of its own, whatever the config says; None: as that says."""
    counts = {REWARD_MODEL: 1, PROCESS_REWARD_MODEL: 2, RANKING: 512}
    return next((count for kind, count in counts.items() if architectures[0].endswith(kind)), None)


SELECTING_LAYERS = ({"deepseek_sparse_attention"}, {"indexed_attention"})
"""Names of a layer with an indexer in transformers' configs, before 5.24 and since."""


@dataclass(frozen=True, kw_only=True)
class DsaFamily:
    """Latent attention, mostly to what a lightning indexer selects (`models/deepseek/`)."""

    name: str
    known_as: str
    """Checkpoints that people know by name, for docs/models.md."""
    indexed: bool = True
    """False: there is no indexer, and every token attends to all before it."""
    interleaved_indexer: bool = False
    """The indexer's rotary pairs are neighbours instead of the two halves of a head."""

    @property
    def selectors(self) -> tuple[Selector, ...]:
        """Values of SELECTOR, the default first: the other selectors need keys for every head."""
        return ("dsa", "dense") if self.indexed else ("dense",)

    @property
    def rules(self) -> tuple[Rule, ...]:
        return (
            unserved,
            CAUSAL_RULE,
            key_rule("hidden_act", one_of("silu"), "activation '{value}' is not silu"),
            key_rule(
                "q_lora_rank",
                lambda rank: rank is not None,
                "q_lora_rank is null, and a query without a low-rank form is not computed",
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
