"""All options at once: nothing hangs, no mask is left, the prompt stays, and a row is its single run."""

import contextlib

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from models import MASK, counted_forwards, tiny_llada
from probes import DECODERS, POLICIES, REVOCABLE, answer, cases

# Smoothing feeds a random model its own predictions and so amplifies rounding; equality is asked for in float64.
SMOOTHING = [None, None, True, {"initial_weight": 0.5, "growth": 0.2, "max_weight": 1.0, "temperature": 0.5}]
REMEMBER = ("credit", "klass")
# Windows that reach over several blocks, so that a refresh is no wider than the window before it.
WIDE = [
    {"cache_policy": "vicinity", "policy_config": {"prefix_look": 8, "after_look": 8, "refresh_interval": interval}}
    for interval in (None, 3)
]
SHORT_SIGHTED = [{"cache_policy": name, "policy_config": {"suffix_window": 2}} for name in ("none", "prefix", "dual")]


@pytest.fixture(scope="module")
def model():
    return tiny_llada().double()


@st.composite
def everything(draw):
    """Calls over decoder x policy x alignment x smoothing x look-ahead x unrolling x batch x length."""
    case = draw(cases(decoders=DECODERS, policies=POLICIES + WIDE + SHORT_SIGHTED))
    lossless = st.fixed_dictionaries({"drafts": st.integers(1, 9), "lossless": st.booleans()})
    case.options |= {
        "smoothing": draw(st.sampled_from(SMOOTHING)),
        "lookahead": draw(st.one_of(st.none(), lossless)),
        "unroll_steps": draw(st.sampled_from([None, 2, 3, 5])),
        "guidance_scale": draw(st.sampled_from([None, None, None, 1.7])),
        "cache_implementation": draw(st.sampled_from([None, None, "static"])),
    }
    case.options["schedule_config"]["early_stop"] = draw(st.booleans())
    return case


def refusal(options):
    """What the package must say of options that do not go together; None where they do."""
    ahead, decoder = options["lookahead"], options["decoder"]
    if options["smoothing"] and "threshold" not in options:
        return "has no threshold"
    if options["smoothing"] and options["guidance_scale"]:
        return "must be off with `guidance_scale`"
    if ahead and options["smoothing"]:
        return "must be off with `smoothing`"
    if ahead and decoder in REVOCABLE:
        return "takes back"
    return "remembers" if ahead and ahead["lossless"] and decoder in REMEMBER else None


@contextlib.contextmanager
def bounded_forwards(model, limit):
    """Fails a call that takes more forwards than any decoding needs."""
    count = []

    def check(*args):
        count.append(1)
        assert len(count) <= limit, "decoding does not end"

    hook = model.get_decoder().register_forward_pre_hook(check)
    try:
        yield
    finally:
        hook.remove()


def most_steps(options):
    """A step commits, or looks at a complete block."""
    return options["max_new_tokens"] * (1 + (options.get("decoder_config") or {}).get("max_post_steps", 0))


def run(model, inputs, options):
    # A launch has surplus steps; the rows of a step make up at most 6 classes of width.
    limit = 6 * len(inputs["input_ids"]) * most_steps(options) * (options["unroll_steps"] or 1)
    with bounded_forwards(model, limit):
        return model.generate(**inputs, **options)


def same(output, row, other, alone):
    """A row of a call and a row of another: tokens, their steps and confidences, and why it ended."""
    length = other.commit_step.shape[1]
    assert answer(output, row) == answer(other, alone)
    assert output.commit_step[row, :length].tolist() == other.commit_step[alone].tolist()
    torch.testing.assert_close(output.confidence[row, :length], other.confidence[alone], atol=1e-4, rtol=1e-4)
    assert output.finish_reason[row] == other.finish_reason[alone]


def check(model, case):
    options, message = case.options, refusal(case.options)
    if message is not None:
        with counted_forwards(model) as shapes, pytest.raises(ValueError, match=message):
            model.generate(**case.inputs, **options)
        assert not shapes
        return
    output, width = run(model, case.inputs, options), max(map(len, case.prompts))
    for row, prompt in enumerate(case.prompts):
        assert output.sequences[row, width - len(prompt) : width].tolist() == prompt
        assert MASK not in answer(output, row)
        assert output.num_forwards[row] <= most_steps(options)
        alone = run(model, case.single(row), options)
        same(output, row, alone, 0)
        assert output.num_forwards[row] == alone.num_forwards[0]
    plain = run(model, case.inputs, {**options, "unroll_steps": None})
    assert torch.equal(output.num_forwards, plain.num_forwards)
    if options["lookahead"] and options["lookahead"]["lossless"]:
        plain = run(model, case.inputs, {**options, "lookahead": None, "unroll_steps": None})
        assert (output.num_forwards <= plain.num_forwards).all()
    for row in range(len(case.prompts)):
        same(output, row, plain, row)


@given(everything())
@settings(max_examples=75)
def test_everything(model, case):
    check(model, case)
