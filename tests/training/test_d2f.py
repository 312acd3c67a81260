"""D2F's distillation: its noise, what student and teacher see, and what learns."""

import copy
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from models import EOS, MASK, tiny_llada
from peft import LoraConfig, get_peft_model

from dllm_generate.bundled import bundled_model, load
from dllm_generate.evaluation.tasks import training_problems
from dllm_generate.families import family_of
from dllm_generate.training.base import OBJECTIVES, logits_of
from dllm_generate.training.d2f import D2F, monotone_rates
from dllm_generate.training.data import Batch, collate, encode
from dllm_generate.training.losses import distillation_loss
from dllm_generate.training.run import train

EXAMPLES = [([3, 20, 21, 4], [*range(30, 43), EOS]), ([3, 22, 4], [40, 41, 42, EOS]), ([3, 4], [50, EOS])]


@pytest.fixture
def batch():
    return collate(EXAMPLES, EOS, random.Random(3))


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def adapted(model, **config):
    config = {"r": 4, "lora_alpha": 4, "target_modules": ["q_proj", "v_proj"], **config}
    return get_peft_model(model, LoraConfig(**config))


def stirred(model):
    """An adapter whose second matrices are not zero, so that it does something."""
    torch.manual_seed(1)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.5)
    return model


@given(st.integers(0, 10_000), st.integers(1, 9), st.floats(0.05, 0.9), st.floats(0, 1))
def test_rates_never_fall_and_stay_in_range(seed, blocks, low, share):
    high = low + share * (1 - low)
    rates = monotone_rates(torch.rand(3, blocks, generator=generator(seed)), low, high)
    assert rates.shape == (3, blocks) and (rates.diff(dim=1) >= 0).all()
    assert rates.min() >= low - 1e-6 and rates.max() <= high + 1e-5


def test_later_blocks_are_noisier():
    long = Batch(torch.full((400, 34), 5), *(torch.full((400,), n) for n in (2, 32, 32)))
    seen = D2F(MASK, block_length=8, tail=0).corrupt(long, generator())
    shares = (seen.input_ids[:, 2:] == MASK).float().view(400, 4, 8).mean((0, 2))
    assert (shares.diff() > 0).all() and shares[0] == pytest.approx(0.45, abs=0.03)


def test_only_the_answer_is_hidden_and_weights_are_shares_over_rates(batch):
    objective = D2F(MASK, block_length=4)
    rates = torch.tensor([[0.25, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0.5]] * 3)
    kept = batch.trimmed(4)
    seen = objective.hide(kept, rates, torch.zeros(kept.input_ids.shape))
    hidden = seen.input_ids == MASK
    assert torch.equal(hidden, (kept.answer_cells() >= 0) & kept.real())
    first = kept.answer_cells() < 4
    expected = torch.where(first, 1 / 0.25, 1 / 0.5) / hidden.sum()
    assert torch.allclose(seen.weights, expected * hidden) and torch.equal(seen.labels, kept.input_ids)


