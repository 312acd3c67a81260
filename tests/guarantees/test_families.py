"""The guarantees for every family with every schedule, cache policy and decoder that it works with."""

import pytest
import torch
from kin import SIZES, member
from models import MASK, padded
from probes import answer
from promises import compare

from dllm_generate.caches import POLICIES
from dllm_generate.decoders import DECODERS
from dllm_generate.families.support import family_support
from dllm_generate.schedules import SCHEDULES

PROMPTS = [[5, 9], [3, 1, 4, 1, 6]]
OWN = {
    name
    for kind in (SCHEDULES, POLICIES, DECODERS)
    for name, part in kind.parts.items()
    if part.__module__.startswith("dllm_generate.")
}
SCHEDULE_CONFIG = {
    "pipelined": {"decoded_token_threshold": 0.5},
    "seeded": {"sub_block_length": 2},
    "sliding": {"max_block_length": 7},
}
POLICY_CONFIG = {"vicinity": {"prefix_look": 1, "after_look": 1}}
THRESHOLDS = {"wino": 0.3, "dynamic": 0.4, "editing": 0.4, "paced": 0.3}
COMBINATIONS = [
    (name, *combination)
    for name in SIZES
    for combination in sorted(family_support(name).combinations)
    if set(combination) <= OWN
]


def call(model, inputs, schedule, policy, decoder):
    options = {"block_length": 4, "max_new_tokens": 7, "return_dict_in_generate": True}
    options |= {"schedule": schedule, "cache_policy": policy, "decoder": decoder}
    if decoder not in ("fixed", "dream", "factor", "entropy_bound", "renoise"):
        options["threshold"] = THRESHOLDS.get(decoder, 0.5)
    options["schedule_config"] = SCHEDULE_CONFIG.get(schedule, {})
    options["policy_config"] = POLICY_CONFIG.get(policy, {})
    torch.manual_seed(3)
    return model.generate(**inputs, **options)


def of(policy, decoder):
    return [c for c in COMBINATIONS if c[2] == policy and c[3] == decoder]


@pytest.mark.parametrize("decoder", sorted({c[3] for c in COMBINATIONS}))
@pytest.mark.parametrize("policy", sorted({c[2] for c in COMBINATIONS}))
def test_rows_are_their_single_runs_and_exact_policies_agree(policy, decoder):
    """Of all families and schedules with one policy and decoder."""
    for name, schedule, *_ in of(policy, decoder):
        model, batch = member(name), padded(PROMPTS)
        output = call(model, batch, schedule, policy, decoder)
        assert [output.sequences[row, 5 - len(p) : 5].tolist() for row, p in enumerate(PROMPTS)] == PROMPTS
        assert MASK not in answer(output, 0) + answer(output, 1)
        # The padded row; the noise of a decoder that draws tokens is that of its place in the batch.
        alone = call(model, {"input_ids": torch.tensor(PROMPTS[:1])}, schedule, policy, decoder)
        compare(output, 0, alone)
        if policy == "block":
            plain = call(model, batch, schedule, "none", decoder)
            assert torch.equal(plain.sequences, output.sequences), (name, schedule)
            assert torch.equal(plain.num_forwards, output.num_forwards), (name, schedule)


def test_every_family_and_every_part_takes_part():
    assert {c[0] for c in COMBINATIONS} == set(SIZES)
    assert {part for c in COMBINATIONS for part in c[1:]} == OWN
    assert len(COMBINATIONS) > 400
