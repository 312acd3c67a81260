"""One step of block-diffusion decoders on given logits, against the published functions."""

from collections import Counter

import pytest
import torch
from kit import cases, documented, tensors

from dllm_generate import DecoderOutput, DecoderState
from dllm_generate.decoders.dynamic import DynamicDecoder
from dllm_generate.decoders.editing import EditingDecoder, EditingState
from dllm_generate.decoders.entropy_bound import EntropyBoundDecoder
from dllm_generate.decoders.fixed import FixedDecoder, FixedState
from dllm_generate.progress import revised
from dllm_generate.sampling import Sampler

POOL = {state["id"]: state for state in cases("decoders/pool")}
LOGITS = tensors("decoders/pool_logits")
FILES = ("jetengine_step", "block_refinement_step")


def decoder_of(params, length):
    if "strategy" in params:
        planned = {"steps_per_block": params["denoising_steps"], "quota": "block"}
        return {
            "low_confidence_static": lambda: FixedDecoder(**planned),
            "sequential": lambda: FixedDecoder(**planned, ranking="span"),
            "low_confidence_dynamic": lambda: DynamicDecoder(
                threshold=params["dynamic_threshold"], **planned, ranking="span"
            ),
            "entropy_bounded": lambda: EntropyBoundDecoder(params["eb_threshold"], include_last=True),
        }[params["strategy"]]()
    if "editing_threshold" not in params:
        return DynamicDecoder(threshold=params["threshold"], steps_per_block=params["steps"], quota="block")
    share, rest = divmod(length, params["steps"])
    return EditingDecoder(params["threshold"], params["editing_threshold"], at_least=share + (params["step"] < rest))


def decode(case):
    """Returns the tokens, the confidences, and what changes, each `(R, k)`. The mask id may be chosen, as published."""
    state, params = POOL[case["pool"]], case["params"]
    ids = torch.tensor(state["x"])[:, state["block_start"] : state["block_end"]]
    open_mask = ids == state["mask_id"]
    rows, length = ids.shape
    every, zero = torch.ones(rows, dtype=torch.bool), torch.zeros(rows, dtype=torch.long)
    editable = torch.arange(length).expand(rows, -1) >= params.get("prompt_len", 0)
    decoder = decoder_of(params, length)
    begun = DecoderState(zero, zero + params.get("step", 0), zero + 1, Sampler(), editable=editable)
    if isinstance(decoder, FixedDecoder):
        begun = FixedState(**vars(begun), masks=zero + length)
    if isinstance(decoder, EditingDecoder):
        begun = EditingState(**vars(begun), rounds=zero)
    output = decoder(ids, LOGITS[case["pool"]], open_mask=open_mask, ran=every, state=begun)
    output = DecoderOutput(output.tokens, output.confidence, output.commit & open_mask, edit=output.edit)
    return output.tokens, output.confidence, revised(output, open_mask, editable)[1] & (output.tokens != ids)


def is_equal_choice(case, tokens, confidence, chosen):
    """Among tied positions the published code picks any: those where we differ all have one confidence, per row.

    What is picked and predicts the mask id leaves no trace, so the numbers differ by as much at most.
    """
    state = POOL[case["pool"]]
    if not state["position_ties"]:
        return False
    theirs = torch.zeros_like(chosen)
    for row, column in case["changed"]:
        theirs[row, column - state["block_start"]] = True
    for row in range(len(chosen)):
        different = chosen[row] != theirs[row]
        if different.any():
            level = confidence[row][different]
            tied = (confidence[row] - level[0]).abs() <= 1e-7
            traceless = int((tied & (tokens[row] == state["mask_id"])).sum())
            if level.max() - level.min() > 1e-7 or abs(int(chosen[row].sum() - theirs[row].sum())) > traceless:
                return False
    return True


def judge(case):
    tokens, confidence, chosen = decode(case)
    state = POOL[case["pool"]]
    x, block = torch.tensor(state["x"]), slice(state["block_start"], state["block_end"])
    x[:, block] = torch.where(chosen, tokens, x[:, block])
    changed = sorted([row, column + state["block_start"]] for row, column in chosen.nonzero().tolist())
    if x.tolist() == case["x_out"] and changed == sorted(case["changed"]):
        return "exact"
    return "tied" if is_equal_choice(case, tokens, confidence, chosen) else "different"


@pytest.mark.parametrize("file", FILES)
def test_all_cases(file):
    verdicts = {f"{n} {case['pool']} {case['params']}": judge(case) for n, case in enumerate(cases(f"decoders/{file}"))}
    assert [name for name, verdict in verdicts.items() if verdict == "different"] == []
    count = Counter(verdicts.values())
    assert documented(file) == (len(verdicts), count["exact"], count["tied"], 0, 0)
