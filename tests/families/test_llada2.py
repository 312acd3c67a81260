"""LLaDA2.0 and 2.1 against logits of their published code, and as citizens of transformers."""

import copy
import json
import warnings
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, DynamicCache

from dllm_generate import DiffusionCache
from dllm_generate.families import family_of
from dllm_generate.families.llada2 import LLADA2, LLaDA2MoeConfig, LLaDA2MoeForMaskedDiffusion, LLaDA2MoeModel

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
FOLDERS = ["llada2_moe", "llada21_moe"]
BLOCKS = [4, 8, 6, None]
# LLaDA2.0-mini in the published config format.
PUBLISHED = json.loads("""
{"architectures": ["LLaDA2MoeModelLM"], "attention_dropout": 0.0, "num_hidden_layers": 20, "hidden_size": 2048,
 "intermediate_size": 5120, "first_k_dense_replace": 1, "hidden_act": "silu", "max_position_embeddings": 16384,
 "model_type": "llada2_moe", "moe_intermediate_size": 512, "norm_topk_prob": true, "num_experts_per_tok": 8,
 "norm_head": false, "num_attention_heads": 16, "num_experts": 256, "num_key_value_heads": 4, "rope_theta": 600000,
 "rope_scaling": null, "tie_word_embeddings": false, "use_bias": false, "use_rmsnorm": true, "rms_norm_eps": 1e-06,
 "head_dim": 128, "num_shared_experts": 1, "use_cache": false, "use_qkv_bias": false, "embedding_dropout": 0.0,
 "norm_softmax": false, "output_dropout": 0.0, "vocab_size": 157184, "rotary_dim": 64,
 "using_split_qkv_in_self_attention": false, "router_dtype": "fp32", "moe_router_enable_expert_bias": true,
 "routed_scaling_factor": 2.5, "n_group": 8, "topk_group": 4, "score_function": "sigmoid", "initializer_range": 0.02,
 "max_window_layers": 28, "output_router_logits": false, "pad_token_id": 156892, "partial_rotary_factor": 0.5,
 "use_sliding_window": false}
""")


@pytest.fixture(autouse=True)
def no_grad():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request):
    return GOLDEN / request.param


def load(folder, **kwargs):
    return LLaDA2MoeForMaskedDiffusion.from_pretrained(folder, **kwargs)


