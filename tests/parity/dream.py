"""What imitates Dream's published sampler on stored logits."""

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import torch
from models import Scripted
from torch.nn.functional import pad

from dllm_generate import Decoder, DiffusionGenerationConfig
from dllm_generate.sampling import Noise, Sampler


def filtered(scores: torch.Tensor, top_p: float | None, top_k: int | None) -> torch.Tensor:
    """Top-p, then top-k, also without a temperature."""
    lowest = torch.finfo(scores.dtype).min
    if top_p is not None and top_p < 1:
        ordered, index = scores.sort(descending=True)
        total = ordered.softmax(-1).cumsum(-1)
        dropped = pad(total[..., :-1] > top_p, (1, 0))
        scores = scores.masked_fill(dropped.scatter(-1, index, dropped), lowest)
    if top_k is not None:
        scores = scores.masked_fill(scores < scores.topk(min(top_k, scores.shape[-1])).values[..., -1:], lowest)
    return scores


@dataclass(frozen=True)
class ProbabilitySampler(Sampler):
    """Takes tokens and confidences from distributions that were filtered before."""

    def __call__(self, scores, noise):
        confidence, tokens = scores.softmax(-1).max(-1)
        return tokens, confidence.float()


@dataclass
class GlobalNoise(Noise):
    """One number per open position of the batch, drawn from torch's generator, row by row."""

    open_mask: torch.Tensor | None = None

    def uniform(self, stream=0):
        grid = torch.ones(self.open_mask.shape)
        grid[self.open_mask] = torch.rand(int(self.open_mask.sum()))
        return grid


@dataclass(frozen=True, kw_only=True)
class Replayed(Decoder):
    """Mixin: a decoder that reads stored logits, filters them at temperature 0 too, and may predict the mask id.

    What it decides to fill with the mask id stays open. Of positions with the same score it takes those that the
    published run took.

    Args:
        logits: `(T, B, N, V)` of all steps, as the model gave them.
        after: `(T, B, N)` tokens behind each step of the published run.
        prompt_length, mask_id: of the case.
        tied: gets the numbers of the steps in which the choice among equals is another than that of the package.
    """

    needs_noise: ClassVar[bool] = True
    logits: Any = None
    after: Any = None
    prompt_length: int = 1
    mask_id: int = 0
    top_p: float | None = None
    top_k: int | None = None
    tied: list[int] = field(default_factory=list)

    def __deepcopy__(self, memo):
        return self

    def start(self, blocks, sampler):
        return super().start(blocks, ProbabilitySampler())

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        noise, step = state.noise, int(state.noise.step[0])
        raw = self.logits[step, noise.row, self.prompt_length - 1 : -1]
        scores = filtered(pad(raw, (0, 0, 0, open_mask.shape[1] - raw.shape[1])), self.top_p, self.top_k)
        state.noise = GlobalNoise(noise.seed, noise.row, noise.step, noise.positions, open_mask=open_mask)
        output = super().__call__(input_ids, scores, open_mask=open_mask, ran=ran, state=state)
        possible = output.tokens != self.mask_id
        after = self.after[step, noise.row, self.prompt_length :]
        after = pad(after, (0, open_mask.shape[1] - after.shape[1]), value=self.mask_id)
        written = open_mask & (after != self.mask_id)
        assert (output.tokens == after)[written].all()
        if not written.equal(output.commit & possible):
            self.tied.append(step)
            self.check(output, written, possible, open_mask, state, scores)
        return replace(output, commit=written, waits=torch.ones_like(ran))

    def check(self, output, written, possible, open_mask, state, scores):
        """Asserts that the published choice `written` consists of the best positions."""
        raise AssertionError("another choice")


def states_of(case: dict[str, Any]) -> list[Any]:
    """The published tokens before each step and behind the last."""
    return [*case["x_before_each_forward"], case["output"]]


def replay(case: dict[str, Any], logits: torch.Tensor, decoder: type[Replayed], monkeypatch, **options: Any):
    """Returns the decoder, and the tokens before the first step and behind each."""
    params, logits = case["params"], logits.to(getattr(torch, case["run_dtype"]))
    made = decoder(
        steps=params["steps"],
        top_p=params.get("top_p"),
        top_k=params.get("top_k"),
        logits=logits,
        after=torch.tensor(states_of(case)[1:]),
        prompt_length=len(case["prompt"][0]),
        mask_id=case["mask_id"],
        **options,
    )
    config = DiffusionGenerationConfig(
        decoder=made,
        max_new_tokens=params["max_length"] - len(case["prompt"][0]),
        block_length=params["max_length"],
        mask_token_id=case["mask_id"],
        logits_shift=True,
        attention="bidirectional",
    )
    model = Scripted(lambda call: logits[call.number], vocab_size=logits.shape[-1]).to(logits.dtype)
    model.generation_config.eos_token_id = None
    # What generate draws for itself must not move the stream of random numbers.
    monkeypatch.setattr("dllm_generate.generation._seed", lambda: 0)
    torch.manual_seed(case.get("torch_seed") or 0)
    states = []

    def advance(self, canvas, ran):
        # The published loop leaves masks where it predicts them; ours would go on.
        done = (canvas.forwards >= len(made.after)) | (canvas.first_open >= canvas.width)
        canvas.finished = canvas.finished | (done & ran)
        states.append(dict(zip(canvas.row.tolist(), canvas.input_ids[:, 1:].tolist())))

    monkeypatch.setattr("dllm_generate.schedules.blockwise.BlockwiseSchedule.advance", advance)
    model.generate(torch.tensor(case["prompt"]), generation_config=config)
    grids = [model.calls[0].input_ids.tolist()]
    for state in states:
        grids.append([state.get(row, old) for row, old in enumerate(grids[-1])])
    return made, grids
