"""LLaDA against logits of its published code, and as a citizen of transformers."""

import copy
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, DynamicCache
from transformers.cache_utils import DynamicLayer

from dllm_generate.families.llada import LLaDAConfig, LLaDAForMaskedDiffusion, LLaDAModel

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
FOLDERS = ["llada_dense", "llada_dense_gqa"]
CASES = [(folder, case) for folder in FOLDERS for case in range(7)]
TINY = {"d_model": 32, "n_heads": 4, "n_layers": 2, "mlp_hidden_size": 64, "vocab_size": 64, "mask_token_id": 63}


@pytest.fixture(autouse=True)
def one_thread_no_grad():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with torch.no_grad():
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=FOLDERS)
def folder(request):
    return GOLDEN / request.param


def load(folder, **kwargs):
    return LLaDAForMaskedDiffusion.from_pretrained(folder, **kwargs)


class WindowLayer(DynamicLayer):
    """Keeps the first keys and values, and lets later ones replace rows from `start` on."""

    start = 8

    def update(self, key_states, value_states, *args, **kwargs):
        if not self.is_initialized:
            return super().update(key_states, value_states)
        rows = slice(self.start, self.start + key_states.shape[-2])
        self.keys[..., rows, :], self.values[..., rows, :] = key_states, value_states
        return self.keys, self.values


def windowed(model, ids, case):
    """The logits of the published dual cache (case 5) and prefix cache (case 6)."""
    cache, window = DynamicCache(config=model.config), (8, 16) if case == 5 else (8, 24)
    if case == 5:
        cache.layers = [WindowLayer() for _ in cache.layers]
    model(ids[:1], cache=cache, use_cache=True)
    if case == 6:
        cache.crop(window[0] - ids.shape[1])
    positions = torch.arange(*window)[None]
    return model(ids[1:, slice(*window)], position_ids=positions, cache=cache, use_cache=True).logits


