"""Whole runs on a tiny LLaDA through `generate`, against the published loops.

The expected number of forwards is read off the recorded ones: the token grid before each forward is rebuilt from its
input ids, and a forward counts for a row if the row differs before the next forward (or in the output). What remains
are forwards that wrote nothing; the published cached loops spend one on every block that the refresh completes.
"""

import copy
import dataclasses

import pytest
import torch
from kit import GOLDEN, cases, documented, recorded_inputs
from models import EOS, EOT, MASK

from dllm_generate import DiffusionGenerationConfig, LLaDAForMaskedDiffusion

TRACES = {trace["id"]: trace for trace in cases("traces/traces")}
# The published loop stopped early and filled the rest with EOS.
CUT = {name for name, trace in TRACES.items() if trace["params"].get("early_stop") and EOS in trace["output"][0]}
RUNNABLE = [name for name, trace in TRACES.items() if not trace.get("error")]


@dataclasses.dataclass
class Recorded:
    """A published run: the grid before each forward and at the end, and the input ids of each forward."""

    grids: list[list[list[int]]]
    inputs: list[list[list[int]]]

    @classmethod
    def of(cls, trace):
        grids, inputs = [], [call["input_ids"] for call in trace["forward_calls"]]
        width = len(trace["output"][0])
        for call in trace["forward_calls"]:
            rows = call["input_ids"][: len(trace["prompt"])]
            # A prefix window reaches to the end of the grid, a dual window covers `replace`.
            lo, hi = call.get("replace", (width - len(rows[0]), width))
            before = grids[-1] if grids else rows
            grids.append([old[:lo] + new + old[hi:] for old, new in zip(before, rows)])
        return cls([*grids, trace["output"]], inputs)

    def steps_until_eos(self, row, prompt_length):
        """Forwards that wrote to the row, up to the one behind which an EOS has no mask before it."""
        count = 0
        for before, after in zip(self.grids, self.grids[1:]):
            count += before[row] != after[row]
            text = after[row][prompt_length:]
            if EOS in text and MASK not in text[: text.index(EOS)]:
                break
        return count

    def writing(self):
        """Numbers of the forwards that wrote, and how many wrote to each row."""
        pairs = list(zip(self.grids, self.grids[1:]))
        numbers = [i for i, (before, after) in enumerate(pairs) if before != after]
        rows = range(len(self.grids[0]))
        return numbers, [sum(before[row] != after[row] for before, after in pairs) for row in rows]


@pytest.fixture(scope="module")
def models():
    folders = [f"model_{i}" for i in range(3)]
    return {name: LLaDAForMaskedDiffusion.from_pretrained(GOLDEN / "traces" / name).eval() for name in folders}


def without_eos(model):
    """The same weights in a model that knows no EOS, as LLaDA's generate knows none."""
    twin = copy.copy(model)
    twin.generation_config = copy.deepcopy(model.generation_config)
    twin.generation_config.eos_token_id = None
    return twin


def options(trace):
    """The package's options for a published run."""
    params = trace["params"]
    chosen = {"decoder": "fixed", "steps": params["steps"]}
    if "factor" in params:
        chosen = {"decoder": "factor", "decoder_config": {"factor": params["factor"]}}
    elif "threshold" in params:
        chosen = {"decoder": "threshold", "threshold": params["threshold"]}
    if params.get("confidence_eos_eot_inf"):
        chosen["decoder_config"] = {"postpone_eos": True, "postpone_tokens": [EOT]}
    if params.get("logits_eos_inf"):
        chosen["suppress_tokens"] = [EOS]
    if "cfg_scale" in params:
        chosen["guidance_scale"] = params["cfg_scale"] + 1
    if params.get("cache", "nocache") != "nocache":
        chosen["cache_policy"] = params["cache"]
    return {**chosen, "max_new_tokens": params["gen_length"], "block_length": params["block_length"]}


