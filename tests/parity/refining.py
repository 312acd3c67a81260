"""What the runs of SDAR's, LLaDA2.0's and LLaDA2.1's loops have in common."""

from dataclasses import dataclass, replace
from typing import Any

from dllm_generate import Decoder
from dllm_generate.decoders.dynamic import DynamicDecoder
from dllm_generate.decoders.editing import EditingDecoder
from dllm_generate.decoders.fixed import FixedDecoder
from dllm_generate.sampling import Sampler


@dataclass(frozen=True)
class ArgmaxSampler(Sampler):
    """Takes the most likely token of the filtered distribution, as the golden data does in place of a draw."""

    def __call__(self, scores, noise):
        scores = scores.float()
        if self.warpers is not None:
            scores = self.warpers(None, scores.flatten(0, 1)).view_as(scores)
        confidence, tokens = scores.softmax(-1).max(-1)
        return tokens, confidence


@dataclass(frozen=True)
class Published(Decoder):
    """A decoder with that sampler. With a `mask` it may choose the mask id, and then writes nothing there."""

    inner: Decoder | None = None
    mask: int = -1

    @property
    def revocable(self):
        return self.inner.revocable

    def start(self, blocks, sampler):
        return self.inner.start(blocks, ArgmaxSampler(sampler.warpers))

    def reset(self, state, rows):
        self.inner.reset(state, rows)

    def __call__(self, input_ids, scores, *, ran, **kwargs):
        output = self.inner(input_ids, scores, ran=ran, **kwargs)
        return replace(output, commit=output.commit & (output.tokens != self.mask), waits=ran)


def refining_decoder(params: dict[str, Any]) -> Decoder:
    """The decoder of a run, whose loop the names of its parameters tell."""
    if "editing_threshold" in params:
        at_least = params.get("num_to_transfer", 1)
        return EditingDecoder(params["threshold"], params["editing_threshold"], params["max_post_steps"], at_least)
    if "steps" in params:
        steps = min(params["steps"], params["gen_length"] // params.get("minimal_topk", 1))
        return DynamicDecoder(threshold=params["threshold"], steps_per_block=steps, quota="block")
    planned = {"steps_per_block": params["denoising_steps"], "quota": "block"}
    if params["remasking_strategy"] == "sequential":
        return FixedDecoder(**planned, ranking="left_to_right")
    if params["remasking_strategy"] == "low_confidence_static":
        return FixedDecoder(**planned)
    return DynamicDecoder(**planned, threshold=params["confidence_threshold"])
