"""A tiny random model of every native family."""

import functools

import torch
from models import EOS, MASK, PAD
from torch import nn

from dllm_generate.families import base

COMMON = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "mask_token_id": MASK,
    "eos_token_id": EOS,
    "pad_token_id": PAD,
}
EXPERTS = {"num_experts": 8, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
SIZES = {
    "dream": {},
    "fast_dllm": {"bd_size": 4},
    "llada": {},
    "llada2_moe": {**EXPERTS, "n_group": 4, "topk_group": 2, "block_length": 4},
    "lladamoe": {**EXPERTS},
    "sdar": {"head_dim": 8},
    "sdar_moe": {**EXPERTS, "head_dim": 8},
}


@functools.cache
def member(name: str):
    """Random weights, wide enough that every token depends on all others and that no choice is near a tie."""
    entry = base._REGISTRY[name]
    torch.manual_seed(0)
    model = entry.model_class(entry.config_class(**COMMON, **SIZES[name])).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.35)
    nn.init.normal_(model.lm_head.weight, std=0.5)
    model.generation_config.update(eos_token_id=EOS, pad_token_id=PAD)
    return model
