"""Turns a snapshot of `train_tiny.py` into a folder that is laid out like a model repository on the Hub.

python examples/export_tiny.py runs/tiny/final model_cards/dllm-tiny
python examples/export_tiny.py runs/tiny-ar/final model_cards/dllm-tiny-ar --causal
python examples/export_tiny.py runs/tiny-block/final model_cards/dllm-tiny-block --block-length 32
"""

import argparse

import torch
from transformers import AutoTokenizer, GenerationConfig, LlamaForCausalLM

from dllm_generate import DiffusionGenerationConfig, LLaDAConfig, LLaDAForMaskedDiffusion


def to_llada(stock, mask_token_id):
    """The same weights as a LLaDA model; `save_pretrained` then writes the published names."""
    config = LLaDAConfig(
        vocab_size=stock.config.vocab_size,
        hidden_size=stock.config.hidden_size,
        intermediate_size=stock.config.intermediate_size,
        num_hidden_layers=stock.config.num_hidden_layers,
        num_attention_heads=stock.config.num_attention_heads,
        num_key_value_heads=stock.config.num_key_value_heads,
        max_position_embeddings=stock.config.max_position_embeddings,
        rms_norm_eps=stock.config.rms_norm_eps,
        rope_theta=stock.config.rope_parameters["rope_theta"],
        tie_word_embeddings=stock.config.tie_word_embeddings,
        initializer_range=stock.config.initializer_range,
        pad_token_id=stock.config.pad_token_id,
        eos_token_id=stock.config.eos_token_id,
        mask_token_id=mask_token_id,
    )
    model = LLaDAForMaskedDiffusion(config)
    model.load_state_dict(stock.state_dict())
    return model.to(stock.dtype)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("snapshot", help="folder with the trained weights")
    parser.add_argument("folder", help="where the repository is written")
    parser.add_argument("--tokenizer", help="default: the parent folder of the snapshot")
    parser.add_argument("--causal", action="store_true", help="the autoregressive twin: stays a Llama model")
    parser.add_argument("--block-length", type=int, help="of a model that attends block-causally")
    options = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(options.tokenizer or f"{options.snapshot}/..")
    model = LlamaForCausalLM.from_pretrained(options.snapshot, dtype=torch.bfloat16)
    ids = {"eos_token_id": tokenizer.eos_token_id, "pad_token_id": tokenizer.pad_token_id, "do_sample": False}
    if options.causal:
        model.config.use_cache = True
        model.generation_config = GenerationConfig(**ids)
    else:
        model = to_llada(model, tokenizer.mask_token_id)
        if options.block_length:
            ids |= {"attention": "block_causal", "block_length": options.block_length}
        model.generation_config = DiffusionGenerationConfig(mask_token_id=tokenizer.mask_token_id, **ids)
    model.save_pretrained(options.folder)
    tokenizer.save_pretrained(options.folder)


if __name__ == "__main__":
    main()
