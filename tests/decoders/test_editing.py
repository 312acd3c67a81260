"""The editing decoder: open positions and corrections in the same step, and a look at what is complete."""

import pytest
import torch
from models import EOS, MASK, PAD, Scripted, padded, row_of_logits, tiny_llada
from scripted import Walk, cells, scores_of
from transformers import TextStreamer

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.decoders.editing import EditingDecoder

IDS = torch.tensor([[1, 2, 3, 0]])


def output_of(decoder, confidences, tokens, open_mask, editable="xxxx"):
    walk = Walk(decoder, 1, 4)
    return walk(scores_of([confidences], [tokens]), cells(open_mask), editable=cells(editable), ids=IDS)


def marks(grid):
    return "".join("x" if cell else "_" for cell in grid[0].tolist())


def test_the_rule():
    """Commits exceed one threshold, corrections the other one; they change the token, and spare prompt and masks."""
    decoder = EditingDecoder(0.8, 0.6)
    output = output_of(decoder, [0.7, 0.7, 0.7, 0.7], [9, 2, 9, 9], "___x")
    assert (marks(output.commit), marks(output.edit)) == ("___x", "x_x_")
    output = output_of(decoder, [0.7, 0.7, 0.5, 0.9], [9, 9, 9, 9], "__xx", "_xxx")
    assert (marks(output.commit), marks(output.edit)) == ("___x", "_x__")
    output = output_of(EditingDecoder(0.8, 0.6, at_least=2), [0.7, 0.7, 0.5, 0.9], [9] * 4, "_xxx")
    assert (marks(output.commit), marks(output.edit)) == ("_x_x", "x___")


def test_when_a_block_may_be_left():
    sure, same, other = [0.9] * 4, [1, 2, 3, 0], [1, 2, 3, 9]
    assert not output_of(EditingDecoder(), sure, same, "__xx").settled, "this step completes the block"
    assert output_of(EditingDecoder(max_post_steps=0), sure, same, "__xx").settled
    assert output_of(EditingDecoder(), [0.99] * 4, same, "____").settled
    assert not output_of(EditingDecoder(), [0.99] * 4, other, "____").settled
    assert output_of(EditingDecoder(max_post_steps=1), [0.99] * 4, other, "____").settled


def test_rounds_are_counted_per_block_and_only_where_the_row_ran():
    walk, scores = Walk(EditingDecoder(max_post_steps=2), 2, 4), scores_of([[0.99] * 4] * 2, [[9] * 4] * 2)
    look = {"open_mask": cells("____", "____"), "editable": cells("xxxx", "xxxx"), "ids": IDS.expand(2, -1)}
    assert walk(scores, **look, ran=torch.tensor([True, False])).settled.tolist() == [False, False]
    assert walk(scores, **look).settled.tolist() == [True, False]
    assert walk.state.rounds.tolist() == [2, 1]
    walk(scores, **look, block=1, ran=torch.tensor([True, False]))
    assert walk.state.rounds.tolist() == [1, 1]


def model_that_says(answers, prompt=1):
    """Answers `answers[t]` (tokens, confidence) in forward t, the last one from then on; a little surer to the left."""

    def script(call):
        tokens, confidence = answers[min(call.number, len(answers) - 1)]
        rows = [row_of_logits(0, 0.5)] * prompt + [
            row_of_logits(token, confidence - i / 1000) for i, token in enumerate(tokens)
        ]
        return torch.stack([*rows, row_of_logits(EOS, 0.5)])[call.position_ids.clamp(max=len(rows))]

    return Scripted(script)


def generate(model, new_tokens=4, **options):
    config = DiffusionGenerationConfig(
        decoder="editing", threshold=0.9, max_new_tokens=new_tokens, block_length=4, return_dict_in_generate=True,
        decoder_config={"editing_threshold": 0.7, **options.pop("decoder_config", {})}, **options,
    )  # fmt: skip
    return model.generate(torch.tensor([[1]]), generation_config=config)


def test_a_correction_is_written_while_others_are_open():
    model = model_that_says([([5, 6, 7, 8], 0.5), ([5, 6, 7, 9], 0.8), ([4, 6, 7, 9], 0.8), ([4, 6, 7, 9], 0.95)])
    output = generate(model)
    assert output.sequences.tolist() == [[1, 4, 6, 7, 9]]
    # A corrected token has the step and the confidence of its correction.
    assert output.commit_step.tolist() == [[2, 1, 2, 3]]
    assert output.num_forwards.tolist() == [5], "the last one finds nothing to correct"
    assert model.calls[-1].input_ids.tolist() == [[1, 4, 6, 7, 9]]


def test_a_block_that_flips_for_ever_is_left():
    answers = [([5, 6, 7, 8], 0.99)] + [([9, 6, 7, 8], 0.99), ([5, 6, 7, 8], 0.99)] * 20
    for rounds in (0, 1, 4):
        output = generate(model_that_says(answers), decoder_config={"max_post_steps": rounds})
        assert output.num_forwards.tolist() == [1 + rounds]
        assert output.sequences[0, 1].item() == (9 if rounds % 2 else 5)


def test_a_correction_may_bring_and_take_an_eos():
    """A row ends by what its block holds in the end."""
    answers = [([5, EOS, 7, 8], 0.99), ([5, 6, 7, 8], 0.99)]
    output = generate(model_that_says(answers))
    assert output.sequences.tolist() == [[1, 5, 6, 7, 8]] and output.finish_reason == ["length"]
    answers = [([5, 6, 7, 8] * 2, 0.99), ([5, EOS, 7, 8] * 2, 0.99)]
    output = generate(model_that_says(answers), new_tokens=8)
    assert output.sequences.tolist() == [[1, 5, EOS]] and output.finish_reason == ["eos"]
    assert output.num_forwards.tolist() == [3]


def test_the_prompt_is_never_corrected():
    model = tiny_llada()
    prompts = [[5, 7], [3, 1, 4, 1, 5, 9]]
    options = {
        "decoder": "editing",
        "threshold": 0.2,
        "decoder_config": {"editing_threshold": 0.01},
        "max_new_tokens": 9,
    }
    blocks = {"attention": "block_causal", "block_length": 4, "schedule_config": {"prompt_is_one_block": False}}
    for more in ({}, blocks):
        output = model.generate(**padded(prompts), **options, **more)
        assert output[:, :6].tolist() == [[PAD] * 4 + prompts[0], prompts[1]]
        assert MASK not in output


def test_streams_block_by_block(tokenizer):
    """A token that may still be corrected is not shown."""
    answers = [([5, 6, 7, 8] * 2, 0.99), ([9, 6, 7, 8] * 2, 0.99), ([9, 6, 7, 8] * 2, 0.99)]
    seen = []

    class Seen(TextStreamer):
        def put(self, value):
            seen.extend(value.flatten().tolist())

    model = model_that_says(answers)
    config = {"decoder": "editing", "max_new_tokens": 8, "block_length": 4, "eos_token_id": None}
    output = model.generate(torch.tensor([[1]]), **config, streamer=Seen(tokenizer))
    assert seen == output[0].tolist() == [1, 9, 6, 7, 8, 9, 6, 7, 8]


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("threshold", 0),
        ("editing_threshold", -0.1),
        ("editing_threshold", 1.5),
        ("max_post_steps", -1),
        ("max_post_steps", True),
        ("at_least", 0),
    ],
)
def test_bad_options(option, value):
    with pytest.raises(ValueError, match=f"`{option}` is {value!r}, but must be"):
        EditingDecoder(**{option: value})
