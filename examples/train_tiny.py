"""Trains the bundled tiny diffusion language model, or with --causal its autoregressive twin.

    python examples/train_tiny.py --output runs/tiny --max-steps 6000
    python examples/train_tiny.py --output runs/tiny --max-steps 6000 --resume
    python examples/train_tiny.py --output runs/more --max-steps 2000 --init model_cards/dllm-tiny

A stage `step:level:task=weight,...` holds from its step on. Stages may be changed when a run is resumed: what a batch
holds depends on the seed, the number of the step and the stage alone.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, TrainerCallback, TrainingArguments

from dllm_generate.evaluation.tasks import STANDARD_TASKS, heldout_problems
from dllm_generate.evaluation.vocabulary import FUNCTION_NAMES, NUMBER_FIELDS, PIECES, WORD_FIELDS
from dllm_generate.training.data import ExampleBatches
from dllm_generate.training.diagnostics import class_accuracy
from dllm_generate.training.objectives import BlockDiffusion, CausalLM, MaskedDiffusion, Mixture
from dllm_generate.training.sources import TaskSource
from dllm_generate.training.tokenizer import build_tokenizer
from dllm_generate.training.trainer import DiffusionTrainer

WORDS = frozenset([*FUNCTION_NAMES, *WORD_FIELDS, *NUMBER_FIELDS, *sum(WORD_FIELDS.values(), [])])


class Curriculum:
    """Problems of each step, by stages `(first step, level, task weights)`."""

    def __init__(self, stages, tokenizer):
        self.stages, self.tokenizer = sorted(stages, key=lambda stage: stage[0]), tokenizer
        self.makers = {
            step: TaskSource(weights, level).examples(tokenizer, tokenizer.model_max_length)
            for step, level, weights in self.stages
        }

    def at(self, step):
        return [stage for stage in self.stages if stage[0] <= step][-1]

    def __call__(self, seed, step, count):
        return self.makers[self.at(step)[0]](seed, step, count)


class Diagnose(TrainerCallback):
    """Every `every` steps: accuracy by kind of token on held-out problems, and a compact snapshot of the weights."""

    def __init__(self, every, curriculum, folder, causal):
        self.every, self.curriculum, self.folder, self.causal = every, curriculum, Path(folder), causal
        self.start = time.time()

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.every and state.global_step != state.max_steps:
            return
        _, level, weights = self.curriculum.at(state.global_step)
        problems = heldout_problems(list(weights), n=48, level=level)
        triples = [(p.task, p.prompt, p.answer) for p in problems]
        with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
            report = class_accuracy(model, self.curriculum.tokenizer, triples, WORDS, self.causal)
        line = {"step": state.global_step, "seconds": round(time.time() - self.start), "level": level, "report": report}
        with (self.folder / "diagnostics.jsonl").open("a") as file:
            file.write(json.dumps(line) + "\n")
        print(json.dumps(line), flush=True)
        save_compact(model, self.folder / "snapshot")


def save_compact(model, folder):
    """Writes the weights in bfloat16: a few megabytes."""
    compact = LlamaForCausalLM(model.config)
    compact.load_state_dict(model.state_dict())
    compact.to(torch.bfloat16).save_pretrained(folder)


def make_model(options, tokenizer):
    torch.manual_seed(options.seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=options.hidden,
        intermediate_size=options.mlp,
        num_hidden_layers=options.layers,
        num_attention_heads=options.heads,
        max_position_embeddings=1024,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        initializer_range=0.04,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=tokenizer.bos_token_id,
        attn_implementation="eager",
    )
    config.is_causal = options.causal
    model = LlamaForCausalLM(config)
    if options.init:
        model.load_state_dict(AutoModelForCausalLM.from_pretrained(options.init, dtype=torch.float32).state_dict())
    return model


def make_objective(options, mask_token_id):
    if options.causal:
        return CausalLM()
    masking = MaskedDiffusion(mask_token_id, block_fraction=0.4, tail_weight=0.1)
    blocks = BlockDiffusion(mask_token_id, options.block_sizes, options.tail)
    return Mixture([masking, blocks], [1 - options.block_share, options.block_share])


def parse_stage(text):
    step, level, tasks = text.split(":")
    weights = {name: float(weight or 1) for name, _, weight in (task.partition("=") for task in tasks.split(","))}
    return int(step), int(level), weights


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", required=True, help="folder of the run")
    parser.add_argument("--init", help="exported folder whose weights a new run starts from")
    parser.add_argument("--stages", nargs="+", type=parse_stage, default=[(0, 3, dict.fromkeys(STANDARD_TASKS, 1.0))])
    parser.add_argument("--max-steps", type=int, default=6000)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--decay", type=float, default=0.6, help="share of the run with falling learning rate")
    parser.add_argument("--muon-lr", type=float, default=0.01)
    parser.add_argument("--adam-lr", type=float, default=2e-3)
    parser.add_argument("--rows", type=int, default=64, help="problems per optimizer step")
    parser.add_argument("--parts", type=int, default=4, help="forwards per optimizer step")
    parser.add_argument("--block-share", type=float, default=0.5, help="share of block-diffusion batches")
    parser.add_argument("--block-sizes", type=int, nargs="+", default=[1, 2, 4, 8, 16, 32])
    parser.add_argument("--tail", type=int, default=4, help="cells of EOS padding behind an answer in block diffusion")
    numbers = {"hidden": 256, "layers": 4, "heads": 4, "mlp": 704, "every": 100, "save": 200, "seed": 0}
    for name, value in numbers.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name in ("causal", "resume", "compile", "float32"):
        parser.add_argument(f"--{name}", action="store_true")
    return parser.parse_args()


def main():
    options = parse()
    tokenizer = build_tokenizer(PIECES)
    model = make_model(options, tokenizer)
    curriculum = Curriculum(options.stages, tokenizer)
    decay = int(options.decay * options.max_steps)
    arguments = TrainingArguments(
        output_dir=options.output,
        max_steps=options.max_steps,
        gradient_accumulation_steps=options.parts,
        learning_rate=options.adam_lr,
        weight_decay=0.1,
        lr_scheduler_type="warmup_stable_decay",
        warmup_steps=options.warmup,
        lr_scheduler_kwargs={"num_decay_steps": decay, "decay_type": "linear", "min_lr_ratio": 0.01},
        bf16=not options.float32,
        use_cpu=not torch.cuda.is_available(),
        max_grad_norm=1.0,
        logging_steps=20,
        save_steps=options.save,
        save_total_limit=2,
        report_to="none",
        disable_tqdm=True,
        seed=options.seed,
    )
    if options.compile:
        model.compile(dynamic=True)
    trainer = DiffusionTrainer(
        make_objective(options, tokenizer.mask_token_id),
        muon_lr=options.muon_lr,
        model=model,
        args=arguments,
        train_dataset=ExampleBatches(
            curriculum, tokenizer.eos_token_id, options.max_steps, options.rows, options.parts, options.seed
        ),
        callbacks=[Diagnose(options.every, curriculum, options.output, options.causal)],
    )
    os.makedirs(options.output, exist_ok=True)
    (Path(options.output) / "command.json").write_text(json.dumps(vars(options), default=str, indent=1))
    tokenizer.save_pretrained(options.output)
    trainer.train(resume_from_checkpoint=options.resume)
    save_compact(model, Path(options.output) / "final")


if __name__ == "__main__":
    main()
