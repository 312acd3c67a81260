"""Distils the bundled model: the student writes more tokens per forward than its teacher.

    python examples/distil.py record --output runs/distil/paths.safetensors
    python examples/distil.py trajectory --paths runs/distil/paths.safetensors --output runs/distil/trajectory
    python examples/distil.py d2f --output runs/distil/d2f
    dllm-generate eval -m runs/distil/trajectory/snapshot -c decoder=threshold,threshold=0.9,block_length=64

A killed run goes on with --resume. Held-out problems are neither recorded nor trained on.
"""

import argparse
import copy
import json
from pathlib import Path

import torch
from transformers import AutoTokenizer, TrainerCallback

from dllm_generate.bundled import bundled_model, load
from dllm_generate.evaluation.harness import evaluate, label
from dllm_generate.evaluation.tasks import TASKS
from dllm_generate.training.recording import record, training_prompts
from dllm_generate.training.run import train
from dllm_generate.training.trajectories import VIEWS

SCHEDULES = {"block_causal": "block_diffusion", "pipelined": "pipelined"}


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["record", "trajectory", "d2f"])
    parser.add_argument("--output", required=True, type=Path, help="folder of the run; of record, a file")
    parser.add_argument("--model", default=str(bundled_model()), help="teacher, and what the student starts from")
    parser.add_argument("--paths", nargs="+", help="recorded trajectories")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, help="Default: those with short answers")
    parser.add_argument("--view", choices=VIEWS, default="bidirectional")
    parser.add_argument("--skip", default="end", help="any, block, end, or a number of steps")
    parser.add_argument("--lora", type=int, help="rank; 0 trains all weights. Default: 32 for d2f, else 0")
    parser.add_argument("--lr", type=float, help="of Adam. Default: 1e-3 for an adapter, 1e-4 for all weights")
    shares = {"replay": 0.0, "easy": 0.25, "low-noise": 0.2, "high-noise": 0.7}
    for name, value in {"muon-lr": 4e-4, "beta": 2.0, "temperature": 1.0, "threshold": 0.98, **shares}.items():
        parser.add_argument(f"--{name}", type=float, default=value)
    parser.add_argument("--block", type=int, help="positions of a block. Default: 16 for d2f, else 64")
    numbers = {"steps": 1000, "warmup": 50, "rows": 64, "parts": 4, "canvas": 64, "level": 2, "n": 6000}
    for name, value in {**numbers, "every": 200, "held-out": 20, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=value)
    for name in ("resume", "compile", "float32"):
        parser.add_argument(f"--{name}", action="store_true")
    options = parser.parse_args()
    options.block = options.block or (16 if options.what == "d2f" else 64)
    return options


def decoding_of(options, threshold):
    """Options of generate that fit what the student sees in training."""
    view = "pipelined" if options.what == "d2f" else options.view
    causal = {"schedule": SCHEDULES.get(view), "cache_policy": "block", "attention": "block_causal"}
    blocks = {"decoder": "threshold", "threshold": threshold, "block_length": options.block}
    return blocks if view == "bidirectional" else {**blocks, **causal}


def record_paths(options):
    model, tokenizer = load(options.model)
    prompts = training_prompts(options.tasks, n=options.n, seed=options.seed, level=options.level)
    decoding = {"max_new_tokens": options.canvas, **decoding_of(options, options.threshold)}
    if options.view == "bidirectional" and options.canvas > options.block:
        decoding["cache_policy"] = "dual"
    paths = record(model, tokenizer, prompts, batch_size=32, progress=True, **decoding)
    steps = paths.commit_step.amax(1) + 1
    print(f"{len(paths)} of {len(prompts)} answers are right; {float(steps.float().mean()):.1f} steps")
    # What takes one step already has little to teach.
    kept = (steps > 1) | (torch.rand(len(paths), generator=torch.Generator().manual_seed(0)) < options.easy)
    paths.rows(kept.nonzero()[:, 0].tolist()).save(options.output)


def recipe_of(options):
    rank = options.lora if options.lora is not None else 32 if options.what == "d2f" else 0
    if options.what == "d2f":
        noise = [options.low_noise, options.high_noise]
        settings = {
            "block_length": options.block,
            "temperature": options.temperature,
            "tail": options.block,
            "noise_range": noise,
        }
        teacher = {} if rank else {"teacher": options.model}
        objective, data = (
            {"name": "d2f", **settings, **teacher},
            {"name": "tasks", "tasks": options.tasks, "level": options.level},
        )
    else:
        skip = int(options.skip) if options.skip.isdecimal() else options.skip
        settings = {"skip": skip, "view": options.view, "block_length": options.block, "beta": options.beta}
        objective = {"name": "trajectory", **settings, "reduction": "mean"}
        data = {"name": "trajectories", "file": options.paths}
    if options.replay:
        kept = {"name": "masked_diffusion", "block_fraction": 0.4, "tail_weight": 0.1, "weight": options.replay}
        objective = [{**objective, "weight": 1 - options.replay}, kept]
    return {
        "output": str(options.output), "model": options.model, "objective": objective, "data": data,
        "lora": {"r": rank, "alpha": rank} if rank else None, "optimizer": "adamw" if rank else "muon",
        "learning_rate": options.lr or (1e-3 if rank else 1e-4), "muon_learning_rate": options.muon_lr,
        "weight_decay": 0.0, "schedule": "warmup_stable_decay", "warmup": options.warmup, "decay": 0.5,
        "steps": options.steps, "rows": options.rows, "parts": options.parts, "bf16": not options.float32,
        "compile": options.compile, "seed": options.seed, "save_every": options.every, "log_every": 20, "keep": 1,
    }  # fmt: skip


class Measure(TrainerCallback):
    """Every `every` steps and at the ends: a snapshot in bfloat16, its accuracy and its tokens per forward."""

    def __init__(self, options):
        self.configs = [decoding_of(options, threshold) for threshold in (0.9, 0.98)]
        self.options, self.folder = options, options.output / "snapshot"
        self.tokenizer = AutoTokenizer.from_pretrained(options.model)

    def on_train_begin(self, args, state, control, model=None, **kwargs):
        # Explicit products are far cheaper than the fused backward on a CPU.
        model.set_attn_implementation("eager")
        if state.global_step == 0:
            self.measure(0, model)

    def on_step_end(self, args, state, control, model=None, **kwargs):
        if state.global_step % self.options.every == 0 or state.global_step == state.max_steps:
            self.measure(state.global_step, model)

    def measure(self, step, model):
        student = copy.deepcopy(model)
        student = (student.merge_and_unload() if hasattr(student, "merge_and_unload") else student).eval()
        student.to(torch.bfloat16).save_pretrained(self.folder)
        self.tokenizer.save_pretrained(self.folder)
        results = evaluate(
            student,
            self.tokenizer,
            self.configs,
            tasks=self.options.tasks,
            n=self.options.held_out,
            level=self.options.level,
            batch_size=32,
        )
        scores = {"step": step}
        for result in results:
            score = result.overall
            figures = [round(score.accuracy.value, 3), round(score.tokens_per_forward.value, 2)]
            scores[label(result.config)] = figures
        print(json.dumps(scores), flush=True)
        with (self.options.output / "scores.jsonl").open("a") as file:
            file.write(json.dumps(scores) + "\n")


def main():
    options = parse()
    if options.what == "record":
        return record_paths(options)
    done = train(recipe_of(options), resume=options.resume, callbacks=[Measure(options)])
    print([line.get("loss") for line in done.metrics])


if __name__ == "__main__":
    main()
