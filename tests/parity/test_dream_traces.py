"""Whole runs on a tiny Dream through `generate`: Dream's loop, and Fast-dLLM's blocks with a prefix or dual cache."""

from dataclasses import dataclass, replace

import pytest
import torch
from kit import GOLDEN, cases, documented, recorded_inputs

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.caches.dual import DualCachePolicy
from dllm_generate.caches.prefix import PrefixCachePolicy
from dllm_generate.decoders.dream import DreamDecoder
from dllm_generate.families.dream import DreamForMaskedDiffusion
from dllm_generate.schedules.blockwise import BlockwiseSchedule

TRACES = {t["id"]: t for t in cases("models/block_traces") if t["group"] in ("dream", "fastdllm_dream")}
WHOLE = [name for name, trace in TRACES.items() if trace["group"] == "dream"]
BLOCKS = [name for name, trace in TRACES.items() if trace["group"] == "fastdllm_dream"]
RANKINGS = {"maskgit_plus": "low_confidence", "topk_margin": "margin", "entropy": "entropy"}


@dataclass(frozen=True)
class FirstAlone(BlockwiseSchedule):
    """Commits the first position of a block in the step that enters it, and nothing else."""

    def active(self, canvas):
        blocks = super().active(canvas)
        first = canvas.open.gather(1, blocks.start.clamp(max=canvas.width - 1)[:, None])
        columns = blocks.columns[:, 0]
        return replace(blocks, columns=torch.where(first & (columns != blocks.start[:, None]), 0, columns)[:, None])


class BehindTheFirst:
    """Begins a window at the first position of the block, whose own hidden row is no prediction of it: it is known."""

    def plan(self, canvas, blocks, state):
        plan = super().plan(canvas, blocks, state)
        return replace(plan, lo=torch.where(plan.refresh, plan.lo, plan.lo + 1))


@dataclass(frozen=True)
class Prefix(BehindTheFirst, PrefixCachePolicy):
    pass


@dataclass(frozen=True)
class Dual(BehindTheFirst, DualCachePolicy):
    pass


@dataclass(frozen=True)
class EveryTimestep(DreamDecoder):
    """Spends a forward on every timestep of a block; the step that enters it commits its one position."""

    def _due(self, state, left):
        due = (left * self._share(state, state.step)).long()
        return torch.where(state.step == 0, 1, due)


@pytest.fixture(scope="module")
def model():
    model = DreamForMaskedDiffusion.from_pretrained(GOLDEN / "models" / "dream").eval()
    # The published loops know no EOS.
    model.generation_config.eos_token_id = None
    return model


def run(model, trace, **options):
    """Returns the output, and the input ids of every forward."""
    config = DiffusionGenerationConfig(
        max_new_tokens=trace["params"]["max_new_tokens"], return_dict_in_generate=True, **options
    )
    with recorded_inputs(model) as inputs:
        output = model.generate(torch.tensor(trace["prompt"]), generation_config=config)
    return output, inputs


@pytest.mark.parametrize("name", WHOLE)
def test_whole_canvas(name, model):
    """All tokens and forwards, but for timesteps that commit nothing."""
    trace = TRACES[name]
    params = trace["params"]
    ranking = {"ranking": RANKINGS[params["alg"]], "eps": params["eps"]}
    output, inputs = run(model, trace, decoder="dream", decoder_config=ranking, steps=params["steps"])
    states = [*trace["forward_inputs"], trace["output"]]
    assert output.sequences.tolist() == trace["output"]
    assert inputs == [before for before, after in zip(states, states[1:]) if before != after]
    assert output.num_forwards.tolist() == [len(inputs)] * len(trace["prompt"])


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_with_a_cache(name, model):
    """All tokens, and the input ids of every forward."""
    trace = TRACES[name]
    params = trace["params"]
    if params["alg"] == "entropy":
        decoder = {"decoder": EveryTimestep(steps=params["steps"], eps=params["eps"])}
    else:
        decoder = {"decoder": "threshold", "threshold": params["threshold"]}
    policy = Dual() if params["dual_cache"] else Prefix()
    output, inputs = run(model, trace, schedule=FirstAlone(params["block_length"]), cache_policy=policy, **decoder)
    assert output.sequences.tolist() == trace["output"]
    assert inputs == trace["forward_inputs"]
    assert output.num_forwards.tolist() == [trace["n_forwards"]]


def test_the_documented_numbers():
    assert documented("dream_loop") == (len(WHOLE), len(WHOLE), 0, 0, 0)
    assert documented("fastdllm_dream") == (len(BLOCKS), len(BLOCKS), 0, 0, 0)
    assert all(trace["stable"] for trace in TRACES.values())
