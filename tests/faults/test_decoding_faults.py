"""Faults of selection, confidence, blocks and caches that users of other tools have reported; by their numbers."""

import warnings
from pathlib import Path

import pytest
import torch
from models import MASK, Scripted, counted_forwards, padded, row_of_logits, table, tiny_llada
from probes import answer

import dllm_generate

DECODERS = ("fixed", "threshold", "factor")
ONE = torch.tensor([[1]])
FULL = {"return_dict_in_generate": True, "eos_token_id": MASK}


@pytest.mark.parametrize(("prompt", "new_tokens"), [(5, 6), (4, 1), (1, 7)])
@pytest.mark.parametrize("decoder", DECODERS)
def test_b023_never_more_tokens_than_asked_for(llada, decoder, prompt, new_tokens):
    output = llada.generate(
        torch.arange(prompt)[None],
        max_new_tokens=new_tokens,
        block_length=4,
        decoder=decoder,
        output_scores=True,
        **FULL,
    )
    assert output.sequences.shape == (1, prompt + new_tokens)
    assert output.commit_step.shape == output.scores.shape == output.confidence.shape == (1, new_tokens)


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("block_length", [64, 16, 10, 65])
def test_b025_blocks_that_do_not_divide(llada, decoder, block_length):
    """The last block is shorter; a block longer than the answer is the whole canvas."""
    output = llada.generate(ONE, max_new_tokens=64, block_length=block_length, decoder=decoder, threshold=None, **FULL)
    steps = output.commit_step[0]
    for start in range(0, 64, block_length):
        if start:
            assert steps[start - block_length : start].max() < steps[start : start + block_length].min()
    if block_length == 65:
        assert torch.equal(
            steps, llada.generate(ONE, max_new_tokens=64, block_length=64, decoder=decoder, **FULL).commit_step[0]
        )


def test_b027_the_limit_is_on_what_the_model_sees():
    """The last block is cut, so a request that fits by its numbers fits; one token more raises with the three."""
    model = tiny_llada(max_position_embeddings=32)
    positions = []
    hook = model.model.register_forward_pre_hook(
        lambda m, a, k: positions.append(int(k["position_ids"].max())), with_kwargs=True
    )
    prompts = {length: torch.ones(1, length).long() for length in (26, 27, 28)}
    for length in (26, 27):
        assert (
            model.generate(prompts[length], max_new_tokens=5, block_length=8, **FULL).sequences.shape[1] == length + 5
        )
    assert max(positions) == 31
    hook.remove()
    with pytest.raises(ValueError, match="28 tokens and `max_new_tokens` is 5, .* is 32"):
        model.generate(prompts[28], max_new_tokens=5, block_length=8)


def test_b029_no_removed_cache_names():
    source = "".join(path.read_text() for path in Path(dllm_generate.__file__).parent.rglob("*.py"))
    for name in ("key_cache", "value_cache", "to_legacy_cache", "from_legacy_cache", "seen_tokens", "cache_position"):
        assert name not in source


@pytest.mark.parametrize(
    ("policy", "tokens"), [("none", 16 * 272), ("prefix", 4 * 272 + 3 * (16 + 12 + 8 + 4)), ("dual", 4 * 272 + 12 * 4)]
)
def test_b033_query_tokens_of_a_long_prompt(llada, policy, tokens):
    """With a prefix cache a step costs block and rest, not the prompt."""
    with counted_forwards(llada) as shapes:
        llada.generate(
            torch.ones(1, 256).long(), max_new_tokens=16, block_length=4, cache_policy=policy, eos_token_id=MASK
        )
    assert sum(width for _, width in shapes) == tokens


def test_b035_what_feeds_the_rank():
    """'random' knows nothing of the logits; 'low_confidence' ranks clean probabilities of what was drawn."""
    sharp, flat = table(*[(5, 0.9)] * 8), table(*[(7, 0.2 + i / 50) for i in range(8)])
    for temperature in (None, 1.0):
        options = {"max_new_tokens": 8, "do_sample": temperature is not None, "temperature": temperature, **FULL}
        orders = []
        for cells in (sharp, flat):
            torch.manual_seed(5)
            output = Scripted(cells).generate(ONE, decoder_config={"ranking": "random"}, **options)
            orders.append(output.commit_step.tolist())
        assert orders[0] == orders[1]
        output = Scripted(flat).generate(ONE, **options)
        logits = flat[1:].clone()
        logits[:, MASK] = -torch.inf
        clean = logits.softmax(-1)[range(8), output.sequences[0, 1:]]
        torch.testing.assert_close(output.confidence[0], clean)


