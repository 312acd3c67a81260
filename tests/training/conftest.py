"""Small random models in folders, one for each kind of logits and attention, and a file of chats."""

import json

import pytest
import torch
from models import byte_tokenizer, tiny_llada
from published_files import TINY
from transformers import LlamaConfig, LlamaForCausalLM

from dllm_generate.families.dream import DreamConfig, DreamForMaskedDiffusion
from dllm_generate.families.fast_dllm import Fast_dLLM_QwenConfig, Fast_dLLM_QwenForCausalLM
from dllm_generate.families.sdar import SDARConfig, SDARForCausalLM

NATIVE = {
    "dream": (DreamForMaskedDiffusion, DreamConfig),
    "sdar": (SDARForCausalLM, SDARConfig),
    "fast_dllm": (Fast_dLLM_QwenForCausalLM, Fast_dLLM_QwenConfig),
    "llama": (LlamaForCausalLM, LlamaConfig),
}


def tiny(name, tokenizer):
    torch.manual_seed(0)
    ids = {f"{kind}_token_id": getattr(tokenizer, f"{kind}_token_id") for kind in ("mask", "eos", "pad")}
    if name == "llada":
        return tiny_llada(vocabulary=len(tokenizer), **ids)
    model_class, config_class = NATIVE[name]
    if name == "llama":
        ids.pop("mask_token_id")
    sizes = {**TINY, "vocab_size": len(tokenizer), "max_position_embeddings": 512, "initializer_range": 0.2}
    blocks = {"block_length": 4} if name in ("sdar", "fast_dllm") else {}
    return model_class(config_class(**sizes, **blocks, **ids))


@pytest.fixture(scope="session")
def folders(tmp_path_factory):
    """`folders(name)` is the path of a saved model with its tokenizer, which has no chat template."""
    made = {}

    def folder(name):
        if name not in made:
            made[name], tokenizer = tmp_path_factory.mktemp(name), byte_tokenizer()
            tiny(name, tokenizer).save_pretrained(made[name])
            tokenizer.save_pretrained(made[name])
        return str(made[name])

    return folder


@pytest.fixture(scope="session")
def chats(tmp_path_factory):
    """A file of twelve questions with short answers."""
    path = tmp_path_factory.mktemp("data") / "chats.jsonl"
    lines = [{"prompt": f"{n} and {n + 1}?", "answer": str(2 * n + 1) * (1 + n % 3)} for n in range(12)]
    path.write_text("\n".join(map(json.dumps, lines)))
    return str(path)


@pytest.fixture
def recipe(folders, chats, tmp_path):
    """`recipe(name, **keys)` is a short run on a small model."""

    def make(name="llada", **keys):
        small = {"steps": 4, "rows": 4, "parts": 2, "save_every": 2, "log_every": 1, "max_length": 64, "keep": 5}
        start = {"output": str(tmp_path / "run"), "model": folders(name), "data": chats, "learning_rate": 1e-2}
        return {**start, **small, **keys}

    return make
