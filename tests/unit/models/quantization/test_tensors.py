"""Quantised checkpoints: their scores, against transformers with the dequantised weights; what is refused."""

import json
import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from hiscore.layers import scaled_fp8
from hiscore.layers.fp8 import quantise
from hiscore.layers.scaled_fp8 import ScaledLinear
from hiscore.layers.weights import Linear, Mlp
from hiscore.models.decoder import Decoder
from hiscore.models.deepseek.decoder import DsaDecoder
from hiscore.models.errors import UnsupportedCheckpoint
from hiscore.models.headers import unreadable
from hiscore.models.quantization.schemes import unserved
from hiscore.models.quantization.tensors import CheckpointTensors
from hiscore.models.support import servable
from hiscore.prefill.runner import TorchRunner
from hiscore.scoring.decoder_scorer import load_decoder_scorer
from hiscore.scoring.requests.options import ScoreOptions
from tests.support import quantised, tiny_dsa, tiny_models
from tests.support.checkpoints import edited_config, edited_tensors
from tests.support.comparison import check, truth_of
from tests.support.quantised import SCHEMES
from tests.support.scoring import LABELS, score, use_runner
from tests.support.strategies import random_tokens
from tests.support.tiers import first_of
from tests.support.tiny_models import VOCABULARY

CPU = torch.device("cpu")
BY_LIBRARIES = Path(__file__).parents[3] / "data" / "quantised_by_libraries.safetensors"
NAME = "model.layers.0.mlp.down_proj.weight"


LEFT = ("layers.1.self_attn",)


def written(scheme: str, directory: Path) -> tuple[Path, Path]:
    dense = tiny_models.make("llama-biased", directory / "dense")
    return quantised.make(dense, SCHEMES[scheme](), directory / "quantised", LEFT), dense


def scores_of(checkpoint: Path, dense: Path, items: list[int]) -> tuple[np.ndarray, np.ndarray]:
    call = random_tokens(np.random.default_rng(0), 13, items, VOCABULARY)
    (found,) = score(load_decoder_scorer(checkpoint, "cpu", "float32", 4_096), [call], ScoreOptions())
    return found, truth_of(dense).scores(call.query, call.items, LABELS)


@pytest.mark.parametrize("scheme", first_of(*SCHEMES, others=pytest.mark.slow))
def test_scores_are_those_of_the_dequantised_weights(scheme: str, tmp_path: Path) -> None:
    checkpoint, dense = written(scheme, tmp_path)
    check(*scores_of(checkpoint, dense, [1, 7, 20, 3]), over_vocabulary=True)


@pytest.mark.parametrize("scheme", first_of("fp8-block", "awq", "compressed-int4", others=pytest.mark.slow))
def test_experts_may_be_quantised_one_by_one(scheme: str, tmp_path: Path) -> None:
    dense = tiny_models.make("mixtral", tmp_path / "dense")
    checkpoint = quantised.make(dense, SCHEMES[scheme](), tmp_path / "quantised", ("layers.1.self_attn",))
    check(*scores_of(checkpoint, dense, [7, 3]), over_vocabulary=True)


def test_experts_in_mxfp4_are_those_that_transformers_reads(tmp_path: Path) -> None:
    dense = tiny_models.make("gpt-oss", tmp_path / "dense")
    checkpoint = quantised.make_mxfp4(dense, tmp_path / "quantised")
    found, truth = scores_of(checkpoint, dense, [7, 3])
    check(found, truth, over_vocabulary=True)
    # Control: one block's exponent.
    with edited_tensors(checkpoint) as tensors:
        tensors["model.layers.1.mlp.experts.down_proj_scales"] += 1
    other, _ = scores_of(checkpoint, dense, [7, 3])
    assert np.abs(other / truth - 1).max() > 0.05


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_weight_is_exact(scheme: str, tmp_path: Path) -> None:
    checkpoint, dense = written(scheme, tmp_path)
    tensors, truth = CheckpointTensors(checkpoint, CPU), load_file(dense / "model.safetensors")
    assert set(tensors) == set(truth)
    for name, weight in truth.items():
        # The dense weight is rounded once more where a library computes in the scale's dtype, float32 or float16.
        torch.testing.assert_close(tensors.read(name).float(), weight, rtol=1e-6, atol=1e-7)


