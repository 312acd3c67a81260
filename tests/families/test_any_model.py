"""Models that no family knows: random ones of transformers' own classes, with the three facts given by hand."""

import copy

import pytest
import torch
import transformers
from models import MASK, PAD, counted_forwards, padded
from promises import compare
from stock import CALL, ENCODERS, FACTS, MODELS, PROMPTS, SLIDING, build, by_hand, rows_are_single_runs

from dllm_generate import attach, diffusion_generate
from dllm_generate.traits import traits_of


@pytest.mark.parametrize("name", MODELS)
def test_the_tokens_are_those_of_plain_calls(name):
    model, traits = build(name)
    plain = copy.deepcopy(model)
    attach(model)
    found = {**{"head": "embeddings", "masks": "grid", "takes_cache": True}, **traits}
    assert {key: getattr(traits_of(model), key) for key in found} == found
    ids = torch.tensor([[3, 1, 4, *[MASK] * 10]])
    expected, order = by_hand(plain, ids, 10)
    output = model.generate(ids[:, :3], **{**CALL, "eos_token_id": MASK}, max_new_tokens=10)
    assert output.sequences.tolist() == expected.tolist()
    assert output.commit_step[0].argsort().tolist() == [place - 3 for place in order]
    assert torch.equal(
        diffusion_generate(plain, ids[:, :3], **CALL, max_new_tokens=10).sequences[:, :4], expected[:, :4]
    )
    assert type(plain) is getattr(transformers, MODELS[name][0])


@pytest.mark.parametrize("name", MODELS)
def test_a_row_is_its_single_run(name):
    model, traits = build(name)
    attach(model)
    options = {"max_new_tokens": 9, "block_length": 4}
    fixed = rows_are_single_runs(model, **options)
    rows_are_single_runs(model, **options, decoder="threshold", threshold=0.3, smoothing=True, cache_policy="none")
    if not traits.get("takes_cache", True):
        with pytest.raises(ValueError, match="`cache_policy` is 'dual', but must be 'none': the model takes no cache"):
            model.generate(**padded(PROMPTS), **CALL, **options, cache_policy="dual")
        return
    for policy in ("prefix", "dual", "vicinity"):
        rows_are_single_runs(model, **options, cache_policy=policy)
        fresh = model.generate(
            **padded(PROMPTS), **CALL, **options, cache_policy=policy, policy_config={"refresh_interval": 1}
        )
        assert torch.equal(fresh.sequences, fixed.sequences)


@pytest.mark.parametrize("name", ENCODERS)
def test_infilling(name):
    model, _ = build(name)
    plain = copy.deepcopy(model)
    ids = torch.tensor([[3, MASK, 4, MASK, MASK, 9], [MASK, 8, MASK, 7, 7, MASK]])
    filled = attach(model).generate(ids, **{**FACTS, "pad_token_id": PAD, "eos_token_id": MASK}, infill=True)
    for row in range(2):
        plain_ids, _ = by_hand(plain, ids[row : row + 1], 3)
        assert filled[row].tolist() == plain_ids[0].tolist()


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_shifted_logits(name):
    model, _ = build(name)
    plain = copy.deepcopy(model)
    ids = torch.tensor([[3, 1, 4, *[MASK] * 8]])
    expected, _ = by_hand(plain, ids, 8, shift=1)
    call = {**CALL, "logits_shift": True, "eos_token_id": MASK, "max_new_tokens": 8}
    assert torch.equal(attach(model).generate(ids[:, :3], **call).sequences, expected)


@pytest.mark.parametrize("name", SLIDING)
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_sliding_windows_longer_texts(name, backend):
    """The text is much longer than what its layers see; `by_hand` leaves the window to the model."""
    model, traits = build(name, SLIDING)
    model.set_attn_implementation(backend)
    plain = copy.deepcopy(model)
    attach(model)
    assert traits_of(model).window == 3 and traits_of(model).layered == traits.get("layered", False)
    ids = torch.tensor([[3, 1, 4, 1, 5, *[MASK] * 12]])
    expected, _ = by_hand(plain, ids, 12)
    output = model.generate(ids[:, :5], **{**CALL, "eos_token_id": MASK}, max_new_tokens=12)
    assert torch.equal(output.sequences, expected)
    plain.config.sliding_window = 100
    assert not torch.equal(by_hand(plain, ids, 12)[0], expected)
    rows_are_single_runs(model, max_new_tokens=9, block_length=4)
    rows_are_single_runs(model, max_new_tokens=9, block_length=4, decoder="wino", threshold=0.2)


