"""Fast-dLLM v2 against logits of its published code, and as a citizen of transformers."""

import torch
from models import padded
from published import BlockCausalModel

from dllm_generate.decoders.threshold import ThresholdDecoder
from dllm_generate.families import family_of
from dllm_generate.families.fast_dllm import (
    FAST_DLLM,
    Fast_dLLM_QwenConfig,
    Fast_dLLM_QwenForCausalLM,
    Fast_dLLM_QwenModel,
)
from dllm_generate.schedules.seeded import SeededSchedule


class TestFastDLLM(BlockCausalModel):
    folder = "fast_dllm_v2_qwen"
    model_class, body_class = Fast_dLLM_QwenForCausalLM, Fast_dLLM_QwenModel
    config_class = Fast_dLLM_QwenConfig
    blocks = (4, 8, 8)
    parameters = 7_615_616_512
    published = {
        "architectures": ["Fast_dLLM_QwenForCausalLM"],
        "attention_dropout": 0.0,
        "auto_map": {
            "AutoConfig": "configuration.Fast_dLLM_QwenConfig",
            "AutoModelForCausalLM": "modeling.Fast_dLLM_QwenForCausalLM",
        },
        "bd_size": 32,
        "bos_token_id": 151643,
        "eos_token_id": 151645,
        "hidden_act": "silu",
        "hidden_size": 3584,
        "initializer_range": 0.02,
        "intermediate_size": 18944,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "model_type": "Fast_dLLM_Qwen",
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.53.1",
        "use_cache": True,
        "use_sliding_window": False,
        "vocab_size": 152064,
    }


def test_family():
    family = family_of(TestFastDLLM().load())
    assert (family.name, family.mask_token_id, family.logits_shift) == ("fast_dllm", 63, True)
    assert (family.attention, family.block_length, family.prompt_is_one_block) == ("block_causal", 8, False)
    assert (FAST_DLLM.block_length, FAST_DLLM.special_token_ids) == (32, {"eos": 151645})


def test_a_config_that_does_not_name_the_mask_token():
    config = Fast_dLLM_QwenConfig()
    assert (config.block_length, config.mask_token_id, config.eos_token_id) == (32, 151665, 151645)


def test_generate_runs_the_published_sampler():
    """Strictly above 0.9, sub-blocks of 8 behind a seed step, complete blocks in the cache."""
    model, inputs = TestFastDLLM().load(bd_size=16), padded([[3, 9, 27], [7] * 16, [40] * 21])
    output = model.generate(**inputs, max_new_tokens=40, return_dict_in_generate=True)
    again = model.generate(
        **inputs,
        max_new_tokens=40,
        decoder=ThresholdDecoder(0.9, strict=True),
        schedule=SeededSchedule(16, sub_block_length=8),
        cache_policy="block",
        return_dict_in_generate=True,
    )
    fixed = model.generate(**inputs, max_new_tokens=40, schedule="block_diffusion", decoder="fixed")
    assert output.sequences.equal(again.sequences) and output.commit_step.equal(again.commit_step)
    assert not output.sequences.equal(fixed)


def test_blocks_shorter_than_a_published_sub_block():
    model = TestFastDLLM().load(bd_size=4)
    assert model.generate(torch.tensor([[5, 9, 11]]), max_new_tokens=9).shape[1] <= 12
