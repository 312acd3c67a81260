"""The golden data, and what only imitates a published implementation."""

import contextlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from safetensors.torch import load_file

from dllm_generate.decoders.fixed import FixedDecoder
from dllm_generate.sampling import Noise, Sampler

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
