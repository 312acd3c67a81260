"""What is compared between two runs, and what holds for every row."""

import torch
from models import MASK, PAD, counted_forwards, padded
from probes import answer

SAMPLED = {"do_sample": True, "temperature": 0.9, "top_k": 20}
RAGGED = padded([[5], [3, 1, 4, 1, 5], [9, 2, 6]])


def compare(output, row, alone):
    """Tokens, order, forwards and reason of a row are those of its single run; what follows is pad."""
    length = alone.commit_step.shape[1]
    assert answer(output, row) == answer(alone)
    assert output.commit_step[row, :length].tolist() == alone.commit_step[0].tolist()
    torch.testing.assert_close(output.confidence[row, :length], alone.confidence[0], atol=1e-4, rtol=1e-4)
    assert (output.num_forwards[row], output.finish_reason[row]) == (alone.num_forwards[0], alone.finish_reason[0])
    assert output.tokens_per_forward[row] == alone.tokens_per_forward[0]


def check_row(case, output, row):
    """What holds for every row, whatever decoded it."""
    tokens, steps, options = answer(output, row), output.commit_step[row], case.options
    width = max(map(len, case.prompts))
    prompt = case.prompts[row]
    assert output.sequences[row, width - len(prompt) : width].tolist() == prompt
    assert MASK not in tokens
    ends = options["eos_token_id"] if isinstance(options["eos_token_id"], list) else [options["eos_token_id"]]
    first = next((i + 1 for i, token in enumerate(tokens) if token in ends), options["max_new_tokens"])
    assert len(tokens) == first
    assert output.finish_reason[row] == ("eos" if tokens[-1] in ends else "length")
    assert (output.sequences[row, width + len(tokens) :] == PAD).all()
    assert (steps[: len(tokens)] >= 0).all() and (steps[len(tokens) :] == -1).all()
    text = len(tokens) - (tokens[-1] in ends)
    torch.testing.assert_close(output.tokens_per_forward[row], torch.tensor(text / int(output.num_forwards[row])))


def same_text(one, other):
    """Tokens, their steps and confidences, and why the rows ended."""
    assert torch.equal(one.sequences, other.sequences)
    assert torch.equal(one.commit_step, other.commit_step)
    assert one.finish_reason == other.finish_reason
    torch.testing.assert_close(one.confidence, other.confidence, atol=1e-4, rtol=1e-4)


def same(one, other):
    for row in range(len(one.num_forwards)):
        assert answer(one, row) == answer(other, row)
    assert torch.equal(one.num_forwards, other.num_forwards)
    assert torch.equal(one.commit_step, other.commit_step)
    torch.testing.assert_close(one.confidence, other.confidence, atol=1e-4, rtol=1e-4)


def check_rows(model, case):
    """Every row is its single run, whose forwards are counted; returns the output."""
    output = model.generate(**case.inputs, **case.options)
    for row in range(len(case.prompts)):
        check_row(case, output, row)
        with counted_forwards(model) as shapes:
            alone = model.generate(**case.single(row), **case.options)
        assert len(shapes) == alone.num_forwards[0]
        compare(output, row, alone)
    return output


def check_early_stop(model, case):
    """It saves forwards and changes no text."""
    early = model.generate(**case.inputs, **case.options)
    case.options["schedule_config"]["early_stop"] = False
    late = model.generate(**case.inputs, **case.options)
    assert torch.equal(early.sequences, late.sequences)
    assert (early.num_forwards <= late.num_forwards).all()


def check_idling(model, case, salt, sampled, plain, idling):
    """Rows that idle at random change nothing; `plain` and `idling` are classes of schedules."""
    schedule = case.schedule(plain)
    case.options |= SAMPLED if sampled else {}
    check_same(model, case, {"schedule": schedule}, {"schedule": idling(**vars(schedule), salt=salt)})


def check_same(model, case, *changes):
    """The calls with one and with the other change are the same, each with the same seed."""
    outputs = []
    for change in changes:
        torch.manual_seed(3)
        outputs.append(model.generate(**case.inputs, **{**case.options, **change}))
    same(*outputs)