def test_a_preset_with_a_cache_falls_back_with_one_warning():
    model = attach(build("distilbert")[0])
    with pytest.warns(UserWarning, match="preset has `cache_policy` 'dual', but the model takes no cache") as caught:
        fast = model.generate(**padded(PROMPTS), **CALL, preset="speed", max_new_tokens=8)
    assert len(caught) == 1
    same = model.generate(**padded(PROMPTS), **CALL, preset="speed", cache_policy="none", max_new_tokens=8)
    assert torch.equal(fast.sequences, same.sequences)
    model.generation_config.cache_policy = "prefix"
    with pytest.raises(ValueError, match="`cache_policy` is 'prefix', but must be 'none'"):
        model.generate(torch.tensor([[5]]), **CALL, max_new_tokens=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decoder": "wino"}, "`decoder` is 'wino', which verifies what it wrote, but DebertaV2ForMaskedLM takes no"),
        ({"attention": "block_causal", "cache_policy": "none"}, "`attention` is 'block_causal', but must be 'bidir"),
    ],
)
def test_masks_of_keys_alone_cannot_do_everything(options, message):
    model = attach(build("deberta")[0])
    with counted_forwards(model) as shapes, pytest.raises(ValueError, match=message):
        model.generate(torch.tensor([[5]]), **{**CALL, **options}, max_new_tokens=4)
    assert not shapes


def test_a_model_that_counts_itself_takes_no_holes():
    model = attach(build("mpnet")[0])
    ids, mask = torch.tensor([[3, 1, 4], [2, 7, 1]]), torch.tensor([[1, 0, 1], [0, 1, 1]])
    with pytest.raises(ValueError, match="`attention_mask` leaves out tokens inside a prompt"):
        model.generate(ids, attention_mask=mask, **CALL, max_new_tokens=4)
    other = attach(build("bert")[0]).generate(ids, attention_mask=mask, **CALL, max_new_tokens=4)
    alone = attach(build("bert")[0]).generate(torch.tensor([[3, 4]]), **CALL, max_new_tokens=4)
    assert other.sequences[0, 3:].tolist() == alone.sequences[0, 2:].tolist()


def test_positions_that_start_behind_the_pad_id_leave_less_room():
    model = attach(build("roberta")[0])
    longest = 128 - (PAD + 1)
    assert model.generate(torch.tensor([[5]]), **CALL, max_new_tokens=longest - 1, decoder="threshold", threshold=0.1)
    with pytest.raises(ValueError, match=f"`max_position_embeddings` is {longest}"):
        model.generate(torch.tensor([[5]]), **CALL, max_new_tokens=longest)


@pytest.mark.parametrize("name", ["llama", "qwen3_moe", "bert"])
def test_block_causal_by_hand(name):
    """The exact cache of complete blocks, on a class that knows nothing of blocks."""
    model = attach(build(name)[0])
    call = {"attention": "block_causal", "max_new_tokens": 9, "block_length": 4}
    kept, anew = (
        model.generate(**padded(PROMPTS), **{**CALL, **call}, cache_policy=policy) for policy in ("block", "none")
    )
    assert torch.equal(kept.sequences, anew.sequences) and torch.equal(kept.commit_step, anew.commit_step)
    whole = model.generate(**padded(PROMPTS), **CALL, max_new_tokens=9, block_length=4)
    assert not torch.equal(whole.sequences, kept.sequences)
    for row, prompt in enumerate(PROMPTS):
        compare(kept, row, model.generate(torch.tensor([prompt]), **{**CALL, **call}, cache_policy="block"))
