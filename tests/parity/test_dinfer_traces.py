"""Whole runs on a tiny LLaDA through `generate`, against dInfer's loops without soft embeddings.

A forward of theirs counts for a row if its decode call wrote to the row. The others are the second decode of an
iteration behind a refresh that completed the block, unrolled iterations on a finished block, and rows of a batch that
wait for their neighbours.
"""

import dataclasses

import pytest
import torch
from kit import GOLDEN, EndOfBlock, NarrowDual, PublishedRefresh, cases, documented, recorded_inputs
from models import EOS

from dllm_generate import DiffusionGenerationConfig, LLaDAForMaskedDiffusion
from dllm_generate.caches.dual import DualCachePolicy
from dllm_generate.caches.prefix import PrefixCachePolicy
from dllm_generate.caches.vicinity import VicinityCachePolicy
from dllm_generate.decoders.credit import CreditDecoder
from dllm_generate.decoders.fixed import FixedDecoder
from dllm_generate.decoders.hierarchical import HierarchicalDecoder
from dllm_generate.decoders.threshold import ThresholdDecoder

TRACES = {trace["id"]: trace for trace in cases("traces/traces_dinfer")}
# Its warm-up reaches into the last block.
SPILLED = "dinfer/vicinity_long_warmup_2"
GROUPS = ("dinfer", "dinfer_merge", "dinfer_hierarchy_fn")


@pytest.fixture(scope="module")
def models():
    return {
        f"model_{i}": LLaDAForMaskedDiffusion.from_pretrained(GOLDEN / "traces" / f"model_{i}").eval() for i in range(3)
    }


def decoder_of(trace):
    params = trace["params"]
    if "decoding" in params:
        if "threshold" not in params:
            return FixedDecoder(steps=params["steps"])
        return HierarchicalDecoder(params["threshold"], params["low_threshold"])
    if "decoder" not in params:
        return ThresholdDecoder(params["threshold"])
    kind, threshold = params["decoder"]["type"], params["decoder"]["threshold"]
    if kind == "hierarchy":
        return HierarchicalDecoder(threshold, params["decoder"]["low_threshold"], ties=True)
    return {"threshold": ThresholdDecoder, "credit": CreditDecoder}[kind](threshold, near_tie=1e-5)


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


@dataclasses.dataclass
class Published:
    """What the published run did to one row: the forwards that wrote to it, their inputs, and what they wrote."""

    inputs: list[list[int]]
    writes: list[dict[int, int]]

    @classmethod
    def of(cls, trace, row):
        shift = bool(trace["params"].get("use_shift"))
        every = [call["input_ids"][row] for call in trace["forward_calls"]]
        if "decode_calls" in trace:
            writes = [
                {position + shift: token for at, position, token in call["changed"] if at == row}
                for call in trace["decode_calls"]
            ]
        else:
            grids = [*every, trace["output"][row]]
            writes = [
                {i: new for i, (old, new) in enumerate(zip(*pair)) if old != new} for pair in zip(grids, grids[1:])
            ]
        kept = [i for i, written in enumerate(writes) if written]
        return cls([every[i] for i in kept], [writes[i] for i in kept])

    def steps_until_eos(self, prompt):
        """Number of the writes up to the one behind which an EOS has nothing open before it."""
        text = {}
        for count, written in enumerate(self.writes, 1):
            text.update(written)
            position = len(prompt)
            while text.get(position, EOS) != EOS:
                position += 1
            if position in text:
                return count
        return len(self.writes)


def text_of(trace, row):
    """The row up to its first EOS."""
    tokens, length = trace.get("final_x", trace["output"])[row], len(trace["prompt"][row])
    text = tokens[length:]
    return tokens[: length + text.index(EOS) + 1] if EOS in text else tokens


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
