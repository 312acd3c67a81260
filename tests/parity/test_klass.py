"""KLASS step by step: the real loop on stored logits."""

import pytest
import torch
from kit import cases, documented, tensors
from models import Scripted

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.decoders.klass import KlassDecoder

CASES = {case["id"]: case for case in cases("scripted/klass")}
LOGITS = tensors("scripted/klass")
# The published history reaches into the block before, whose steps saw the whole canvas.
ACROSS_BLOCKS = {"k17"}
UNMASK = {"all": "all", "max_conf": "max_confidence", "min_kl": "min_kl"}


def run(case):
    params, logits = case["params"], LOGITS[case["id"]].to(getattr(torch, case["run_dtype"]))
    model = Scripted(lambda call: logits[call.number], vocab_size=logits.shape[-1]).to(logits.dtype)
    model.generation_config.eos_token_id = None
    decoder = KlassDecoder(
        steps=params["steps"],
        threshold=params["conf_threshold"],
        kl_threshold=params["kl_threshold"],
        history=params["kl_history_length"],
        unmask=UNMASK[params["unmask_strategy"]],
    )
    options = {"max_new_tokens": params["gen_length"], "block_length": params["block_length"], "decoder": decoder}
    output = model.generate(torch.tensor(case["prompt"]), generation_config=DiffusionGenerationConfig(**options))
    return [call.input_ids.tolist() for call in model.calls], output.tolist()


@pytest.mark.parametrize("name", sorted(set(CASES) - ACROSS_BLOCKS))
def test_every_step(name):
    inputs, output = run(CASES[name])
    assert inputs == CASES[name]["x_before_each_forward"]
    assert output == CASES[name]["output"]


def test_the_documented_number():
    assert documented("klass") == (len(CASES), len(CASES) - len(ACROSS_BLOCKS), 0, 0, len(ACROSS_BLOCKS))
