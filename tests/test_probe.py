"""What attach finds out about a model that nobody registered, and what it refuses."""

import copy

import pytest
import torch
from models import MASK, PAD
from torch import nn
from transformers import (
    ConvBertConfig,
    ConvBertForMaskedLM,
    FNetConfig,
    FNetForMaskedLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    GraniteForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

from dllm_generate import DiffusionGenerationMixin, attach, diffusion_generate
from dllm_generate.probe import check_model
from dllm_generate.traits import Traits, traits_of

FACTS = {"mask_token_id": MASK, "logits_shift": False, "attention": "bidirectional"}
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}


def stock(**config) -> LlamaForCausalLM:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SIZES, **{"is_causal": False, **config}))


def deafened(model: LlamaForCausalLM, mask_of) -> LlamaForCausalLM:
    """A model whose body replaces the attention mask that it is given."""
    body = model.model.forward

    def forward(*args, attention_mask=None, **kwargs):
        if attention_mask is not None:
            attention_mask = mask_of(attention_mask)
        return body(*args, attention_mask=attention_mask, **kwargs)

    model.model.forward = forward
    return model


def test_a_model_that_ignores_the_mask_is_refused_and_stays_as_it_was():
    model = deafened(stock(), torch.ones_like)
    with pytest.raises(ValueError, match="LlamaForCausalLM ignores `attention_mask`, .* padding would be read"):
        attach(model)
    assert not isinstance(model, DiffusionGenerationMixin) and not traits_of(model).probed


@pytest.mark.parametrize(("cls", "config"), [(FNetForMaskedLM, FNetConfig), (ConvBertForMaskedLM, ConvBertConfig)])
def test_a_model_that_mixes_neighbours_is_refused(cls, config):
    sizes = {**SIZES, "num_attention_heads": 4, "embedding_size": 32, "max_position_embeddings": 64}
    torch.manual_seed(0)
    with pytest.raises(ValueError, match="mixes neighbours whatever it says"):
        attach(cls(config(**{key: value for key, value in sizes.items() if hasattr(config(), key)})))


def test_a_model_that_stays_causal_is_refused():
    causal = lambda mask: mask & torch.ones(mask.shape[-1], mask.shape[-1], dtype=torch.bool).tril()
    with pytest.raises(ValueError, match="attends to earlier positions only, whatever"):
        attach(deafened(stock(), causal))


def test_a_causal_model_is_decoded_as_asked_with_a_warning(caplog):
    model, asked = stock(is_causal=True), {"max_new_tokens": 6, **FACTS}
    torch.manual_seed(0)
    causal = diffusion_generate(model, torch.tensor([[5]]), **asked)
    assert "A plain call of LlamaForCausalLM attends to earlier positions only" in caplog.text
    caplog.clear()
    model.config.is_causal = False
    assert torch.equal(diffusion_generate(model, torch.tensor([[5]]), **asked), causal) and not caplog.text


def test_a_model_in_training_mode_stays_so():
    model = attach(stock().train())
    assert model.training and all(module.training for module in model.modules())
    ids, mask = torch.tensor([[PAD, 5], [7, 9]]), torch.tensor([[0, 1], [1, 1]])
    model.eval()
    both = model.generate(ids, attention_mask=mask, max_new_tokens=4, **FACTS)
    assert torch.equal(both[0, 2:], model.generate(ids[:1, 1:], max_new_tokens=4, **FACTS)[0, 1:])


def test_layers_that_decoding_cannot_mask_are_refused():
    model = stock(layer_types=["full_attention", "chunked_attention"])
    with pytest.raises(ValueError, match=r"LlamaForCausalLM has layers of the kinds \['chunked_attention'\]"):
        attach(model)


def test_a_plain_call_that_fails_is_told():
    model = stock()
    model.lm_head = nn.Linear(16, 64)
    with pytest.raises(ValueError, match="A plain call of LlamaForCausalLM fails: mat1 and mat2"):
        attach(model)


def test_a_module_in_training_stays_in_training():
    model = stock().eval()
    model.model.norm.train()
    attach(model)
    assert [name for name, module in model.named_modules() if module.training] == ["model.norm"]


@pytest.mark.parametrize(
    ("cls", "config", "values"),
    [
        (GraniteForCausalLM, GraniteConfig, {"logits_scaling": 4.0}),
        (Gemma2ForCausalLM, Gemma2Config, {"final_logit_softcapping": 30.0, "head_dim": 8}),
    ],
)
def test_what_a_forward_does_to_logits_is_seen(cls, config, values):
    """Also where logits are still so small that a soft cap does not show."""
    torch.manual_seed(0)
    model = cls(config(**SIZES, num_key_value_heads=2, is_causal=False, **values)).eval()
    check_model(model)
    assert traits_of(model).head == "module"


def test_a_known_model_passes(llada):
    model = copy.deepcopy(llada)
    check_model(model)
    assert traits_of(model) == Traits(probed=True)


def test_copies_know_what_was_found():
    model = attach(stock().eval())
    assert traits_of(copy.deepcopy(model)) == traits_of(copy.copy(model)) == Traits(probed=True)


def test_a_model_on_the_meta_device_is_not_run():
    with torch.device("meta"):
        model = stock()
    check_model(model)
    assert not traits_of(model).probed
