"""Weights of few bits: quantised by hand here, and by torchao through transformers where it is installed."""

import copy

import pytest
import torch
from models import MASK, PAD, padded, tiny_llada
from probes import GRID
from torch import nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, BertConfig, BertForMaskedLM, LlamaConfig, LlamaForCausalLM

from dllm_generate import attach
from dllm_generate.backbone import Backbone
from dllm_generate.bundled import load
from dllm_generate.traits import traits_of

IDS = torch.tensor([[3, 1, 4, *[MASK] * 8]])
BATCH = padded([[5], [3, 1, 4, 1, 5], [9, 2, 6]])
CALL = {"max_new_tokens": 12, "block_length": 4, "return_dict_in_generate": True}
FACTS = {"mask_token_id": MASK, "logits_shift": False, "attention": "bidirectional", "pad_token_id": PAD}


class Int8Linear(nn.Module):
    """A linear layer whose weights are bytes, with one scale per row."""

    def __init__(self, linear: nn.Linear):
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.bias = linear.bias
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return F.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


def quantised(model, head=True):
    """A copy with bytes for the weights of all linear layers."""
    model = copy.deepcopy(model)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.Linear) and (head or module is not model.get_output_embeddings()):
            model.set_submodule(name, Int8Linear(module))
    return model


def scores(model):
    backbone = Backbone(model)
    positions, seen = torch.arange(IDS.shape[1])[None], torch.ones_like(IDS, dtype=torch.bool)
    with torch.no_grad():
        return backbone.scores(backbone.hidden_states(IDS, positions, seen, None))


def runs_everything(model, exact):
    """Logits of one canvas stay close, and every decoder and policy runs."""
    assert (scores(model) - scores(exact)).norm() < 0.03 * scores(exact).norm()
    for decoder in ({"decoder": "fixed"}, {"decoder": "threshold", "threshold": 0.5}, {"decoder": "wino"}):
        for policy in GRID:
            output = model.generate(**BATCH, **CALL, **decoder, **policy)
            assert output.confidence.isfinite().all() and MASK not in output.sequences[:, 5:]


def writes_the_same(model, exact, tokenizer):
    """On a model that knows something, bytes lose next to nothing."""
    tokenizer.padding_side = "left"
    chats = [[{"role": "user", "content": f"Add {pair} column by column."}] for pair in ("381 and 457", "12 and 35")]
    inputs = tokenizer.apply_chat_template(
        chats, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True
    )
    for policy in ("none", "prefix", "dual", "vicinity"):
        options = {"max_new_tokens": 32, "decoder": "threshold", "threshold": 0.9, "cache_policy": policy}
        ids, expected = (m.generate(**inputs, **options)[:, inputs["input_ids"].shape[1] :] for m in (model, exact))
        width = min(ids.shape[1], expected.shape[1])
        assert (ids[:, :width] == expected[:, :width]).float().mean() > 0.9


@pytest.mark.parametrize("head", [True, False], ids=["quantised head", "head as it was"])
def test_bytes_for_weights(head):
    exact = tiny_llada()
    model = quantised(exact, head)
    assert isinstance(model.get_output_embeddings(), Int8Linear) is head
    runs_everything(model, exact)
    layers = [module for module in model.modules() if isinstance(module, Int8Linear)]
    assert len(layers) == 14 + head and all(layer.calls > 100 for layer in layers)


def test_a_trained_model_writes_the_same():
    exact, tokenizer = load(dtype="float32", device="cpu")
    writes_the_same(quantised(exact), exact, tokenizer)


def test_rows_are_single_runs():
    model = quantised(tiny_llada())
    options = {**CALL, "cache_policy": "dual", "decoder": "threshold", "threshold": 0.4, "smoothing": True}
    output = model.generate(**BATCH, **options)
    for row, prompt in enumerate(([5], [3, 1, 4, 1, 5], [9, 2, 6])):
        alone = model.generate(torch.tensor([prompt]), **options)
        length = int((alone.commit_step[0] >= 0).sum())
        assert torch.equal(output.sequences[row, 5 : 5 + length], alone.sequences[0, len(prompt) :][:length])


@pytest.mark.parametrize("cls", [LlamaForCausalLM, BertForMaskedLM])
@pytest.mark.parametrize("tied", [True, False])
def test_quantised_models_of_no_family(cls, tied):
    """The head may be the input embeddings, a module of bytes, or a part of a larger one."""
    config = LlamaConfig if cls is LlamaForCausalLM else BertConfig
    values = {"is_causal": False} if cls is LlamaForCausalLM else {}
    torch.manual_seed(0)
    model = cls(
        config(
            vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
            tie_word_embeddings=tied, **values,
        )
    ).eval()  # fmt: skip
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    small = attach(quantised(model, head=not tied))
    assert traits_of(small).takes_cache and traits_of(small).head == ("module" if values == {} else "embeddings")
    attach(model)
    assert (scores(small) - scores(model)).norm() < 0.05 * scores(model).norm()
    for policy in ("none", "dual"):
        options = {**FACTS, "max_new_tokens": 9, "block_length": 4, "cache_policy": policy, "eos_token_id": MASK}
        assert MASK not in small.generate(**BATCH, **options)[:, 5:]


def load_torchao(folder, config, **kwargs):
    from transformers import TorchAoConfig

    return AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, device_map="cpu", quantization_config=TorchAoConfig(config, **kwargs)
    )


def test_torchao_int8_through_transformers(tmp_path):
    ao = pytest.importorskip("torchao.quantization", reason="torchao is not installed: extra `quant`")
    exact = tiny_llada()
    exact.save_pretrained(tmp_path)
    model = load_torchao(tmp_path, ao.Int8WeightOnlyConfig())
    weight = model.model.layers[0].self_attn.q_proj.weight
    assert type(weight).__module__.startswith("torchao") and not isinstance(exact.lm_head.weight, type(weight))
    runs_everything(model, exact)


def test_torchao_int8_on_a_trained_model(tmp_path):
    ao = pytest.importorskip("torchao.quantization", reason="torchao is not installed: extra `quant`")
    exact, tokenizer = load(dtype="float32", device="cpu")
    exact.save_pretrained(tmp_path)
    writes_the_same(load_torchao(tmp_path, ao.Int8WeightOnlyConfig()), exact, tokenizer)


def test_torchao_four_bits_through_transformers(tmp_path):
    """Too coarse for weights that are noise; the layers run, and give what they would give alone."""
    ao = pytest.importorskip("torchao.quantization", reason="torchao is not installed: extra `quant`")
    tiny_llada().save_pretrained(tmp_path)
    model = load_torchao(tmp_path, ao.IntxWeightOnlyConfig(weight_dtype=torch.int4))
    weight = model.model.layers[0].self_attn.q_proj.weight
    assert type(weight).__module__.startswith("torchao")
    torch.testing.assert_close(scores(model), model(IDS).logits, atol=1e-5, rtol=1e-5)
    for policy in GRID:
        output = model.generate(**BATCH, **CALL, **policy)
        assert output.confidence.isfinite().all() and MASK not in output.sequences[:, 5:]
