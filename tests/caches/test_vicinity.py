"""The neighbourhood of the block: what is recomputed when."""

import pytest
import torch
from hypothesis import given, settings
from models import MASK, counted_forwards
from probes import NO_CACHE, cases

from dllm_generate.caches.vicinity import VicinityCachePolicy

IDS = torch.tensor([[3, 1, 4, 1, 5]])


def widths(model, **options):
    """Query tokens of every forward of a run with one token per step: 4 blocks of 3 behind 5 prompt tokens."""
    with counted_forwards(model) as shapes:
        model.generate(IDS, max_new_tokens=12, block_length=3, eos_token_id=MASK, **options)
    return [width for _, width in shapes]


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"prefix_look": 0, "after_look": 0}, [17, 3, 3] * 4),
        ({"prefix_look": 2, "after_look": 1}, [17, 6, 6] * 3 + [17, 5, 5]),
        ({"prefix_look": 9, "after_look": 9}, [17, 17, 17] * 2 + [17, 15, 15] + [17, 12, 12]),
        ({"prefix_look": 2, "after_look": 1, "warmup_steps": 2}, [17, 17, 6] + [17, 6, 6] * 2 + [17, 5, 5]),
        ({"prefix_look": 2, "after_look": 1, "warmup_steps": 5}, [17] * 5 + [6] + [17, 6, 6] + [17, 5, 5]),
        ({"prefix_look": 0, "after_look": 0, "refresh_interval": 2}, [17, 3, 17] * 4),
    ],
)
def test_query_tokens_of_every_forward(llada, config, expected):
    assert widths(llada, cache_policy="vicinity", policy_config=config) == expected


def test_no_look_is_the_dual_cache(llada):
    options = {"max_new_tokens": 16, "block_length": 8}
    dual = llada.generate(IDS, **options, cache_policy="dual")
    policy = VicinityCachePolicy(prefix_look=0, after_look=0)
    assert torch.equal(dual, llada.generate(IDS, **options, cache_policy=policy))


@given(cases(policies=[NO_CACHE]))
@settings(max_examples=30)
def test_a_look_over_the_whole_canvas_is_no_cache(llada, case):
    exact = llada.generate(**case.inputs, **case.options)
    everything = {"cache_policy": "vicinity", "policy_config": {"prefix_look": 99, "after_look": 99}}
    output = llada.generate(**case.inputs, **{**case.options, **everything})
    assert torch.equal(output.sequences, exact.sequences)
    assert torch.equal(output.commit_step, exact.commit_step)


@pytest.mark.parametrize("values", [{"prefix_look": -1}, {"after_look": 1.5}, {"warmup_steps": True}])
def test_bad_values(values):
    with pytest.raises(ValueError, match=f"`{next(iter(values))}` is"):
        VicinityCachePolicy(**values)
