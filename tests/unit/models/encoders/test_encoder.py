"""Loading an encoder: nothing is dropped, nothing is made up."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from hiscore.models.encoders.encoder import Encoder
from hiscore.models.errors import UnsupportedCheckpoint
from tests.support.checkpoints import edited_config, edited_tensors
from tests.support.tiny_encoders import make

Change = Callable[[dict[str, torch.Tensor]], None]


@pytest.fixture(scope="module")
def load(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Encoder]:

    def load_changed(name: str, change: Change = lambda tensors: None, **config: object) -> Encoder:
        directory: Path = make(name, tmp_path_factory.mktemp(name))
        with edited_tensors(directory) as tensors, edited_config(directory) as stored:
            change(tensors)
            stored |= config
        return Encoder(directory, torch.device("cpu"), torch.float32)

    return load_changed


def rename(old: str, new: str) -> Change:
    def change(tensors: dict[str, torch.Tensor]) -> None:
        for name in [name for name in tensors if old in name]:
            tensors[name.replace(old, new)] = tensors.pop(name)

    return change


def add(name: str, *shape: int) -> Change:
    return lambda tensors: tensors.update({name: torch.zeros(shape)})


def test_old_names_of_norms_are_read(load: Callable[..., Encoder]) -> None:
    new = load("bert")
    old = load("bert", lambda tensors: [rename(*each)(tensors) for each in
        (("LayerNorm.weight", "LayerNorm.gamma"), ("LayerNorm.bias", "LayerNorm.beta"))])  # fmt: skip
    for one, other in zip(new.weights.layers, old.weights.layers, strict=True):
        torch.testing.assert_close(one.mlp_norm.weight, other.mlp_norm.weight, atol=0, rtol=0)
        torch.testing.assert_close(one.mlp_norm.bias, other.mlp_norm.bias, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("name", "tensor", "shape"),
    [
        ("bert", "bert.embeddings.position_ids", (1, 160)),
        ("bert", "cls.predictions.bias", (500,)),
        ("roberta", "roberta.pooler.dense.weight", (64, 64)),
        ("xlm-roberta", "lm_head.dense.weight", (64, 64)),
        ("modernbert", "decoder.bias", (500,)),
        ("distilbert", "vocab_projector.bias", (500,)),
        ("albert", "predictions.bias", (500,)),
        ("mpnet", "mpnet.pooler.dense.weight", (64, 64)),
        ("deberta-v3", "deberta.embeddings.position_embeddings.weight", (160, 64)),
        ("deberta-v3", "lm_predictions.lm_head.bias", (500,)),
    ],
)
def test_what_transformers_leaves_unread_may_be_there(
    name: str, tensor: str, shape: tuple[int, ...], load: Callable[..., Encoder]
) -> None:
    load(name, add(tensor, *shape))


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("bert", "bert.encoder.layer.0.attention.self.query.extra"),
        ("bert", "bert.embeddings.token_gates.weight"),
        ("modernbert", "model.layers.0.attn.Wqkv.bias"),
        ("distilbert", "distilbert.embeddings.token_type_embeddings.weight"),
        ("albert", "albert.encoder.albert_layer_groups.2.albert_layers.0.ffn.bias"),
        ("mpnet", "mpnet.encoder.layer.1.attention.attn.extra"),
        ("eurobert", "model.layers.0.self_attn.q_proj.bias"),
        ("new", "new.encoder.layer.0.mlp.up_gate_proj.bias"),
        ("modernbert", "model.layers.0.attn_norm.weight"),
        ("deberta-v3", "deberta.encoder.layer.0.attention.self.pos_key_proj.weight"),
    ],
)
def test_what_nothing_reads_is_an_error(name: str, tensor: str, load: Callable[..., Encoder]) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=f"does not have, '{tensor}' for one"):
        load(name, add(tensor, 64))


@pytest.mark.parametrize(
    ("name", "tensor"),
    [
        ("bert", "bert.pooler.dense.bias"),
        ("roberta", "classifier.dense.weight"),
        ("xlm-roberta", "roberta.embeddings.token_type_embeddings.weight"),
        ("modernbert", "head.norm.weight"),
        ("distilbert", "pre_classifier.bias"),
        ("albert", "albert.encoder.embedding_hidden_mapping_in.bias"),
        ("mpnet", "mpnet.encoder.relative_attention_bias.weight"),
        ("eurobert", "dense.weight"),
        ("new", "new.pooler.dense.bias"),
        ("deberta-v3", "deberta.encoder.rel_embeddings.weight"),
    ],
)
def test_a_missing_tensor_is_an_error(name: str, tensor: str, load: Callable[..., Encoder]) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=f"has no tensor '{tensor}'"):
        load(name, lambda tensors: tensors.pop(tensor))


def test_a_shape_that_the_config_does_not_announce_is_an_error(load: Callable[..., Encoder]) -> None:
    with pytest.raises(UnsupportedCheckpoint, match=r"has shape \[1, 64\], the config announces \[2, 64\]"):
        load("bert", id2label={"0": "no", "1": "yes"}, label2id={"no": 0, "yes": 1})
    with pytest.raises(UnsupportedCheckpoint, match="word_embeddings"):
        load("bert", vocab_size=501)


def test_a_size_that_is_none_is_refused(load: Callable[..., Encoder]) -> None:
    with pytest.raises(UnsupportedCheckpoint):
        load("bert", num_hidden_layers=0)
