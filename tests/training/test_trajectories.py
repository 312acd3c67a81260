"""Recorded decoding, its states, and the objective that jumps along them."""

import itertools
from dataclasses import replace

import pytest
import torch
from models import MASK, tiny_llada

from dllm_generate.bundled import load
from dllm_generate.families import family_of
from dllm_generate.training.base import OBJECTIVES, logits_of
from dllm_generate.training.data import Batch
from dllm_generate.training.losses import certainty_loss
from dllm_generate.training.recording import Trajectories, record, training_prompts
from dllm_generate.training.run import train
from dllm_generate.training.trajectories import Trajectory, TrajectorySource

THRESHOLD = {"decoder": "threshold", "threshold": 0.99}
CAUSAL = {"schedule": "block_diffusion", "cache_policy": "block", "attention": "block_causal"}
PIPELINED = {"schedule": "pipelined", "cache_policy": "block", "attention": "block_causal"}


@pytest.fixture(scope="module")
def bundled():
    model, tokenizer = load(dtype="float32", device="cpu")
    return model, tokenizer


@pytest.fixture(scope="module")
def paths(bundled):
    """Runs of several steps, by view."""
    prompts = training_prompts(["add", "total"], n=12, seed=1, level=2)
    views = {"bidirectional": {}, "block_causal": CAUSAL, "pipelined": PIPELINED}
    return {
        view: record(*bundled, prompts, max_new_tokens=64, batch_size=12, block_length=16, **THRESHOLD, **options)
        for view, options in views.items()
    }


def objective(bundled, view="bidirectional", **options):
    return Trajectory(bundled[1].mask_token_id, view=view, block_length=16, **options)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def scripted():
    """Two rows of 6 cells in blocks of 3, one token after the other; the second text ends after 4 cells."""
    steps = torch.arange(6).expand(2, 6)
    answers = torch.arange(30, 36).expand(2, 6)
    prompts = torch.tensor([[3, 4, 5], [3, 4, 0]])
    facts = {"mask_token_id": MASK, "eos_token_id": 1}
    counts = torch.tensor([3, 2]), torch.tensor([6, 4]), torch.tensor([6, 6])
    return Trajectories(prompts, counts[0], answers, counts[1], steps, counts[2], facts)


def replayed(bundled, runs, view):
    """States of all rows: cells, which are open, the step that is next, and what the model predicts; (B, S) each."""
    batch = runs.batch(range(len(runs)))
    made = objective(bundled, view)
    for seed in range(5):
        begin, _ = made.states(batch, generator(seed))
        seen = made.corrupt(batch, generator(seed))
        with torch.no_grad():
            confidence, tokens = logits_of(bundled[0], seen).softmax(-1).max(-1)
        cells = seen.position_ids - batch.prompt_lengths[:, None]
        begin = begin.gather(1, cells.clamp(0, begin.shape[1] - 1))
        yield cells, seen.input_ids == bundled[1].mask_token_id, begin, confidence, tokens


@pytest.mark.parametrize("view", ["bidirectional", "block_causal"])
def test_states_are_those_that_decoding_went_through(bundled, paths, view):
    """The decoder's rule, on the logits of a recorded state, chooses exactly what the run committed next."""
    runs, blocks = paths[view], set()
    for cells, open_mask, begin, confidence, tokens in replayed(bundled, runs, view):
        for row, low in itertools.product(range(len(runs)), range(0, 64, 16)):
            where = ((cells[row] >= low) & (cells[row] < low + 16) & open_mask[row]).nonzero()[:, 0]
            now = runs.commit_step[row, cells[row, where]] == begin[row, where]
            if low >= runs.answer_lengths[row] or not now.any():
                continue
            chosen = confidence[row, where] >= 0.99
            chosen[confidence[row, where].argmax()] = True
            assert torch.equal(chosen, now)
            assert torch.equal(tokens[row, where][now], runs.answer_ids[row, cells[row, where]][now])
            blocks.add((low, int(begin[row, where[0]])))
    assert len(blocks) > 5


