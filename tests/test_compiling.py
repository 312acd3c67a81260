"""Compiled forwards give what eager ones give, in few shapes."""

import copy

import pytest
import torch
from kin import SIZES, member
from models import tiny_llada
from probes import BLOCK_CAUSAL
from promises import RAGGED, same
from torch._dynamo.utils import counters
from transformers import CompileConfig

from dllm_generate.families import family_of

# Traced as for the default backend, without a C++ compiler behind it.
TRACED = CompileConfig(backend="eager", mode=None, fullgraph=True)
COMMON = {"max_new_tokens": 24, "block_length": 8, "decoder": "threshold", "threshold": 0.2}
PIPELINED = {
    **BLOCK_CAUSAL,
    "schedule": "pipelined",
    "schedule_config": {"decoded_token_threshold": 0.5, "blocks_in_flight": 2},
}
WAYS = {
    "prefix": {"cache_policy": "prefix"},
    "dual": {"cache_policy": "dual"},
    "dual, refreshed": {"cache_policy": "dual", "policy_config": {"refresh_interval": 2}},
    "vicinity": {"cache_policy": "vicinity", "policy_config": {"prefix_look": 4, "after_look": 4}},
    "block": {**BLOCK_CAUSAL, "cache_policy": "block", "schedule": "block_diffusion"},
    "pipelined": {**PIPELINED, "cache_policy": "block"},
    "sliding": {"schedule": "sliding", "cache_policy": "dual"},
    "unrolled": {"cache_policy": "dual", "unroll_steps": 3},
    "smoothing": {"cache_policy": "dual", "smoothing": True},
    "guidance": {"cache_policy": "dual", "guidance_scale": 1.5},
    "look-ahead": {"cache_policy": "dual", "lookahead": True},
    "wino": {"cache_policy": "dual", "decoder": "wino", "threshold": 0.2},
}


@pytest.fixture(scope="module")
def model():
    return tiny_llada()


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    counters.clear()


def generate(model, compile_config=None, inputs=RAGGED, **options):
    static = {} if compile_config is None else {"cache_implementation": "static", "compile_config": compile_config}
    common = {**COMMON, "cache_policy": "dual"}
    return model.generate(**inputs, **{**common, **options}, **static, return_dict_in_generate=True)


def graphs():
    return counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("way", WAYS)
def test_compiled_equals_eager_and_is_compiled_once(model, way):
    options = WAYS[way]
    expected = generate(model, **options)
    same(generate(model, TRACED, **options), expected)
    made = graphs()
    assert made > 0
    same(generate(model, TRACED, **options), expected)
    assert graphs() == made


@pytest.mark.parametrize("name", SIZES)
def test_every_family(name):
    model = member(name)
    policy = "dual" if family_of(model).attention == "bidirectional" else "block"
    options = {"max_new_tokens": 12, "cache_policy": policy, "return_dict_in_generate": True}
    expected = model.generate(**RAGGED, **options)
    same(model.generate(**RAGGED, **options, cache_implementation="static", compile_config=TRACED), expected)
    assert graphs() > 0


def test_with_the_default_backend(model):
    expected = generate(model, **WAYS["pipelined"])
    same(generate(model, CompileConfig(mode="default", fullgraph=True), **WAYS["pipelined"]), expected)
    assert graphs() > 0


def test_the_prompt_and_a_refresh_are_not_compiled(model):
    widths = set()

    def note(graph, inputs):
        ids = [x for x in inputs if isinstance(x, torch.Tensor) and x.dtype == torch.long and x.dim() == 2]
        widths.update(x.shape[1] for x in ids)
        return graph.forward

    generate(model, CompileConfig(backend=note, mode=None, dynamic=False), **WAYS["dual"])
    # A block of 8, and no canvas of 5 + 24.
    assert widths == {16}


@pytest.mark.parametrize("flight", [1, 2, 3])
def test_a_bounded_pipeline_has_few_shapes(model, flight):
    options = {**WAYS["pipelined"], "max_new_tokens": 96, "block_length": 16}
    options["schedule_config"] = {"decoded_token_threshold": 0.5, "blocks_in_flight": flight}
    one = {"input_ids": torch.tensor([[5, 3, 1]])}
    static = CompileConfig(backend="eager", mode=None, fullgraph=True, dynamic=False)
    same(generate(model, static, one, **options), generate(model, inputs=one, **options))
    # Beside the blocks in flight, a window holds those whose keys and values are not final yet.
    assert 1 <= graphs() <= 2 * flight


def test_a_copy_runs_its_own_weights(model):
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(-1)
    first, second = generate(model, TRACED), generate(other, TRACED)
    same(first, generate(model))
    same(second, generate(other))
    assert not torch.equal(first.sequences, second.sequences)


def test_it_can_be_switched_off(model):
    same(generate(model, TRACED, disable_compile=True), generate(model))
    assert graphs() == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"compile_config": True}, "must be an instance of `CompileConfig`"),
        ({"cache_implementation": None}, "`cache_implementation` is None, but must be 'static' with `compile_config`"),
        ({"cache_policy": "none"}, "`cache_policy` is 'none', but must be one that keeps a cache"),
        ({"cache_policy": None, "use_cache": False}, "`cache_policy` is 'none', but must be one that keeps a cache"),
    ],
)
def test_what_is_refused(model, options, message):
    common = {"compile_config": TRACED, "cache_implementation": "static", "cache_policy": "dual"}
    with pytest.raises(ValueError, match=message):
        model.generate(torch.tensor([[5, 3]]), **{**COMMON, **common, **options})
    model.generate(torch.tensor([[5, 3]]), **COMMON)
