"""Objectives on models of every kind: which row predicts a token, and what a noisy block sees."""

import random

import pytest
import torch
from models import byte_tokenizer
from transformers import AutoModelForCausalLM

from dllm_generate.families import family_of
from dllm_generate.training.data import collate
from dllm_generate.training.objectives import BlockDiffusion, MaskedDiffusion, logits_of, weighted_cross_entropy
from dllm_generate.training.recipe import Recipe

EOS = byte_tokenizer().eos_token_id
# Prompts end in the middle, at the end and before the end of a block of 4.
EXAMPLES = [([5, 6, 7, 8, 9, 10], [30, 31, 32, 33, 34, EOS]), ([3, 22, 4, 8], [40, 41, 42, EOS]), ([3], [50, EOS])]


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture
def batch():
    return collate(EXAMPLES, EOS, random.Random(3))


@pytest.fixture
def model(folders, request):
    return AutoModelForCausalLM.from_pretrained(folders(request.param)).eval()


def objective_of(model, name, **settings):
    recipe = Recipe(output="unused", objective={"name": name, **settings})
    return recipe.make_objective(family_of(model))


@pytest.mark.parametrize("model", ["llada", "dream"], indirect=True)
@torch.no_grad()
def test_masked_diffusion_asks_the_row_that_predicts(model, batch):
    shift = family_of(model).logits_shift
    objective = objective_of(model, "masked_diffusion")
    assert objective.logits_shift == shift
    seen = objective.corrupt(batch, generator(1))
    expected = torch.zeros(())
    for row in range(batch.rows):
        real = batch.real()[row]
        scores = model(seen.input_ids[row, real][None]).logits[0].log_softmax(-1)
        for cell in (seen.weights[row] > 0).nonzero()[:, 0].tolist():
            expected -= seen.weights[row, cell] * scores[cell - shift, batch.input_ids[row, cell]]
    torch.testing.assert_close(objective(model, batch, generator(1)), expected)


@pytest.mark.parametrize("model", ["sdar", "fast_dllm"], indirect=True)
@torch.no_grad()
def test_a_noisy_block_sees_the_clean_text_before_it_and_itself(model, batch):
    """Among all copies it gives the logits that it gives behind its clean text, under the model's own attention."""
    objective, size = objective_of(model, "block_diffusion"), 4
    assert objective.block_sizes == (size,) and objective.prompt_is_one_block is False
    seen = objective.corrupt(batch, generator(5))
    together, short = logits_of(model, seen), batch.trimmed(4)
    longest = (seen.input_ids.shape[1] - short.width) // 2
    blocks = 0
    for row in range(batch.rows):
        prompt, canvas = int(batch.prompt_lengths[row]), int(short.canvas_lengths[row])
        first = prompt // size * size
        for start in range(first, prompt + canvas - size + 1, size):
            for copy in (0, 1):
                low = short.width + copy * longest + start - first
                noisy = seen.input_ids[row, low : low + size]
                alone = model(torch.cat([batch.input_ids[row, :start], noisy])[None]).logits[0, start:]
                torch.testing.assert_close(together[row, low : low + size], alone, atol=1e-4, rtol=1e-4)
                blocks += 1
    assert blocks >= 8


@pytest.mark.parametrize("model", ["sdar", "fast_dllm"], indirect=True)
def test_the_prompt_is_shown_and_every_answer_token_asked_once(model, batch):
    objective = objective_of(model, "block_diffusion")
    for seed in range(20):
        seen = objective.corrupt(batch, generator(seed))
        asked = seen.weights > 0
        assert torch.equal(asked, seen.input_ids == objective.mask_token_id)
        for row in range(batch.rows):
            cells = seen.position_ids[row, asked[row]].sort().values - batch.prompt_lengths[row]
            assert cells.tolist() == list(range(int(batch.trimmed(4).canvas_lengths[row])))
        torch.testing.assert_close(seen.weights.sum(1), torch.full((3,), 1 / 3))


@pytest.mark.parametrize("model", ["fast_dllm"], indirect=True)
@torch.no_grad()
def test_the_clean_text_predicts_the_first_token_of_a_block(model, batch):
    """As in decoding, where the rows before a block are those of finished text."""
    objective, size = objective_of(model, "block_diffusion"), 4
    seen, moved = objective.corrupt(batch, generator(2)), objective.example(batch, generator(2))
    width = batch.trimmed(4).width
    expected = torch.zeros(())
    for row in range(batch.rows):
        clean = model(batch.input_ids[row : row + 1, :width]).logits[0].log_softmax(-1)
        for cell in (seen.weights[row] > 0).nonzero()[:, 0].tolist():
            position = int(seen.position_ids[row, cell])
            if position % size:
                scores = logits_of(model, seen)[row, cell - 1].log_softmax(-1)
            else:
                # What lies behind changes nothing: attention is block-causal.
                scores = clean[position - 1]
            expected -= seen.weights[row, cell] * scores[batch.input_ids[row, position]]
    torch.testing.assert_close(weighted_cross_entropy(model, moved), expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("model", ["sdar"], indirect=True)
def test_what_a_block_causal_model_cannot_be_trained_with(model):
    with pytest.raises(ValueError, match="`attention` is 'block_causal', but must be bidirectional"):
        objective_of(model, "masked_diffusion")
    with pytest.raises(ValueError, match=r"`block_sizes` is \(2, 4\), but must be \[4\]"):
        objective_of(model, "block_diffusion", block_sizes=[2, 4])


@pytest.mark.parametrize("objective", [MaskedDiffusion(2), MaskedDiffusion(2, logits_shift=True), BlockDiffusion(2)])
def test_labels_stand_at_the_cell_that_is_asked_for(objective, batch):
    seen = objective.corrupt(batch, generator(3))
    asked = seen.weights > 0
    assert torch.equal(seen.labels[asked], batch.input_ids.gather(1, seen.position_ids)[asked])
