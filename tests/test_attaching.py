"""Models without the mixin: attached, called by `diffusion_generate`, or through a callable `custom_generate`."""

import copy
import pickle

import pytest
import torch
from models import EOS, MASK, PAD, counted_forwards
from transformers import (
    DynamicCache,
    GenerationMixin,
    LlamaConfig,
    LlamaForCausalLM,
    TextIteratorStreamer,
    TextStreamer,
)

from dllm_generate import DiffusionGenerationConfig, DiffusionGenerationMixin, attach, diffusion_generate

IDS = torch.tensor([[3, 1, 4, 1, 5]])
BATCH = {
    "input_ids": torch.tensor([[PAD, PAD, 5], [3, 1, 4]]),
    "attention_mask": torch.tensor([[0, 0, 1], [1, 1, 1]]),
}
FACTS = {"mask_token_id": MASK, "logits_shift": False, "attention": "bidirectional"}


@pytest.fixture
def stock(llada):
    """The same weights in transformers' own class."""
    config = LlamaConfig(
        vocab_size=64, hidden_size=32, num_attention_heads=4, num_key_value_heads=2, num_hidden_layers=2,
        intermediate_size=64, rms_norm_eps=1e-5, is_causal=False, eos_token_id=EOS, pad_token_id=PAD,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.load_state_dict(llada.state_dict())
    return model


def test_attach(stock, llada):
    options = {"max_new_tokens": 6, "decoder": "threshold", "threshold": 0.4, "cache_policy": "dual", "block_length": 4}
    expected = llada.generate(**BATCH, **options)
    attached = attach(stock)
    assert attached is stock and isinstance(stock, LlamaForCausalLM) and isinstance(stock, DiffusionGenerationMixin)
    assert attach(attached) is stock and type(stock).__mro__.count(DiffusionGenerationMixin) == 1
    assert torch.equal(stock.generate(**BATCH, **FACTS, **options), expected)
    stock.generation_config.update(**FACTS)
    assert torch.equal(stock.generate(**BATCH, **options), expected)
    assert LlamaForCausalLM.generate is GenerationMixin.generate


def test_diffusion_generate_takes_any_model(stock, llada, tokenizer, capsys):
    options = {"max_new_tokens": 6, "cache_policy": "dual"}
    expected = llada.generate(**BATCH, **options)
    assert torch.equal(diffusion_generate(stock, **BATCH, **FACTS, **options), expected)
    assert torch.equal(diffusion_generate(llada, **BATCH, **options), expected)
    assert torch.equal(diffusion_generate(llada, IDS[0], max_new_tokens=3), llada.generate(IDS, max_new_tokens=3))
    assert type(stock) is LlamaForCausalLM and not isinstance(stock.generation_config, DiffusionGenerationConfig)
    diffusion_generate(stock, IDS, **FACTS, max_new_tokens=3, streamer=TextStreamer(tokenizer))
    assert capsys.readouterr().out


def test_the_callable_route(stock, llada):
    """`model.generate(custom_generate=diffusion_generate)` on a stock model, with the three facts in the config."""
    facts = DiffusionGenerationConfig(
        **FACTS, max_new_tokens=6, cache_policy="prefix", eos_token_id=EOS, pad_token_id=PAD
    )
    plain = {"max_new_tokens": 6, "cache_policy": "prefix"}
    for inputs in (BATCH, {"input_ids": IDS}):
        ids = stock.generate(**inputs, generation_config=facts, custom_generate=diffusion_generate)
        assert torch.equal(ids, llada.generate(**inputs, **plain))
    facts.update(return_dict_in_generate=True, do_sample=True, temperature=0.9, num_return_sequences=2)
    outputs = []
    for call in (lambda: stock.generate(IDS, generation_config=facts, custom_generate=diffusion_generate),
                 lambda: llada.generate(IDS, generation_config=facts)):  # fmt: skip
        torch.manual_seed(0)
        outputs.append(call().sequences)
    assert torch.equal(*outputs)
    assert type(stock) is LlamaForCausalLM
    assert torch.equal(
        llada.generate(IDS, max_new_tokens=3, custom_generate=diffusion_generate), llada.generate(IDS, max_new_tokens=3)
    )


@pytest.mark.parametrize("lost", ["streamer", "assistant_model", "negative_prompt_ids", "guidance_scale", "cache"])
def test_the_callable_route_raises_for_what_transformers_drops(stock, tokenizer, lost):
    value = {
        "streamer": TextStreamer(tokenizer),
        "assistant_model": stock,
        "negative_prompt_ids": IDS,
        "guidance_scale": 1.5,
        "cache": DynamicCache(),
    }[lost]
    facts = DiffusionGenerationConfig(**FACTS, max_new_tokens=3, pad_token_id=PAD)
    with counted_forwards(stock) as shapes, pytest.raises(ValueError, match=lost):
        stock.generate(IDS, generation_config=facts, custom_generate=diffusion_generate, **{lost: value})
    assert not shapes
    assert stock.generate(IDS, generation_config=facts, custom_generate=diffusion_generate).shape == (1, 8)


def test_the_callable_route_wakes_the_consumer_of_a_streamer_that_it_refuses(stock, tokenizer):
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=5)
    facts = DiffusionGenerationConfig(**FACTS, max_new_tokens=3, pad_token_id=PAD)
    with pytest.raises(ValueError, match="streamer"):
        stock.generate(IDS, generation_config=facts, custom_generate=diffusion_generate, streamer=streamer)
    assert "".join(streamer) == ""


def test_attached_models_can_be_copied_and_pickled(stock):
    model = attach(copy.deepcopy(stock))
    expected = model.generate(IDS, **FACTS, max_new_tokens=3)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert type(twin) is type(model) and twin is not model
        assert torch.equal(twin.generate(IDS, **FACTS, max_new_tokens=3), expected)
