"""Commits that are taken back: bounded, never in the prompt, never shown before they are final."""

import dataclasses

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import EOS, MASK, PAD, Scripted, padded, row_of_logits
from probes import DECODERS, Recorder, cases
from scripted import Walk, cells, scores_of

from dllm_generate import Decoder, DecoderOutput
from dllm_generate.canvas import Canvas
from dllm_generate.decoders.remasking import RemaskingDecoder

PROMPT = torch.tensor([[1]])
EAGER = [decoder for decoder in DECODERS if decoder["decoder"] in ("remasking", "wino")]


def decide(decoder, confidences, open_cells, editable=None):
    """Positions that are reopened, and positions that are committed."""
    open_mask = cells(open_cells)
    editable = torch.ones_like(open_mask) if editable is None else cells(editable)
    output = Walk(decoder, 1, len(open_cells))(scores_of([confidences]), open_mask, editable=editable)
    return ["".join("o" if cell else "_" for cell in grid[0].tolist()) for grid in (output.reopen, output.commit)]


def test_doubtful_positions_compete_with_open_ones():
    decoder = RemaskingDecoder(threshold=0.9, low_threshold=0.3, remask_threshold=0.4)
    # The run of 1-3 holds two doubtful commits and one open position, which is the best of it; two more follow by rank.
    assert decide(decoder, [0.8, 0.35, 0.2, 0.5, 0.8], "___o_") == ["_oo__", "_ooo_"]
    assert decide(decoder, [0.8, 0.35, 0.2, 0.95, 0.92], "___oo") == ["_oo__", "_o_oo"]


def test_prompt_is_not_doubtful():
    decoder = RemaskingDecoder(remask_threshold=0.4)
    assert decide(decoder, [0.1, 0.1, 0.6, 0.5], "__oo", "__oo") == ["____", "__o_"]


def test_nothing_doubtful_is_the_hierarchical_rule():
    decoder = RemaskingDecoder(threshold=0.9, low_threshold=0.4, remask_threshold=0.2)
    assert decide(decoder, [0.5, 0.6, 0.8, 0.95, 0.3], "oo_oo") == ["_____", "_o_o_"]


@given(st.lists(st.tuples(st.sampled_from("o_p"), st.floats(0.11, 0.99)), min_size=1, max_size=10))
def test_more_is_committed_than_taken_back(row):
    kinds, confidences = ("".join(kind for kind, _ in row), [confidence for _, confidence in row])
    if "o" not in kinds:
        return
    editable = "".join("_" if kind == "p" else "o" for kind in kinds)
    decoder = RemaskingDecoder(threshold=0.95, low_threshold=0.5, remask_threshold=0.6)
    reopen, commit = decide(decoder, confidences, kinds.replace("p", "_"), editable)
    assert commit.count("o") > reopen.count("o")
    assert all(kind != "p" for kind, *marks in zip(kinds, reopen, commit) if "o" in marks)


class Doubter(Scripted):
    """Logits that depend on how often the model was called: `script[call][position] = (token, confidence)`."""

    def __init__(self, *script):
        rows = [torch.stack([row_of_logits(0, 0.5), *(row_of_logits(*cell) for cell in call)]) for call in script]
        super().__init__(lambda call: rows[call.number][call.position_ids], vocab_size=rows[0].shape[-1])


WAVERING = (
    ((5, 0.95), (6, 0.3), (EOS, 0.92), (8, 0.2)),
    # The first position and the EOS have become doubtful; the first one is replaced at once.
    ((9, 0.35), (6, 0.95), (7, 0.2), (8, 0.91)),
    ((9, 0.95), (6, 0.95), (7, 0.95), (8, 0.95)),
)


def test_a_run_that_changes_its_mind():
    """An EOS that is taken back ends nothing."""
    config = {"threshold": 0.9, "low_threshold": 0.4, "remask_threshold": 0.4}
    model = Doubter(*WAVERING)
    output = model.generate(
        PROMPT, max_new_tokens=4, decoder="remasking", decoder_config=config, return_dict_in_generate=True
    )
    seen = [call.input_ids[0, 1:].tolist() for call in model.calls]
    assert seen == [[MASK] * 4, [5, MASK, EOS, MASK], [9, 6, MASK, 8]]
    assert output.sequences[0].tolist() == [1, 9, 6, 7, 8]
    assert output.commit_step[0].tolist() == [1, 1, 2, 1]
    assert output.finish_reason == ["length"]


def test_a_row_ends_with_its_block():
    """Behind an EOS with nothing open before it, the rest of the block is still decided."""
    model = Doubter(((EOS, 0.95), (6, 0.3)), ((EOS, 0.95), (6, 0.3)))
    options = {"max_new_tokens": 2, "return_dict_in_generate": True}
    output = model.generate(PROMPT, decoder="remasking", **options)
    assert output.num_forwards.tolist() == [2] and output.sequences.tolist() == [[1, EOS]]
    plain = Doubter(((EOS, 0.95), (6, 0.3)))
    assert plain.generate(PROMPT, decoder="hierarchical", **options).num_forwards.tolist() == [1]


