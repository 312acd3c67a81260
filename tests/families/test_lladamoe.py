"""LLaDA-MoE against logits of its published code, and as a citizen of transformers."""

import copy
import json
import logging
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from dllm_generate import LLaDAConfig, LLaDAForMaskedDiffusion
from dllm_generate.families import family_of
from dllm_generate.families.lladamoe import LLaDAMoEConfig, LLaDAMoEForMaskedDiffusion, LLaDAMoEModel

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
FOLDERS = ["llada_moe", "llada_moe_normtopk_dense0"]
# LLaDA-MoE-7B-A1B in the published config format.
PUBLISHED = json.loads("""
{"architectures": ["LLaDAMoEModelLM"], "attention_bias": false, "attention_dropout": 0.0, "clip_qkv": null,
 "dense_intermediate_size": 8192, "eos_token_id": 156892, "expert_intermediate_size": 1024, "hidden_act": "silu",
 "hidden_size": 2048, "initializer_range": 0.02, "max_position_embeddings": 8192, "model_type": "llada",
 "moe_layer_freq": [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1], "moe_router_enable_expert_bias": false,
 "moe_router_score_function": "softmax", "norm_topk_prob": null, "num_attention_heads": 16, "num_experts": 64,
 "num_experts_per_tok": 8, "num_hidden_layers": 16, "num_key_value_heads": 16, "output_router_logits": false,
 "pad_token_id": 156892, "partial_rotary_factor": 1, "qk_layernorm": true, "rms_norm_eps": 1e-05,
 "rope_scaling": null, "rope_theta": 50000, "routed_scaling_factor": 1, "router_aux_loss_coef": 0.01,
 "router_num_group": null, "router_topk_group": null, "shared_expert_intermediate_size": null,
 "tie_word_embeddings": false, "use_cache": false, "vocab_size": 157184}
""")


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request):
    return GOLDEN / request.param


def load(folder, **kwargs):
    return LLaDAMoEForMaskedDiffusion.from_pretrained(folder, **kwargs)


