"""The config of `model_type: new`, Alibaba's own code for gte, which transformers does not have."""

from typing import Any

from transformers.configuration_utils import PreTrainedConfig


class NewConfig(PreTrainedConfig):  # type: ignore[misc]
    """Config of a NewModel, with the defaults of its code.

    Source: configuration.py and modeling.py of Alibaba-NLP/new-impl.
    """

    model_type = "new"
    default_theta = 10_000.0

    vocab_size: int = 30_528
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3_072
    hidden_act: str = "gelu"
    hidden_dropout_prob: float = 0.1
    max_position_embeddings: int = 2_048
    type_vocab_size: int = 1
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = None
    rope_parameters: dict[str, Any] | None = None

    def __post_init__(self, **others: Any) -> None:
        """Express its one scaling of rotary embeddings by transformers' linear one.

        Raises:
            ValueError: The scaling is another.
        """
        if (scaling := others.pop("rope_scaling", None)) is not None:
            factor = scaling.get("factor") or 0
            kind = scaling.get("type") or scaling.get("rope_type")
            if kind != "ntk" or scaling.get("mixed_b") is not None or factor < 1:
                raise ValueError(f"rope_scaling {scaling} is not computed")
            scaled = others.pop("rope_theta", self.default_theta) * factor
            by_width = factor ** (2 * self.num_attention_heads / self.hidden_size)
            self.rope_parameters = {"rope_type": "linear", "rope_theta": scaled, "factor": by_width}
        super().__post_init__(**others)
