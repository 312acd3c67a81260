"""One call of a decoder on given logits, against the published functions."""

from collections import Counter

import pytest
import torch
from kit import PreciseSampler, cases, documented, tensors

from dllm_generate import DecoderState
from dllm_generate.decoders.factor import FactorDecoder
from dllm_generate.decoders.fixed import FixedDecoder, FixedState
from dllm_generate.decoders.threshold import ThresholdDecoder
from dllm_generate.progress import with_progress
from dllm_generate.sampling import Sampler

POOL = {state["id"]: state for state in cases("decoders/pool")}
LOGITS = tensors("decoders/pool_logits")
FILES = ("dinfer_threshold", "fastdllm_select", "factor")


def decoder_of(file, params):
    if file == "factor":
        return FactorDecoder(params["factor"])
    if file == "dinfer_threshold":
        return ThresholdDecoder(params["threshold"], near_tie=1e-5)
    if params["mode"] == "threshold":
        return ThresholdDecoder(params["threshold"])
    return FixedDecoder(steps_per_block=params["steps"])


def eligible(file, pool):
    """The open positions `(R, k)`. dInfer leaves out those whose best token is the mask id."""
    state = POOL[pool]
    open_mask = torch.tensor(state["x"])[:, state["block_start"] : state["block_end"]] == state["mask_id"]
    if file == "dinfer_threshold":
        open_mask &= LOGITS[pool].argmax(-1) != state["mask_id"]
    return open_mask


def decode(file, case, sampler, rows=slice(None)):
    """Returns predictions, confidences and chosen positions, each `(R, k)`."""
    params, open_mask = case["params"], eligible(file, case["pool"])[rows]
    decoder, count = decoder_of(file, params), len(open_mask)
    every, zero = torch.ones(count, dtype=torch.bool), torch.zeros(count, dtype=torch.long)
    state = DecoderState(zero, zero + params.get("step", 0), zero + 1, sampler)
    if isinstance(decoder, FixedDecoder):
        state = FixedState(**vars(state), masks=open_mask.sum(-1))
    bar = torch.full((count,), params["iter_threshold"]) if "iter_threshold" in params else None
    output = decoder(None, LOGITS[case["pool"]][rows], open_mask=open_mask, ran=every, state=state, threshold=bar)
    chosen = output.commit & open_mask
    if not isinstance(decoder, FixedDecoder):
        chosen = with_progress(chosen, output.confidence, open_mask, every)
    return output.tokens, output.confidence, chosen


def is_exact(case, tokens, chosen):
    state = POOL[case["pool"]]
    x = torch.tensor(state["x"])
    block = slice(state["block_start"], state["block_end"])
    x[:, block] = torch.where(chosen, tokens, x[:, block])
    selected = sorted(case["selected"]) if "selected" in case else chosen.nonzero().tolist()
    return x.tolist() == case["x_out"] and chosen.nonzero().tolist() == selected


def is_equal_choice(case, confidence, chosen):
    """The published code picks among tied positions as it likes: as many, and as confident, per row."""
    if not POOL[case["pool"]]["position_ties"]:
        return False
    theirs = torch.zeros_like(chosen)
    theirs[tuple(torch.tensor(case["selected"]).T)] = True
    ranked = [confidence.double().masked_fill(~choice, -1).sort(-1).values for choice in (chosen, theirs)]
    return torch.equal(chosen.sum(-1), theirs.sum(-1)) and torch.allclose(*ranked, rtol=0, atol=1e-7)


def judge(file, case, sampler):
    tokens, confidence, chosen = decode(file, case, sampler)
    if is_exact(case, tokens, chosen):
        return "exact"
    return "tied" if is_equal_choice(case, confidence, chosen) else "different"


def published_sampler(file, case):
    is_float64 = case["params"].get("use_float64", file != "dinfer_threshold")
    return PreciseSampler() if is_float64 else Sampler()


@pytest.mark.parametrize("file", FILES)
def test_all_cases(file):
    verdicts = {}
    for number, case in enumerate(cases(f"decoders/{file}")):
        verdict = "left out" if case.get("error") else judge(file, case, published_sampler(file, case))
        verdicts[f"{number} {case['pool']} {case['params']}"] = verdict
    assert [name for name, verdict in verdicts.items() if verdict == "different"] == []
    count = Counter(verdicts.values())
    assert documented(file) == (len(verdicts), count["exact"], count["tied"], 0, count["left out"])


@pytest.mark.parametrize("file", FILES)
def test_float32_chooses_alike(file):
    """What the package does without the kit: only float64 ties that float32 does not see may fall otherwise."""
    for case in cases(f"decoders/{file}"):
        if not case.get("error") and not POOL[case["pool"]]["position_ties"]:
            assert judge(file, case, Sampler()) == "exact", (case["pool"], case["params"])


def test_rows_that_broke_the_published_factor_code():
    """It raises an index error for these batches: every row must decode as it does alone."""
    broken = [case for case in cases("decoders/factor") if case.get("error")]
    for case in broken:
        whole = decode("factor", case, Sampler())
        for row in range(POOL[case["pool"]]["B"]):
            alone = decode("factor", case, Sampler(), slice(row, row + 1))
            assert all(torch.equal(a[row], b[0]) for a, b in zip(whole, alone)), (case["pool"], case["params"], row)
        assert torch.equal(whole[2].any(-1), eligible("factor", case["pool"]).any(-1))
