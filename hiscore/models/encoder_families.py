"""The families of encoders that are served. To add one: see `hiscore.models.families`.

`models/encoders/encoder.py` has the names of their files; nothing here imports torch.
"""

from hiscore.models.encoder_family import EncoderFamily, activation_rule
from hiscore.models.rules import Config, key_rule, unset


def _embeds_at_full_size(config: Config) -> str | None:
    size, hidden = config.get("embedding_size", 128), config.get("hidden_size", 256)
    return f"embedding_size {size} is not hidden_size {hidden}" if size != hidden else None


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
