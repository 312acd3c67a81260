"""Ids, lengths and values that no forward could digest are refused before anything is allocated."""

import copy
import re

import pytest
import torch
from models import MASK, Scripted, counted_forwards, table, tiny_llada
from transformers import LlamaConfig, LlamaForCausalLM

from dllm_generate import DiffusionGenerationConfig, attach, diffusion_generate

IDS = torch.tensor([[3, 1, 4]])
FACTS = {"mask_token_id": MASK, "logits_shift": False, "attention": "bidirectional"}

BAD = [
    ({"inputs": torch.tensor([[3, 64]])}, "`input_ids` is '3 to 64', but must be within the 64 tokens"),
    ({"inputs": torch.tensor([[-1, 3]])}, "`input_ids` is '-1 to 3'"),
    ({"max_new_tokens": 10**9}, "3 tokens and `max_new_tokens` is 1000000000, but the model's `max_position_embed"),
    ({"max_new_tokens": 2.5}, "`max_new_tokens` is 2.5, but must be an int greater than 0"),
    ({"num_return_sequences": 0}, "`num_return_sequences` is 0, but must be an int > 0"),
    ({"suppress_tokens": [64]}, r"`suppress_tokens` is \[64\], but must be token ids from 0 to 63"),
    ({"suppress_tokens": 5}, "`suppress_tokens` is 5, but must be a list of token ids"),
    ({"begin_suppress_tokens": [-1]}, "`begin_suppress_tokens` is .-1., but must be token ids"),
    ({"eos_token_id": "x"}, "`eos_token_id` is 'x', but must be a token id or a list of them"),
    ({"temperature": float("inf"), "do_sample": True}, "`temperature` is inf, but must be a number >= 0, and finite"),
    ({"guidance_scale": float("nan")}, "`guidance_scale` is nan, but must be a finite number"),
    ({"stop_strings": ""}, "`stop_strings` is '', but must be a text, or a list of texts, none of them empty"),
    ({"max_time": "a"}, "`max_time` is 'a', but must be a number of seconds"),
    ({"attention_mask": [[1, 1, 1]]}, "`attention_mask` is 'list', but must be a tensor"),
    ({"generation_config": 5}, "`generation_config` is 'int', but must be a DiffusionGenerationConfig"),
    ({"streamer": 5}, "`streamer` is a int, but must have the methods put and end"),
    ({"guidance_scale": 2.0, "negative_prompt_ids": IDS[0]}, r"`negative_prompt_ids` is \(3,\), but must be a prompt"),
    ({"guidance_scale": 2.0, "negative_prompt_ids": IDS + 64}, "`negative_prompt_ids` is '65 to 68'"),
]


@pytest.mark.parametrize(("options", "message"), BAD, ids=[f"{n}-{next(iter(o))}" for n, (o, _) in enumerate(BAD)])
def test_refused_before_the_first_forward(llada, options, message):
    arguments = {"inputs": IDS, "max_new_tokens": 4, **options}
    with counted_forwards(llada) as shapes, pytest.raises(ValueError, match=message):
        llada.generate(**arguments)
    assert not shapes
    assert llada.generate(IDS, max_new_tokens=4).shape == (1, 7)


def test_defaults_of_a_larger_vocabulary_do_no_harm():
    model = Scripted(table((5, 0.9), (6, 0.8)))
    model.generation_config.update(eos_token_id=[999, 6], pad_token_id=999)
    passed = copy.deepcopy(model.generation_config)
    passed.max_new_tokens = 2
    # A pipeline passes a copy of the model's own config.
    for options in ({"max_new_tokens": 2}, {"generation_config": passed}):
        assert model.generate(IDS, **options).tolist() == [[3, 1, 4, 6]]


@pytest.mark.parametrize(
    ("option", "value"), [("eos_token_id", 64), ("eos_token_id", [5, -1]), ("pad_token_id", 64), ("pad_token_id", -1)]
)
def test_special_tokens_that_the_model_has_not(llada, option, value):
    """Given by the call, by a passed config, or on the way to a callable `custom_generate`."""
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1}
    stock = LlamaForCausalLM(LlamaConfig(vocab_size=64, is_causal=False, **sizes))
    passed = {"generation_config": DiffusionGenerationConfig(**{option: value})}
    route = {"generation_config": DiffusionGenerationConfig(**FACTS, **{option: value})}
    allowed = re.escape(f"`{option}` is {value!r}, but must be token ids from 0 to 63")
    with counted_forwards(llada) as shapes:
        for options in ({option: value}, passed):
            with pytest.raises(ValueError, match=allowed):
                llada.generate(IDS, max_new_tokens=4, **options)
    assert not shapes
    with pytest.raises(ValueError, match=allowed):
        stock.generate(IDS, max_new_tokens=4, custom_generate=diffusion_generate, **route)
    assert llada.generate(IDS, max_new_tokens=4, **{option: 63}).shape == (1, 7)


@pytest.mark.parametrize("temperature", [1e-40, 1e-6])
def test_a_tiny_temperature_is_greedy(llada, temperature):
    sampled = llada.generate(IDS, max_new_tokens=6, do_sample=True, temperature=temperature)
    assert torch.equal(sampled, llada.generate(IDS, max_new_tokens=6))


def test_float64_with_eager_attention():
    model = tiny_llada().double()
    expected = model.generate(IDS, max_new_tokens=6, cache_policy="dual")
    model.set_attn_implementation("eager")
    assert torch.equal(model.generate(IDS, max_new_tokens=6, cache_policy="dual"), expected)


def test_an_attached_model_keeps_its_options_through_a_save(tmp_path):
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4}
    model = attach(LlamaForCausalLM(LlamaConfig(vocab_size=64, is_causal=False, **sizes)))
    for name, value in {**FACTS, "decoder": "threshold"}.items():
        setattr(model.generation_config, name, value)
    model.save_pretrained(tmp_path)
    again = attach(LlamaForCausalLM.from_pretrained(tmp_path))
    assert again.generation_config.decoder == "threshold"
    assert torch.equal(again.generate(IDS, max_new_tokens=4), model.generate(IDS, max_new_tokens=4))
    assert torch.equal(
        diffusion_generate(
            LlamaForCausalLM.from_pretrained(tmp_path), IDS, max_new_tokens=4, **FACTS, decoder="threshold"
        ),
        model.generate(IDS, max_new_tokens=4),
    )
    assert DiffusionGenerationConfig.from_pretrained(tmp_path).mask_token_id == MASK