def test_what_libraries_wrote_is_what_they_read(tmp_path: Path) -> None:
    """A layer as bitsandbytes and NVIDIA's Model Optimizer wrote it, and as they dequantise it themselves.

    The file's header has their versions. Neither is installed for the tests: they are large.
    """
    with safe_open(BY_LIBRARIES, framework="pt") as file:
        configs, stored = json.loads(file.metadata()["configs"]), load_file(BY_LIBRARIES)
    assert {config["quant_method"] for config in configs.values()} == {"bitsandbytes", "modelopt"}
    for name, config in configs.items():
        parts = {
            part.partition("/")[2]: value for part, value in stored.items() if part.startswith(f"{name}/")
        }
        dense = parts.pop("dense")
        save_file({f"layer.{part}": value for part, value in parts.items()}, tmp_path / "model.safetensors")
        (tmp_path / "config.json").write_text(json.dumps({"quantization_config": config}))
        assert unserved({"quantization_config": config}) is unreadable(tmp_path) is None
        found = CheckpointTensors(tmp_path, CPU).read("layer.weight", dense.shape).float()
        # Factors are multiplied in another order.
        torch.testing.assert_close(found, dense, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "scheme", ["fp8-block", "gptq-desc-act", "compressed-int4-zeros", "awq", "bitsandbytes-nf4"]
)
def test_a_wrong_scale_shows(scheme: str, tmp_path: Path) -> None:
    """The control: the comparison above notices one scale of one weight."""
    checkpoint, dense = written(scheme, tmp_path)
    with edited_tensors(checkpoint) as tensors:
        of_layer = (name for name in tensors if name.startswith(NAME.removesuffix("weight")))
        name = next(name for name in of_layer if "scale" in name or "absmax" in name)
        tensors[name].view(-1)[-1] *= 1.5
    found = CheckpointTensors(checkpoint, CPU).read(NAME).float()
    assert (found - load_file(dense / "model.safetensors")[NAME]).abs().max() > 1e-3


@pytest.mark.parametrize(
    "scheme", ["fp8-channel", "fp8-block-32", "compressed-fp8-tensor", "modelopt-fp8-beside"]
)
def test_projections_stay_in_fp8_where_they_are_and_nothing_else_does(
    scheme: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint, dense = written(scheme, tmp_path)
    with caplog.at_level(logging.INFO):
        kept = Decoder(checkpoint, CPU, torch.bfloat16, fp8=True)
    assert "weights stay in fp8" in caplog.text
    assert kept.architecture.stored_in_fp8
    exact = Decoder(dense, CPU, torch.float32)
    # The layer that the checkpoint leaves in 16 bits.
    assert [isinstance(layer.qkv, Linear) for layer in kept.weights.layers] == [False, True, False, False]
    mlps = [layer.mlp for layer in kept.weights.layers if isinstance(layer.mlp, Mlp)]
    assert not any(isinstance(each, Linear) for mlp in mlps for each in (mlp.gate_up, mlp.down))
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(4)).bfloat16()
    qkv, rows = kept.weights.layers[0].qkv, quantise(x)
    rounded = rows.values.float() * rows.scales
    if isinstance(qkv, ScaledLinear):
        values, scales = scaled_fp8.quantise(x, qkv.scales.columns, False)
        rounded = values.float() * scales.repeat_interleave(qkv.scales.columns, dim=1)
    expected = exact.weights.layers[0].qkv(rounded)
    found = qkv(rows if qkv.reads_fp8 else x).float()
    # A step of bfloat16 for the product, and one for the sum with a bias.
    torch.testing.assert_close(found, expected, atol=2**-6, rtol=2**-6)


@pytest.mark.parametrize("scheme", ["fp8-channel", "fp8-block-32"])
def test_scores_in_fp8_are_near_those_of_the_dequantised_weights(scheme: str, tmp_path: Path) -> None:
    checkpoint, dense = written(scheme, tmp_path)
    call = random_tokens(np.random.default_rng(0), 13, [1, 7, 20, 3] * 4, VOCABULARY)
    scorer = load_decoder_scorer(checkpoint, "cpu", "bfloat16", 1_024, query_cache_bytes=0)
    use_runner(
        scorer, TorchRunner(Decoder(checkpoint, CPU, torch.bfloat16, fp8=True), scorer.runner.pool.shape[1])
    )
    softmax = ScoreOptions(apply_softmax=True)
    (found,) = score(scorer, [call], softmax)
    truth = truth_of(dense).scores(call.query, call.items, LABELS, apply_softmax=True)
    # Inputs of products are rounded to 4 bits, in four layers of random weights. Seen: 0.037.
    assert np.abs(found - truth).mean() < 0.06
    # Control: an item's scores are not another's. Seen: 0.2 and more.
    assert np.abs(found - np.roll(truth, 1, axis=0)).mean() > 0.1