def plain_llada(weights, config, ids, mask=None):
    """LLaDA written out over the published tensors, as bit-exact yardstick on whatever machine runs the test."""

    def norm(x, name):
        return weights[f"{name}.weight"] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]))

    def heads(x, name, n):
        return F.linear(x, weights[f"{name}.weight"]).view(*x.shape[:2], n, -1).transpose(1, 2)

    def rotate(x):
        dim = x.shape[-1]
        frequencies = 1.0 / config["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim)
        angles = torch.arange(x.shape[2])[:, None] * frequencies.repeat(2)
        return x * angles.cos() + torch.cat([-x[..., dim // 2 :], x[..., : dim // 2]], -1) * angles.sin()

    x = F.embedding(ids, weights["model.transformer.wte.weight"])
    for layer in range(config["n_layers"]):
        block = f"model.transformer.blocks.{layer}"
        h = norm(x, f"{block}.attn_norm")
        q = rotate(heads(h, f"{block}.q_proj", config["n_heads"]))
        k = rotate(heads(h, f"{block}.k_proj", config["n_kv_heads"]))
        v = heads(h, f"{block}.v_proj", config["n_kv_heads"])
        k, v = (t.repeat_interleave(config["n_heads"] // config["n_kv_heads"], 1) for t in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(x.shape)
        x = x + F.linear(attended, weights[f"{block}.attn_out.weight"])
        h = norm(x, f"{block}.ff_norm")
        gate, up = (F.linear(h, weights[f"{block}.{name}.weight"]) for name in ("ff_proj", "up_proj"))
        x = x + F.linear(F.silu(gate) * up, weights[f"{block}.ff_out.weight"])
    return F.linear(norm(x, "model.transformer.ln_f"), weights["model.transformer.ff_out.weight"])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("name, case", CASES)
def test_golden_logits(name, case, attention, record_property):
    model = load(GOLDEN / name, attn_implementation=attention)
    tensors = load_file(GOLDEN / name / "cases.safetensors")
    ids, expected = tensors[f"input_ids_{case}"], tensors[f"logits_{case}"]
    padding = tensors.get(f"attention_mask_2d_{case}")
    if case >= 5:
        logits = windowed(model, ids, case)
    else:
        logits = model(ids, attention_mask=tensors.get(f"attention_mask_{case}", padding)).logits
    if padding is not None:
        logits, expected = logits[padding.bool()], expected[padding.bool()]
    record_property("max_diff", (logits - expected).abs().max().item())
    torch.testing.assert_close(logits, expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name, case", [(name, case) for name, case in CASES if case in (0, 1, 3, 4)])
def test_bits_equal_the_plain_formula(name, case):
    tensors = load_file(GOLDEN / name / "cases.safetensors")
    ids, mask = tensors[f"input_ids_{case}"], tensors.get(f"attention_mask_{case}")
    config = json.loads((GOLDEN / name / "config.json").read_text())
    expected = plain_llada(load_file(GOLDEN / name / "model.safetensors"), config, ids, mask)
    assert torch.equal(load(GOLDEN / name)(ids, attention_mask=mask).logits, expected)


def test_round_trip_keeps_names_values_and_config(folder, tmp_path):
    model, info = load(folder, output_loading_info=True)
    assert not any(info.values())
    model.save_pretrained(tmp_path)
    saved, original = load_file(tmp_path / "model.safetensors"), load_file(folder / "model.safetensors")
    assert saved.keys() == original.keys()
    assert all(torch.equal(saved[name], original[name]) for name in original)
    config, published = (json.loads((path / "config.json").read_text()) for path in (tmp_path, folder))
    assert {name: config.get(name) for name in published} == published
    assert not {"hidden_size", "head_dim", "rope_parameters", "sampling_defaults"} & config.keys()
    again, info = load(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert json.loads(again.config.to_json_string()) == config


def test_other_layouts_load_too(folder, tmp_path):
    model, ids = load(folder), torch.arange(12)[None]
    model.save_pretrained(tmp_path, save_original_format=False)
    assert "model.layers.0.self_attn.q_proj.weight" in load_file(tmp_path / "model.safetensors")
    assert torch.equal(load(tmp_path)(ids).logits, model(ids).logits)
    body = LLaDAModel.from_pretrained(folder)
    hidden = body(ids).last_hidden_state
    assert torch.equal(model.lm_head(hidden), model(ids).logits)
    body.save_pretrained(tmp_path / "body")
    assert torch.equal(LLaDAModel.from_pretrained(tmp_path / "body")(ids).last_hidden_state, hidden)


def test_auto_classes(folder):
    assert type(AutoConfig.from_pretrained(folder)) is LLaDAConfig
    for auto in (AutoModel, AutoModelForCausalLM):
        for trust in (None, True):
            assert type(auto.from_pretrained(folder, trust_remote_code=trust)) is LLaDAForMaskedDiffusion


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("mask", [None, torch.ones(1, 16, dtype=torch.long)], ids=["no mask", "ones"])
def test_every_position_sees_every_other(folder, attention, mask):
    model, ids = load(folder, attn_implementation=attention), torch.arange(16)[None]
    base = model(ids, attention_mask=mask).logits
    for changed in (0, 15):
        other = ids.clone()
        other[0, changed] = 40
        assert ((model(other, attention_mask=mask).logits - base).abs().amax(-1) > 1e-5).all()


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padded_rows_equal_their_single_run(folder, attention):
    model, lengths = load(folder, attn_implementation=attention), (16, 9, 1)
    ids, mask = torch.full((3, 16), 60), torch.zeros(3, 16, dtype=torch.long)
    for row, length in enumerate(lengths):
        ids[row, -length:], mask[row, -length:] = torch.arange(length) + row, 1
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    logits = model(ids, attention_mask=mask, position_ids=positions).logits
    assert logits.isfinite().all()
    for row, length in enumerate(lengths):
        alone = model(ids[row : row + 1, -length:]).logits
        torch.testing.assert_close(logits[row : row + 1, -length:], alone, atol=2e-5, rtol=1e-5)


def test_bfloat16_and_device_map(folder):
    model = load(folder, dtype=torch.bfloat16, device_map="cpu")
    ids = torch.arange(12)[None]
    assert model.dtype == torch.bfloat16
    assert model.model.rotary_emb.inv_freq.dtype == torch.float32
    exact = load(folder)(ids).logits
    assert (model(ids).logits - exact).norm() < 0.1 * exact.norm()


def test_weight_tying(tmp_path):
    model = LLaDAForMaskedDiffusion(LLaDAConfig(**TINY, weight_tying=True))
    model.save_pretrained(tmp_path)
    assert "model.transformer.ff_out.weight" not in load_file(tmp_path / "model.safetensors")
    again, info = load(tmp_path, output_loading_info=True)
    assert not any(info.values())
    assert again.lm_head.weight is again.model.embed_tokens.weight


def test_eos_as_padding_is_trained():
    with torch.enable_grad():
        for model in (LLaDAForMaskedDiffusion(LLaDAConfig(**TINY, pad_token_id=62)), load(GOLDEN / "llada_dense")):
            pad = model.config.pad_token_id
            assert model.get_input_embeddings().weight[pad].abs().sum() > 0
            model(torch.tensor([[1, pad]]), labels=torch.tensor([[1, 2]])).loss.backward()
            assert model.get_input_embeddings().weight.grad[pad].abs().sum() > 0


def test_inherited_services(folder):
    model = load(folder)
    assert model.tp_plan["lm_head"] == "colwise_gather_output"
    assert model.tp_plan["model.layers.*.self_attn.q_proj"] == "colwise"
    ids, full = torch.arange(12)[None], model(torch.arange(12)[None]).logits
    torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([3, 5])).logits, full[:, [3, 5]])
    torch.testing.assert_close(model(inputs_embeds=model.get_input_embeddings()(ids)).logits, full)
    assert torch.equal(copy.deepcopy(model)(ids).logits, full)
    model.activation_checkpointing_enable()
    model.train()
    with torch.enable_grad():
        model(ids).logits.sum().backward()
    assert all(p.grad is not None for p in model.parameters() if isinstance(p, nn.Parameter))
