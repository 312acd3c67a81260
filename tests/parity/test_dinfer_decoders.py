"""One call, or several on end, of dInfer's decoders on given logits."""

from collections import Counter

import pytest
import torch
from kit import NativeSampler, NoMaskSampler, cases, documented, tensors

from dllm_generate import DecoderState
from dllm_generate.decoders.credit import CreditDecoder
from dllm_generate.decoders.fixed import FixedDecoder, FixedState
from dllm_generate.decoders.hierarchical import HierarchicalDecoder
from dllm_generate.decoders.remasking import RemaskingDecoder
from dllm_generate.decoders.threshold import ThresholdDecoder
from dllm_generate.progress import with_progress
from dllm_generate.sampling import Sampler
from dllm_generate.schedules import Blocks

POOL = {state["id"]: state for state in cases("decoders/pool")}
LOGITS = tensors("decoders/pool_logits")
CREDIT_LOGITS = tensors("decoders/dinfer_credit")
FILES = ("dinfer_hierarchy", "dinfer_hierarchy_fast_v2", "dinfer_hierarchy_remask", "dinfer_select_cache")


def decoder_of(file, params):
    thresholds = {"threshold": params.get("threshold"), "low_threshold": params.get("low_threshold")}
    if file == "dinfer_hierarchy":
        return HierarchicalDecoder(**thresholds, ties=True)
    if file == "dinfer_hierarchy_fast_v2":
        return HierarchicalDecoder(**thresholds)
    if file == "dinfer_hierarchy_remask":
        return RemaskingDecoder(**thresholds, remask_threshold=params["remask_threshold"])
    if "steps" in params:
        return FixedDecoder(steps_per_block=params["steps"])
    return ThresholdDecoder(params["threshold"], minimal_topk=params["minimal_topk"])


def masked(pool):
    state = POOL[pool]
    return torch.tensor(state["x"])[:, state["block_start"] : state["block_end"]] == state["mask_id"]


def decode(file, case, sampler, rows=slice(None)):
    """Returns tokens, confidences, chosen and reopened positions, each `(R, k)`."""
    decoder, open_mask = decoder_of(file, case["params"]), masked(case["pool"])[rows]
    every, zero = torch.ones(len(open_mask), dtype=torch.bool), torch.zeros(len(open_mask), dtype=torch.long)
    state = DecoderState(zero, zero + case["params"].get("step", 0), zero + 1, sampler)
    state.editable = torch.ones_like(open_mask)
    if isinstance(decoder, FixedDecoder):
        state = FixedState(**vars(state), masks=open_mask.sum(-1))
    output = decoder(None, LOGITS[case["pool"]][rows], open_mask=open_mask, ran=every, state=state)
    reopened = torch.zeros_like(open_mask) if output.reopen is None else output.reopen
    chosen = output.commit
    if not isinstance(decoder, FixedDecoder):
        chosen = with_progress(chosen, output.confidence, open_mask, every)
    return output.tokens, output.confidence, chosen, reopened


def judge(file, case, sampler):
    state, open_mask = POOL[case["pool"]], masked(case["pool"])
    # A row without a mask does not run in the package; the published remasking takes a token of it back.
    rows = open_mask.any(-1)
    tokens, confidence, chosen, reopened = decode(file, case, sampler)
    x, x_out = torch.tensor(state["x"]), torch.tensor(case["x_out"])
    block = slice(state["block_start"], state["block_end"])
    x[:, block] = torch.where(reopened, state["mask_id"], x[:, block])
    x[:, block] = torch.where(chosen, tokens, x[:, block])
    selected = torch.zeros_like(chosen)
    if "selected" in case:
        selected[tuple(torch.tensor(case["selected"], dtype=torch.long).view(-1, 2).T)] = True
        # Where nothing is masked, dInfer's functions select the first position, and write nothing.
        selected &= open_mask | reopened
    if torch.equal(x[rows], x_out[rows]) and ("selected" not in case or torch.equal(chosen | reopened, selected)):
        return "exact" if torch.equal(x, x_out) else "rows"
    theirs = selected & (open_mask | (x_out[:, block] != state["mask_id"]))
    ours = chosen & (open_mask | (tokens != state["mask_id"]))
    return "tied" if state["position_ties"] and is_equal_choice(confidence, ours, theirs) else "different"


