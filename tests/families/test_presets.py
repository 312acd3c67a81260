"""Presets that a family has besides the common ones, and how a saved generation config chooses them."""

import json

import pytest
import torch
from models import EOS, MASK, PAD, VOCABULARY, counted_forwards, tiny_llada
from torch import nn

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.families import Family, family_of, preset_names
from dllm_generate.families.llada2 import LLaDA2MoeConfig, LLaDA2MoeForMaskedDiffusion
from dllm_generate.families.presets import default_presets, preset_of

OWN = "published-2.1"
EXPLICIT = {
    "schedule": "block_diffusion",
    "block_length": 4,
    "cache_policy": "block",
    "decoder": "editing",
    "threshold": 0.95,
    "decoder_config": {"editing_threshold": 0.9, "max_post_steps": 16, "at_least": 1},
}
IDS = torch.tensor([[5, 9, 11, 3, 20, 7]])


@pytest.fixture(scope="module")
def llada2():
    """Sure of most tokens, so that several are committed in a step and some are edited later."""
    torch.manual_seed(0)
    config = LLaDA2MoeConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, moe_intermediate_size=16, num_experts=8,
        num_experts_per_tok=2, n_group=4, topk_group=2, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, block_length=4, mask_token_id=MASK, eos_token_id=EOS, pad_token_id=PAD,
    )  # fmt: skip
    model = LLaDA2MoeForMaskedDiffusion(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.35)
    nn.init.normal_(model.lm_head.weight, std=1.5)
    return model


def generate(model, **options):
    return model.generate(IDS, max_new_tokens=24, eos_token_id=MASK, return_dict_in_generate=True, **options)


def equal(one, other):
    return torch.equal(one.sequences, other.sequences) and torch.equal(one.num_forwards, other.num_forwards)


def test_a_saved_preset_takes_effect(llada2, tmp_path):
    llada2.save_pretrained(tmp_path)
    path = tmp_path / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "preset": OWN}))
    loaded = LLaDA2MoeForMaskedDiffusion.from_pretrained(tmp_path)
    assert loaded.generation_config.preset == OWN
    output = generate(loaded)
    assert equal(output, generate(llada2, **EXPLICIT))
    assert not equal(output, generate(llada2)), "LLaDA2.0's sampler, which the config would mean otherwise"
    unedited = generate(llada2, **{**EXPLICIT, "decoder": "dynamic", "decoder_config": None})
    assert not torch.equal(output.sequences, unedited.sequences), "some token was edited"
    loaded.save_pretrained(tmp_path / "again")
    assert json.loads((tmp_path / "again" / "generation_config.json").read_text())["preset"] == OWN


def test_the_call_still_has_precedence(llada2):
    llada2.generation_config.preset = OWN
    try:
        assert equal(generate(llada2, preset="published"), generate(llada2, decoder="dynamic", threshold=0.95))
        changed = {"decoder_config": {**EXPLICIT["decoder_config"], "editing_threshold": 0.5}, "threshold": 0.7}
        assert equal(generate(llada2, **changed), generate(llada2, **{**EXPLICIT, **changed}))
    finally:
        llada2.generation_config.preset = None


def test_a_preset_of_another_family_is_refused():
    assert preset_names()[:4] == list(default_presets("bidirectional")) and OWN in preset_names()
    model = tiny_llada()
    for options in ({"preset": OWN}, {"generation_config": DiffusionGenerationConfig(preset=OWN)}):
        with counted_forwards(model) as shapes, pytest.raises(ValueError) as error:
            model.generate(IDS, **options)
        assert not shapes
        assert str(error.value) == (
            f"`preset` is {OWN!r}, but must be one of ['published', 'quality', 'balanced', 'speed'] for the family "
            "'llada'."
        )


def test_a_family_without_presets_has_the_common_ones():
    family = Family("plain", attention="block_causal", block_length=6)
    assert preset_of(family, "speed") == default_presets("block_causal", 6)["speed"]
    assert preset_of(family)["block_length"] == 6
    with pytest.raises(ValueError, match="`preset` is 'turbo'"):
        preset_of(family, "turbo")


def test_the_block_length_of_the_config_reaches_own_presets(llada2):
    assert family_of(llada2).presets[OWN] == EXPLICIT
