"""Accept, make the rest noise again, and commit the block when it no longer changes."""

import dataclasses
from typing import ClassVar

import torch
from transformers import LogitsProcessorList

from ..registry import is_int, is_number, require
from .base import DECODERS, Decoder, DecoderOutput, DecoderState
from .entropy_bound import entropies, within_bound


@dataclasses.dataclass
class RenoiseState(DecoderState):
    """Adds `history` `(R, stability_threshold, k)`: the most likely tokens of the last steps, -1 before the first."""

    history: torch.Tensor = None  # type: ignore[assignment]


@DECODERS.register("renoise")
@dataclasses.dataclass(frozen=True)
class RenoiseDecoder(Decoder):
    """Accepts sampled tokens for one step at a time (DiffusionGemma; the bound is that of the EB-Sampler, arXiv
    2505.24857).

    In every step a token is drawn for each position. Those of least entropy are accepted, as long as the entropy of the
    ones before stays within a bound: the next forward sees them, and noise everywhere else, or the mask in a model that
    has one. Nothing of that is kept: the next step judges all positions anew. The block is committed as a whole, with
    the most likely tokens, when these no longer change and the mean entropy is low, or after its last step. All
    entropies are those at a temperature that falls from step to step.

    It draws whatever `do_sample` says; top-k, top-p and the like apply with `do_sample=True`.

    Args:
        steps_per_block (`int`, defaults to 48): most steps of a block.
        entropy_bound (`float`, defaults to 0.1): the bound, in nats.
        t_max, t_min (`float`, default to 0.8 and 0.4): the temperature is `t_min + (t_max - t_min) * left / steps`,
            with so many steps `left`, the present one included.
        stability_threshold (`int`, defaults to 1): steps whose most likely tokens must be those of the present one.
        confidence_threshold (`float`, defaults to 0.005): what the mean entropy must stay below, in nats. None: every
            block takes all of its steps.
    """

    needs_noise: ClassVar[bool] = True
    steps_per_block: int = 48
    entropy_bound: float = 0.1
    t_max: float = 0.8
    t_min: float = 0.4
    stability_threshold: int = 1
    confidence_threshold: float | None = 0.005

    def __post_init__(self):
        super().__post_init__()
        value = self.steps_per_block
        require(is_int(value) and value > 0, "steps_per_block", value, "an int > 0")
        value = self.stability_threshold
        require(is_int(value) and value >= 0, "stability_threshold", value, "an int >= 0")
        for option in ("entropy_bound", "t_max"):
            value = getattr(self, option)
            require(is_number(value) and 0 < value < float("inf"), option, value, "a number > 0, and finite")
        value = self.t_min
        require(is_number(value) and 0 <= value <= self.t_max, "t_min", value, "a number from 0 to t_max")
        value = self.confidence_threshold
        allowed = value is None or (is_number(value) and value > 0)
        require(allowed, "confidence_threshold", value, "None or a number > 0")

    @property
    def ranks_by_confidence(self):
        return False

    def validate(self, family, config):
        place = f"unset with `decoder` {self.name!r}, which has its own: decoder_config={{'t_max': ..., 't_min': ...}}"
        require(config.temperature in (None, 1), "temperature", config.temperature, place)

    def start(self, blocks, sampler):
        state = super().start(blocks, sampler)
        shape = (state.step.numel(), self.stability_threshold, blocks.columns.shape[-1])
        return RenoiseState(**vars(state), history=state.step.new_full(shape, -1))

    def reset(self, state, rows):
        state.history = state.history.masked_fill(rows[:, None, None], -1)

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        left = (self.steps_per_block - state.step).clamp(min=1)
        temperature = self.t_min + (self.t_max - self.t_min) * (left / self.steps_per_block)
        scaled = scores.float() / temperature[:, None, None]
        tokens, confidence = dataclasses.replace(state.sampler, warpers=None)(scores, None)
        entropy = entropies(scaled)

        done = left <= 1
        if self.confidence_threshold is not None:
            stable = ((state.history == tokens[:, None]) | ~open_mask[:, None]).all(-1).all(-1)
            mean = entropy.masked_fill(~open_mask, 0.0).sum(-1) / open_mask.sum(-1).clamp(min=1)
            done = done | (stable & (mean < self.confidence_threshold))
        history = torch.cat([state.history, tokens[:, None]], 1)[:, 1:]
        state.history = torch.where(ran[:, None, None], history, state.history)

        accepted = within_bound(entropy, open_mask, self.entropy_bound)
        provisional = torch.where(accepted, self.draw(scaled, state), -1)
        commit = open_mask & done[:, None]
        return DecoderOutput(tokens, confidence, commit, provisional=provisional, temperature=temperature, waits=~done)

    def draw(self, scaled: torch.Tensor, state: DecoderState) -> torch.Tensor:
        """Draws a token for every position, `(R, k)`, from scores `(R, k, V)`."""
        warpers = state.sampler.warpers or LogitsProcessorList()
        return dataclasses.replace(state.sampler, warpers=warpers)(scaled, state.noise)[0]
