"""Iteration smoothing: its embeddings, and dInfer's loops with it."""

import contextlib

import pytest
import torch
from dinfer import Published, decoder_of, text_of
from kit import GOLDEN, Lockstep, PublishedRefresh, cases, documented, tensors
from models import EOS

from dllm_generate import DiffusionGenerationConfig, LLaDAForMaskedDiffusion
from dllm_generate.caches.dual import DualCachePolicy
from dllm_generate.caches.prefix import PrefixCachePolicy
from dllm_generate.caches.vicinity import VicinityCachePolicy
from dllm_generate.smoothing import Smoothing, SoftEmbeddings

TRACES = {trace["id"]: trace for trace in cases("traces/traces_dinfer_smoothing")}
STABLE = [name for name, trace in TRACES.items() if trace["stable"]]
# Rows of a batch wait for each other there, and take in further predictions meanwhile.
ALONE = [name for name in STABLE if len(TRACES[name]["prompt"]) == 1]
EMBEDDINGS = {case["id"]: case for case in cases("scripted/soft_embedding")}
TENSORS = tensors("scripted/soft_embedding")
FIELDS = {
    "cont_weight_init": "initial_weight",
    "cont_weight_growth": "growth",
    "cont_weight": "max_weight",
    "threshold_decay": "threshold_decay",
}


@pytest.fixture(scope="module")
def models():
    names = sorted({trace["model"] for trace in TRACES.values()})
    return {name: LLaDAForMaskedDiffusion.from_pretrained(GOLDEN / "traces" / name).eval() for name in names}


@pytest.mark.parametrize("name", EMBEDDINGS)
def test_embeddings(name):
    """The published function on one grid of tokens; column 0 is ours."""
    case, (table, logits, expected) = EMBEDDINGS[name], (TENSORS[f"{name}_{part}"] for part in ("W", "logits", "out"))
    ids = torch.tensor(case["x"])
    columns = torch.arange(1, ids.shape[1] + 1).expand_as(ids)
    opened = torch.zeros(ids.shape[0], ids.shape[1] + 1, dtype=torch.bool)
    settings = Smoothing()
    if case["weight"] is not None:
        opened[:, 1:] = torch.tensor(case["mask_index"])
        settings = Smoothing(initial_weight=case["weight"], growth=0, max_weight=1)
    soft = SoftEmbeddings.begin(settings, torch.nn.Embedding.from_pretrained(table), opened)
    soft.absorb(lambda piece: logits[:, piece], columns, None, torch.zeros(len(ids)))
    torch.testing.assert_close(soft.embed(ids, opened, columns, None), expected)


def policy_of(params):
    if not params["cache"]:
        return None
    if "Vicinity" in params["loop"]:
        # Behind its warm-up the published loop computes everything once more, to fill the cache.
        looks = {name: params.get(name, 0) for name in ("prefix_look", "after_look")}
        return VicinityCachePolicy(**looks, warmup_steps=params.get("warmup_steps", 0) + 1)
    return {"prefix": PrefixCachePolicy, "dual": DualCachePolicy}[params["cache"]["type"]]()


@contextlib.contextmanager
def recorded_sums(model):
    """Collects the shape and the absolute sum of the embeddings that every forward of the body is fed."""
    sums: list[tuple[list[int], float]] = []

    def note(module, args, kwargs):
        embeds = kwargs["inputs_embeds"]
        sums.append((list(embeds.shape[:2]), float(embeds.abs().sum())))

    hook = model.get_decoder().register_forward_pre_hook(note, with_kwargs=True)
    try:
        yield sums
    finally:
        hook.remove()


def generate(model, trace, **changes):
    params = trace["params"]
    config = DiffusionGenerationConfig(
        decoder=decoder_of(trace),
        smoothing={ours: params[theirs] for theirs, ours in FIELDS.items() if theirs in params} or True,
        max_new_tokens=params["gen_length"],
        return_dict_in_generate=True,
        **changes,
    )
    with recorded_sums(model) as sums:
        return model.generate(torch.tensor(trace["prompt"]), generation_config=config), sums


@pytest.mark.parametrize("name", TRACES)
def test_every_decode_call(name, models):
    """What every forward was fed, and what it wrote: of a trace that rounding changes, up to there."""
    trace = TRACES[name]
    policy = policy_of(trace["params"])
    policy = policy and PublishedRefresh(policy)
    schedule = Lockstep(trace["params"]["block_length"], refresh=policy)
    output, sums = generate(models[trace["model"]], trace, schedule=schedule, cache_policy=policy or "none")
    calls = trace["decode_calls"]
    count = len(calls) if trace["stable"] else trace["stable_decode_calls"]
    for row in range(len(trace["prompt"])):
        published = [{i: token for at, i, token in call["changed"] if at == row} for call in calls]
        assert schedule.writes[row][:count] == published[:count]
        if trace["stable"]:
            assert len(schedule.writes[row]) == count
            assert output.sequences[row].tolist() == text_of(trace, row)
    for (shape, total), call in zip(sums[:count], trace["forward_calls"]):
        assert (shape, total) == (call["shape"], pytest.approx(call["embeds_abs_sum"], rel=1e-4))


@pytest.mark.parametrize("name", ALONE)
def test_up_to_the_first_eos(name, models):
    """Options alone, without the kit: no step writes nothing."""
    trace = TRACES[name]
    options = {"block_length": trace["params"]["block_length"], "cache_policy": policy_of(trace["params"]) or "none"}
    output, _ = generate(models[trace["model"]], trace, **options)
    text = text_of(trace, 0)
    assert output.sequences[0, : len(text)].tolist() == text
    assert output.num_forwards[0] == Published.of(trace, 0).steps_until_eos(trace["prompt"][0])


def test_the_documented_numbers():
    # The published loop fills the row up behind the EOS.
    cut = sum(any(EOS in row for row in TRACES[name]["final_x"]) for name in STABLE)
    assert documented("dinfer_smoothing") == (len(STABLE), len(STABLE) - cut, 0, cut, 0)
    assert documented("soft_embedding") == (len(EMBEDDINGS), len(EMBEDDINGS), 0, 0, 0)
    rest = len(TRACES) - len(STABLE)
    assert documented("dinfer_smoothing_unstable") == (rest, 0, 0, 0, rest)