def test_b037_confidence_does_not_tie_at_low_temperature():
    """Peaked logits at temperature 0.1: the order is that of greedy decoding, not from left to right."""
    torch.manual_seed(2)
    confidences = torch.linspace(0.95, 0.6, 32)[torch.randperm(32)].tolist()
    model = Scripted(table(*[(5, c) for c in confidences]))
    orders = [
        model.generate(ONE, max_new_tokens=32, block_length=32, **FULL, **options).commit_step[0].tolist()
        for options in ({}, {"do_sample": True, "temperature": 0.1, "top_p": 0.9})
    ]
    expected = sorted(range(32), key=lambda place: -confidences[place])
    assert [order.index(step) for order in orders[:1] for step in range(32)] == expected
    assert orders[0] == orders[1]
    ties = Scripted(table(*[(5, 0.9)] * 6)[1:2].repeat(8, 1)).generate(ONE, max_new_tokens=6, block_length=6, **FULL)
    assert ties.commit_step.tolist() == [list(range(6))], "left-most first on ties"


def test_b037_saturated_confidences_warn():
    """Taken after top-k, every confidence is 1: what is ranked by it goes from left to right."""
    model = Scripted(table(*[(5, 0.9 - 0.1 * place) for place in range(6)]))
    options = {"max_new_tokens": 6, "do_sample": True, "top_k": 1}
    with pytest.warns(UserWarning, match="More than half of the open positions of a step had the same confidence"):
        model.generate(ONE, decoder_config={"filtered_confidence": True}, decoder="fixed", **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.generate(ONE, decoder="fixed", **options)


def test_b039_refreshes(llada):
    """Per block by default, by an interval on demand; in every step it is no cache."""
    options = {"max_new_tokens": 16, "block_length": 8, **FULL}
    exact = llada.generate(ONE, **options)
    for policy in ("prefix", "dual"):
        for interval, refreshes in ((None, 2), (4, 4), (1, 16)):
            with counted_forwards(llada) as shapes:
                output = llada.generate(
                    ONE, cache_policy=policy, policy_config={"refresh_interval": interval}, **options
                )
            assert [width for _, width in shapes].count(17) == refreshes
        assert torch.equal(output.sequences, exact.sequences)


def test_b041_storage_and_masks(llada):
    prompt = {"input_ids": torch.tensor([[0, 0, 1, 2, 3]]), "attention_mask": torch.tensor([[0, 0, 1, 1, 1]])}
    options = {"max_new_tokens": 12, "block_length": 4, "cache_policy": "prefix"}
    static, dynamic = (llada.generate(**prompt, **options, cache_implementation=kind) for kind in ("static", "dynamic"))
    assert torch.equal(static, dynamic)
    prompt["attention_mask"] = torch.ones(1, 1, 5, 17)
    with pytest.raises(ValueError, match=r"`attention_mask` is \(1, 1, 5, 17\), but must be of shape \(1, 5\)"):
        llada.generate(**prompt, **options)


def test_b057_the_whole_canvas_at_once(llada):
    """One option takes the blocks away: positions are fixed in any order over the whole answer."""
    blocks, whole = (llada.generate(ONE, max_new_tokens=16, block_length=n, **FULL).commit_step[0] for n in (4, 16))
    assert all(blocks[i : i + 4].max() == i + 3 for i in range(0, 16, 4))
    assert whole[:4].max() > 3 and sorted(whole.tolist()) == list(range(16))


@pytest.mark.parametrize(
    "options", [{"threshold": 0.9}, {"threshold": 1.0}, {"threshold": 1.0, "decoder_config": {"strict": True}}]
)
@pytest.mark.parametrize("policy", ["none", "prefix", "dual"])
def test_b061_no_token_above_the_threshold(options, policy):
    """Uniform logits: one token per step, from left to right, and a finished row is left alone."""
    sure, uniform = [row_of_logits(5, 0.9999999)] * 10, [torch.zeros(64)] * 10
    output = Scripted(torch.stack(sure + uniform)).generate(
        **padded([[1], [1] * 10]), decoder="threshold", cache_policy=policy, block_length=4, max_new_tokens=8,
        **options, **FULL,
    )  # fmt: skip
    assert output.num_forwards[1] == 8 and output.commit_step[1].tolist() == list(range(8))
    assert answer(output, 0) == [5] * 8


@pytest.mark.parametrize("decoder", DECODERS)
def test_b061_as_many_steps_as_masks_at_most(decoder):
    model = Scripted(torch.zeros(20, 64))
    output = model.generate(ONE, decoder=decoder, max_new_tokens=13, block_length=4, **FULL)
    assert output.num_forwards[0] <= 13 and MASK not in output.sequences
