"""The golden data, and what only imitates a published implementation."""

import contextlib
import json
import re
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file

from dllm_generate import CachePolicy
from dllm_generate.caches import Plan
from dllm_generate.caches.base import RefreshingPolicy
from dllm_generate.caches.dual import DualCachePolicy
from dllm_generate.caches.vicinity import VicinityCachePolicy
from dllm_generate.decoders.fixed import FixedDecoder
from dllm_generate.sampling import Noise, Sampler
from dllm_generate.schedules.blockwise import BlockwiseSchedule

GOLDEN = Path(__file__).parents[1] / "golden"
TABLE = Path(__file__).parents[2] / "docs" / "parity.md"


def cases(name: str) -> list[dict[str, Any]]:
    """The cases of `<name>.json`."""
    content = json.loads((GOLDEN / f"{name}.json").read_text())
    return content.get("cases") or content["traces"]


def tensors(name: str) -> dict[str, torch.Tensor]:
    """The tensors of `<name>.safetensors`."""
    return load_file(GOLDEN / f"{name}.safetensors")


def documented(name: str) -> tuple[int, ...]:
    """The numbers that docs/parity.md states for a file or group: cases, exact, tied, up to EOS, left out."""
    row = re.search(rf"^\| `{re.escape(name)}` \|(.*)\|$", TABLE.read_text(), re.MULTILINE)
    assert row, f"{name} is missing in {TABLE.name}"
    return tuple(int(number) for number in row.group(1).split("|")[:5])


@contextlib.contextmanager
def recorded_inputs(model):
    """Collects the input ids of every forward of the body, as lists."""
    inputs: list[list[list[int]]] = []
    hook = model.get_decoder().register_forward_pre_hook(
        lambda module, args, kwargs: inputs.append(kwargs["input_ids"].tolist()), with_kwargs=True
    )
    try:
        yield inputs
    finally:
        hook.remove()


@dataclass(frozen=True)
class PreciseSampler(Sampler):
    """Takes the softmax in float64, as Fast-dLLM does; dInfer does on request."""

    def __call__(self, scores, noise):
        tokens = scores.argmax(-1)
        return tokens, scores.double().softmax(-1).gather(-1, tokens[..., None])[..., 0]


@dataclass(frozen=True)
class NativeSampler(Sampler):
    """Takes the confidence in the dtype of the logits, as dInfer's hierarchy decoder does."""

    def __call__(self, scores, noise):
        tokens = scores.argmax(-1, keepdim=True)
        return tokens[..., 0], scores.log_softmax(-1).gather(-1, tokens)[..., 0].exp().float()


@dataclass(frozen=True)
class NoMaskSampler(Sampler):
    """Makes positions whose best token is the mask id ineligible, as dInfer's threshold and credit rules do."""

    mask_id: int = 0

    def __call__(self, scores, noise):
        tokens, confidence = super().__call__(scores, noise)
        return tokens, confidence.masked_fill(tokens == self.mask_id, float("-inf"))


class Grids:
    """LLaDA's random numbers: for every step whole grids over batch and sequence, from one generator."""

    def __init__(self, seed: int, batch: int, length: int):
        self.generator, self.batch, self.length = torch.Generator().manual_seed(seed), batch, length

    def draw(self, columns: torch.Tensor, *width: int, dtype: torch.dtype) -> torch.Tensor:
        """Draws a grid `(B, N, *width)` and returns its `columns` `(B, k)`."""
        grid = torch.rand(self.batch, self.length, *width, dtype=dtype, generator=self.generator)
        return grid[torch.arange(self.batch)[:, None], columns]


@dataclass
class GridNoise(Noise):
    """Reads the numbers of a block from LLaDA's grid. Prompts must be unpadded: then a position is a column."""

    grids: Grids | None = None

    def uniform(self, stream=0):
        return self.grids.draw(self.positions, dtype=torch.float32)


@dataclass(frozen=True)
class GumbelSampler(Sampler):
    """LLaDA's sampling: Gumbel noise over the vocabulary in float64."""

    temperature: float = 0.0
    grids: Grids | None = None

    def __call__(self, scores, noise):
        if not self.temperature:
            return super().__call__(scores, noise)
        uniform = self.grids.draw(noise.positions, scores.shape[-1], dtype=torch.float64)
        tokens = (scores.double().exp() / (-uniform.log()) ** self.temperature).argmax(-1, keepdim=True)
        base = scores.index_fill(-1, torch.tensor(self.postponed, dtype=torch.long), float("-inf"))
        return tokens[..., 0], base.softmax(-1).gather(-1, tokens)[..., 0]