def test_states_of_pipelined_decoding_predict_what_it_committed(bundled, paths):
    runs, count = paths["pipelined"], 0
    blocks = runs.commit_step.view(len(runs), 4, 16)
    assert (blocks[:, :-1].amax(2) >= blocks[:, 1:].amin(2)).any(), "no block began before the one in front was done"
    for cells, open_mask, begin, confidence, tokens in replayed(bundled, runs, "pipelined"):
        index = cells.clamp(0, 63)
        now = open_mask & (runs.commit_step.gather(1, index) == begin)
        assert torch.equal(tokens[now], runs.answer_ids.gather(1, index)[now])
        count += int((confidence[now] >= 0.99).sum())
    assert count > 100


def spans(skip, view="bidirectional", seeds=60):
    """All pairs of states that are drawn for the two rows, and for each block where blocks have their own."""
    batch, found = scripted().batch([0, 1]), set()
    for seed in range(seeds):
        begin, end = Trajectory(MASK, skip=skip, view=view, block_length=3).states(batch, generator(seed))
        found |= {(row, int(begin[row, c]), int(end[row, c])) for row in (0, 1) for c in (0, 3)}
    return found


def test_skips_of_a_row():
    assert spans("any", seeds=400) == {
        (r, i, j) for r, n in ((0, 6), (1, 4)) for i in range(n) for j in range(i + 1, n + 1)
    }
    assert spans(1) == {(r, i, i + 1) for r, n in ((0, 6), (1, 4)) for i in range(n)}
    assert spans("end") == {(r, i, n) for r, n in ((0, 6), (1, 4)) for i in range(n)}
    assert spans("block") == {(0, i, 3 if i < 3 else 6) for i in range(6)} | {
        (1, 0, 3),
        (1, 1, 3),
        (1, 2, 3),
        (1, 3, 4),
    }


def test_skips_of_blocks_stay_inside_them():
    ends = {(0, 0): 3, (0, 1): 6, (1, 0): 3, (1, 1): 4}
    found = spans("any", "block_causal", seeds=200)
    assert found == {(r, i, j) for (r, b), n in ends.items() for i in range(3 * b, n) for j in range(i + 1, n + 1)}
    assert {j - i for _, i, j in spans(2, "block_causal")} == {1, 2}


@pytest.mark.parametrize("view", ["bidirectional", "block_causal", "pipelined"])
def test_what_is_shown_and_asked(view):
    batch = scripted().batch([0, 1])
    made = Trajectory(MASK, skip="any", view=view, block_length=3)
    for seed in range(20):
        begin, end = made.states(batch, generator(seed))
        seen = made.corrupt(batch, generator(seed))
        low = batch.width if view == "block_causal" else 0
        for row, prompt in enumerate((3, 2)):
            assert seen.input_ids[row, :prompt].tolist() == [3, 4, 5][:prompt]
            for cell in range(6):
                at = low + cell if low else prompt + cell
                assert (seen.input_ids[row, at] == MASK) == (cell >= begin[row, cell])
                assert (seen.weights[row, at] == 0.5) == (begin[row, cell] <= cell < end[row, cell])
                assert seen.labels[row, at] == 30 + cell and seen.position_ids[row, at] == prompt + cell
        assert int((seen.weights > 0).sum()) == int(((begin <= torch.arange(6)) & (torch.arange(6) < end)).sum())


def test_what_a_block_sees():
    batch = scripted().batch([0])
    block = torch.tensor([0, 0, 0, 1, 1, 1, 2, 2, 2])
    noisy = Trajectory(MASK, view="pipelined", block_length=3).corrupt(batch, generator())
    assert torch.equal(noisy.allowed[0, 0], block <= block[:, None])
    clean = Trajectory(MASK, view="block_causal", block_length=3).corrupt(batch, generator())
    sees = clean.allowed[0, 0, 9:]
    assert torch.equal(sees[:, :9], block < block[3:, None])
    assert torch.equal(sees[:, 9:], block[3:] == block[3:, None])
    full = Trajectory(MASK, block_length=3).corrupt(batch, generator())
    assert full.allowed.all()


