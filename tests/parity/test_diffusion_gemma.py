"""Tokens and forwards of transformers' own `generate` of DiffusionGemma, with its order of random numbers."""

import pytest
import torch
from gemma_kit import CANVAS, SAMPLER, Lockstep, Multinomial, published_order, tiny_gemma
from models import EOS, PAD, padded
from probes import answer
from transformers.models.diffusion_gemma import generation_diffusion_gemma as published

from dllm_generate import diffusion_generate

LONG, SHORT = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3], [9, 2, 6, 8]
# The model writes these often.
ENDS = [10, 30, EOS]


def own_generate(model, inputs, seed, **options):
    sampler = published.EntropyBoundSamplerConfig(0.7)
    config = published.DiffusionGemmaGenerationConfig(max_denoising_steps=12, sampler_config=sampler, **SAMPLER)
    torch.manual_seed(seed)
    return model.generate(**inputs, generation_config=config, **{"eos_token_id": None, **options})


@pytest.mark.parametrize(
    ("prompts", "seeds"),
    [([LONG], range(3)), ([LONG, SHORT], range(4)), ([[5], [4]], range(2)), ([LONG, LONG[::-1]], (1,))],
)
def test_tokens_of_its_own_generate(monkeypatch, prompts, seeds):
    """The rows of a batch end their blocks at different steps, and their forwards are counted as published."""
    model, inputs, batch, early = tiny_gemma(), padded(prompts), len(prompts), 0
    for seed in seeds:
        expected = own_generate(model, inputs, seed, max_new_tokens=24)
        published_order(monkeypatch, seed, batch)
        decoder = Multinomial(steps_per_block=12, entropy_bound=0.7, batch=batch, **SAMPLER)
        options = {"max_new_tokens": 21, "eos_token_id": None, "pad_token_id": PAD, "return_dict_in_generate": True}
        ours = diffusion_generate(model, **inputs, **options, schedule=Lockstep(CANVAS), decoder=decoder)
        assert torch.equal(ours.sequences, expected.sequences[:, :-3])
        # Of the published ones, those of the decoder only.
        assert (ours.num_forwards - 3).tolist() == (24 / expected.tokens_per_forward).round().tolist()
        early += int((ours.num_forwards < 39).sum())
    assert early


@pytest.mark.parametrize("seed", [0, 4])
def test_tokens_of_its_own_generate_up_to_eos(monkeypatch, seed):
    model, inputs = tiny_gemma(), padded([SHORT])
    ends = {"eos_token_id": ENDS, "max_new_tokens": 24, "pad_token_id": PAD}
    expected = own_generate(model, inputs, seed, **ends).sequences[0, 4:].tolist()
    published_order(monkeypatch, seed, 1)
    decoder = Multinomial(steps_per_block=12, entropy_bound=0.7, **SAMPLER)
    options = {**ends, "return_dict_in_generate": True, "schedule": Lockstep(CANVAS), "decoder": decoder}
    ours = diffusion_generate(model, **inputs, **options)
    tokens = answer(ours)
    assert tokens == expected[: len(tokens)] and set(expected[len(tokens) :]) <= {PAD}
    assert tokens[-1] in ENDS and not set(tokens[:-1]) & set(ENDS) and ours.finish_reason == ["eos"]
