"""Counts operations and host reads that a call makes outside of the model's own forward."""

import contextlib

import torch
from models import MASK
from torch.utils._python_dispatch import TorchDispatchMode

IDS = torch.tensor([[3, 1, 4, 1, 5]])
READS = ("tolist", "item", "nonzero", "__bool__", "__int__", "__float__", "__index__", "numpy", "cpu")


class Counter(TorchDispatchMode):
    """Counts what is dispatched while no part of the model runs."""

    def __init__(self):
        super().__init__()
        self.inside, self.names = 0, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if not self.inside:
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


@contextlib.contextmanager
def outside(model, counter):
    """Tells the counter when body or head run."""

    def enter(*args, **kwargs):
        counter.inside += 1

    def leave(*args, **kwargs):
        counter.inside -= 1

    parts = (model.get_decoder(), model.get_output_embeddings())
    hooks = [h for p in parts for h in (p.register_forward_pre_hook(enter), p.register_forward_hook(leave))]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def operations(model, new_tokens, **options):
    counter = Counter()
    with outside(model, counter), counter:
        model.generate(IDS, max_new_tokens=new_tokens, eos_token_id=MASK, block_length=16, **options)
    return counter.names


def reads(model, monkeypatch, new_tokens, ids=IDS, **options):
    """Host reads of a call, by the method that made them; one that goes through another counts once."""
    counter, names, depth = Counter(), [], [0]

    def counting(name, plain):
        def method(*args, **kwargs):
            if not depth[0] and not counter.inside:
                names.append(name)
            depth[0] += 1
            try:
                return plain(*args, **kwargs)
            finally:
                depth[0] -= 1

        return method

    with monkeypatch.context() as patch, outside(model, counter):
        for name in READS:
            patch.setattr(torch.Tensor, name, counting(name, getattr(torch.Tensor, name)))
        model.generate(ids, max_new_tokens=new_tokens, block_length=16, **{"eos_token_id": MASK, **options})
    return names