def change(checkpoint: Path, **parts: torch.Tensor | None) -> Path:
    with edited_tensors(checkpoint) as tensors:
        for part, value in parts.items():
            tensors.pop(f"{NAME.removesuffix('weight')}{part}", None)
            if value is not None:
                tensors[f"{NAME.removesuffix('weight')}{part}"] = value
    return checkpoint


def test_parts_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    checkpoint, _ = written("fp8-block", tmp_path)
    tensors = load_file(checkpoint / "model.safetensors")
    weight, scales = tensors[NAME], tensors[f"{NAME}_scale_inv"]
    broken: list[tuple[dict[str, torch.Tensor | None], str]] = [
        ({"weight_scale_inv": scales[:, :-1].contiguous()}, "scales do not fit a weight of shape"),
        ({"weight_scale_inv": torch.zeros_like(scales, dtype=torch.uint8)}, "as MXFP8 has them"),
        ({"weight": weight.to(torch.float8_e5m2)}, "the weight is float8_e5m2, not float8_e4m3fn"),
        ({"weight_scale_inv": None}, "is float8_e4m3fn, and the checkpoint holds no scale for it"),
        ({"weight_scale_inv": None, "input_scale": scales}, "it has no 'weight_scale'"),
    ]
    for parts, says in broken:
        change(checkpoint, weight=weight, weight_scale_inv=scales, input_scale=None)
        with pytest.raises(UnsupportedCheckpoint, match=says) as refused:
            CheckpointTensors(change(checkpoint, **parts), CPU).read(NAME)
        assert NAME in str(refused.value)
        # The check before a start reads headers: it sees that there is no scale.
        assert bool(unreadable(checkpoint)) == (parts.get("weight_scale_inv", weight) is None)


@pytest.mark.parametrize(
    "scheme", ["fp8-block", "modelopt-fp8-beside", "modelopt-nvfp4", "bitsandbytes-int8"]
)
def test_weights_that_no_config_describes_are_refused_before_a_start(scheme: str, tmp_path: Path) -> None:
    checkpoint, _ = written(scheme, tmp_path)
    (checkpoint / "tokenizer.json").write_text("{}")
    assert "scorer" in servable(checkpoint).models
    with edited_config(checkpoint) as config:
        config.pop("quantization_config", None)
    (checkpoint / "hf_quant_config.json").unlink(missing_ok=True)
    says = "neither config.json (quantization_config) nor hf_quant_config.json says how to read it"
    for model in ("scorer", "decode"):
        assert says in servable(checkpoint).left_out[model]
    with pytest.raises(UnsupportedCheckpoint, match=re.escape(says)):
        load_decoder_scorer(checkpoint, "cpu", "float32", 64)


@pytest.mark.parametrize(
    ("scheme", "key", "entry"),
    [
        ("fp8-block", "modules_to_not_convert", "model.layers.0.mlp"),
        ("fp8-block", "ignored_layers", "down_proj"),
        ("awq", "modules_to_not_convert", "mlp"),
        ("compressed-fp8-channel", "ignore", "re:.*mlp.*"),
        ("compressed-fp8-channel", "ignore", "model.layers.0.mlp.down_proj"),
        ("modelopt-fp8", "ignore", "model.layers.*.mlp*"),
        ("modelopt-nvfp4", "ignore", "*.0.mlp"),
        ("bitsandbytes-nf4", "llm_int8_skip_modules", "mlp"),
        ("fbgemm-fp8", "modules_to_not_convert", "model.layers.0.mlp.down_proj"),
    ],
)
def test_config_and_file_must_agree(scheme: str, key: str, entry: str, tmp_path: Path) -> None:
    checkpoint, _ = written(scheme, tmp_path)
    with edited_config(checkpoint) as config:
        config["quantization_config"][key] = [entry]
    with pytest.raises(
        UnsupportedCheckpoint, match=r"the config leaves 'model\.layers\.0\.mlp.*' unquantised"
    ):
        CheckpointTensors(checkpoint, CPU)


