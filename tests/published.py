"""What every native model on Qwen layers has to do, as tests for the class of a family to inherit."""

import copy
import json

import pytest
import torch
from models import padded
from published_files import PublishedFiles
from safetensors.torch import load_file
from torch import nn
from torch.nn import functional as F
from transformers import DynamicCache, StaticCache

from dllm_generate import DiffusionCache
from dllm_generate.attention import attention_mask
from dllm_generate.families import family_of

BACKENDS = pytest.mark.parametrize("backend", ["sdpa", "eager"])
ROWS = [list(range(16)), list(range(20, 29)), [5]]


def plain_qwen(weights, config, ids, mask=None):
    """Qwen2 and Qwen3 written out over the published tensors, as bit-exact yardstick on whatever machine runs this."""

    def norm(x, name):
        return weights[f"{name}.weight"] * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + config["rms_norm_eps"]))

    def linear(x, name):
        return F.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def heads(x, name, n, norm_name=None):
        x = linear(x, name).view(*x.shape[:2], n, -1)
        return (norm(x, norm_name) if f"{norm_name}.weight" in weights else x).transpose(1, 2)

    def rotate(x):
        dim = x.shape[-1]
        frequencies = 1.0 / config["rope_theta"] ** (torch.arange(0, dim, 2).float() / dim)
        angles = torch.arange(x.shape[2])[:, None] * frequencies.repeat(2)
        return x * angles.cos() + torch.cat([-x[..., dim // 2 :], x[..., : dim // 2]], -1) * angles.sin()

    n, groups = config["num_attention_heads"], config["num_key_value_heads"]
    x = F.embedding(ids, weights["model.embed_tokens.weight"])
    for layer in range(config["num_hidden_layers"]):
        block = f"model.layers.{layer}"
        h = norm(x, f"{block}.input_layernorm")
        q = rotate(heads(h, f"{block}.self_attn.q_proj", n, f"{block}.self_attn.q_norm"))
        k = rotate(heads(h, f"{block}.self_attn.k_proj", groups, f"{block}.self_attn.k_norm"))
        v = heads(h, f"{block}.self_attn.v_proj", groups)
        k, v = (t.repeat_interleave(n // groups, 1) for t in (k, v))
        attended = F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).reshape(*x.shape[:2], -1)
        x = x + linear(attended, f"{block}.self_attn.o_proj")
        h = norm(x, f"{block}.post_attention_layernorm")
        gate, up = (linear(h, f"{block}.mlp.{name}") for name in ("gate_proj", "up_proj"))
        x = x + linear(F.silu(gate) * up, f"{block}.mlp.down_proj")
    return linear(norm(x, "model.norm"), "lm_head")


def four_dimensional(mask, backend):
    """A 0/1 mask `(Q, S)` or `(B, 1, Q, S)` as decoding passes it."""
    visible = mask.bool().reshape(-1, *mask.shape[-2:])
    return attention_mask(visible, implementation=backend, dtype=torch.float32)


class PublishedModel(PublishedFiles):
    """Tests of the forward of a family."""

    @BACKENDS
    @pytest.mark.parametrize("explicit", [False, True], ids=["own mask", "given mask"])
    @pytest.mark.parametrize("case", range(3))
    def test_golden_logits(self, case, explicit, backend, record_property):
        tensors, kinds = load_file(self.path / "cases.safetensors"), json.loads((self.path / "cases.json").read_text())
        assert [kind["case"] for kind in kinds["cases"]] == list(range(3))
        ids, expected, mask = (tensors.get(f"{name}_{case}") for name in ("input_ids", "logits", "attention_mask"))
        real, given = torch.ones_like(ids, dtype=torch.bool), None
        if mask is not None and mask.dim() == 4:
            real = mask[:, 0, -1].bool()
            given = real.long()
        if explicit:
            mask = self.allowed(ids.shape[1], self.blocks[case]) if mask is None else mask
            given = four_dimensional(mask, backend)
        model = self.load(attn_implementation=backend)
        if not explicit:
            self.set_blocks(model, case)
        logits = model(ids, attention_mask=given, position_ids=tensors.get(f"position_ids_{case}")).logits
        record_property("max_diff", (logits - expected)[real].abs().max().item())
        assert logits.isfinite().all()
        torch.testing.assert_close(logits[real], expected[real], atol=2e-4, rtol=1e-4)

    @pytest.mark.parametrize("case", [0, 1])
    def test_bits_equal_the_plain_formula(self, case):
        ids = load_file(self.path / "cases.safetensors")[f"input_ids_{case}"]
        config = json.loads((self.path / "config.json").read_text())
        weights, model, block = load_file(self.path / "model.safetensors"), self.load(), self.blocks[case]
        mask = None if block is None else self.allowed(ids.shape[1], block)
        self.set_blocks(model, case)
        assert torch.equal(model(ids).logits, plain_qwen(weights, config, ids, mask))

    def test_the_padding_token_is_trained(self):
        with torch.enable_grad():
            for model in (self.tiny(pad_token_id=62), self.load()):
                pad = model.config.pad_token_id
                assert model.get_input_embeddings().weight[pad].abs().sum() > 0
                model(torch.tensor([[1, pad]]), labels=torch.tensor([[1, 2]])).loss.backward()
                assert model.get_input_embeddings().weight.grad[pad].abs().sum() > 0

    def test_bfloat16(self):
        model, ids = self.load(dtype=torch.bfloat16, device_map="cpu"), torch.arange(12)[None]
        assert model.dtype == torch.bfloat16
        assert model.model.rotary_emb.inv_freq.dtype == torch.float32
        exact = self.load()(ids).logits
        assert (model(ids).logits - exact).norm() < 0.1 * exact.norm()

    @BACKENDS
    @pytest.mark.parametrize("side", ["left", "right"])
    def test_padded_rows_equal_their_single_run(self, side, backend):
        model, batch = self.load(attn_implementation=backend), padded(ROWS, side)
        real = batch["attention_mask"].bool()
        logits = model(**batch).logits
        assert logits.isfinite().all()
        for row, ids in enumerate(ROWS):
            alone = model(torch.tensor([ids])).logits[0]
            torch.testing.assert_close(logits[row, real[row]], alone, atol=2e-5, rtol=1e-5)

    @BACKENDS
    def test_window_forward_with_the_diffusion_cache(self, backend):
        model, ids = self.load(attn_implementation=backend), torch.arange(16)[None]
        expected, allowed = model(ids).logits, self.allowed(16)
        # Slot 0 is the scratch column.
        cache, positions = DiffusionCache(1, 17), torch.arange(16)[None]
        for window in (slice(0, 16), slice(8, 12)):
            cache.seek(positions[:, window] + 1)
            visible = F.pad(allowed[window], (1, 0))
            hidden = model.get_decoder()(
                input_ids=ids[:, window],
                position_ids=positions[:, window],
                attention_mask=four_dimensional(visible, backend),
                cache=cache,
                use_cache=True,
                return_dict=True,
            ).last_hidden_state
            torch.testing.assert_close(model.lm_head(hidden), expected[:, window], atol=1e-5, rtol=1e-5)

    def test_inherited_services(self):
        model, ids = self.load(), torch.arange(12)[None]
        full = model(ids).logits
        assert model.tp_plan["lm_head"] == "colwise_gather_output"
        assert model.tp_plan["model.layers.*.self_attn.q_proj"] == "colwise"
        assert model.config.base_model_tp_plan["layers.*.mlp.down_proj"] == "rowwise"
        torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([3, 5])).logits, full[:, [3, 5]])
        assert torch.equal(copy.deepcopy(model)(ids).logits, full)
        model.activation_checkpointing_enable()
        model.train()
        with torch.enable_grad():
            model(ids).logits.sum().backward()
        assert all(p.grad is not None for p in model.parameters() if isinstance(p, nn.Parameter))


class BlockCausalModel(PublishedModel):
    """Tests of a family with block-causal attention."""

    @BACKENDS
    def test_a_position_sees_its_block_and_all_earlier_ones(self, backend):
        model, ids = self.load(attn_implementation=backend), torch.arange(24)[None]
        base, allowed = model(ids).logits[0], self.allowed(24)
        for column in (0, 5, 13, 23):
            other = ids.clone()
            other[0, column] = 40
            changed = (model(other).logits[0] - base).abs().amax(-1) > 1e-5
            assert torch.equal(changed, allowed[:, column])

    def test_a_mask_of_keys_alone_is_used_as_it_is(self):
        model, ids = self.load(), torch.arange(16)[None]
        keys, whole = (torch.ones(1, 1, queries, 16, dtype=torch.bool) for queries in (1, 16))
        assert torch.equal(model(ids, attention_mask=keys).logits, model(ids, attention_mask=whole).logits)
        assert not torch.allclose(model(ids, attention_mask=keys).logits, model(ids).logits, atol=1e-3)

    def test_a_cache_of_transformers_continues_a_plain_call(self):
        model, batch = self.load(), padded([list(range(16)), list(range(30, 38))])
        ids, mask, half = batch["input_ids"], batch["attention_mask"], 8
        expected = model(ids, attention_mask=mask).logits
        first = model(ids[:, :half], attention_mask=mask[:, :half], use_cache=True)
        rest = model(ids[:, half:], attention_mask=mask, cache=first.cache, use_cache=True)
        torch.testing.assert_close(rest.logits, expected[:, half:], atol=1e-5, rtol=1e-5)
        for cache in (DynamicCache(config=model.config), StaticCache(model.config, max_cache_len=40)):
            model(ids[:1, :half], cache=cache)
            logits = model(ids[:1, half:], cache=cache).logits
            torch.testing.assert_close(logits, expected[:1, half:], atol=1e-5, rtol=1e-5)

    def test_given_positions_decide_the_blocks(self):
        model, ids = self.load(), torch.arange(16)[None]
        positions = torch.arange(16)[None] + 2
        block = positions[0] // model.config.block_length
        given = (block[:, None] >= block)[None, None]
        expected = model(ids, position_ids=positions, attention_mask=given).logits
        assert torch.equal(model(ids, position_ids=positions).logits, expected)

    def test_bad_masks_and_backends(self):
        model, ids = self.load(), torch.arange(8)[None]
        with pytest.raises(ValueError, match=r"shape \(1, 7\), but must have \(1, 8\)"):
            model(ids, attention_mask=torch.ones(1, 7))
        model.config._attn_implementation = "flex_attention"
        with pytest.raises(ValueError, match="flex_attention"):
            model(ids)

    def test_the_family_takes_the_block_length_of_the_config(self):
        family = family_of(self.load(block_length=16))
        assert (family.block_length, family.attention, family.prompt_is_one_block) == (16, "block_causal", False)
        assert {preset["block_length"] for preset in family.presets.values()} == {16}
        assert {preset["schedule"] for preset in family.presets.values()} <= {"block_diffusion", "seeded"}
        assert {preset["cache_policy"] for preset in family.presets.values()} == {"block"}