@dataclass(frozen=True)
class LLaDADecoder(FixedDecoder):
    """The quota decoder with the random numbers of LLaDA's generate, which depend on batch and length.

    Args:
        seed, batch, length: of the grids.
        temperature (`float`): of the Gumbel noise; 0 draws none.
    """

    needs_noise: ClassVar[bool] = True
    seed: int = 0
    batch: int = 1
    length: int = 1
    temperature: float = 0.0

    def start(self, blocks, sampler):
        grids = Grids(self.seed, self.batch, self.length)
        return super().start(blocks, GumbelSampler(None, False, sampler.postponed, self.temperature, grids))

    def __call__(self, input_ids, scores, *, state, **kwargs):
        state.noise = GridNoise(**vars(state.noise), grids=state.sampler.grids)
        return super().__call__(input_ids, scores, state=state, **kwargs)


@dataclass(frozen=True)
class EndOfBlock(BlockwiseSchedule):
    """Ends a row behind the block that holds its EOS, as dInfer does, and notes what every step wrote.

    Attributes:
        writes: for every row of the call, a list of {position: token}, one for each step in which it ran.
    """

    writes: dict[int, list[dict[int, int]]] = field(default_factory=dict)

    def __deepcopy__(self, memo):
        return self

    def first_open(self, canvas):
        """Where the block in work is looked for."""
        return canvas.first_open

    def advance(self, canvas, ran):
        done = (self.first_open(canvas) >= canvas.width) | (canvas.first_eos < self.active(canvas).start)
        canvas.finished = canvas.finished | (done & ran)
        facts = zip(canvas.row.tolist(), ran.tolist(), canvas.commit_step.tolist(), canvas.input_ids.tolist())
        for row, has_run, steps, tokens in facts:
            written = self.writes.setdefault(row, [])
            if has_run:
                last = len(written)
                written.append({i - 1: tokens[i] for i, step in enumerate(steps) if i and step == last})


@dataclass(frozen=True)
class PublishedRefresh(CachePolicy):
    """When dInfer refreshes: its `update_freq` counts iterations, and a refresh shares one with the step behind it.

    For batch 1. The vicinity loop counts both, refreshes only once in the first block, and forgets in which block it
    first filled its cache, so that it refreshes there again.

    Args:
        policy: the same without an interval.
        frequency: iterations from one refresh to the next, or None.
    """

    policy: RefreshingPolicy
    frequency: int | None = None
    state: dict[str, int] = field(default_factory=lambda: {"iteration": 0, "pending": -1, "seen": -1, "filled": 0})

    def __deepcopy__(self, memo):
        return self

    def plan(self, canvas, blocks, state):
        if self._refreshes(int(blocks.start), int(blocks.index)):
            return Plan(canvas.start, blocks.visible_end, blocks.visible_end, ~canvas.finished)
        lo, hi = self.policy.window(canvas, blocks, blocks.visible_end)
        return Plan(lo, hi, blocks.visible_end, canvas.finished)

    def _refreshes(self, block: int, index: int) -> bool:
        state, is_vicinity = self.state, isinstance(self.policy, VicinityCachePolicy)
        pending, state["pending"] = state["pending"], -1
        if pending >= 0:
            state["iteration"] += 1
            # In another block, the published loop ran that step on a finished one.
            if pending == block:
                return False
        if is_vicinity and state["iteration"] < self.policy.warmup_steps - 1:
            state["iteration"] += 1
            return True
        due = is_vicinity and not state["filled"]
        if not due:
            changed, state["seen"] = state["seen"] != block, block
            due = changed or bool(self.frequency and state["iteration"] % self.frequency == 0)
            due = due and (index > 0 or not is_vicinity)
        state["iteration"] += is_vicinity or not due
        if due:
            state.update(pending=block, filled=1)
        return due


@dataclass(frozen=True)
class NarrowDual(DualCachePolicy):
    """dInfer's dual window under shifted logits: it ends one column early."""

    def window(self, canvas, blocks, horizon):
        return blocks.start, blocks.end - 1


@dataclass(frozen=True)
class Lockstep(EndOfBlock):
    """Leaves a block when dInfer does: no row has a mask in it, and the step behind a refresh is over.

    Steps that write nothing move the weight of smoothing and the soft embeddings behind the block. For prompts of one
    length.

    Attributes:
        refresh: the policy of the run, if it has a cache.
    """

    refresh: PublishedRefresh | None = None

    def first_open(self, canvas):
        held = -1 if self.refresh is None else self.refresh.state["pending"]
        first = canvas.first_open.masked_fill(canvas.finished, canvas.width).amin() if held < 0 else torch.tensor(held)
        return first.expand_as(canvas.first_open)

    def active(self, canvas):
        return super().active(replace(canvas, first_open=self.first_open(canvas)))
