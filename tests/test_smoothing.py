"""Iteration smoothing: options, what the model is fed, and how much the head computes."""

import contextlib
import copy
import json

import pytest
import torch
from models import MASK, Scripted, counted_forwards, padded, table, tiny_llada

from dllm_generate import DECODERS, DiffusionGenerationConfig
from dllm_generate.smoothing import Smoothing

IDS = torch.tensor([[3, 1, 4, 1, 5]])
CALL = {"decoder": "threshold", "threshold": 0.5, "block_length": 8}


def test_weight_and_threshold_of_a_step():
    steps = torch.tensor([0, 1, 5, 7, 8, 50])
    torch.testing.assert_close(Smoothing().weight(steps), torch.tensor([0.15, 0.17, 0.25, 0.29, 0.3, 0.3]))
    torch.testing.assert_close(Smoothing().threshold(steps, 0.9), torch.tensor([1, 0.98, 0.9, 0.9, 0.9, 0.9]))
    own = Smoothing(initial_weight=0.5, growth=0.1, max_weight=2.0, threshold_decay=0.0)
    torch.testing.assert_close(own.weight(steps), torch.tensor([0.5, 0.6, 1.0, 1.2, 1.3, 2.0]))
    assert own.threshold(steps, 0.9).tolist() == [1.0] * 6


@pytest.mark.parametrize(
    ("smoothing", "message"),
    [
        ({"weights": 1}, "'weights'.*a dict with keys of.*'initial_weight'"),
        (1, "`smoothing` is 1, but must be a bool or a dict"),
        ({"top_k": 0}, r"smoothing\['top_k'\].* is 0, but must be None or an int > 0"),
        ({"temperature": 0}, r"smoothing\['temperature'\].* is 0, but must be a number > 0"),
        ({"growth": -0.1}, r"smoothing\['growth'\].* is -0.1, but must be a number >= 0"),
        ({"max_weight": "high"}, r"smoothing\['max_weight'\].* is 'high'"),
    ],
)
def test_values_that_are_not_allowed(smoothing, message):
    with pytest.raises(ValueError, match=message):
        DiffusionGenerationConfig(smoothing=smoothing)


@pytest.mark.parametrize("smoothing", [True, False, {"top_k": 8, "growth": 0.1}])
def test_saved_and_loaded(tmp_path, smoothing):
    DiffusionGenerationConfig(smoothing=smoothing).save_pretrained(tmp_path)
    assert json.loads((tmp_path / "generation_config.json").read_text())["smoothing"] == smoothing
    assert DiffusionGenerationConfig.from_pretrained(tmp_path).smoothing == smoothing


WITHOUT_THRESHOLD = [{"decoder": name} for name in DECODERS.parts if "threshold" not in DECODERS.fields(name)]


@pytest.mark.parametrize(
    "options",
    [
        *WITHOUT_THRESHOLD,
        {"decoder": "hierarchical", "decoder_config": {"threshold": None}},
        {"decoder": "threshold", "guidance_scale": 2.0},
    ],
)
def test_what_cannot_work_raises_before_the_first_forward(llada, options):
    assert {"decoder": "fixed"} in WITHOUT_THRESHOLD and {"decoder": "factor"} in WITHOUT_THRESHOLD
    named = "guidance_scale" if "guidance_scale" in options else options["decoder"]
    with counted_forwards(llada) as shapes, pytest.raises(ValueError, match=f"`smoothing` is on.*{named}"):
        llada.generate(IDS, max_new_tokens=4, smoothing=True, **options)
    assert not shapes
    llada.generate(IDS, max_new_tokens=4, smoothing=False, **options)


def test_a_model_that_takes_ids_only(llada, monkeypatch):
    monkeypatch.setattr(llada.get_decoder(), "forward", lambda input_ids, position_ids, attention_mask, cache: None)
    with pytest.raises(ValueError, match="`smoothing` is on, but LLaDAForMaskedDiffusion takes no `inputs_embeds`"):
        llada.generate(IDS, max_new_tokens=4, smoothing=True, decoder="threshold")


def scripted(logits):
    """A model whose embeddings say everything: token i is the unit vector i."""
    model = Scripted(logits)
    model.embeddings = torch.nn.Embedding.from_pretrained(torch.eye(logits.shape[-1]))
    return model


def test_the_threshold_falls_to_that_of_the_decoder():
    """All positions have a confidence of 0.95: one token per step, until the threshold is 0.94."""
    model = scripted(table(*[(7, 0.95)] * 12))
    model.generate(torch.tensor([[1]]), max_new_tokens=12, decoder="threshold", threshold=0.9, smoothing=True)
    masks = [int((call.inputs_embeds[..., MASK] > 0.5).sum()) for call in model.calls]
    assert masks == [12, 11, 10, 9]


