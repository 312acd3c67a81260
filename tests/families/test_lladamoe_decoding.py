"""LLaDA-MoE through `generate`."""

import pytest
import torch
from models import EOS, MASK, PAD, VOCABULARY, padded
from torch import nn

from dllm_generate.families.lladamoe import LLADA_MOE, LLaDAMoEConfig, LLaDAMoEForMaskedDiffusion


def tiny(seed=0, **config):
    """Random weights, wide enough that no choice of a token is near a tie; a dense layer and a shared expert."""
    torch.manual_seed(seed)
    model = LLaDAMoEForMaskedDiffusion(
        LLaDAMoEConfig(
            vocab_size=VOCABULARY, hidden_size=32, dense_intermediate_size=48, expert_intermediate_size=32,
            shared_expert_intermediate_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=2,
            num_experts=8, num_experts_per_tok=2, moe_layer_freq=[0, 1, 1], max_position_embeddings=512,
            **{"mask_token_id": MASK, "eos_token_id": EOS, "pad_token_id": PAD, **config},
        )
    ).eval()  # fmt: skip
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.35)
    return model


@pytest.mark.parametrize("decoder", ["fixed", "threshold", "credit"])
@pytest.mark.parametrize("policy", ["none", "prefix", "dual", "vicinity"])
def test_rows_of_a_batch_equal_their_single_runs(policy, decoder):
    model = tiny()
    prompts = [[5, 9, 11, 3, 3, 20, 31], [7], [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]]
    options = {"max_new_tokens": 20, "block_length": 8, "cache_policy": policy, "decoder": decoder}
    together = model.generate(**padded(prompts), **options, return_dict_in_generate=True)
    for row, prompt in enumerate(prompts):
        alone = model.generate(torch.tensor([prompt]), **options, return_dict_in_generate=True)
        text = alone.sequences[0, len(prompt) :].tolist()
        assert together.sequences[row, 12 : 12 + len(text)].tolist() == text
        assert together.num_forwards[row] == alone.num_forwards[0]


def test_refreshing_in_every_step_equals_no_cache():
    model, prompt = tiny(), torch.tensor([[5, 9, 11]])
    options = {"max_new_tokens": 20, "block_length": 8, "decoder": "threshold"}
    plain = model.generate(prompt, cache_policy="none", **options)
    cached = model.generate(prompt, cache_policy="dual", policy_config={"refresh_interval": 1}, **options)
    assert torch.equal(plain, cached)


def test_published_preset_is_the_default():
    model, prompt = tiny(), torch.tensor([[5, 9, 11]])
    assert LLADA_MOE.presets["published"]["decoder"] == "fixed"
    output = model.generate(prompt, max_new_tokens=8, return_dict_in_generate=True)
    assert output.num_forwards.tolist() == [int((output.commit_step[0] >= 0).sum())]
