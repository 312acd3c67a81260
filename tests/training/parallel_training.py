"""One or more processes that train as a recipe says, and the gradients of the first process before every step."""

import sys
from pathlib import Path

import torch
from transformers import TrainerCallback

from dllm_generate.training.run import train


class Gradients(TrainerCallback):
    def __init__(self):
        self.seen = []

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        named = getattr(model, "module", model).named_parameters()
        self.seen.append({name: p.grad.clone() for name, p in named if p.grad is not None})


def main(recipe, folder):
    gradients = Gradients()
    training = train(recipe, output=folder, callbacks=[gradients])
    if training.written:
        world = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
        tokens = [line["tokens"] for line in training.metrics]
        torch.save([world, tokens, gradients.seen], Path(folder) / "gradients.pt")


if __name__ == "__main__":
    main(*sys.argv[1:])