def is_equal_choice(confidence, ours, theirs):
    """As many, and as confident, per row."""
    ranked = [confidence.double().masked_fill(~choice, -1).sort(-1).values for choice in (ours, theirs)]
    return torch.allclose(*ranked, rtol=0, atol=1e-7)


def published_sampler(file):
    return NativeSampler() if file == "dinfer_hierarchy" else Sampler()


@pytest.mark.parametrize("file", FILES)
def test_all_cases(file):
    verdicts = {}
    for number, case in enumerate(cases(f"decoders/{file}")):
        verdict = "left out" if case.get("error") else judge(file, case, published_sampler(file))
        verdicts[f"{number} {case['pool']} {case['params']}"] = verdict
    assert [name for name, verdict in verdicts.items() if verdict == "different"] == []
    count = Counter(verdicts.values())
    left_out = count["left out"] + count["rows"]
    assert documented(file) == (len(verdicts), count["exact"], count["tied"], 0, left_out)


def test_float32_chooses_alike():
    """The hierarchy decoder without the kit: one bfloat16 state in which the rounding hides who is best."""
    runnable = [case for case in cases("decoders/dinfer_hierarchy") if not case.get("error")]
    different = [case for case in runnable if judge("dinfer_hierarchy", case, Sampler()) == "different"]
    assert [(case["pool"], POOL[case["pool"]]["kind"]) for case in different] == [("p041", "bf16_peaky")]


def test_batches_that_the_published_hierarchy_decoder_refuses():
    """It takes one row only: in a batch, every row must decode as it does alone."""
    refused = [case for case in cases("decoders/dinfer_hierarchy") if case.get("error")]
    for case in refused:
        tokens, _, chosen, _ = decode("dinfer_hierarchy", case, Sampler())
        assert torch.equal(chosen.any(-1), masked(case["pool"]).any(-1))
        for row in range(len(tokens)):
            alone = decode("dinfer_hierarchy", case, Sampler(), slice(row, row + 1))
            assert torch.equal(chosen[row], alone[2][0]) and torch.equal(tokens[row], alone[0][0])


def test_remasking_on_a_full_block():
    """The published code raises an index error where everything is doubtful and nothing is masked."""
    broken = [case for case in cases("decoders/dinfer_hierarchy_remask") if case.get("error")]
    assert broken and all((~masked(case["pool"]).any(-1)).any() for case in broken)


@pytest.mark.parametrize("case", cases("decoders/dinfer_credit"), ids=lambda case: case["id"])
def test_credit_over_several_steps(case):
    params, mask_id, block = case["params"], case["mask_id"], slice(case["block_start"], case["block_end"])
    decoder = CreditDecoder(
        params["threshold"],
        near_tie=1e-5,
        alpha=params["credit_alpha"],
        beta=params["decay_beta"],
        gamma=params["boost_gamma"],
    )
    x = torch.tensor(case["x"])
    every, zero = torch.ones(len(x), dtype=torch.bool), torch.zeros(len(x), dtype=torch.long)
    state = decoder.start(one_block(x[:, block]), NoMaskSampler(mask_id=mask_id))
    for logits, x_after, total in zip(CREDIT_LOGITS[case["id"]], case["x_after_each"], case["credit_sum_after_each"]):
        open_mask = x[:, block] == mask_id
        decoder.begin(state, zero, every)
        output = decoder(None, logits, open_mask=open_mask, ran=every, state=state)
        chosen = output.commit & (output.tokens != mask_id)
        x[:, block] = torch.where(chosen, output.tokens, x[:, block])
        assert x.tolist() == x_after
        # dInfer drops the credits with the last mask.
        assert total is None or float(state.credit.sum()) == pytest.approx(total, abs=1e-4)
        state.step = state.step + 1


def one_block(cells):
    """The only block of `(B, k)` canvases."""
    rows, length = cells.shape
    columns, zero = torch.arange(1, length + 1).expand(rows, 1, length), torch.zeros(rows, dtype=torch.long)
    live = torch.ones(rows, 1, dtype=torch.bool)
    return Blocks(columns, zero[:, None], live, live, zero + 1, zero + 1 + length, zero + 1 + length, zero + 1)


def test_the_documented_number_of_credit():
    count = len(cases("decoders/dinfer_credit"))
    assert documented("dinfer_credit") == (count, count, 0, 0, 0)