@pytest.mark.parametrize("policy", ["none", "prefix", "dual", "vicinity"])
@pytest.mark.parametrize("shift", [False, True])
def test_what_every_forward_is_fed(policy, shift):
    """By hand: a prompt of 2, 6 open positions in blocks of 3, one commit per step."""
    torch.manual_seed(1)
    logits = torch.randn(8, 64)
    logits[:, MASK] = -10
    model = scripted(logits)
    model.generate(
        torch.tensor([[1, 2]]), max_new_tokens=6, block_length=3, cache_policy=policy, logits_shift=shift,
        decoder="threshold", threshold=1.0, smoothing={"growth": 0.1, "max_weight": 0.4},
        policy_config={"prefix_look": 0, "after_look": 1} if policy == "vicinity" else None,
    )  # fmt: skip
    # Row i of the logits predicts position i, or i + 1 under a shift.
    expected = logits.softmax(-1).roll(int(shift), 0)
    unit, soft = torch.eye(64), torch.zeros(8, 64)
    tokens = torch.tensor([1, 2] + [MASK] * 6)
    confidence, choice = expected.max(-1)
    for step, call in enumerate(model.calls):
        places = call.position_ids[0]
        is_open = (tokens[places] == MASK)[:, None]
        torch.testing.assert_close(call.inputs_embeds[0], unit[tokens[places]] + soft[places] * is_open)
        # The window begins one column early under a shift; what that column predicts with is not in it.
        seen = places[1:] if shift and places[0] > 0 else places
        soft[seen] = min(0.15 + 0.1 * step, 0.4) * expected[seen]
        block = [i for i in (range(2, 5) if step < 3 else range(5, 8)) if tokens[i] == MASK]
        best = max(block, key=lambda i: confidence[i])
        tokens[best] = choice[best]
    assert len(model.calls) == 6 and MASK not in tokens


def test_top_k(llada):
    full = llada.generate(IDS, max_new_tokens=24, **CALL, smoothing=True)
    options = [{"top_k": k} for k in (64, 1000)]
    assert all(torch.equal(llada.generate(IDS, max_new_tokens=24, **CALL, smoothing=o), full) for o in options)
    assert not torch.equal(llada.generate(IDS, max_new_tokens=24, **CALL, smoothing={"top_k": 1}), full)
    model = scripted(table((7, 0.6), (9, 0.8)))
    model.generate(torch.tensor([[1]]), max_new_tokens=2, decoder="threshold", smoothing={"top_k": 1})
    assert model.calls[1].inputs_embeds[0, 1].nonzero().tolist() == [[7], [MASK]]
    torch.testing.assert_close(model.calls[1].inputs_embeds[0, 1, 7], torch.tensor(0.15))


@pytest.mark.parametrize("smoothing", [True, {"top_k": 4}])
def test_tied_embeddings_in_any_dtype(smoothing):
    """A tied model is the same model with two copies of its table."""
    tied = tiny_llada(weight_tying=True)
    apart = tiny_llada(weight_tying=False)
    apart.load_state_dict({**tied.state_dict(), "lm_head.weight": tied.lm_head.weight.detach().clone()})
    assert tied.lm_head.weight is tied.get_input_embeddings().weight
    assert apart.lm_head.weight is not apart.get_input_embeddings().weight
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        models = [copy.deepcopy(model).to(dtype) for model in (tied, apart)]
        texts = [model.generate(IDS, max_new_tokens=20, **CALL, smoothing=smoothing) for model in models]
        assert torch.equal(*texts) and MASK not in texts[0]


@contextlib.contextmanager
def counted_logits(model):
    """Collects, for every forward of the body, the columns `(n, w)` of each call of the head."""
    calls: list[list[tuple[int, int]]] = []
    begin = lambda *args, **kwargs: calls.append([])
    note = lambda module, args, output: calls[-1].append(tuple(output.shape[:2]))
    hooks = model.get_decoder().register_forward_hook(begin), model.get_output_embeddings().register_forward_hook(note)
    try:
        yield calls
    finally:
        for hook in hooks:
            hook.remove()


# Columns of each call of the head: behind the block, 64 at a time, then the block. First and second step.
WIDTHS = {
    "none": ([64, 64, 16, 16], [64, 64, 16, 16]),
    "prefix": ([64, 64, 16, 16], [64, 64, 16, 16]),
    "dual": ([64, 64, 16, 16], [16]),
    "vicinity": ([64, 64, 16, 16], [3, 16]),
}


@pytest.mark.parametrize("policy", WIDTHS)
def test_logits_are_computed_once_and_nothing_in_front_of_the_block(llada, policy):
    """A prompt of 40 and 160 new tokens in blocks of 16. Plain decoding computes the block only."""
    options = {"decoder": "threshold", "threshold": 1.0, "block_length": 16, "cache_policy": policy}
    if policy == "vicinity":
        options["policy_config"] = {"prefix_look": 5, "after_look": 3}
    ids = torch.arange(40)[None]
    with counted_logits(llada) as calls:
        llada.generate(ids, max_new_tokens=160, eos_token_id=MASK, smoothing=True, **options)
    widths = [[width for _, width in forward] for forward in calls]
    assert (widths[0], widths[1]) == WIDTHS[policy]
    assert widths[-16:] == [[16]] * 16
    with counted_logits(llada) as calls:
        llada.generate(ids, max_new_tokens=160, eos_token_id=MASK, **options)
    assert {tuple(forward) for forward in calls} == {((1, 16),)}


def test_never_the_logits_of_a_whole_batch(llada):
    """Rows in different blocks: a forward computes from the first end of a block on, in pieces."""
    inputs = padded([[5], [3, 1, 4, 1, 5] * 20])
    with counted_logits(llada) as calls:
        llada.generate(**inputs, max_new_tokens=80, smoothing=True, **CALL)
    assert all(width <= 64 for forward in calls for _, width in forward)
    assert max(sum(width for _, width in forward) for forward in calls) <= 80
