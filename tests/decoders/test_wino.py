"""WINO: the rule by itself, and whole runs against a re-statement without batches, caches or windows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import EOS, MASK, SHIFTED, VOCABULARY, counted_forwards, tiny_llada
from scripted import Walk, cells, scores_of

from dllm_generate.decoders.wino import WinoDecoder


def decide(decoder, open_cells, confidence, verification, editable=None, threshold=None):
    """Positions that are committed, and positions that are taken back."""
    open_mask = cells(open_cells)
    walk = Walk(decoder, 1, len(open_cells))
    walk.state.verification = torch.tensor([verification])
    editable = torch.ones_like(open_mask) if editable is None else cells(editable)
    output = walk(scores_of([confidence]), open_mask, editable=editable, threshold=threshold)
    return ["".join("o" if cell else "_" for cell in grid[0].tolist()) for grid in (output.commit, output.reopen)]


def test_drafts_above_the_threshold_are_committed():
    decoder, none = WinoDecoder(threshold=0.6), [1.0] * 4
    assert decide(decoder, "oooo", [0.7, 0.59, 0.61, 0.5], none) == ["o_o_", "____"]
    assert decide(decoder, "o_oo", [0.7, 0.9, 0.61, 0.5], none) == ["o_o_", "____"]
    assert decide(decoder, "oooo", [0.7, 0.59, 0.61, 0.5], none, threshold=torch.tensor([0.65])) == ["o___", "____"]


def test_a_step_commits_a_share_at_most():
    decoder = WinoDecoder(threshold=0.2, at_least=2, at_most=3)
    assert decide(decoder, "ooo", [0.3, 0.5, 0.4], [1.0] * 3) == ["_oo", "___"]
    assert decide(decoder, "oooooo", [0.3, 0.5, 0.5, 0.5, 0.5, 0.9], [1.0] * 6) == ["_oo__o", "______"]
    # The published numbers: a share of 0.7, at least 5 and at most 20.
    for masks in range(1, 60):
        commit, _ = decide(WinoDecoder(threshold=0.3), "o" * masks, [0.9] * masks, [1.0] * masks)
        assert commit.count("o") == min(masks, min(max(int(masks * 0.7), 5), 20))


def test_what_fails_the_verification_is_taken_back():
    decoder, draft = WinoDecoder(threshold=0.6, verify_threshold=0.9), [0.8, 0.8, 0.8, 0.1, 0.1, 0.1]
    assert decide(decoder, "ooo___", draft, [0.0, 0.0, 0.0, 0.89, 0.9, 0.2]) == ["ooo___", "___o_o"]
    # Never the prompt; fewer than are committed, the worst first; nothing where only one is.
    assert decide(decoder, "ooo___", draft, [0.0, 0.0, 0.0, 0.89, 0.9, 0.2], "oooo__") == ["ooo___", "___o__"]
    assert decide(decoder, "oo____", draft, [0.0, 0.0, 0.4, 0.5, 0.3, 0.3]) == ["oo____", "____o_"]
    assert decide(decoder, "o_____", draft, [0.0] * 6) == ["o_____", "______"]
    assert decide(decoder, "___o__", draft, [0.0] * 6) == ["______", "______"]


@pytest.mark.parametrize(
    ("option", "values"),
    [
        ("threshold", (0, 1.5, "a")),
        ("verify_threshold", (None, 0, 1.5, "a")),
        ("share", (0, 2, None)),
        ("at_least", (0, 1.5, None)),
        ("at_most", (4, 2.5, None)),
    ],
)
def test_bad_values(option, values):
    for value in values:
        with pytest.raises(ValueError, match=f"`{option}` is"):
            WinoDecoder(**{option: value})


def restated(model, prompt, new_tokens, length, draft, verify, anchor, eos):
    """Tokens, forwards and number of reopened positions of a run with one whole forward and explicit mask per step."""
    total = len(prompt) + new_tokens
    ids = torch.tensor(prompt + [MASK] * new_tokens)
    still_open = torch.arange(total) >= len(prompt)
    forwards = reopened = 0
    for begin in range(anchor, total, length):
        block = torch.arange(max(begin, 0), min(begin + length, total))
        masks = len(block)
        while still_open[block].any():
            mask = torch.ones(total + masks, total + masks, dtype=torch.bool)
            mask[:total, total:] = False
            mask[total + torch.arange(masks), block] = False
            shadowed_ids = torch.cat([ids, torch.full_like(block, MASK)])
            positions = torch.cat([torch.arange(total), block])
            with torch.no_grad():
                logits = model(shadowed_ids[None], attention_mask=mask[None, None], position_ids=positions[None]).logits
            forwards += 1
            logits[..., MASK] = -torch.inf
            share = logits[0].softmax(-1)
            confidence, tokens = share[:total].max(-1)
            best = sorted((c for c in block.tolist() if still_open[c]), key=lambda c: -confidence[c])
            chosen = [c for c in best if confidence[c] > draft][: min(max(int(0.7 * len(best)), 5), 20)] or best[:1]
            rated = [(float(share[total + i, ids[c]]), c) for i, c in enumerate(block.tolist()) if c >= len(prompt)]
            doubtful = sorted((p, c) for p, c in rated if not still_open[c] and p < verify)[: len(chosen) - 1]
            for c in chosen:
                ids[c], still_open[c] = tokens[c], False
            for _, c in doubtful:
                ids[c], still_open[c] = MASK, True
            reopened += len(doubtful)
        if (ids[block][block >= len(prompt)] == eos).any():
            ends = [c for c in range(len(prompt), total) if ids[c] == eos]
            return ids[: ends[0] + 1].tolist(), forwards, reopened
    return ids.tolist(), forwards, reopened


@pytest.fixture(scope="module")
def models():
    return {kind: tiny_llada(attn_implementation=kind) for kind in ("sdpa", "eager")}


def anchor(align, prompt, new_tokens, length):
    """Where the first block begins."""
    if align == "prompt":
        return len(prompt)
    if align == "position":
        return len(prompt) // length * length
    return len(prompt) + new_tokens - -(-new_tokens // length) * length


@given(
    st.lists(st.integers(0, VOCABULARY - 5), min_size=1, max_size=8),
    st.integers(1, 30),
    st.sampled_from([1, 3, 8, 13, 64]),
    st.sampled_from([0.15, 0.3, 0.5]),
    st.sampled_from([0.3, 0.6, 0.9]),
    st.sampled_from(["prompt", "position", "end"]),
    st.sampled_from(["sdpa", "eager"]),
    st.sampled_from([MASK, EOS, 17]),
)
@settings(max_examples=60)
def test_a_run_is_its_restatement(models, prompt, new_tokens, length, draft, verify, align, kind, eos):
    model = models[kind]
    # A block that is longer than the canvas, or than the answer behind a prompt, is as long as that.
    held = min(length, new_tokens if align == "prompt" else len(prompt) + new_tokens)
    begin = anchor(align, prompt, new_tokens, held)
    expected, forwards, _ = restated(models["sdpa"], prompt, new_tokens, held, draft, verify, begin, eos)
    options = {"threshold": draft, "decoder_config": {"verify_threshold": verify}, "block_length": length}
    options |= {"schedule_config": {"align": align}, "eos_token_id": eos, "max_new_tokens": new_tokens}
    with counted_forwards(model) as shapes:
        output = model.generate(torch.tensor([prompt]), decoder="wino", **options)
    assert output[0].tolist() == expected
    assert len(shapes) == forwards
    assert {shape[1] for shape in shapes} == {len(prompt) + new_tokens + held}


@pytest.mark.parametrize("seed", range(3))
def test_the_random_model_does_take_commits_back(seed):
    """Otherwise the test above could not fail."""
    model, prompt = tiny_llada(seed), [3, 1, 4]
    expected, forwards, reopened = restated(model, prompt, 24, 24, 0.2, 0.9, 3, MASK)
    assert reopened > 3
    options = {"max_new_tokens": 24, "block_length": 24, "threshold": 0.2, "eos_token_id": MASK}
    output = model.generate(torch.tensor([prompt]), decoder="wino", return_dict_in_generate=True, **options)
    assert output.sequences[0].tolist() == expected
    assert output.num_forwards.tolist() == [forwards] and forwards <= 24


def test_shifted_logits_are_refused(llada):
    with pytest.raises(ValueError, match=r"`decoder` is 'wino', but `logits_shift`"), counted_forwards(llada) as shapes:
        llada.generate(torch.tensor([[1]]), max_new_tokens=4, decoder="wino", **SHIFTED)
    assert not shapes
