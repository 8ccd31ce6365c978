"""The files of sentence-transformers, also as older versions wrote them; what is not served is refused by name."""

import json
from pathlib import Path
from typing import Any

import pytest

from hiscore.models.cross_encoder import CrossEncoderFiles, Refused, read_cross_encoder
from hiscore.models.encoders.encoder import read_encoder_architecture
from hiscore.models.stored_config import stored_config
from hiscore.models.support import servable

IDENTITY, TANH = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.Tanh"
BERT = {
    "model_type": "bert",
    "architectures": ["BertModel"],
    "hidden_size": 8,
    "max_position_embeddings": 512,
}
CLASSIFIER = BERT | {"architectures": ["BertForSequenceClassification"]}
OLD = "sentence_transformers.models"
DENSE = {"in_features": 8, "out_features": 1, "module_output_name": "scores"}
HEAD = {
    "modules.json": [
        {"idx": 0, "name": "0", "path": "", "type": f"{OLD}.Transformer"},
        {"idx": 1, "name": "1", "path": "1_Pooling", "type": f"{OLD}.Pooling"},
        {"idx": 2, "name": "2", "path": "2_Dense", "type": f"{OLD}.Dense"},
    ],
    "1_Pooling/config.json": {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True},
    "2_Dense/config.json": DENSE,
}
SENTENCES, OF_BERT = "config_sentence_transformers.json", "sentence_bert_config.json"


