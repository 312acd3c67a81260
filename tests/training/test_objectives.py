"""What each objective hides, shows and asks for."""

import random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from dllm_generate.training.data import Batch, collate
from dllm_generate.training.objectives import BlockDiffusion, CausalLM, MaskedDiffusion, Mixture

MASK, EOS = 2, 1
EXAMPLES = [([3, 20, 21, 4], [30, 31, 32, 33, 34, EOS]), ([3, 22, 4], [40, 41, 42, EOS]), ([3, 4], [50, EOS])]


@pytest.fixture
def batch():
    return collate(EXAMPLES, EOS, random.Random(3))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(vocab_size=64, **sizes, attn_implementation="eager")
    config.is_causal = False
    return LlamaForCausalLM(config).eval()


def logits(model, seen):
    blocked = torch.zeros(seen.allowed.shape).masked_fill(~seen.allowed, -1e9)
    return model(input_ids=seen.input_ids, attention_mask=blocked, position_ids=seen.position_ids).logits


def test_batch_layout(batch):
    assert batch.rows == 3 and batch.prompt_lengths.tolist() == [4, 3, 2] and batch.answer_lengths.tolist() == [6, 4, 2]
    assert (batch.canvas_lengths >= batch.answer_lengths).all()
    for row, (prompt, answer) in enumerate(EXAMPLES):
        ids = batch.input_ids[row].tolist()
        assert ids[: len(prompt + answer)] == prompt + answer and set(ids[len(prompt + answer) :]) <= {EOS}
    trimmed = batch.trimmed(0)
    assert trimmed.width == 10 and trimmed.canvas_lengths.tolist() == [6, 4, 2]


def test_masking_hides_k_cells_of_the_answer(batch):
    counts = set()
    for seed in range(200):
        seen = MaskedDiffusion(MASK, block_fraction=0.0).corrupt(batch, generator(seed))
        asked, hidden = seen.weights > 0, seen.input_ids == MASK
        assert torch.equal(asked, hidden)
        assert not (hidden & (batch.answer_cells() < 0)).any() and not (hidden & ~batch.real()).any()
        assert torch.allclose(seen.weights.sum(1), torch.full((3,), 1 / 3))
        counts.add(int(hidden[0].sum()))
    assert counts == set(range(1, int(batch.canvas_lengths[0]) + 1))


def test_semi_autoregressive_rows_have_clean_prefix_and_masked_future(batch):
    for seed in range(100):
        seen = MaskedDiffusion(MASK, block_fraction=1.0, block_sizes=(2,)).corrupt(batch, generator(seed))
        for row in range(batch.rows):
            cells = batch.answer_cells()[row]
            asked = cells[seen.weights[row] > 0]
            assert 1 <= len(asked) <= 2 and asked.min() // 2 == asked.max() // 2
            hidden = cells[seen.input_ids[row] == MASK]
            low = asked.min() // 2 * 2
            assert low < batch.answer_lengths[row] and hidden.min() >= low
            behind = set(range(int(low) + 2, int(batch.canvas_lengths[row])))
            assert behind <= set(hidden.tolist())


def test_tail_weight(batch):
    long = Batch(batch.input_ids, batch.prompt_lengths, batch.answer_lengths, batch.width - batch.prompt_lengths)
    seen = MaskedDiffusion(MASK, block_fraction=0.0, tail_weight=0.0).corrupt(long, generator())
    assert not (seen.weights[long.answer_cells() >= long.answer_lengths[:, None]] > 0).any()


def test_block_diffusion_asks_for_every_token_once(batch):
    short = batch.trimmed(4)
    for seed in range(30):
        seen = BlockDiffusion(MASK).corrupt(batch, generator(seed))
        assert (seen.input_ids[seen.weights > 0] == MASK).all()
        for row in range(3):
            asked = seen.position_ids[row, seen.weights[row] > 0].sort().values - batch.prompt_lengths[row]
            assert asked.tolist() == list(range(int(short.canvas_lengths[row])))
            assert torch.equal(
                seen.labels[row, seen.weights[row] > 0].sort().values,
                batch.input_ids[row, batch.prompt_lengths[row] + asked].sort().values,
            )


def test_block_diffusion_equals_block_causal_forwards(batch, model):
    """A noisy block behind its clean prefix gives, alone, the logits that it gives among all copies."""
    size = 2
    seen = BlockDiffusion(MASK, block_sizes=(size,)).corrupt(batch, generator(5))
    together = logits(model, seen)
    width = batch.trimmed(4).width
    longest = (seen.input_ids.shape[1] - width) // 2
    for row in range(3):
        prompt = int(batch.prompt_lengths[row])
        for low in range(0, int(batch.trimmed(4).canvas_lengths[row]) - size + 1, size):
            copy = width + low
            ids = torch.cat([seen.input_ids[row, : prompt + low], seen.input_ids[row, copy : copy + size]])[None]
            block = torch.cat([torch.zeros(prompt), 1 + torch.arange(low + size) // size])
            allowed = block[None, :] <= block[:, None]
            mask = torch.zeros(allowed.shape).masked_fill(~allowed, -1e9)[None, None]
            alone = model(input_ids=ids, attention_mask=mask).logits[0, -size:]
            torch.testing.assert_close(alone, together[row, copy : copy + size], atol=1e-5, rtol=1e-4)
    assert longest >= 6


def test_causal_equals_the_loss_of_transformers(batch, model):
    seen = CausalLM().example(batch, generator())
    labels = torch.where(
        (batch.answer_cells() >= 0) & (batch.answer_cells() < batch.answer_lengths[:, None]), batch.input_ids, -100
    )[:1]
    model.config.is_causal = True
    expected = model(input_ids=batch.input_ids[:1], labels=labels).loss
    model.config.is_causal = False
    one = Batch(batch.input_ids[:1], batch.prompt_lengths[:1], batch.answer_lengths[:1], batch.canvas_lengths[:1])
    torch.testing.assert_close(CausalLM()(model, one, generator()), expected)
    assert torch.allclose(seen.weights.sum(), torch.tensor(1.0))


def test_padding_behind_the_canvas_changes_nothing(batch, model):
    seen = MaskedDiffusion(MASK).corrupt(batch, generator(1))
    other = seen.input_ids.masked_fill(~batch.real(), 9)
    changed = type(seen)(other, seen.position_ids, seen.allowed, seen.labels, seen.weights)
    assert torch.equal(logits(model, seen)[batch.real()], logits(model, changed)[batch.real()])


def test_mixture_draws_every_objective_and_repeats_itself(batch, model):
    mixture = Mixture([MaskedDiffusion(MASK), BlockDiffusion(MASK)], [0.5, 0.5])
    widths = {mixture.corrupt(batch, generator(seed)).input_ids.shape[1] for seed in range(20)}
    assert len(widths) == 2
    assert torch.equal(mixture(model, batch, generator(4)), mixture(model, batch, generator(4)))
