"""Whole runs on a tiny LLaDA-MoE through `generate`, against dInfer's block-wise loop."""

import pytest
import torch
from dinfer import decoder_of
from kit import GOLDEN, cases, documented

from dllm_generate.families.lladamoe import LLaDAMoEForMaskedDiffusion

GROUP = "dinfer_llada_moe"
TRACES = {trace["id"]: trace for trace in cases("models/block_traces") if trace["group"] == GROUP}


@pytest.fixture(scope="module")
def models():
    names = {trace["model"] for trace in TRACES.values()}
    return {name: LLaDAMoEForMaskedDiffusion.from_pretrained(GOLDEN / "models" / name).eval() for name in names}


@pytest.mark.parametrize("name", TRACES)
def test_tokens_and_forwards(name, models):
    trace = TRACES[name]
    output = models[trace["model"]].generate(
        torch.tensor(trace["prompt"]),
        max_new_tokens=trace["params"]["gen_length"],
        block_length=trace["params"]["block_length"],
        decoder=decoder_of(trace),
        cache_policy="none",
        return_dict_in_generate=True,
    )
    assert output.sequences.tolist() == trace["output"]
    assert output.num_forwards.tolist() == [trace["num_forwards"]]


def test_the_documented_number():
    assert documented(GROUP) == (len(TRACES), len(TRACES), 0, 0, 0)
    assert all(trace["stable"] for trace in TRACES.values())
