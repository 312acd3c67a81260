"""Memory of a step beyond the model's own forward, its keys and values and its mask."""

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any
from unittest import mock

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from tqdm import tqdm

from .. import denoise
from ..backbone import body_of
from ..decoders import DECODERS
from .bench import random_model, random_prompt


@dataclasses.dataclass(frozen=True)
class StepMemory:
    """Peak memory of a step.

    Attributes:
        decoder, cache_policy: names.
        prompt_length: tokens of the prompt.
        peak_bytes: the most that any step held on top of what was held before it.
        steps: number of steps.
    """

    decoder: str
    cache_policy: str
    prompt_length: int
    peak_bytes: int
    steps: int


class StepMeter(TorchDispatchMode):
    """Counts the live bytes of all storages that are made while it is active, except inside the body of a model.

    So the keys and values, which the cache makes inside the body, are left out as well. Scratch memory inside a single
    operator is not seen.

    Attributes:
        peaks: of every step so far: the most bytes above those that were live when it began.
    """

    def __init__(self, body: torch.nn.Module):
        super().__init__()
        self.body = body
        self.peaks: list[int] = []
        self._live = self._base = 0
        self._inside = False
        # Storage addresses are reused, so a dead storage leaves at once.
        self._known: set[int] = set()

    def __enter__(self) -> "StepMeter":
        self._hooks = [
            self.body.register_forward_pre_hook(lambda *_: self._set_inside(True)),
            self.body.register_forward_hook(lambda *_: self._set_inside(False)),
        ]
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self._note((args, kwargs), counts=False)
        result = func(*args, **kwargs)
        self._note(result, counts=not self._inside)
        return result

    def begin_step(self) -> None:
        """Everything that is live now belongs to no step."""
        self._base = self._live
        self.peaks.append(0)

    def _set_inside(self, value: bool) -> None:
        self._inside = value

    def _note(self, tree: Any, counts: bool) -> None:
        for tensor in tree_leaves(tree):
            if isinstance(tensor, torch.Tensor):
                self._note_storage(tensor.untyped_storage(), counts)

    def _note_storage(self, storage: torch.UntypedStorage, counts: bool) -> None:
        key, size = storage._cdata, storage.nbytes() if counts else 0
        if key in self._known:
            return
        self._known.add(key)
        weakref.finalize(storage, self._forget, key, size)
        self._live += size
        if self.peaks:
            self.peaks[-1] = max(self.peaks[-1], self._live - self._base)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self._live -= size


def measure_memory(
    decoders: Sequence[str] | None = None,
    policies: Sequence[str] = ("none", "prefix", "dual"),
    prompt_lengths: Sequence[int] = (64, 1024),
    *,
    model: Any = None,
    progress: bool = False,
) -> list[StepMemory]:
    """Measures the peak extra memory of a step for prompts of several lengths.

    A block of 32 is decoded, the first step of which recomputes the whole canvas.

    Args:
        decoders, policies: names; default all decoders.
        prompt_lengths: tokens.
        model: with our `generate`; default a random one with a vocabulary of 32,000. What a step holds beyond the
            body depends on the vocabulary and the width, but not on the layers.
        progress: show a bar.
    """
    model = model or random_model(hidden_size=256, num_hidden_layers=2, num_attention_heads=4, intermediate_size=704)
    cases = [(d, p, length) for d in decoders or sorted(DECODERS.parts) for p in policies for length in prompt_lengths]
    return [_measure(model, *case) for case in tqdm(cases, desc="memory", disable=not progress)]


def _measure(model: Any, decoder: str, policy: str, prompt_length: int) -> StepMemory:
    prompt = random_prompt(model, prompt_length)
    meter = StepMeter(body_of(model))
    prepare = denoise.prepare

    def begin(run: denoise.Run) -> Any:
        meter.begin_step()
        return prepare(run)

    options = {"max_new_tokens": 32, "min_new_tokens": 32, "block_length": 32}
    if decoder == "fixed":
        options["steps"] = 4
    with mock.patch.object(denoise, "prepare", begin), meter:
        model.generate(prompt, decoder=decoder, cache_policy=policy, **options)
    return StepMemory(decoder, policy, prompt_length, max(meter.peaks), len(meter.peaks) - 1)