def write_config(folder, **changes):
    config = json.loads((GOLDEN / "llada2_moe" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def mask_of(allowed, attention):
    """A ready mask `(1, 1, Q, S)` in the form that the attention takes."""
    allowed = allowed.bool()[None, None]
    if attention == "sdpa":
        return allowed
    return torch.zeros(allowed.shape).masked_fill(~allowed, torch.finfo(torch.float32).min)


@pytest.mark.parametrize("experts", [None, "eager", "batched_mm"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name, case", [(name, case) for name in FOLDERS for case in range(4)])
def test_golden_logits(name, case, attention, experts, record_property):
    chosen = {} if experts is None else {"experts_implementation": experts}
    model = load(GOLDEN / name, attn_implementation=attention, **chosen)
    tensors = load_file(GOLDEN / name / "cases.safetensors")
    ids, expected = tensors[f"input_ids_{case}"], tensors[f"logits_{case}"]
    allowed = tensors.get(f"attention_mask_{case}", torch.ones(1, ids.shape[1]))
    found = [model(ids, attention_mask=mask_of(allowed, attention)).logits]
    if BLOCKS[case]:
        model.config.block_length = BLOCKS[case]
        masks = (None, torch.ones_like(ids))
        found += [model(ids, attention_mask=mask, use_cache=used).logits for mask in masks for used in (False, True)]
    for logits in found:
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
    unpublished = {"n_routed_experts", "n_shared_experts", "num_nextn_predict_layers", "rope_parameters"}
    assert not unpublished & config.keys()
    again, info = load(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert json.loads(again.config.to_json_string()) == config
    # Published but not used.
    assert not any(layer.is_sliding for layer in DynamicCache(config=again.config).layers)
    assert LLaDA2MoeConfig(**again.config.to_dict()).to_diff_dict() == again.config.to_diff_dict()


def test_other_layouts_load_too(folder, tmp_path):
    model, ids = load(folder), torch.arange(12)[None]
    model.save_pretrained(tmp_path, save_original_format=False)
    saved = load_file(tmp_path / "model.safetensors").keys()
    assert {"model.layers.1.mlp.experts.gate_up_proj", "model.layers.0.self_attn.k_proj.weight"} <= saved
    torch.testing.assert_close(load(tmp_path)(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)
    body = LLaDA2MoeModel.from_pretrained(folder)
    hidden = body(ids).last_hidden_state
    torch.testing.assert_close(model.lm_head(hidden), model(ids).logits, atol=1e-5, rtol=1e-5)
    body.save_pretrained(tmp_path / "body")
    again = LLaDA2MoeModel.from_pretrained(tmp_path / "body")(ids).last_hidden_state
    torch.testing.assert_close(again, hidden, atol=1e-5, rtol=1e-5)


def test_auto_classes(folder):
    assert type(AutoConfig.from_pretrained(folder)) is LLaDA2MoeConfig
    for auto in (AutoModel, AutoModelForCausalLM):
        for trust in (None, True):
            assert type(auto.from_pretrained(folder, trust_remote_code=trust)) is LLaDA2MoeForMaskedDiffusion


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_position_sees_its_block_and_earlier_ones(folder, attention):
    model, ids = load(folder, attn_implementation=attention), torch.arange(48)[None]
    base = model(ids).logits
    for changed, first in ((0, 0), (31, 0), (32, 32), (47, 32)):
        other = ids.clone()
        other[0, changed] = 50
        moved = (model(other).logits - base).abs().amax(-1)[0] > 1e-5
        assert moved.nonzero().min() == first
        assert moved[first:].all()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padded_rows_equal_their_single_run(folder, attention):
    model, lengths = load(folder, attn_implementation=attention), (40, 35, 1)
    ids, mask = torch.full((3, 40), 60), torch.zeros(3, 40, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, -length:], mask[row, -length:] = (torch.arange(length) + row) % 60, 1
    logits = model(ids, attention_mask=mask).logits
    assert logits.isfinite().all()
    for row, length in enumerate(lengths):
        alone = model(ids[row : row + 1, -length:]).logits
        torch.testing.assert_close(logits[row : row + 1, -length:], alone, atol=2e-5, rtol=1e-5)


def test_blocks_on_a_cache_equal_one_forward(folder):
    model, ids = load(folder), torch.arange(24)[None]
    model.config.block_length = 8
    whole, cache = model(ids).logits, DynamicCache(config=model.config)
    parts = [model(ids[:, i : i + 8], cache=cache, use_cache=True).logits for i in (0, 8, 16)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=2e-5, rtol=1e-5)


def test_body_on_a_diffusion_cache(folder):
    """As decoding calls it: a window of columns, a ready mask for all queries, ids or embeddings."""
    model, ids = load(folder), torch.arange(24)[None]
    body, cache, columns = model.get_decoder(), DiffusionCache(1, 25), torch.arange(1, 25)[None]
    model.config.block_length = 8
    whole = body(ids).last_hidden_state
    for first in (0, 8, 16):
        window = slice(first, first + 8)
        cache.seek(columns[:, window])
        visible = torch.arange(25)[None, None, None] <= first + 8
        visible[..., 0] = False
        fed = {"input_ids": ids[:, window]}
        if first == 8:
            fed = {"inputs_embeds": model.get_input_embeddings()(ids[:, window])}
        common = {"cache": cache, "use_cache": True, "return_dict": True, "attention_mask": visible}
        hidden = body(**fed, position_ids=columns[:, window] - 1, **common).last_hidden_state
        torch.testing.assert_close(hidden, whole[:, window], atol=2e-5, rtol=1e-5)


def test_bfloat16_keeps_the_router_exact(folder):
    model = load(folder, dtype=torch.bfloat16, device_map="cpu")
    gate = model.model.layers[1].mlp.gate
    assert (model.dtype, gate.e_score_correction_bias.dtype) == (torch.bfloat16, torch.float32)
    ids = torch.arange(12)[None]
    exact = load(folder)(ids).logits
    assert (model(ids).logits - exact).norm() < 0.15 * exact.norm()


def test_published_config_is_llada2_mini(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    config = AutoConfig.from_pretrained(tmp_path)
    saved = json.loads(config.to_json_string())
    assert {name: saved.get(name) for name in PUBLISHED} == PUBLISHED
    with torch.device("meta"):
        model = LLaDA2MoeForMaskedDiffusion(config)
    biases = sum(buffer.numel() for name, buffer in model.named_buffers() if name.endswith("e_score_correction_bias"))
    assert model.num_parameters() + biases == 16_255_643_392
    family = family_of(model)
    assert (family.name, family.mask_token_id, family.block_length) == ("llada2_moe", 156895, 32)
    assert (family.attention, family.logits_shift, family.prompt_is_one_block) == ("block_causal", False, False)
    assert LLADA2.special_token_ids == {"eos": 156892}
    default = LLaDA2MoeConfig(architectures=config.architectures).to_diff_dict()
    assert default == {name: saved.get(name) for name in default}


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"use_bias": True}, "LLaDA2 with `use_bias`=True"),
        ({"use_qkv_bias": True}, "`use_qkv_bias`=True"),
        ({"score_function": "softmax"}, "`score_function`='softmax'"),
        ({"num_shared_experts": 0}, "`num_shared_experts`=0"),
        ({"use_sliding_window": True}, "`use_sliding_window`=True"),
    ],
)
def test_other_architectures_are_refused(changes, named, tmp_path):
    with pytest.raises(ValueError, match=named):
        AutoConfig.from_pretrained(write_config(tmp_path, **changes))


def test_sampling_values_move_out_with_one_warning(tmp_path):
    write_config(tmp_path, temperature=0.7, max_new_tokens=17)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = AutoConfig.from_pretrained(tmp_path)
    assert sum("holds sampling values (" in str(warning.message) for warning in caught) == 1
    assert config.sampling_defaults == {"temperature": 0.7, "max_new_tokens": 17}
    assert "temperature" not in config.to_diff_dict()


def test_inherited_services(folder):
    model = load(folder)
    assert model.config._experts_implementation == "grouped_mm"
    assert model.tp_plan["lm_head"] == "colwise_gather_output"
    assert model.tp_plan["model.layers.*.mlp.shared_experts.down_proj"] == "rowwise"
    assert model.ep_plan["model.layers.*.mlp.experts"] == "ep_dispatch_experts"
    ids, full = torch.arange(12)[None], model(torch.arange(12)[None]).logits
    torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([3, 5])).logits, full[:, [3, 5]])
    torch.testing.assert_close(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, full)
    assert torch.equal(copy.deepcopy(model)(ids).logits, full)
    model.activation_checkpointing_enable()
    model.train()
    with torch.enable_grad():
        model(ids, labels=ids).loss.backward()
    assert all(p.grad is not None for p in model.parameters())