def test_the_loss_is_the_summed_likelihood_and_beta_adds_certainty(bundled, paths):
    model = bundled[0]
    batch = paths["bidirectional"].batch(range(6))
    made = objective(bundled, beta=0)
    seen = made.corrupt(batch, generator())
    logits = logits_of(model, seen)
    losses = torch.nn.functional.cross_entropy(logits.transpose(1, 2), seen.labels, reduction="none")
    asked = seen.weights > 0
    plain = made(model, batch, generator())
    torch.testing.assert_close(plain, losses[asked].sum() / 6, rtol=1e-3, atol=1e-4)
    certain = objective(bundled, beta=3.0)(model, batch, generator())
    right = asked & (logits.argmax(-1) == seen.labels)
    entropy = torch.distributions.Categorical(logits=logits / 0.5).entropy()
    torch.testing.assert_close(certain, plain + 3.0 * entropy[right].mean() * asked.sum() / 6, rtol=1e-3, atol=1e-4)
    mean = objective(bundled, beta=0, reduction="mean")(model, batch, generator())
    torch.testing.assert_close(
        mean, torch.stack([losses[row][asked[row]].mean() for row in range(6)]).mean(), rtol=1e-3, atol=1e-4
    )


def test_certainty_is_asked_of_right_predictions_alone():
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]], requires_grad=True)
    certainty_loss(logits, torch.tensor([0, 1]), torch.ones(2)).backward()
    assert logits.grad[0].abs().sum() > 0 and not logits.grad[1].any()
    assert certainty_loss(logits, torch.tensor([1, 1]), torch.ones(2)).item() == 0


@pytest.mark.parametrize("view", ["bidirectional", "block_causal", "pipelined"])
def test_a_few_steps_lower_the_loss_of_the_bundled_model(paths, view):
    model, tokenizer = load(dtype="float32", device="cpu")
    batch = paths[view].batch(range(8))
    made = Trajectory(tokenizer.mask_token_id, skip="end", view=view, block_length=16)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    losses = []
    for _ in range(4):
        loss = made(model, batch, generator())
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


@pytest.mark.parametrize(("view", "attention"), [("bidirectional", None), ("block_causal", "block_causal")])
def test_a_recipe_trains_on_a_recording(tmp_path, paths, view, attention):
    file = str(tmp_path / "paths.safetensors")
    paths[view].save(file)
    settings = {"name": "trajectory", "view": view, "block_length": 16, "skip": "end"}
    sizes = {"steps": 2, "rows": 4, "parts": 2, "max_length": 160}
    data = {"name": "trajectories", "file": [file, file]}
    done = train({"output": str(tmp_path / "run"), "objective": settings, "data": data, **sizes, "log_every": 1})
    assert len(done.metrics) >= 2 and all(line["loss"] > 0 for line in done.metrics if "loss" in line)
    assert load(tmp_path / "run" / "final")[0].generation_config.attention == attention
    examples = TrajectorySource(file).examples(done.tokenizer, 160)(0, 0, 2)
    assert all(answer[-1] == done.tokenizer.eos_token_id for _, answer in examples)


WRONG = [("skip", 0), ("skip", "far"), ("view", "causal"), ("block_length", 0), ("beta", -1), ("reduction", "max")]


@pytest.mark.parametrize(("name", "value"), [*WRONG, ("certainty_temperature", 0)])
def test_wrong_values_are_named(name, value):
    with pytest.raises(ValueError, match=f"`{name}` is .*, but must be"):
        OBJECTIVES.build("trajectory", {"mask_token_id": MASK, name: value})


def test_a_plain_batch_is_refused():
    plain = Batch(torch.ones(1, 4).long(), torch.tensor([1]), torch.tensor([3]), torch.tensor([3]))
    with pytest.raises(ValueError, match="`batch` is 'Batch', but must be a TrajectoryBatch"):
        Trajectory(MASK)(tiny_llada(), plain, generator())


def test_a_block_causal_family_takes_no_bidirectional_view():
    family = family_of(tiny_llada(), {"attention": "block_causal"})
    Trajectory(MASK, view="block_causal").validate(family)
    with pytest.raises(ValueError, match="`view` is 'bidirectional'"):
        Trajectory(MASK).validate(family)
    with pytest.raises(ValueError, match="`block_length` is 8, but must be 4"):
        Trajectory(MASK, view="block_causal", block_length=8).validate(replace(family, block_length=4))
    with pytest.raises(ValueError, match="`objective` is 'trajectory'"):
        Trajectory(MASK, view="block_causal").validate(replace(family, prompt_is_one_block=False))