def write_config(folder, **changes):
    config = json.loads((GOLDEN / "llada_moe" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


@pytest.mark.parametrize("experts", [None, "eager", "batched_mm"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name, case", [(name, case) for name in FOLDERS for case in range(3)])
def test_golden_logits(name, case, attention, experts, record_property):
    chosen = {} if experts is None else {"experts_implementation": experts}
    model = load(GOLDEN / name, attn_implementation=attention, **chosen)
    tensors = load_file(GOLDEN / name / "cases.safetensors")
    padding, expected = tensors.get(f"attention_mask_2d_{case}"), tensors[f"logits_{case}"]
    logits = model(tensors[f"input_ids_{case}"], attention_mask=padding).logits
    if padding is not None:
        logits, expected = logits[padding.bool()], expected[padding.bool()]
    record_property("max_diff", (logits - expected).abs().max().item())
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)


def test_round_trip_keeps_names_values_and_config(folder, tmp_path):
    model, info = load(folder, output_loading_info=True)
    assert not any(info.values())
    model.save_pretrained(tmp_path)
    saved, original = load_file(tmp_path / "model.safetensors"), load_file(folder / "model.safetensors")
    assert saved.keys() == original.keys()
    assert all(torch.equal(saved[name], original[name]) for name in original)
    config, published = (json.loads((path / "config.json").read_text()) for path in (tmp_path, folder))
    assert {name: config.get(name) for name in published} == published
    unpublished = {"intermediate_size", "moe_intermediate_size", "mlp_only_layers", "rope_parameters"}
    assert not unpublished & config.keys()
    again, info = load(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert json.loads(again.config.to_json_string()) == config
    assert LLaDAMoEConfig(**again.config.to_dict()).to_diff_dict() == again.config.to_diff_dict()


def test_other_layouts_load_too(folder, tmp_path):
    model, ids = load(folder), torch.arange(12)[None]
    model.save_pretrained(tmp_path, save_original_format=False)
    assert "model.layers.1.mlp.experts.gate_up_proj" in load_file(tmp_path / "model.safetensors")
    torch.testing.assert_close(load(tmp_path)(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)
    body = LLaDAMoEModel.from_pretrained(folder)
    hidden = body(ids).last_hidden_state
    torch.testing.assert_close(model.lm_head(hidden), model(ids).logits, atol=1e-5, rtol=1e-5)
    body.save_pretrained(tmp_path / "body")
    again = LLaDAMoEModel.from_pretrained(tmp_path / "body")(ids).last_hidden_state
    torch.testing.assert_close(again, hidden, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("model_type", ["lladamoe", "llada"])
def test_both_published_model_types(model_type, tmp_path, caplog):
    for name in ("model.safetensors", "config.json"):
        (tmp_path / name).write_bytes((GOLDEN / "llada_moe" / name).read_bytes())
    write_config(tmp_path, model_type=model_type, auto_map={"AutoModel": "m.LLaDAMoEModelLM"})
    assert type(AutoConfig.from_pretrained(tmp_path)) is LLaDAMoEConfig
    with caplog.at_level(logging.WARNING, logger="transformers"):
        for loader in (LLaDAMoEForMaskedDiffusion, AutoModel, AutoModelForCausalLM):
            model, info = loader.from_pretrained(tmp_path, output_loading_info=True)
            assert type(model) is LLaDAMoEForMaskedDiffusion
            assert not any(info.values())
    assert not caplog.records
    model.save_pretrained(tmp_path / "saved")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["model_type"] == model_type
    assert (
        load_file(tmp_path / "saved" / "model.safetensors").keys() == load_file(tmp_path / "model.safetensors").keys()
    )
    assert type(AutoModel.from_pretrained(tmp_path / "saved")) is LLaDAMoEForMaskedDiffusion


def test_the_dense_class_refuses_it(tmp_path):
    with pytest.raises(ValueError, match="This is a config of LLaDA-MoE"):
        LLaDAConfig(architectures=["LLaDAMoEModelLM"])
    with pytest.raises(ValueError, match="needs a LLaDAConfig, got LLaDAMoEConfig"):
        LLaDAForMaskedDiffusion(LLaDAConfig.from_pretrained(write_config(tmp_path, model_type="llada")))


def test_published_config_is_llada_moe_7b(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    config = AutoConfig.from_pretrained(tmp_path)
    saved = json.loads(config.to_json_string())
    assert {name: saved.get(name) for name in PUBLISHED} == PUBLISHED
    with torch.device("meta"):
        model = LLaDAMoEForMaskedDiffusion(config)
    assert model.num_parameters() == 7_356_880_896
    assert (family_of(model).name, family_of(model).mask_token_id) == ("lladamoe", 156895)
    default = LLaDAMoEConfig(architectures=config.architectures, published_model_type="llada").to_diff_dict()
    kept = {"router_aux_loss_coef", "use_cache"}
    assert {n: v for n, v in default.items() if n not in kept} == {n: saved.get(n) for n in default if n not in kept}


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"moe_router_score_function": "sigmoid"}, "LLaDA-MoE with `moe_router_score_function`='sigmoid'"),
        ({"routed_scaling_factor": 2.5}, "`routed_scaling_factor`=2.5"),
        ({"qk_layernorm": False}, "`qk_layernorm`=False"),
        ({"partial_rotary_factor": 0.5}, "`partial_rotary_factor`=0.5"),
        ({"moe_layer_freq": [1]}, "`moe_layer_freq` has 1 entries, but `num_hidden_layers` is 2"),
    ],
)
def test_other_architectures_are_refused(changes, named, tmp_path):
    with pytest.raises(ValueError, match=named):
        AutoConfig.from_pretrained(write_config(tmp_path, **changes))


def test_sampling_values_move_out_with_one_warning(tmp_path):
    write_config(tmp_path, model_type="llada", temperature=0.7, top_p=0.9)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = AutoConfig.from_pretrained(tmp_path)
    assert sum("holds sampling values (temperature, top_p)" in str(warning.message) for warning in caught) == 1
    assert config.sampling_defaults == {"temperature": 0.7, "top_p": 0.9}
    assert "temperature" not in config.to_diff_dict()


@pytest.mark.parametrize("mask", [None, torch.ones(1, 16, dtype=torch.long)], ids=["no mask", "ones"])
def test_every_position_sees_every_other(folder, mask):
    model, ids = load(folder), torch.arange(16)[None]
    base = model(ids, attention_mask=mask).logits
    for changed in (0, 15):
        other = ids.clone()
        other[0, changed] = 40
        assert ((model(other, attention_mask=mask).logits - base).abs().amax(-1) > 1e-5).all()


def test_bfloat16(folder):
    model = load(folder, dtype=torch.bfloat16, device_map="cpu")
    ids = torch.arange(12)[None]
    assert model.dtype == torch.bfloat16
    exact = load(folder)(ids).logits
    assert (model(ids).logits - exact).norm() < 0.1 * exact.norm()


def test_inherited_services(folder):
    model = load(folder)
    assert model.config._experts_implementation == "grouped_mm"
    assert model.tp_plan["lm_head"] == "colwise_gather_output"
    assert model.tp_plan["model.layers.*.mlp.experts"] == "moe_tp_experts"
    assert model.tp_plan["model.layers.*.mlp.shared_expert.down_proj"] == "rowwise"
    assert model.ep_plan["model.layers.*.mlp.experts"] == "ep_dispatch_experts"
    ids, full = torch.arange(12)[None], model(torch.arange(12)[None]).logits
    torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([3, 5])).logits, full[:, [3, 5]])
    torch.testing.assert_close(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, full)
    assert torch.equal(copy.deepcopy(model)(ids).logits, full)
    model.activation_checkpointing_enable()
    model.train()
    with torch.enable_grad():
        model(ids, labels=ids, output_router_logits=True).loss.backward()
    assert all(p.grad is not None for p in model.parameters())
    assert model.get_input_embeddings().weight.grad[11].abs().sum() > 0


def test_initial_weights():
    config = LLaDAMoEConfig.from_pretrained(GOLDEN / "llada_moe_normtopk_dense0")
    model = LLaDAMoEForMaskedDiffusion(config)
    assert 0.01 < model.model.layers[1].mlp.shared_expert.up_proj.weight.std() < 0.03
    assert model.get_input_embeddings().weight[config.pad_token_id].abs().sum() > 0
    small = LLaDAMoEConfig(vocab_size=64, hidden_size=32, num_attention_heads=4, num_hidden_layers=1)
    assert (small.mask_token_id, small.eos_token_id, small.pad_token_id) == (None, None, None)
