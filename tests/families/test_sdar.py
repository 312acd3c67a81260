"""SDAR against logits of its published code, and as a citizen of transformers."""

from published import BlockCausalModel

from dllm_generate.families import family_of
from dllm_generate.families.sdar import SDAR, SDARConfig, SDARForCausalLM, SDARModel


class TestSDAR(BlockCausalModel):
    folder = "sdar"
    model_class, body_class, config_class = SDARForCausalLM, SDARModel, SDARConfig
    blocks = (4, 8, 4)
    parameters = 2_031_739_904
    # The 1.7B chat model.
    published = {
        "architectures": ["SDARForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "attn_implementation": "flex_attention",
        "auto_map": {
            "AutoConfig": "configuration_sdar.SDARConfig",
            "AutoModel": "modeling_sdar.SDARModel",
            "AutoModelForCausalLM": "modeling_sdar.SDARForCausalLM",
        },
        "block_size": 4,
        "bos_token_id": 151643,
        "debug": False,
        "eos_token_id": 151643,
        "ep_size": 1,
        "fuse_cross_entropy": True,
        "head_dim": 128,
        "hidden_act": "silu",
        "hidden_size": 2048,
        "initializer_range": 0.02,
        "intermediate_size": 6144,
        "mask_token_id": 151669,
        "max_position_embeddings": 32768,
        "max_window_layers": 28,
        "micro_forward": False,
        "model_type": "sdar",
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000,
        "skip_checkpoint": False,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.52.4",
        "use_cache": False,
        "use_deepep": False,
        "use_sliding_window": False,
        "vocab_size": 151936,
    }


def test_family():
    family = family_of(TestSDAR().load())
    assert (family.name, family.mask_token_id, family.logits_shift) == ("sdar", 63, False)
    assert (family.attention, family.block_length, family.prompt_is_one_block) == ("block_causal", 4, False)
    assert SDAR.special_token_ids == {"eos": 151643, "eot": 151645}


def test_defaults_are_the_8b_model():
    config = SDARConfig()
    assert (config.block_length, config.mask_token_id, config.head_dim) == (4, 151669, 128)
    assert config.rope_parameters == {"rope_theta": 1_000_000.0, "rope_type": "default"}
