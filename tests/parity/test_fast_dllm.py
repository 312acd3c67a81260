"""Whole runs on a tiny Fast-dLLM v2 through `generate`, against the published batch sampler.

The published forwards are read back into what each of them wrote to every row. A forward that wrote nothing to a row
does not count for it: the prefill, the last sealing of a block, and waiting for other rows of the batch. One that seals
a block and predicts the first token of the next one is our seed step.
"""

from dataclasses import dataclass, replace

import pytest
import torch
from kit import GOLDEN, cases, documented
from models import EOS, MASK

from dllm_generate import DiffusionGenerationConfig, generation
from dllm_generate.caches.sub_block import SubBlockCachePolicy
from dllm_generate.families.fast_dllm import Fast_dLLM_QwenForCausalLM
from dllm_generate.schedules.seeded import SeededSchedule

TRACES = {t["id"]: t for t in cases("models/block_traces") if t["group"] == "fast_dllm_v2"}
UNSTABLE = {name for name, trace in TRACES.items() if not trace["stable"]}
# What one row refreshes in its sub-block cache, the published code refreshes in all of the batch.
TOGETHER = {"fast_dllm_v2/v2_7", "fast_dllm_v2/v2_11"}


@dataclass(frozen=True)
class Lockstep(SeededSchedule):
    """Lets rows wait until all of the batch are as far, sub-block by sub-block."""

    def active(self, canvas):
        blocks = super().active(canvas)
        columns = blocks.columns[:, 0]
        first = torch.where(columns > 0, columns, canvas.width).amin(1).clamp(max=canvas.width - 1)
        place = canvas.position_ids.gather(1, first[:, None])[:, 0] // self.sub_block_length
        # A seed step comes before the sub-block that begins at the same position.
        place = 2 * place + (blocks.visible_end == blocks.end)
        place = place.masked_fill(canvas.finished, canvas.width)
        live = blocks.live & (place == place.amin())[:, None]
        return replace(blocks, live=live, force=live)


@dataclass(frozen=True)
class LockstepCache(SubBlockCachePolicy):
    """Recomputes the block for all rows where one of them needs it."""

    def plan(self, canvas, blocks, state):
        plan = super().plan(canvas, blocks, state)
        if not (plan.refresh & blocks.ran).any():
            return plan
        whole = torch.ones_like(plan.refresh)
        return replace(plan, lo=torch.minimum(plan.lo, blocks.start), hi=plan.visible_end, refresh=whole)


@pytest.fixture(scope="module")
def model():
    return Fast_dLLM_QwenForCausalLM.from_pretrained(GOLDEN / "models" / "fast_dllm_v2_qwen").eval()


def prompts(trace):
    return [row[:length] for row, length in zip(trace["prompt"], trace["prompt_lens"])]


def published(trace):
    """For every row {position: (number of the row's step, token)}, up to and including the first EOS."""
    length, part = trace["params"]["block_size"], trace["params"]["small_block_size"]
    grid = [dict(enumerate(prompt)) for prompt in prompts(trace)]
    written = [{} for _ in grid]
    work, sealed, alive = 0, False, list(range(len(grid)))
    # A prompt of exactly one block is forgotten.
    begin = length if trace["quirk"] else 0

    def note(number, row, start, tokens):
        for position, token in enumerate(tokens, start):
            if token != MASK and position not in grid[row]:
                grid[row][position] = token
                written[row][position] = (number, token)

    for number, rows in enumerate(trace["forward_inputs"]):
        width = len(rows[0])
        if sealed:
            begin += length
            alive = [row for row in alive if EOS not in [token for _, token in written[row].values()]]
        assert len(alive) == len(rows)
        for row, tokens in zip(alive, rows):
            note(number - 1, row, begin + work * part * (width < length), tokens)
        if width == length:
            masked = [place for tokens in rows for place, token in enumerate(tokens) if token == MASK]
            sealed, work = not masked, min(masked, default=0) // part
    for row, tokens in enumerate(trace["output"]):
        note(number, row, 0, tokens)
    return [numbered(cells) for cells in written]


def numbered(cells):
    """Numbers the forwards that wrote to a row, and leaves out what follows its EOS."""
    numbers = sorted({number for number, _ in cells.values()})
    end = min((position for position, (_, token) in cells.items() if token == EOS), default=max(cells))
    return {p: (numbers.index(number), token) for p, (number, token) in cells.items() if p <= end}


def ours(output, trace):
    """The same for a run of the package."""
    found = []
    for prompt, steps, tokens in zip(prompts(trace), output.commit_step.tolist(), output.sequences.tolist()):
        cells = zip(steps, tokens[-len(steps) :])
        found.append({len(prompt) + i: cell for i, cell in enumerate(cells) if cell[0] >= 0})
    return found


def generate(model, trace, lockstep=False):
    params, texts = trace["params"], prompts(trace)
    width = max(map(len, texts))
    ids = torch.tensor([[0] * (width - len(text)) + text for text in texts])
    mask = torch.tensor([[0] * (width - len(text)) + [1] * len(text) for text in texts])
    schedule = SeededSchedule if not lockstep else Lockstep
    config = DiffusionGenerationConfig(
        decoder="threshold",
        threshold=params["threshold"],
        decoder_config={"strict": True},
        schedule=schedule(params["block_size"], sub_block_length=params["small_block_size"]),
        cache_policy=(LockstepCache() if lockstep else "sub_block") if params["use_block_cache"] else "block",
        max_new_tokens=max(map(len, trace["output"])) - min(map(len, texts)),
        return_dict_in_generate=True,
    )
    return model.generate(ids, attention_mask=mask, generation_config=config)


def unprompted(monkeypatch):
    """Hides the prompts from the canvas: the published code forgets one of exactly one block."""
    built = generation._canvas
    monkeypatch.setattr(
        generation, "_canvas", lambda r, ids, mask, layout: built(r, ids, torch.zeros_like(mask), layout)
    )


@pytest.mark.parametrize("name", sorted(set(TRACES) - UNSTABLE))
def test_every_token_and_its_step(name, model, monkeypatch):
    trace = TRACES[name]
    if trace["quirk"]:
        unprompted(monkeypatch)
    output = generate(model, trace, lockstep=name in TOGETHER)
    for row, (found, expected) in enumerate(zip(ours(output, trace), published(trace))):
        # A row whose prompt is longer may go on further here.
        assert {position: found[position] for position in expected} == expected
        if EOS in [token for _, token in expected.values()] or len(found) == len(expected):
            assert output.num_forwards[row] == 1 + max(number for number, _ in expected.values())


def test_a_prompt_of_one_block_is_not_forgotten(model):
    """Its last position predicts the first token of the answer, as behind any other prompt."""
    prompt = torch.tensor(TRACES["fast_dllm_v2/v2_1"]["prompt"])
    assert prompt.shape[1] == model.config.bd_size
    output = model.generate(prompt, max_new_tokens=16, return_dict_in_generate=True)
    assert output.sequences[0, 8] == model(prompt).logits[0, -1].argmax() and output.commit_step[0, 0] == 0


def test_the_documented_number():
    answers = {name: sum((r[n:] for r, n in zip(t["output"], t["prompt_lens"])), []) for name, t in TRACES.items()}
    cut = {name for name, tokens in answers.items() if EOS in tokens}
    exact = set(TRACES) - UNSTABLE - cut
    assert documented("fast_dllm_v2") == (len(TRACES), len(exact), 0, len(cut), len(UNSTABLE))
