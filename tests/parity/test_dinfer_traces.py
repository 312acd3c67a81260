"""Whole runs on a tiny LLaDA through `generate`, against dInfer's loops without soft embeddings.

A forward of theirs counts for a row if its decode call wrote to the row. The others are the second decode of an
iteration behind a refresh that completed the block, unrolled iterations on a finished block, and rows of a batch that
wait for their neighbours.
"""

import pytest
import torch
from dinfer import Published, decoder_of, text_of
from kit import GOLDEN, EndOfBlock, NarrowDual, PublishedRefresh, cases, documented, recorded_inputs
from models import EOS

from dllm_generate import DiffusionGenerationConfig, LLaDAForMaskedDiffusion
from dllm_generate.caches.dual import DualCachePolicy
from dllm_generate.caches.prefix import PrefixCachePolicy
from dllm_generate.caches.vicinity import VicinityCachePolicy

TRACES = {trace["id"]: trace for trace in cases("traces/traces_dinfer")}
# Its warm-up reaches into the last block.
SPILLED = "dinfer/vicinity_long_warmup_2"
GROUPS = ("dinfer", "dinfer_merge", "dinfer_hierarchy_fn")


@pytest.fixture(scope="module")
def models():
    return {
        f"model_{i}": LLaDAForMaskedDiffusion.from_pretrained(GOLDEN / "traces" / f"model_{i}").eval() for i in range(3)
    }


def policy_of(trace):
    params = trace["params"]
    if not params.get("cache"):
        return "none"
    policy = {"prefix": PrefixCachePolicy, "dual": DualCachePolicy}[params["cache"]["type"]]()
    if params["loop"].startswith("Vicinity"):
        # Behind its warm-up the published loop computes everything once more, to fill the cache.
        looks = {name: params.get(name, 0) for name in ("prefix_look", "after_look")}
        policy = VicinityCachePolicy(**looks, warmup_steps=params.get("warmup_steps", 0) + 1)
    if params.get("use_shift") and params["cache"]["type"] == "dual":
        policy = NarrowDual()
    frequency = params["cache"].get("update_freq")
    return PublishedRefresh(policy, frequency) if frequency or trace["id"] == SPILLED else policy


def align_of(trace):
    if trace["group"] == "dinfer_merge":
        return "end"
    return "position" if trace["params"].get("iterator", {}).get("start_block_align") else "prompt"


def generate(model, trace, rows=slice(None), **changes):
    """Returns the output, and the input ids of every forward."""
    config = DiffusionGenerationConfig(
        **{"decoder": decoder_of(trace), "cache_policy": policy_of(trace), **changes},
        max_new_tokens=trace["params"]["gen_length"],
        logits_shift=bool(trace["params"].get("use_shift")),
        return_dict_in_generate=True,
    )
    with recorded_inputs(model) as inputs:
        return model.generate(torch.tensor(trace["prompt"][rows]), generation_config=config), inputs


@pytest.mark.parametrize("name", TRACES)
def test_every_write_and_forward_of_a_row(name, models):
    """Each row alone, to the end of the block that holds its EOS: what every forward was given, and what it wrote."""
    trace = TRACES[name]
    for row in range(len(trace["prompt"])):
        schedule = EndOfBlock(trace["params"]["block_length"], align=align_of(trace))
        output, inputs = generate(models[trace["model"]], trace, slice(row, row + 1), schedule=schedule)
        published = Published.of(trace, row)
        assert schedule.writes[0] == published.writes
        assert [rows[0] for rows in inputs] == published.inputs
        assert output.sequences[0].tolist() == text_of(trace, row)


@pytest.mark.parametrize("name", [name for name, trace in TRACES.items() if len(trace["prompt"]) > 1])
def test_every_write_of_a_batch(name, models):
    """Rows of ours do not wait for each other; each makes the writes that it makes in the published batch."""
    trace = TRACES[name]
    schedule = EndOfBlock(trace["params"]["block_length"], align=align_of(trace))
    generate(models[trace["model"]], trace, schedule=schedule)
    for row in range(len(trace["prompt"])):
        assert schedule.writes[row] == Published.of(trace, row).writes


@pytest.mark.parametrize("name", TRACES)
def test_up_to_the_first_eos(name, models):
    """The package's own schedule ends a row at its EOS, and spends no forward behind it."""
    trace = TRACES[name]
    options = {"block_length": trace["params"]["block_length"], "schedule_config": {"align": align_of(trace)}}
    output, _ = generate(models[trace["model"]], trace, schedule="blockwise", **options)
    for row, prompt in enumerate(trace["prompt"]):
        text = text_of(trace, row)
        assert output.sequences[row, : len(text)].tolist() == text
        assert output.num_forwards[row] == Published.of(trace, row).steps_until_eos(prompt)


@pytest.mark.parametrize("group", GROUPS)
def test_the_documented_number(group):
    traces = [trace for trace in TRACES.values() if trace["group"] == group]
    # The published loop fills them up behind the EOS, or leaves masks there.
    cut = sum(any(EOS in row for row in trace.get("final_x", trace["output"])) for trace in traces)
    assert documented(group) == (len(traces), len(traces) - cut, 0, cut, 0)
    assert all(trace["stable"] for trace in traces)
