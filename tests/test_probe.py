"""What attach finds out about a model that nobody registered."""

import pytest
import torch
from models import MASK, PAD
from transformers import LlamaConfig, LlamaForCausalLM

from dllm_generate import DiffusionGenerationMixin, attach
from dllm_generate.probe import check_model

FACTS = {"mask_token_id": MASK, "logits_shift": False, "attention": "bidirectional"}


def stock() -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4
    )
    return LlamaForCausalLM(config)


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
    with pytest.raises(ValueError, match="LlamaForCausalLM ignores `attention_mask`: in a batch, padding would"):
        attach(model)
    assert not isinstance(model, DiffusionGenerationMixin)


def test_a_model_that_stays_causal_is_refused():
    causal = lambda mask: mask & torch.ones(mask.shape[-1], mask.shape[-1], dtype=torch.bool).tril()
    with pytest.raises(ValueError, match="attends to earlier positions only"):
        attach(deafened(stock(), causal))


def test_a_stock_causal_model_decodes_in_both_directions():
    model = attach(stock().train())
    assert model.training
    ids, mask = torch.tensor([[PAD, 5], [7, 9]]), torch.tensor([[0, 1], [1, 1]])
    model.eval()
    both = model.generate(ids, attention_mask=mask, max_new_tokens=4, **FACTS)
    assert torch.equal(both[0, 2:], model.generate(ids[:1, 1:], max_new_tokens=4, **FACTS)[0, 1:])


def test_a_known_model_passes(llada):
    check_model(llada)


def test_a_model_on_the_meta_device_is_not_run():
    with torch.device("meta"):
        check_model(stock())