def read(directory: Path, files: dict[str, Any]) -> CrossEncoderFiles:
    for name, contents in {"config.json": BERT, **files}.items():
        (directory / name).parent.mkdir(exist_ok=True)
        (directory / name).write_text(contents if isinstance(contents, str) else json.dumps(contents))
    return read_cross_encoder(directory)


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, {"activation": ("", ""), "length": (512, "config.json")}),
        # The activation, by the file that is read first.
        ({"config.json": {"sbert_ce_default_activation_function": IDENTITY}},
         {"activation": ("Identity", "config.json"), "length": (None, "")}),
        ({"config.json": {"sbert_ce_default_activation_function": IDENTITY,
                          "sentence_transformers": {"activation_fn": TANH, "version": "4.0"}}},
         {"activation": ("Tanh", "config.json")}),
        ({"config.json": {"sentence_transformers": {"activation_fn": TANH}},
          SENTENCES: {"activation_fn": IDENTITY}},
         {"activation": ("Identity", SENTENCES)}),
        # The length, from what is nearest to the call.
        ({"tokenizer_config.json": {"model_max_length": 128}}, {"length": (128, "tokenizer_config.json")}),
        ({"tokenizer_config.json": {"model_max_length": 1e30}}, {"length": (512, "config.json")}),
        ({**HEAD, OF_BERT: {"max_seq_length": 64, "do_lower_case": False}}, {"length": (64, OF_BERT)}),
        ({**HEAD, OF_BERT: {"max_seq_length": 64, "processor_kwargs": {"model_max_length": 32}}},
         {"length": (32, OF_BERT)}),
        ({**HEAD, OF_BERT: {"processor_kwargs": {"model_max_length": 32},
                            "processing_kwargs": {"text": {"max_length": 16}}}}, {"length": (16, OF_BERT)}),
        # Prompts: an empty one is none.
        ({SENTENCES: {"prompts": {"query": "", "document": ""}, "default_prompt_name": None}}, {"prompt": ""}),
        ({SENTENCES: {"prompts": {"a": "b: "}, "default_prompt_name": "a"}}, {"prompt": "b: "}),
        (HEAD, {"task": "feature-extraction", "labels": 1}),
        # Modules of an embedding, left beside a classifier that was trained from it; then its own.
        ({**HEAD, "config.json": CLASSIFIER}, {"task": "", "labels": 0, "length": (512, "config.json")}),
        ({**HEAD, "config.json": CLASSIFIER, SENTENCES: {"model_type": "SentenceTransformer"}}, {"head": ()}),
        ({**HEAD, "config.json": CLASSIFIER, SENTENCES: {"model_type": "CrossEncoder"}}, {"labels": 1}),
    ],
)  # fmt: skip
def test_what_the_files_say_is_read(files: dict[str, Any], expected: dict[str, Any], tmp_path: Path) -> None:
    found = read(tmp_path, files)
    assert {name: getattr(found, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("old", "modes"),
    [
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, ("cls",)),
        ({"pooling_mode_lasttoken": True, "pooling_mode_max_tokens": True}, ("max", "lasttoken")),
        ({}, ("mean",)),
        ({"pooling_mode": "weightedmean", "pooling_mode_cls_token": True}, ("weightedmean",)),
    ],
)
def test_poolings_of_older_versions(old: dict[str, Any], modes: tuple[str, ...], tmp_path: Path) -> None:
    width = 8 * len(modes)
    dense = {**DENSE, "in_features": width}
    files = {**HEAD, "1_Pooling/config.json": {"embedding_dimension": 8, **old}, "2_Dense/config.json": dense}
    assert read(tmp_path, files).head[0].modes == modes


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"modules.json": "{"}, "modules.json is not JSON"),
        ({"modules.json": {"a": 1}}, "modules.json is not a list of modules"),
        ({"modules.json": [{"path": "../x", "type": f"{OLD}.Transformer"}]}, "path of module 0 is '../x'"),
        ({"modules.json": [{"path": "", "type": "my_code.Transformer"}]}, "module 0 is 'my_code.Transformer'"),
        ({"modules.json": HEAD["modules.json"][:2]}, "1_Pooling/config.json: the last module, Pooling, makes no"),
        ({"modules.json": HEAD["modules.json"][:1]}, "modules.json: the last module, Transformer, makes no"),
        ({"2_Dense/config.json": {**DENSE, "in_features": 9}}, "it reads 9 numbers, and 'sentence_em"),
        ({"2_Dense/config.json": {**DENSE, "out_features": None}}, "out_features is None"),
        ({"2_Dense/config.json": {**DENSE, "module_input_name": "x"}}, "reads 'x', which no module"),
        ({"2_Dense/config.json": {**DENSE, "activation_function": "x.Own"}}, "activation 'x.Own' is none of"),
        ({"1_Pooling/config.json": {"embedding_dimension": 8, "include_prompt": False}}, "include_prompt is"),
        ({OF_BERT: {"transformer_task": "fill-mask"}}, "transformer_task 'fill-mask' is none of"),
        ({OF_BERT: {"transformer_task": "text-generation"}}, "reads 'token_embeddings', which no module"),
        ({OF_BERT: {"do_lower_case": True}}, "do_lower_case is True, which is not"),
        ({OF_BERT: {"model_args": {"a": 1}}}, "nothing here reads 'model_args'"),
        ({OF_BERT: {"processing_kwargs": {"text": {"truncation": "only_second"}}}}, "truncation is 'only_second'"),
        ({OF_BERT: {"processing_kwargs": {"chat_template": {"continue_final_message": True}}}},
         "an argument in chat_template is 'continue_final_message'"),
        ({OF_BERT: {"max_seq_length": "64"}}, "a length is '64'"),
        ({SENTENCES: {"model_type": "SparseEncoder"}}, "model_type 'SparseEncoder' is not CrossEncoder"),
        ({SENTENCES: {"prompts": {}, "default_prompt_name": "a"}}, "default_prompt_name 'a' is none of"),
        ({SENTENCES: {"activation_fn": "torch.nn.Softmax"}}, "activation 'torch.nn.Softmax' is none of"),
    ],
)  # fmt: skip
def test_what_is_not_served_is_refused_by_name(files: dict[str, Any], says: str, tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        read(tmp_path, {**HEAD, **files})
    assert says in str(refused.value)
    # A start says so, where the model has no other head.
    assert says in servable(tmp_path).left_out["scorer"]


@pytest.mark.parametrize(
    ("modes", "rows"),
    [(["cls"], "first"), (["lasttoken"], "last"), (["cls", "mean"], "all"), (["mean", "cls"], "all")],
)
def test_a_head_reads_the_rows_of_all_its_poolings(modes: list[str], rows: str, tmp_path: Path) -> None:
    first, _, dense = HEAD["modules.json"]
    poolings = {f"{at}_Pooling/config.json": {"embedding_dimension": 8, "pooling_mode": mode}
                for at, mode in enumerate(modes, 3)}  # fmt: skip
    modules = [{"path": name.split("/")[0], "type": f"{OLD}.Pooling"} for name in poolings]
    config = BERT | {"num_attention_heads": 2}
    read(tmp_path, {**HEAD, **poolings, "modules.json": [first, *modules, dense], "config.json": config})
    assert read_encoder_architecture(tmp_path)[0].reads == rows


def test_a_head_of_modules_makes_a_classifier(tmp_path: Path) -> None:
    read(tmp_path, {**HEAD, "2_Dense/config.json": {**DENSE, "out_features": 3}})
    config = stored_config(tmp_path)
    assert config["architectures"] == ["BertForSequenceClassification"]
    assert list(config["id2label"].values()) == ["LABEL_0", "LABEL_1", "LABEL_2"]
    for config, reason in (
        (
            {"model_type": "gpt_oss", "architectures": ["GptOssModel"]},
            "pools other tokens than the last, which",
        ),
        ({"model_type": "qwen3_vl", "architectures": ["Qwen3VLModel"]}, "behind models of images"),
        (
            {"model_type": "qwen3", "architectures": ["Qwen3Model"], "use_bidirectional_attention": True},
            "both",
        ),
    ):
        (tmp_path / "config.json").write_text(json.dumps(BERT | config))
        assert reason in servable(tmp_path).left_out["scorer"]
    decoder = {**BERT, "model_type": "qwen3", "architectures": ["Qwen3Model"]}
    (tmp_path / "config.json").write_text(json.dumps(decoder))
    assert "on one device" in servable(tmp_path, ranks=2).left_out["scorer"]
    assert "no head for tokens" in servable(tmp_path).left_out["decode"]
    # The control: a causal LM whose modules are of an embedding is served as what it is.
    causal = {**decoder, "architectures": ["Qwen3ForCausalLM"]}
    (tmp_path / "config.json").write_text(json.dumps(causal))
    (tmp_path / SENTENCES).write_text('{"model_type": "SentenceTransformer"}')
    assert "refused_modules" not in stored_config(tmp_path)
