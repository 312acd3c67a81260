"""Accuracy by kind of token."""

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dllm_generate.evaluation.vocabulary import PIECES
from dllm_generate.training.diagnostics import class_accuracy, token_classes
from dllm_generate.training.tokenizer import build_tokenizer


def test_classes():
    texts = ["k", ": ", "4", "+", "7", "=", "1", "1", "\n", "Sum ", "9", "Anna"]
    expected = "word template digit template digit template result result template template result word".split()
    assert token_classes(texts, frozenset({"Anna"})) == expected


@pytest.mark.parametrize("causal", [False, True])
def test_report_has_every_task_and_class(causal):
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1, "num_attention_heads": 1}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=512, **sizes))
    problems = [("map", "Add 4 to each: k=3.", "k: 3+4=07"), ("map", "Add 5 to each: k=3.", "k: 3+5=08")]
    problems.append(("x", "a", "b"))
    report = class_accuracy(model, build_tokenizer(PIECES), problems, frozenset(), causal)
    assert set(report) == {"map", "x"}
    assert set(report["map"]) == {"answer", "digit", "result", "template", "word"}
    assert all(0 <= value <= 1 for value in report["map"].values())
