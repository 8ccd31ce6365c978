"""The families of encoders that are served. To add one: see `hiscore.models.families`.

`models/encoders/encoder.py` has the names of their files; nothing here imports torch.
"""

from hiscore.models.encoder_family import EncoderFamily, activation_rule, whole_heads
from hiscore.models.rules import Config, key_rule, one_of, unset


def _embeds_at_full_size(config: Config) -> str | None:
    size, hidden = config.get("embedding_size", 128), config.get("hidden_size", 256)
    return f"embedding_size {size} is not hidden_size {hidden}" if size != hidden else None


def _pools_alike(config: Config) -> str | None:
    """A rule: EuroBERT's own code and transformers read the same pooling, under different keys."""
    old, new = config.get("clf_pooling"), config.get("classifier_pooling", "late")
    return (
        f"clf_pooling is '{old}', classifier_pooling '{new}': set both alike"
        if old not in (None, new)
        else None
    )


def _shares_heads(config: Config) -> str | None:
    heads = config.get("num_attention_heads", 12)
    kv_heads = config.get("num_key_value_heads") or heads
    return (
        f"{heads} attention heads cannot share {kv_heads} heads of keys and values"
        if heads % kv_heads
        else None
    )


MPNET_BUCKETS = 32
ENCODER_FAMILIES: dict[str, EncoderFamily] = {
    family.name: family
    for family in (
        EncoderFamily(name="bert", known_as="ms-marco-MiniLM, BERT"),
        EncoderFamily(name="roberta", known_as="RoBERTa, stsb-roberta", positions_follow_pad=True),
        EncoderFamily(
            name="xlm-roberta",
            known_as="bge-reranker-base, -large and -v2-m3, mMARCO rerankers",
            positions_follow_pad=True,
        ),
        EncoderFamily(name="camembert", known_as="CamemBERT", positions_follow_pad=True),
        EncoderFamily(
            name="electra",
            known_as="ELECTRA base and large, ms-marco-electra",
            own_rules=(_embeds_at_full_size,),
        ),
        EncoderFamily(
            name="distilbert",
            known_as="DistilBERT, sst-2 and other classifiers",
            own_rules=(activation_rule("activation"), whole_heads("dim", "n_heads")),
        ),
        EncoderFamily(
            name="albert",
            known_as="ALBERT",
            own_rules=(key_rule("num_hidden_groups", bool, "num_hidden_groups is {value}"),),
        ),
        EncoderFamily(
            name="mpnet",
            known_as="MPNet",
            positions_follow_pad=True,
            own_rules=(
                key_rule(
                    "pad_token_id", one_of(1), "pad_token_id is {value}, and MPNet's positions follow 1"
                ),
                key_rule(
                    "relative_attention_num_buckets",
                    lambda count: count >= MPNET_BUCKETS,
                    f"relative_attention_num_buckets is {{value}}, and distances have {MPNET_BUCKETS}",
                ),
            ),
        ),
        EncoderFamily(
            name="eurobert",
            known_as="EuroBERT",
            own_rules=(
                key_rule(
                    "classifier_pooling",
                    one_of("bos", "mean", "late"),
                    "classifier_pooling '{value}' is unknown",
                ),
                _pools_alike,
                _shares_heads,
            ),
        ),
        EncoderFamily(
            name="new",
            known_as="gte-multilingual-reranker-base",
            positions=("rope",),
            # Its config expresses one by the other.
            rope_types=("default", "ntk", "linear"),
            own_rules=(
                key_rule(
                    "layer_norm_type", one_of("layer_norm"), "layer_norm_type '{value}' is not layer_norm"
                ),
                key_rule(
                    "logn_attention_scale", unset, "it scales attention by the length (logn_attention_scale)"
                ),
                key_rule("pack_qkv", bool, "pack_qkv is {value}: save it with q, k and v packed"),
            ),
        ),
        EncoderFamily(
            name="modernbert",
            known_as="ModernBERT, gte-reranker-modernbert",
            own_rules=(activation_rule("hidden_activation"), activation_rule("classifier_activation")),
        ),
        EncoderFamily(
            name="deberta-v2",
            known_as="DeBERTa v2 and v3, mxbai-rerank v1",
            own_rules=(
                activation_rule("pooler_hidden_act"),
                key_rule("conv_kernel_size", unset, "it has a convolution behind its first layer"),
            ),
        ),
    )
}
