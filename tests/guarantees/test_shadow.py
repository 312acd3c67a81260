"""The shadow of a block, by which a decoder verifies: who sees it, where it is kept, and that rows stay apart."""

import pytest
import torch
from models import MASK, padded, tiny_llada
from probes import answer

from dllm_generate import DiffusionCache
from dllm_generate.attention import shadowed
from dllm_generate.evaluation.memory import measure_memory

PROMPTS = [[5], [3, 1, 4, 1, 5], [9, 2, 6]]
RAGGED = padded(PROMPTS)


def seen_by(mask):
    """The keys that each query sees."""
    return ["".join("x" if key else "." for key in row) for row in mask.tolist()]


def test_what_each_query_sees():
    """Two cells of the prompt behind a scratch column, two of the block, one behind it; the block is one cell short."""
    visible = torch.tensor([[False, True, True, True, True, True]])
    grid = shadowed(visible, torch.arange(6), torch.tensor([[3, 4, 0]]), queries=2, total=10)
    assert seen_by(grid[0]) == [".xxxxx....", ".xxxxx....", ".xx.xxxx..", ".xxx.xxx..", ".xxxxxxx.."]
    window = torch.tensor([[0, 3, 4, 5]])
    grid = shadowed(window > 0, window, torch.tensor([[3, 4]]), queries=1, total=6)
    assert seen_by(grid[0]) == [".xxx..", "..xxxx", ".x.xxx"]


def test_a_row_that_idles_leaves_no_query_without_a_key():
    """Without a cache such a row holds nothing but the scratch column; softmax over nothing is not a number."""
    every = torch.ones(1, 2, dtype=torch.bool)
    grid = shadowed(every, torch.zeros(1, 2, dtype=torch.long), torch.tensor([[0]]), queries=2, total=3)
    assert seen_by(grid[0]) == ["xx."] * 3


@pytest.mark.parametrize("policy", ["none", "prefix", "dual", "vicinity"])
@pytest.mark.parametrize("static", [False, True])
def test_nobody_else_sees_the_shadow(llada, policy, static):
    """In every forward of a ragged batch, with a short last block: rows of cells see no more than real cells."""
    masks = []
    hook = llada.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: masks.append((kwargs["position_ids"], kwargs["attention_mask"])), with_kwargs=True
    )
    options = {"max_new_tokens": 7, "block_length": 4, "cache_policy": policy}
    llada.generate(**RAGGED, **options, decoder="wino", cache_implementation="static" if static else None)
    hook.remove()
    for positions, mask in masks:
        cells_, shadow = mask[:, 0, :-4], mask[:, 0, -4:]
        assert mask.shape[2] == positions.shape[1]
        assert torch.equal(cells_, cells_[:, :1].expand_as(cells_))
        assert set(cells_[:, 0].sum(-1).tolist()) <= {8, 10, 12}
        # Itself instead of its cell, and the other entries; one without a cell sees them, too.
        count = shadow.sum(-1) - cells_[:, :1].sum(-1)
        assert set(count.flatten().tolist()) <= {2, 3, 4}
        if policy != "none":
            assert mask.shape[-1] == (64 if static else 5 + 7 + 1 + 4)


def test_other_decoders_keep_the_mask_of_one_row(llada):
    shapes = []
    hook = llada.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: shapes.append(kwargs["attention_mask"].shape), with_kwargs=True
    )
    llada.generate(**RAGGED, max_new_tokens=4, decoder="remasking", cache_policy="dual")
    hook.remove()
    assert all(shape[1:] == (1, 1, 10) for shape in shapes)


def test_slots_of_the_shadow():
    """They lie behind the canvas, and are rounded with it."""
    cache = DiffusionCache(1, 60, is_static=True)
    cache.reserve(60 + 4)
    assert cache.slots == 64
    cache.reserve(60 + 5)
    assert cache.slots == 128


@pytest.mark.parametrize("options", [{"guidance_scale": 1.7}, {"guidance_scale": 1.7, "do_sample": True}, {}])
@pytest.mark.parametrize("policy", ["none", "dual"])
def test_guided_rows_are_their_single_runs(llada, options, policy):
    """The shadow of the unconditional half has that half's prompt: verification mixes both, as drafts do."""
    call = {"max_new_tokens": 14, "block_length": 7, "threshold": 0.3, "cache_policy": policy, "decoder": "wino"}
    if options.get("do_sample"):
        # Noise depends on the row of the call.
        options = {**options, "top_k": 1}
    batch = llada.generate(**RAGGED, **call, **options, return_dict_in_generate=True)
    for row, prompt in enumerate(PROMPTS):
        same(batch, llada.generate(torch.tensor([prompt]), **call, **options, return_dict_in_generate=True), row)


def same(output, other, row, alone=0):
    """A row of a batch and a row of another call, from the answer on."""
    length = other.commit_step.shape[1]
    assert answer(output, row) == answer(other, alone)
    assert output.num_forwards[row] == other.num_forwards[alone]
    assert output.commit_step[row, :length].tolist() == other.commit_step[alone].tolist()


@pytest.mark.parametrize("suffix", [0, 3])
@pytest.mark.parametrize("policy", ["prefix", "dual", "vicinity"])
def test_with_a_suffix_window(llada, policy, suffix):
    """Rows are their single runs, and a refresh in every step is no cache."""
    call = {"max_new_tokens": 26, "block_length": 12, "threshold": 0.2, "decoder": "wino", "eos_token_id": MASK}
    call |= {"return_dict_in_generate": True, "schedule_config": {"align": "position"}}
    window = {"suffix_window": suffix}
    batch = llada.generate(**RAGGED, **call, cache_policy=policy, policy_config=window)
    exact = llada.generate(**RAGGED, **call, cache_policy="none", policy_config=window)
    fresh = llada.generate(**RAGGED, **call, cache_policy=policy, policy_config={**window, "refresh_interval": 1})
    for row, prompt in enumerate(PROMPTS):
        same(batch, llada.generate(torch.tensor([prompt]), **call, cache_policy=policy, policy_config=window), row)
        same(fresh, exact, row, row)


def test_step_memory_does_not_grow_with_the_prompt():
    model = tiny_llada(vocabulary=4096)
    results = measure_memory(["remasking", "wino"], ("none", "dual"), (16, 200), model=model)
    peaks = {(r.decoder, r.cache_policy, r.prompt_length): r.peak_bytes for r in results}
    for policy in ("none", "dual"):
        assert peaks["wino", policy, 200] == peaks["wino", policy, 16] < 1.1 * peaks["remasking", policy, 16]


@pytest.mark.parametrize("policy", ["none", "dual"])
def test_smoothing_leaves_the_shadow_plain_masks(llada, policy):
    fed = []
    hook = llada.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: fed.append(kwargs["inputs_embeds"]), with_kwargs=True
    )
    call = {"max_new_tokens": 7, "block_length": 4, "threshold": 0.2, "cache_policy": policy, "smoothing": True}
    llada.generate(**RAGGED, **call, decoder="wino")
    hook.remove()
    mask = llada.get_input_embeddings().weight[MASK]
    assert len(fed) > 3
    for embeds in fed:
        assert (embeds[:, -4:] == mask).all()