def test_a_group_that_names_a_module_goes_before_that_of_all_linear_layers(tmp_path: Path) -> None:
    checkpoint, dense = written("compressed-fp8-block", tmp_path)
    other = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    truth = load_file(dense / "model.safetensors")[NAME]

    def aim_at(target: str) -> None:
        with edited_config(checkpoint) as config:
            groups = config["quantization_config"]["config_groups"]
            groups["group_1"] = {"targets": [target], "weights": other}

    for target in ("re:.*down_proj", NAME.removesuffix(".weight")):
        aim_at(target)
        with pytest.raises(UnsupportedCheckpoint, match="float8_e4m3fn, not int8"):
            CheckpointTensors(checkpoint, CPU).read(NAME)
        aim_at("re:down_proj")  # from the beginning of the name
        torch.testing.assert_close(CheckpointTensors(checkpoint, CPU).read(NAME), truth)


@pytest.mark.parametrize(
    ("scheme", "part"), [("awq", "qzeros"), ("compressed-int4-zeros", "weight_zero_point")]
)
def test_zero_points_that_do_not_fit_are_refused_by_name(scheme: str, part: str, tmp_path: Path) -> None:
    checkpoint, _ = written(scheme, tmp_path)
    zeros = load_file(checkpoint / "model.safetensors")[f"{NAME.removesuffix('weight')}{part}"]
    change(checkpoint, **{part: zeros[:, :1].contiguous()})
    with pytest.raises(UnsupportedCheckpoint, match=f"'{NAME}' .* zero points do not fit"):
        CheckpointTensors(checkpoint, CPU).read(NAME)


def test_gptq_may_have_rules_for_some_modules(tmp_path: Path) -> None:
    config = {"quant_method": "gptq", "bits": 8, "group_size": quantised.GROUP}
    left, others = "-:.*\\.layers\\.1\\.self_attn", "+:model"
    rules = {left: {}, others: {"bits": 4}}
    scheme = quantised.Scheme({**config, "dynamic": rules}, quantised.gptq)
    dense = tiny_models.make("llama", tmp_path / "dense")
    checkpoint = quantised.make(dense, scheme, tmp_path / "quantised", ("layers.1.self_attn",))
    check(*scores_of(checkpoint, dense, [1, 7, 20, 3]), over_vocabulary=True)
    # The controls: without the bits of its own, and where the first rule that matches is another.
    refused = (
        ({left: {}}, "zero points do not fit"),
        ({"-:.*layers": {}, **rules}, "leaves .* unquantised, but"),
    )
    for changed, says in refused:
        with edited_config(checkpoint) as config:
            config["quantization_config"]["dynamic"] = changed
        with pytest.raises(UnsupportedCheckpoint, match=says):
            load_decoder_scorer(checkpoint, "cpu", "float32", 4_096)


@pytest.mark.parametrize("scheme", ["compressed-fp8-tensor", "modelopt-fp8-beside"])
def test_scales_of_a_quantised_cache_are_left_out(scheme: str, tmp_path: Path) -> None:
    checkpoint, _ = written(scheme, tmp_path)
    scale = torch.tensor([0.1])
    attention = "model.layers.0.self_attn"
    names = ("k_scale", "v_scale", "k_proj.k_scale", "v_proj.v_scale", "k_proj.output_scale")
    with edited_tensors(checkpoint) as tensors:
        tensors |= {f"{attention}.{name}": scale.clone() for name in names}
    load_decoder_scorer(checkpoint, "cpu", "float32", 64)


def test_a_checkpoint_with_an_indexer_may_be_quantised(tmp_path: Path) -> None:
    dense = tiny_dsa.make("deepseek-experts", tmp_path / "dense")
    checkpoint = quantised.make(dense, SCHEMES["fp8-block"](), tmp_path / "quantised", ("weights_proj",))
    found, truth = (DsaDecoder(path, CPU, torch.float32).weights.layers[1] for path in (checkpoint, dense))
    torch.testing.assert_close(found.mlp.down, truth.mlp.down)
    torch.testing.assert_close(found.attention.to_latent, truth.attention.to_latent)


@pytest.mark.slow
def test_half_a_component_names_no_module(tmp_path: Path) -> None:
    """Layer 1 is left unquantised, layer 10 would not be; nor does 'gate' mean gate_proj."""
    checkpoint, _ = written("fp8-block", tmp_path)
    with edited_config(checkpoint) as config:
        kept = config["quantization_config"]["modules_to_not_convert"] = ["layers.1.self_attn"]
        kept += ["gate", "model.layer", "*"]
    assert NAME in CheckpointTensors(checkpoint, CPU)