def test_a_block_never_sees_a_later_one_and_the_prompt_sees_itself(batch):
    seen = D2F(MASK, block_length=4).corrupt(batch, generator())
    kept = batch.trimmed(4)
    cells = kept.answer_cells()
    block = torch.where(cells < 0, 0, 1 + cells.clamp(min=0) // 4)
    for row, query, key in torch.cartesian_prod(torch.arange(3), *2 * [torch.arange(kept.width)]).tolist():
        visible = block[row, key] <= block[row, query] and kept.real()[row, key]
        assert seen.allowed[row, 0, query, key] == visible


def test_the_teacher_sees_everything_without_the_adapter(batch):
    base = tiny_llada()
    plain = copy.deepcopy(base)
    student = stirred(adapted(base, lora_dropout=0.5)).train()
    objective = D2F(MASK, block_length=4)
    seen, kept = objective.corrupt(batch, generator()), batch.trimmed(4)
    taught = objective.taught(student, seen, kept.real())
    with torch.no_grad():
        full = plain(seen.input_ids, attention_mask=kept.real()[:, None, None, :]).logits
    torch.testing.assert_close(taught, full[seen.weights > 0])
    assert student.training and not taught.requires_grad
    assert not torch.allclose(logits_of(student, seen)[seen.weights > 0], taught)


@pytest.mark.parametrize("self_align", [True, False])
def test_gradients_reach_the_adapter_alone(batch, self_align):
    student = stirred(adapted(tiny_llada()))
    D2F(MASK, block_length=4, self_align=self_align)(student, batch, generator()).backward()
    touched = {name for name, p in student.named_parameters() if p.grad is not None and p.grad.abs().sum() > 0}
    assert touched and all("lora" in name for name in touched)


def test_a_teacher_of_its_own_stays_frozen_and_equals_the_adapter_switched_off(batch):
    base = tiny_llada()
    teacher, whole = copy.deepcopy(base), copy.deepcopy(base)
    loss = D2F(MASK, block_length=4, teacher=teacher.train())(whole, batch, generator())
    assert not teacher.training
    torch.testing.assert_close(loss, D2F(MASK, block_length=4)(adapted(base), batch, generator()))
    loss.backward()
    assert all(p.grad is None for p in teacher.parameters()) and whole.lm_head.weight.grad is not None


def test_a_student_that_agrees_has_the_least_loss_the_teachers_entropy():
    teacher, weights = torch.randn(5, 8, generator=generator()), torch.tensor([1.0, 2, 3, 4, 5])
    least = (torch.distributions.Categorical(logits=teacher).entropy() * weights).sum()
    torch.testing.assert_close(distillation_loss(teacher.clone(), teacher, weights), least)
    assert distillation_loss(teacher + torch.randn(5, 8, generator=generator(1)), teacher, weights) > least


def test_shifted_logits_are_read_one_row_before(batch):
    model = tiny_llada()
    seen = D2F(MASK, block_length=4, self_align=False).corrupt(batch, generator())
    logits = torch.cat([torch.ones(3, 1, 64), logits_of(model, seen)[:, :-1]], 1)
    losses = torch.nn.functional.cross_entropy(logits.flatten(0, 1), seen.labels.flatten(), reduction="none")
    shifted = D2F(MASK, block_length=4, self_align=False, logits_shift=True)
    torch.testing.assert_close(shifted(model, batch, generator()), (losses * seen.weights.flatten()).sum())


def test_temperature_softens_both(batch):
    student = stirred(adapted(tiny_llada()))
    hot = D2F(MASK, block_length=4, temperature=2.0)
    seen, real = hot.corrupt(batch, generator()), batch.trimmed(4).real()
    taught, logits = hot.taught(student, seen, real) / 2, logits_of(student, seen)[seen.weights > 0] / 2
    losses = -(taught.softmax(-1) * logits.log_softmax(-1)).sum(-1) * 4
    torch.testing.assert_close(hot(student, batch, generator()), (losses * seen.weights[seen.weights > 0]).sum())


def test_a_few_steps_lower_the_loss_of_the_bundled_model():
    model, tokenizer = load(dtype="float32", device="cpu")
    torch.manual_seed(0)
    student = adapted(model, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    pairs = [encode(tokenizer, p.prompt, p.answer) for p, _ in zip(training_problems(0, level=1), range(8))]
    batch, objective = collate(pairs, tokenizer.eos_token_id, random.Random(0)), D2F(tokenizer.mask_token_id)
    optimizer = torch.optim.AdamW([p for p in student.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for _ in range(6):
        loss = objective(student, batch, generator())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]


def test_a_recipe_distils_into_an_adapter(tmp_path):
    settings = {"name": "d2f", "block_length": 8, "noise_range": [0.3, 0.7]}
    data, lora = {"name": "tasks", "level": 0}, {"r": 4, "alpha": 4, "targets": ["q_proj"], "merge": True}
    sizes = {"steps": 2, "rows": 4, "parts": 2, "log_every": 1, "learning_rate": 1e-3}
    done = train({"output": str(tmp_path), "objective": settings, "data": data, "lora": lora, **sizes})
    assert all(line["loss"] > 0 for line in done.metrics if "loss" in line)
    assert load(tmp_path / "final")[0].generation_config.attention == "block_causal"


def test_a_model_without_an_adapter_needs_a_teacher(batch):
    with pytest.raises(ValueError, match="`teacher` is None, .* LLaDAForMaskedDiffusion"):
        D2F(MASK)(tiny_llada(), batch, generator())


def test_the_name_of_a_teacher_is_loaded_when_the_model_is_known():
    assert D2F(MASK, teacher=str(bundled_model())).frozen.config.model_type == "llada"
    missing = D2F(MASK, teacher="./no/such/folder")
    with pytest.raises(OSError, match="no/such/folder"):
        missing.validate(family_of(tiny_llada()))


@pytest.mark.parametrize(
    "wrong",
    [
        {"block_length": 0},
        {"noise_range": (0.7, 0.2)},
        {"noise_range": (0.0, 0.5)},
        {"noise_range": 0.5},
        {"temperature": 0},
        {"tail": -1},
        {"self_align": "no"},
        {"teacher": 3},
    ],
)
def test_wrong_values_are_named(wrong):
    name, value = next(iter(wrong.items()))
    with pytest.raises(ValueError, match=f"`{name}` is .*, but must be"):
        OBJECTIVES.build("d2f", {"mask_token_id": MASK, **wrong})


def test_hard_labels_take_no_teacher():
    with pytest.raises(ValueError, match="`teacher` is .*None where `self_align` is False"):
        D2F(MASK, self_align=False, teacher=tiny_llada())