@dataclasses.dataclass(frozen=True)
class Greedy(Decoder):
    """Asks to take back everything, the prompt included, and commits `count` positions."""

    revocable = True
    name = "greedy"
    count: int = 1

    def __call__(self, input_ids, scores, *, open_mask, ran, state, threshold=None):
        tokens, confidence = state.predict(scores)
        every = torch.ones_like(open_mask)
        return DecoderOutput(tokens, confidence, open_mask & (open_mask.cumsum(-1) <= self.count), reopen=every)


@pytest.mark.parametrize(("count", "left"), [(1, [5, 4, 3, 2, 1, 0]), (2, [4, 3, 1, 0])])
def test_the_step_bounds_every_decoder(llada, count, left):
    """The first block holds one cell of the prompt and three of the answer, the second one the other three."""
    schedule = Recorder(block_length=4, align="position")
    prompt = torch.tensor([[3, 1, 4, 1, 5]])
    decoder = Greedy(count=count)
    output = llada.generate(prompt, max_new_tokens=6, decoder=decoder, schedule=schedule, eos_token_id=MASK)
    assert output[0, :5].tolist() == prompt[0].tolist()
    assert [counts for _, _, counts in schedule.log] == [[n] for n in left]


@given(cases(decoders=EAGER))
@settings(max_examples=40)
def test_commits_are_taken_back_and_every_row_still_ends(llada, case):
    schedule = case.schedule(Recorder, early_stop=False)
    output = llada.generate(**case.inputs, **case.options, schedule=schedule)
    width, left = max(map(len, case.prompts)), {}
    for row, prompt in enumerate(case.prompts):
        assert output.sequences[row, width - len(prompt) : width].tolist() == prompt
    for rows, ran, still_open in schedule.log:
        for row, has_run, count in zip(rows, ran, still_open):
            assert not has_run or count < left.get(row, case.options["max_new_tokens"])
            left[row] = count
    assert not any(left.values())


def test_the_random_model_does_take_commits_back(llada):
    config = {
        **EAGER[0],
        "max_new_tokens": 24,
        "block_length": 24,
        "eos_token_id": MASK,
        "return_dict_in_generate": True,
    }
    output = llada.generate(torch.tensor([[3, 1, 4]]), **config)
    first = llada.generate(torch.tensor([[3, 1, 4]]), **{**config, "decoder": "hierarchical", "decoder_config": None})
    assert not torch.equal(output.sequences, first.sequences)
    # A position that was committed in the first step of both carries a later step in one.
    assert ((first.commit_step == 0) & (output.commit_step > 0)).any()


class Criterion:
    """Notes the prefixes that it is shown."""

    def __init__(self):
        self.shown = []

    def __call__(self, input_ids, scores, **kwargs):
        self.shown.append(input_ids[0].tolist())
        return torch.zeros(len(input_ids), dtype=torch.bool)


def test_only_final_tokens_are_shown():
    """The first block changes its mind; a streamer and a criterion see it when it is whole."""
    config = {"threshold": 0.9, "low_threshold": 0.4, "remask_threshold": 0.4}
    script = [(*call, (5, 0.5), (5, 0.5)) for call in WAVERING] + [((9, 0.95),) * 6] * 2
    options = {"max_new_tokens": 6, "block_length": 4, "decoder": "remasking", "decoder_config": config}
    sent, criterion = [], Criterion()

    class Streamer:
        def put(self, value):
            sent.extend(value.flatten().tolist())

        def end(self):
            sent.append("end")

    output = Doubter(*script).generate(PROMPT, **options, streamer=Streamer(), stopping_criteria=[criterion])
    assert sent == [*output[0].tolist(), "end"]
    assert criterion.shown == [output[0, : n + 1].tolist() for n in range(1, output.shape[1])]


def test_reopening_on_the_canvas():
    canvas = Canvas.build(
        **padded([[7, EOS], [5]]), new_tokens=3, mask_token_id=MASK, fill_token_id=PAD, eos_token_ids=(EOS,)
    )
    columns, step = torch.tensor([[3, 4, 5]] * 2), torch.zeros(2, dtype=torch.long)
    every = torch.ones(2, 3, dtype=torch.bool)
    canvas.commit(columns, torch.tensor([[1, EOS, EOS], [1, 2, EOS]]), torch.full((2, 3), 0.5), every, step)
    assert canvas.first_open.tolist() == [6, 6] and canvas.first_eos.tolist() == [4, 5]
    canvas.reopen(columns, torch.tensor([[False, True, False], [False, False, False]]))
    assert canvas.input_ids[:, 1:].tolist() == [[7, EOS, 1, MASK, EOS], [PAD, 5, 1, 2, EOS]]
    assert canvas.open[:, 1:].tolist() == [[False] * 3 + [True, False], [False] * 5]
    assert canvas.first_open.tolist() == [4, 6] and canvas.first_eos.tolist() == [5, 5]
    assert canvas.commit_step[0, 3:].tolist() == [0, -1, 0] and canvas.confidence[0, 3:].tolist() == [0.5, 0.0, 0.5]
    assert not canvas.open[:, 0].any()


@pytest.mark.parametrize("value", [None, 0, 1.5, "a"])
def test_bad_values(value):
    with pytest.raises(ValueError, match="`remask_threshold` is"):
        RemaskingDecoder(remask_threshold=value)
