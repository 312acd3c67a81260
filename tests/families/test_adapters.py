"""LoRA adapters: by transformers and by peft, in the names of the model and in the published ones."""

import copy
import json

import pytest
import torch
from models import MASK, padded, tiny_llada
from safetensors.torch import save_file

from dllm_generate import attach, diffusion_generate
from dllm_generate.families.adapters import adapter_config
from dllm_generate.families.dream import DreamConfig, DreamForMaskedDiffusion

peft = pytest.importorskip("peft", reason="LoRA adapters need peft")
BATCH = padded([[5], [3, 1, 4, 1, 5]])
CALL = {"max_new_tokens": 12, "block_length": 4, "decoder": "threshold", "threshold": 0.3, "cache_policy": "dual"}
# As D2F publishes them (arXiv 2508.09192): rank and scale of 32, on the attention of every layer.
LLADA = {"q_proj": "q_proj", "k_proj": "k_proj", "v_proj": "v_proj", "attn_out": "o_proj"}
QWEN = {name: name for name in ("q_proj", "k_proj", "v_proj", "o_proj")}


def tiny_dream():
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    torch.manual_seed(0)
    config = DreamConfig(**sizes, num_attention_heads=4, num_key_value_heads=2, mask_token_id=MASK)
    return DreamForMaskedDiffusion(config).eval()


def write(folder, model, names, layer="model.transformer.blocks.{}", **config):
    """Writes an adapter; `names` maps published names of layers to those of the model."""
    values = {"peft_type": "LORA", "r": 32, "lora_alpha": 32, "target_modules": list(names), "lora_dropout": 0.1}
    (folder / "adapter_config.json").write_text(
        json.dumps({**values, "bias": "none", "inference_mode": True, **config})
    )
    tensors = {}
    torch.manual_seed(1)
    for number, block in enumerate(model.model.layers):
        for published, name in names.items():
            linear = getattr(block.self_attn, name)
            key = f"base_model.model.{layer.format(number)}.{published}.lora_"
            tensors[f"{key}A.weight"] = 0.1 * torch.randn(32, linear.in_features)
            tensors[f"{key}B.weight"] = 0.1 * torch.randn(linear.out_features, 32)
    save_file(tensors, folder / "adapter_model.safetensors")
    return folder


def merged(model, folder, layer):
    """The weights of the model plus those of the adapter, added by hand."""
    from safetensors.torch import load_file

    model, tensors = copy.deepcopy(model), load_file(folder / "adapter_model.safetensors")
    published = LLADA if any("attn_out" in key for key in tensors) else QWEN
    with torch.no_grad():
        for number, block in enumerate(model.model.layers):
            for theirs, ours in published.items():
                key = f"base_model.model.{layer.format(number)}.{theirs}.lora_"
                getattr(block.self_attn, ours).weight += tensors[f"{key}B.weight"] @ tensors[f"{key}A.weight"]
    return model


def layers(model, act, adapter="default"):
    """Does something to every adapted layer; the methods of transformers ask for a peft that is not out yet."""
    for module in model.modules():
        if isinstance(module, peft.tuners.tuners_utils.BaseTunerLayer) and adapter in module.lora_A:
            act(module)


