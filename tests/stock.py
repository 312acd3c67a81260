"""Small random models of transformers' own classes, and decoding written out with their plain calls."""

import torch
import transformers
from models import EOS, MASK, PAD, padded
from promises import compare
from torch import nn

FACTS = {"mask_token_id": MASK, "logits_shift": False, "attention": "bidirectional"}
CALL = {**FACTS, "eos_token_id": EOS, "pad_token_id": PAD, "return_dict_in_generate": True}
PROMPTS = [[5], [3, 1, 4, 1, 5], [9, 2, 6]]
SIZES = {
    "vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 128, "pad_token_id": PAD, "bos_token_id": 1,
}  # fmt: skip
LLAMA = {**SIZES, "num_key_value_heads": 2, "head_dim": 8, "is_causal": False}
EXPERTS = {**LLAMA, "num_experts": 4, "num_experts_per_tok": 2}
DISTIL = {"vocab_size": 64, "dim": 32, "hidden_dim": 64, "n_layers": 2, "n_heads": 4, "max_position_embeddings": 128}
# Class, config class, its values, and what the probe has to find where it is not the default.
DECODERS = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", LLAMA, {}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", LLAMA, {}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", LLAMA, {}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**LLAMA, "sliding_window": None}, {}),
    "qwen3_moe": ("Qwen3MoeForCausalLM", "Qwen3MoeConfig", {**EXPERTS, "moe_intermediate_size": 16}, {}),
    "olmoe": ("OlmoeForCausalLM", "OlmoeConfig", EXPERTS, {}),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {"vocab_size": 64, "n_embd": 32, "n_head": 4, "n_layer": 2, "n_positions": 128, "is_causal": False},
        {},
    ),
    "granite": ("GraniteForCausalLM", "GraniteConfig", {**LLAMA, "logits_scaling": 4.0}, {"head": "module"}),
}
SLIDING = {
    "mistral": ("MistralForCausalLM", "MistralConfig", {**LLAMA, "sliding_window": 3}, {}),
    "gemma3": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {**LLAMA, "sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]},
        {"layered": True},
    ),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {**SIZES, "local_attention": 6, "global_attn_every_n_layers": 2},
        {"head": "module", "layered": True},
    ),
}
HEAD, OLD = {"head": "module"}, {"head": "module", "takes_cache": False}
ENCODERS = {
    "bert": ("BertForMaskedLM", "BertConfig", SIZES, HEAD),
    "roberta": ("RobertaForMaskedLM", "RobertaConfig", SIZES, {**HEAD, "first_position": PAD + 1}),
    "xlm-roberta": ("XLMRobertaForMaskedLM", "XLMRobertaConfig", SIZES, {**HEAD, "first_position": PAD + 1}),
    "electra": ("ElectraForMaskedLM", "ElectraConfig", {**SIZES, "embedding_size": 32}, HEAD),
    "albert": ("AlbertForMaskedLM", "AlbertConfig", {**SIZES, "embedding_size": 16}, OLD),
    "distilbert": ("DistilBertForMaskedLM", "DistilBertConfig", DISTIL, OLD),
    "deberta": ("DebertaV2ForMaskedLM", "DebertaV2Config", SIZES, {**OLD, "masks": "keys"}),
    "mpnet": ("MPNetForMaskedLM", "MPNetConfig", SIZES, {**OLD, "own_positions": True}),
}
MODELS = {**DECODERS, **ENCODERS}


def build(name, table=MODELS):
    """Random weights, as wide as those of `tiny_llada`, and the traits that are expected."""
    cls, config, values, traits = table[name]
    torch.manual_seed(0)
    model = getattr(transformers, cls)(getattr(transformers, config)(**values)).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.35)
    return model, traits


def by_hand(model, ids, steps, shift=0):
    """Fills the masks of one row, the surest first, with plain calls of the model alone."""
    ids, order = ids.clone(), []
    opened = ids[0] == MASK
    for _ in range(steps):
        with torch.no_grad():
            output = model(input_ids=ids)
        logits = output[0] if isinstance(output, torch.Tensor) else output.logits[0]
        logits = logits.roll(shift, 0)
        logits[:, MASK] = -torch.inf
        confidence, tokens = logits.softmax(-1).max(-1)
        place = int(torch.where(opened, confidence, -1).argmax())
        ids[0, place], opened[place] = tokens[place], False
        order.append(place)
    return ids, order


def rows_are_single_runs(model, **options):
    output = model.generate(**padded(PROMPTS), **CALL, **options)
    for row, prompt in enumerate(PROMPTS):
        compare(output, row, model.generate(torch.tensor([prompt]), **CALL, **options))
    return output
