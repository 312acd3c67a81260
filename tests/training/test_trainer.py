"""The trainer: resuming, optimizer, and that it learns at all."""

import random

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments

from dllm_generate.training.data import ExampleBatches
from dllm_generate.training.objectives import BlockDiffusion, MaskedDiffusion, Mixture
from dllm_generate.training.optimizers import muon_with_adam
from dllm_generate.training.trainer import DiffusionTrainer


def copy_examples(seed, step, count):
    rng = random.Random(f"{seed}-{step}")
    words = [[rng.randint(5, 12) for _ in range(3)] for _ in range(count)]
    return [([3, *word, 4], [*word, 1]) for word in words]


def small_model():
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=16, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        tie_word_embeddings=True, initializer_range=0.04, attn_implementation="eager",
    )  # fmt: skip
    config.is_causal = False
    return LlamaForCausalLM(config)


class StopAt(TrainerCallback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, args, state, control, **kwargs):
        control.should_training_stop = state.global_step == self.step


def make_trainer(folder, steps, model, callbacks=()):
    arguments = TrainingArguments(
        output_dir=folder, max_steps=steps, gradient_accumulation_steps=2, learning_rate=1e-2, save_steps=3,
        logging_steps=1, report_to="none", disable_tqdm=True, use_cpu=True, lr_scheduler_type="linear",
    )  # fmt: skip
    data = ExampleBatches(copy_examples, 1, steps, rows=16, parts=2)
    objective = Mixture([MaskedDiffusion(2), BlockDiffusion(2, block_sizes=(1, 2))])
    return DiffusionTrainer(
        objective, muon_lr=0.02, model=model, args=arguments, train_dataset=data, callbacks=list(callbacks)
    )


def test_a_killed_and_resumed_run_equals_an_unbroken_one(tmp_path):
    whole = small_model()
    make_trainer(tmp_path / "whole", 6, whole).train()
    make_trainer(tmp_path / "broken", 6, small_model(), [StopAt(4)]).train()
    resumed = small_model()
    checkpoint = str(tmp_path / "broken" / "checkpoint-3")
    make_trainer(tmp_path / "broken", 6, resumed).train(resume_from_checkpoint=checkpoint)
    for expected, parameter in zip(whole.parameters(), resumed.parameters(), strict=True):
        torch.testing.assert_close(parameter, expected, rtol=0, atol=0)


def test_the_loss_falls(tmp_path):
    trainer = make_trainer(tmp_path, 24, small_model())
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert sum(losses[-5:]) < 0.8 * sum(losses[:5])


def test_every_parameter_has_one_optimizer():
    model = small_model()
    optimizer = muon_with_adam(model, muon_lr=0.5, adam_lr=0.25)
    matrices, rest = optimizer.param_groups
    assert (matrices["lr"], rest["lr"]) == (0.5, 0.25)
    assert len(matrices["params"]) == 2 * 7 and len(rest["params"]) == 1 + 2 * 2 + 1
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    before = [p.clone() for p in model.parameters()]
    matrices["lr"] = 0.0
    optimizer.step()
    moved = [not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True)]
    assert sum(moved) == len(rest["params"])


def test_batches_depend_on_seed_and_index_alone():
    first, second = (ExampleBatches(copy_examples, 1, 5, rows=8, parts=2, seed=7) for _ in range(2))
    assert len(first) == 10
    assert all(first[i].rows == 4 for i in range(10))
    assert torch.equal(first[9].input_ids, second[9].input_ids) and first[9].seed == second[9].seed
    assert not torch.equal(first[8].input_ids, first[9].input_ids)


def test_other_datasets_are_refused(tmp_path):
    trainer = make_trainer(tmp_path, 2, small_model())
    trainer.train_dataset = [1, 2]
    with pytest.raises(ValueError, match="ExampleBatches"):
        trainer.train()


def test_forwards_and_optimizers_that_do_not_fit(tmp_path):
    trainer = make_trainer(tmp_path, 2, small_model())
    trainer.train_dataset = ExampleBatches(copy_examples, 1, 2, rows=16, parts=4)
    with pytest.raises(ValueError, match="`parts` is 4, but must be 2: 2 forwards in each process"):
        trainer.train()
    with pytest.raises(ValueError, match=r"`optimizer` is 'sgd', but must be one of \['adamw', 'muon'\]"):
        DiffusionTrainer(MaskedDiffusion(2), optimizer="sgd", model=small_model())
