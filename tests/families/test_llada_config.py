"""LLaDA's config: the published names and values, and what is refused."""

import json
import warnings
from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModel

from dllm_generate.families.llada import LLaDAConfig, LLaDAForMaskedDiffusion

GOLDEN = Path(__file__).parents[1] / "golden" / "models"
# LLaDA-8B in the published config format.
PUBLISHED = json.loads("""
{"activation_type": "silu", "alibi": false, "alibi_bias_max": 8.0, "architectures": ["LLaDAModelLM"],
 "attention_dropout": 0.0, "attention_layer_norm": false, "attention_layer_norm_with_affine": true,
 "bias_for_layer_norm": false, "block_group_size": 1, "block_type": "llama", "d_model": 4096,
 "embedding_dropout": 0.0, "embedding_size": 126464, "eos_token_id": 126081, "flash_attention": false,
 "include_bias": false, "include_qkv_bias": false, "init_cutoff_factor": null, "init_device": "meta",
 "init_fn": "mitchell", "init_std": 0.02, "input_emb_norm": false, "layer_norm_type": "rms",
 "layer_norm_with_affine": true, "mask_token_id": 126336, "max_sequence_length": 4096, "model_type": "llada",
 "mlp_hidden_size": 12288, "mlp_ratio": 4, "multi_query_attention": null, "n_heads": 32, "n_kv_heads": 32,
 "n_layers": 32, "pad_token_id": 126081, "precision": "amp_bf16", "residual_dropout": 0.0, "rms_norm_eps": 1e-05,
 "rope": true, "rope_full_precision": true, "rope_theta": 500000.0, "scale_logits": false, "use_cache": false,
 "vocab_size": 126464, "weight_tying": false}
""")


def write_config(folder, **changes):
    config = json.loads((GOLDEN / "llada_dense" / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **changes}))
    return folder


def test_a_published_auto_map_does_not_bring_the_remote_code_back(tmp_path):
    write_config(tmp_path, auto_map={"AutoConfig": "c.LLaDAConfig", "AutoModel": "m.LLaDAModelLM"})
    model = AutoModel.from_config(AutoConfig.from_pretrained(tmp_path, trust_remote_code=True))
    assert type(model) is LLaDAForMaskedDiffusion


def test_published_config_is_llada_8b(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(PUBLISHED))
    config = AutoConfig.from_pretrained(tmp_path)
    assert json.loads(config.to_json_string()) | PUBLISHED == json.loads(config.to_json_string())
    with torch.device("meta"):
        model = LLaDAForMaskedDiffusion(config)
    assert model.num_parameters() == 8_015_581_184
    default = LLaDAConfig(architectures=config.architectures).to_diff_dict()
    assert default == {name: value for name, value in config.to_diff_dict().items() if name in default}


@pytest.mark.parametrize(
    "changes, field, value",
    [
        ({"mlp_hidden_size": None}, "intermediate_size", 128),
        ({"n_kv_heads": None}, "n_kv_heads", 4),
        ({"n_kv_heads": None, "multi_query_attention": True}, "num_key_value_heads", 1),
        ({"embedding_size": None}, "vocab_size", 64),
        ({"vocab_size": 50}, "embedding_size", 64),
        ({"rope_theta": 1000}, "rope_parameters", {"rope_theta": 1000, "rope_type": "default"}),
        ({"d_model": 64}, "head_dim", 16),
        ({"max_sequence_length": 77}, "max_position_embeddings", 77),
    ],
)
def test_published_names(changes, field, value, tmp_path):
    config = AutoConfig.from_pretrained(write_config(tmp_path, **changes))
    assert getattr(config, field) == value
    config.save_pretrained(tmp_path)
    again = AutoConfig.from_pretrained(tmp_path)
    assert getattr(again, field) == value
    assert getattr(LLaDAConfig(**config.to_dict()), field) == value


def test_sampling_values_move_out_with_one_warning(tmp_path):
    write_config(tmp_path, temperature=0.7, top_p=0.9, do_sample=True, max_new_tokens=17, top_k=None)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        config = AutoConfig.from_pretrained(tmp_path)
    message = "The model config holds sampling values (max_new_tokens, do_sample, temperature, top_p)."
    assert sum(message in str(warning.message) for warning in caught) == 1
    assert config.sampling_defaults == {"temperature": 0.7, "top_p": 0.9, "do_sample": True, "max_new_tokens": 17}
    assert config.mask_token_id == 63
    config.save_pretrained(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert AutoConfig.from_pretrained(tmp_path).sampling_defaults == {}


@pytest.mark.parametrize(
    "changes, named",
    [
        ({"num_experts": 8}, "LLaDA-MoE"),
        ({"alibi": True}, "`alibi`=True"),
        ({"include_qkv_bias": True}, "`include_qkv_bias`=True"),
        ({"block_type": "sequential"}, "`block_type`='sequential'"),
        ({"mlp_bias": True}, "`mlp_bias`=True"),
        ({"head_dim": 16}, "`head_dim`=16"),
    ],
)
def test_other_architectures_are_refused(changes, named, tmp_path):
    with pytest.raises(ValueError, match=named):
        AutoConfig.from_pretrained(write_config(tmp_path, **changes))


def test_small_config_without_ids_has_none():
    config = LLaDAConfig(d_model=32, n_heads=4, n_layers=1, mlp_hidden_size=64, vocab_size=64)
    assert (config.mask_token_id, config.eos_token_id, config.pad_token_id) == (None, None, None)
    assert LLaDAForMaskedDiffusion(config)(torch.arange(4)[None]).logits.shape == (1, 4, 64)