CASES = {
    "llada, published names": (tiny_llada, LLADA, "model.transformer.blocks.{}"),
    "llada, names of the model": (tiny_llada, QWEN, "model.layers.{}.self_attn"),
    "dream": (tiny_dream, QWEN, "model.layers.{}.self_attn"),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("way", ["load_adapter", "PeftModel"])
def test_an_adapter_generates_as_the_merged_model(tmp_path, case, way):
    make, names, layer = CASES[case]
    base = make()
    folder = write(tmp_path, base, names, layer)
    plain, expected = base.generate(**BATCH, **CALL), merged(base, folder, layer).generate(**BATCH, **CALL)
    assert not torch.equal(plain, expected)
    model = copy.deepcopy(base)
    if way == "load_adapter":
        report = model.load_adapter(folder)
        assert not report.missing_keys and not report.unexpected_keys
    else:
        model = peft.PeftModel.from_pretrained(model, folder, config=adapter_config(model, folder))
    assert sum("lora_" in name for name, _ in model.named_parameters()) == 2 * 4 * 2
    assert torch.equal(model.generate(**BATCH, **CALL), expected)
    assert torch.equal(diffusion_generate(model, **BATCH, **CALL), expected)
    if way == "load_adapter":
        layers(model, lambda layer: layer.enable_adapters(False))
        assert torch.equal(model.generate(**BATCH, **CALL), plain)
        layers(model, lambda layer: layer.enable_adapters(True))
        assert torch.equal(model.generate(**BATCH, **CALL), expected)
        return
    with model.disable_adapter():
        assert torch.equal(model.generate(**BATCH, **CALL), plain)
    assert torch.equal(model.merge_and_unload().generate(**BATCH, **CALL), expected)


def test_half_of_an_adapter_is_not_taken_for_the_whole(tmp_path):
    """peft alone finds no `attn_out`, and says nothing."""
    model = tiny_llada()
    folder = write(tmp_path, model, LLADA)
    half = peft.PeftModel.from_pretrained(model, folder)
    with pytest.raises(ValueError, match=r"targets \['attn_out'\], but LLaDAForMaskedDiffusion has no layers of these"):
        half.generate(**BATCH, **CALL)


def test_ranks_of_single_layers_and_layers_that_are_not_there(tmp_path):
    model = tiny_llada()
    config = adapter_config(model, write(tmp_path, model, LLADA, rank_pattern={"attn_out": 8, "q_proj": 4}))
    assert sorted(config.target_modules) == ["k_proj", "o_proj", "q_proj", "v_proj"]
    assert config.rank_pattern == {"o_proj": 8, "q_proj": 4}
    for number, layers in ((1, "model.transformer.blocks.7{}"), (2, "model.decoder.{}")):
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(ValueError, match="has layers that LLaDAForMaskedDiffusion has not: .*attn_out"):
            adapter_config(model, write(folder, model, LLADA, layers))


def test_an_adapter_of_some_layers_only(tmp_path):
    """Its targets cannot be said by the ends of their names."""
    model = tiny_llada()
    folder = write(tmp_path, model, {"attn_out": "o_proj"})
    from safetensors.torch import load_file

    tensors = {key: value for key, value in load_file(folder / "adapter_model.safetensors").items() if ".1." in key}
    save_file(tensors, folder / "adapter_model.safetensors")
    assert adapter_config(model, folder).target_modules == ["model.layers.1.self_attn.o_proj"]
    assert not model.load_adapter(folder).missing_keys


def test_two_adapters(tmp_path):
    base = tiny_llada()
    model = copy.deepcopy(base)
    model.load_adapter(write(tmp_path, model, LLADA), "first")
    one = model.generate(**BATCH, **CALL)
    second = tmp_path / "second"
    second.mkdir()
    model.load_adapter(write(second, base, {"q_proj": "q_proj"}), "second")
    layers(model, lambda layer: layer.set_adapter("second"), "second")
    other = model.generate(**BATCH, **CALL)
    layers(model, lambda layer: layer.set_adapter("first"), "first")
    assert torch.equal(model.generate(**BATCH, **CALL), one) and not torch.equal(one, other)


def test_attach_reaches_the_model_inside(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    stock = LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, is_causal=False)).eval()
    facts = {"mask_token_id": MASK, "logits_shift": False, "attention": "bidirectional", "eos_token_id": MASK}
    folder = write(tmp_path, stock, QWEN, "model.layers.{}.self_attn", task_type="CAUSAL_LM")
    expected = attach(merged(stock, folder, "model.layers.{}.self_attn")).generate(**BATCH, **CALL, **facts)
    model = attach(peft.PeftModel.from_pretrained(stock, folder))
    assert isinstance(model, peft.PeftModelForCausalLM)
    assert torch.equal(model.generate(**BATCH, **CALL, **facts), expected)
    assert torch.equal(diffusion_generate(model, **BATCH, **CALL, **facts), expected)


def test_virtual_tokens_are_refused():
    model = peft.get_peft_model(tiny_llada(), peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    for refused in (attach, lambda m: diffusion_generate(m, **BATCH, **CALL)):
        with pytest.raises(ValueError, match="PROMPT_TUNING puts virtual tokens in front of the prompt"):
            refused(model)
