"""How a model finds its family."""

import types

import pytest
from torch import nn
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    GenerationConfig,
    GenerationMixin,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaModel,
)

import dllm_generate.families.lladamoe  # noqa: F401
from dllm_generate.families import Family, family_of, register_family
from dllm_generate.families import base as registry
from dllm_generate.families.llada import LLADA, LLaDAConfig, LLaDAForMaskedDiffusion

SIZES = {"d_model": 16, "n_heads": 2, "n_layers": 1, "mlp_hidden_size": 16, "vocab_size": 64}
BY_HAND = {"mask_token_id": 7, "logits_shift": True, "attention": "block_causal"}


def llada(**ids):
    return LLaDAForMaskedDiffusion(LLaDAConfig(**SIZES, **ids))


def foreign(**config):
    """A model of somebody else's class, such as remote code."""
    embeddings = nn.Embedding(64, 4)
    return types.SimpleNamespace(config=types.SimpleNamespace(**config), get_input_embeddings=lambda: embeddings)


@pytest.fixture
def clean_registry(monkeypatch):
    monkeypatch.setattr(registry, "_REGISTRY", dict(registry._REGISTRY))


def test_llada():
    family = family_of(llada(mask_token_id=63))
    assert (family.name, family.mask_token_id, family.logits_shift) == ("llada", 63, False)
    assert (family.attention, family.block_length, family.prompt_is_one_block) == ("bidirectional", None, True)
    assert family.special_token_ids == {}, "ids of LLaDA-8B lie outside this vocabulary"
    assert LLADA.special_token_ids == {"eos": 126081, "eot": 126348}


def test_presets():
    assert LLADA.presets["published"] == {
        "decoder": "fixed",
        "schedule": "blockwise",
        "cache_policy": "none",
        "block_length": 32,
    }
    chosen = {name: (p.get("threshold"), p["cache_policy"]) for name, p in LLADA.presets.items()}
    assert chosen == {
        "published": (None, "none"),
        "quality": (0.99, "none"),
        "balanced": (None, "dual"),
        "speed": (0.9, "dual"),
    }


def test_mask_id_order():
    tokenizer = types.SimpleNamespace(mask_token_id=5)
    model, without = llada(mask_token_id=63), llada()
    assert family_of(model, {"mask_token_id": 0}, tokenizer).mask_token_id == 0
    assert family_of(model, GenerationConfig(mask_token_id=9)).mask_token_id == 9
    assert family_of(model, {"mask_token_id": None}, tokenizer).mask_token_id == 63
    assert family_of(without, {}, tokenizer).mask_token_id == 5
    for tokenizer in (None, types.SimpleNamespace(mask_token_id=None)):
        with pytest.raises(ValueError, match="set `mask_token_id`"):
            family_of(without, tokenizer=tokenizer)


@pytest.mark.parametrize("mask", [64, -1])
def test_mask_id_outside_the_vocabulary(mask):
    with pytest.raises(ValueError, match=f"`mask_token_id` is {mask}, but the model has 64 token embeddings"):
        family_of(llada(), {"mask_token_id": mask})


def test_overrides():
    family = family_of(llada(mask_token_id=63), {"logits_shift": True, "attention": "block_causal"})
    assert (family.name, family.logits_shift, family.attention) == ("llada", True, "block_causal")
    assert family.presets["published"]["schedule"] == "block_diffusion"
    assert {preset["cache_policy"] for preset in family.presets.values()} == {"block"}
    with pytest.raises(ValueError, match="`attention` must be one of bidirectional, block_causal, got 'causal'"):
        family_of(llada(mask_token_id=63), {"attention": "causal"})
    assert LLADA.attention == "bidirectional"


@pytest.mark.parametrize("missing", BY_HAND)
def test_unknown_family_needs_the_three_options(missing):
    model = GPT2LMHeadModel(GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=64))
    family = family_of(model, BY_HAND)
    assert (family.name, family.mask_token_id, family.logits_shift, family.attention) == ("custom", *BY_HAND.values())
    assert set(family.presets) == {"published", "quality", "balanced", "speed"}
    with pytest.raises(ValueError) as error:
        family_of(model, {**BY_HAND, missing: None})
    for part in ("GPT2LMHeadModel", "llada", *(f"`{name}`" for name in BY_HAND)):
        assert part in str(error.value)


def test_remote_code_is_found_by_model_type_and_architecture():
    assert family_of(foreign(model_type="llada", mask_token_id=63)).name == "llada"
    assert family_of(foreign(model_type="llada", mask_token_id=63, architectures=["LLaDAModelLM"])).name == "llada"
    moe = foreign(model_type="llada", mask_token_id=63, architectures=["LLaDAMoEModelLM"])
    assert family_of(moe).name == "lladamoe"
    with pytest.raises(ValueError, match="no supported family"):
        family_of(foreign(model_type="llada", mask_token_id=63, architectures=["LLaDAOtherModelLM"]))


def test_a_users_subclass_keeps_the_family():
    class Mine(LLaDAForMaskedDiffusion):
        pass

    model = Mine(LLaDAConfig(**SIZES, mask_token_id=63, architectures=["Mine"]))
    assert family_of(model).name == "llada"


def test_architectures_tell_families_of_one_config_apart(clean_registry):
    class TwoConfig(LlamaConfig):
        model_type = "two"

    register_family(Family("two-a", mask_token_id=1), TwoConfig, architectures=("A",))
    register_family(Family("two-b"), TwoConfig, architectures=("B",))
    for name, expected in (("A", "two-a"), ("B", "two-b")):
        model = foreign(mask_token_id=1)
        model.config = TwoConfig(architectures=[name], mask_token_id=1)
        assert family_of(model).name == expected


def test_autoregressive_models_are_left_alone():
    config = LlamaConfig(
        hidden_size=16, num_attention_heads=2, num_hidden_layers=1, intermediate_size=16, vocab_size=64
    )
    assert type(AutoModel.from_config(config)) is LlamaModel
    assert type(AutoModelForCausalLM.from_config(config)) is LlamaForCausalLM
    assert LlamaForCausalLM.generate is GenerationMixin.generate
    assert not hasattr(config, "is_causal")
