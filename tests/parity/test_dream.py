"""Dream's sampler, and Fast-dLLM's addition to it, step by step: the real loops on stored logits."""

from dataclasses import dataclass, field

import pytest
import torch
from dream import Replayed, replay, states_of
from kit import cases, documented, tensors

from dllm_generate.decoders.dream import DreamDecoder
from dllm_generate.decoders.paced import PacedDecoder
from dllm_generate.progress import with_progress

CASES = {case["id"]: case for case in cases("scripted/dream")}
LOGITS = tensors("scripted/dream")
THRESHOLD_CASES = {case["id"]: case for case in cases("scripted/dream_confidence_threshold")}
THRESHOLD_LOGITS = tensors("scripted/dream_confidence_threshold")
TIED = {"d019", "d022", "d027", "d034", "d046"}
# The quota is larger than what is open in a row: the published code masks so many real tokens again.
REMASKED = {"d025": 1, "d035": 2}
RANKINGS = {"origin": "origin", "maskgit_plus": "low_confidence", "topk_margin": "margin", "entropy": "entropy"}


@dataclass(frozen=True, kw_only=True)
class PublishedDream(Replayed, DreamDecoder):
    """Takes the share of the mean number of masks in the batch, scores in the dtype of the logits, and spends a forward
    on every timestep."""

    def check(self, output, written, possible, open_mask, state, scores):
        left = open_mask.sum(-1)
        quota = torch.minimum(self._due(state, left), left)
        score = self._score(scores, output.confidence, state).masked_fill(~open_mask, float("-inf"))
        last = score.sort(-1, descending=True).values.gather(-1, quota[:, None] - 1)
        equal = score == last
        assert written.equal((score > last) & possible | written & equal)
        wanted = quota - (score > last).sum(-1)
        taken, mute = (written & equal).sum(-1), (equal & ~possible).sum(-1)
        assert ((taken <= wanted) & (taken + mute >= wanted)).all()

    def _due(self, state, left):
        # In float32, where 26 / 3 * 9 / 26 is less than 3.
        times, step = torch.linspace(1, self.eps, self.steps + 1), int(state.step[0])
        mean = left.sum() / len(self.logits[0])
        share = 1 - times[step + 1] / times[step] if step < self.steps - 1 else 1
        return (mean * share).long().expand_as(left)

    def _score(self, scores, confidence, state):
        probabilities = scores.softmax(-1)
        if self.ranking == "margin":
            top = probabilities.topk(2, dim=-1).values
            return top[..., 0] - top[..., 1]
        if self.ranking == "entropy":
            return (probabilities * (probabilities + 1e-10).log()).sum(-1)
        return confidence


@dataclass(frozen=True, kw_only=True)
class CountingPace(PacedDecoder):
    """Counts a position as committed where it chose the mask id, too."""

    taken: list[int] = field(default_factory=lambda: [0])

    def _taken(self, state, open_mask):
        return torch.tensor(self.taken)

    def __call__(self, input_ids, scores, *, open_mask, ran, **kwargs):
        output = super().__call__(input_ids, scores, open_mask=open_mask, ran=ran, **kwargs)
        output.commit = with_progress(output.commit, output.confidence, open_mask, ran)
        self.taken[0] += int(output.commit.sum())
        return output


@dataclass(frozen=True, kw_only=True)
class PublishedPace(Replayed, CountingPace):
    pass


@pytest.mark.parametrize("name", CASES)
def test_every_step(name, monkeypatch):
    case = CASES[name]
    options = {"eps": case["params"]["eps"], "ranking": RANKINGS[case["params"]["alg"]]}
    decoder, states = replay(case, LOGITS[name], PublishedDream, monkeypatch, **options)
    published = states_of(case)
    if name in REMASKED:
        mask_id = case["mask_id"]
        again = [[now == mask_id != before for now, before in zip(*rows)] for rows in zip(published[-1], published[-2])]
        assert sum(map(sum, again)) == REMASKED[name]
        last = [[p if a else o for p, o, a in zip(*rows)] for rows in zip(published[-1], states[-1], again)]
        states = [*states[:-1], last]
    # Forwards behind the last mask write nothing.
    assert states == published[: len(states)] and all(state == states[-1] for state in published[len(states) :])
    assert bool(decoder.tied) == (name in TIED)


def test_the_documented_number():
    assert documented("dream") == (len(CASES), len(CASES) - len(TIED) - len(REMASKED), len(TIED), 0, len(REMASKED))


@pytest.mark.parametrize("name", THRESHOLD_CASES)
def test_every_step_with_a_threshold(name, monkeypatch):
    case = THRESHOLD_CASES[name]
    threshold = case["params"]["threshold"]
    decoder, states = replay(case, THRESHOLD_LOGITS[name], PublishedPace, monkeypatch, threshold=threshold)
    published = states_of(case)
    assert states == published[: len(states)] and all(state == states[-1] for state in published[len(states) :])
    assert not decoder.tied


def test_the_documented_number_with_a_threshold():
    assert documented("dream_confidence_threshold") == (len(THRESHOLD_CASES), len(THRESHOLD_CASES), 0, 0, 0)