def generate(model, trace, **changes):
    """Returns the output, and the input ids of every forward."""
    config = DiffusionGenerationConfig(**{**options(trace), **changes}, return_dict_in_generate=True)
    mask = trace.get("attention_mask")
    with recorded_inputs(model) as inputs:
        output = model.generate(
            torch.tensor(trace["prompt"]),
            attention_mask=None if mask is None else torch.tensor(mask),
            generation_config=config,
        )
    return output, inputs


def without_padding(inputs, trace):
    """Real tokens of each row: the published code pads on the left, a window of ours is filled up on the right."""
    mask = trace.get("attention_mask")
    if mask is None or all(map(all, mask)):
        return inputs, inputs
    blanks = [row.count(0) for row in mask]
    published = [[row[blank:] for row, blank in zip(rows, blanks)] for rows in inputs]
    return published, [[row[: len(row) - blank] for row, blank in zip(rows, blanks)] for rows in inputs]


@pytest.mark.parametrize("name", RUNNABLE)
def test_every_token_and_forward(name, models):
    """All tokens, all input ids, and all forwards but those that wrote nothing.

    The published early stop fills the row with EOS where ours cuts it; all other loops decode everything.
    """
    trace, changes = TRACES[name], {}
    model = models[trace["model"]]
    if not trace["params"].get("early_stop"):
        model = without_eos(model)
    if trace["params"].get("confidence_eos_eot_inf"):
        changes["decoder_config"] = {"postpone_tokens": [EOS, EOT]}
    output, inputs = generate(model, trace, **changes)
    recorded = Recorded.of(trace)
    numbers, counts = recorded.writing()
    cut = len(trace["output"][0]) - output.sequences.shape[1]
    assert [row + [EOS] * cut for row in output.sequences.tolist()] == trace["output"]
    assert cut == 0 or name in CUT
    assert output.num_forwards.tolist() == counts
    published, _ = without_padding([recorded.inputs[number] for number in numbers], trace)
    _, ours = without_padding(inputs, trace)
    assert ours == published


@pytest.mark.parametrize("name", RUNNABLE)
def test_up_to_the_first_eos(name, models):
    """With EOS known, a row ends at its first EOS: the same text in front of it, and no forward behind it."""
    trace = TRACES[name]
    output, _ = generate(models[trace["model"]], trace)
    recorded, length = Recorded.of(trace), len(trace["prompt"][0])
    for row, (ours, published) in enumerate(zip(output.sequences.tolist(), trace["output"])):
        text = published[length:]
        end = length + text.index(EOS) + 1 if EOS in text else len(published)
        assert ours[:end] == published[:end]
        assert output.num_forwards[row] == recorded.steps_until_eos(row, length)


def test_late_forwards_without_early_stop(models):
    """`early_stop=False` spends the forwards behind an EOS, as all but the newest published loops do."""
    for name in RUNNABLE:
        trace = TRACES[name]
        if EOS in sum(trace["output"], []) and name not in CUT:
            output, _ = generate(models[trace["model"]], trace, schedule_config={"early_stop": False})
            assert output.num_forwards.tolist() == Recorded.of(trace).writing()[1], name


def test_guidance_without_a_mask(models):
    """The published code breaks on it; it is the same as a mask of ones."""
    masked = TRACES["llada/cfg_0"]
    plain, _ = generate(without_eos(models[masked["model"]]), {**masked, "attention_mask": None})
    assert plain.sequences.tolist() == masked["output"]


@pytest.mark.parametrize("group", ["llada", "fastdllm_v1", "fastdllm_v1_factor"])
def test_the_documented_number(group):
    names = [name for name in TRACES if name.startswith(f"{group}/")]
    left_out = [name for name in names if name not in RUNNABLE]
    cut = CUT & set(names)
    assert documented(group) == (len(names), len(names) - len(cut) - len(left_out), 0, len(cut), len(left_out))
    assert all(TRACES[name]["stable"] for name in names if name not in left_out)
