"""Whole runs on tiny block-causal models through `generate`: SDAR's, LLaDA2.0's, LLaDA2.1's and dInfer's block loops.

A published forward counts for a row if its block has masks, or if the loop is one that edits. The others are the
forward for the prompt, those that only seal a block, and unrolled iterations on a block that is finished in this row.
"""

import pytest
import torch
from dinfer import decoder_of
from kit import GOLDEN, cases, documented, recorded_inputs
from models import EOS, MASK
from refining import Published, refining_decoder

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.families.llada2 import LLaDA2MoeForMaskedDiffusion
from dllm_generate.families.sdar import SDARForCausalLM

SDAR, LLADA2, LLADA21, DINFER = GROUPS = ("sdar", "llada2_moe", "llada21_moe", "dinfer_block_diffusion")
TRACES = {trace["id"]: trace for trace in cases("models/block_traces") if trace["group"] in GROUPS}
# A quota that exceeds what is open: the published top-k overwrites the last token of the prompt.
OVERWRITTEN = {"sdar/sdar_7", "sdar/sdar_10"}
# The share of the mask id decides which of two positions is the more confident.
WITH_MASK = "llada21_moe/llada21_moe_7"
POLICIES = pytest.mark.parametrize("policy", ["none", "block"])


@pytest.fixture(scope="module")
def models():
    classes = {"sdar": SDARForCausalLM, "llada2_moe": LLaDA2MoeForMaskedDiffusion}
    classes["llada21_moe"] = classes["llada2_moe"]
    return {name: cls.from_pretrained(GOLDEN / "models" / name).eval() for name, cls in classes.items()}


def answer_of(trace, row=0):
    """What the published run returned behind the prompt."""
    tokens = trace["output"][row]
    return tokens if trace["group"] in (LLADA2, LLADA21) else tokens[len(trace["prompt"][row]) :]


def text(tokens):
    """Up to the first EOS, which stays."""
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


def published(trace, row=0):
    """For every forward that counts: the column where its block begins, and the block before it."""
    length = trace["params"]["block_length"]
    if trace["group"] == DINFER:
        # With a cache, the first call is for the prompt. A short one has masks in it.
        calls = [(call["first_pos"], call["input_ids"][row]) for call in trace["calls"][trace["params"]["cached"] :]]
    else:
        # SDAR's are blocks, and LLaDA2's end with one: their columns do not matter here.
        calls = [(0, rows[row]) for rows in trace["forward_inputs"]]
    blocks = [(start + len(tokens) - length, tokens[-length:]) for start, tokens in calls]
    return [(start, block) for start, block in blocks if MASK in block or trace["group"] == LLADA21]


def steps_of(trace, row):
    """For every token of the answer, the number of the last forward before which it was a mask."""
    begin, found = len(trace["prompt"][row]), {}
    for number, (start, block) in enumerate(published(trace, row)):
        found.update({i: number for i, token in enumerate(block, start) if token == MASK})
    return [found[i] for i in range(begin, begin + len(answer_of(trace, row)))]


def generate(model, trace, rows=slice(None), policy="block", **changes):
    """Returns the output, and the block before every forward of the first row."""
    params = trace["params"]
    model.config.block_length = params["block_length"]
    options = {
        "decoder": decoder_of(trace) if trace["group"] == DINFER else refining_decoder(params),
        "schedule_config": {"early_stop": params.get("eos_early_stop", False)},
        "max_new_tokens": len(answer_of(trace)),
        **changes,
    }
    config = DiffusionGenerationConfig(
        schedule="block_diffusion",
        block_length=params["block_length"],
        cache_policy=policy,
        return_dict_in_generate=True,
        **options,
    )
    with recorded_inputs(model) as inputs:
        output = model.generate(torch.tensor(trace["prompt"][rows]), generation_config=config)
    return output, [ids[0][-params["block_length"] :] for ids in inputs]


def answer(output, trace, row=0):
    return output.sequences[row, len(trace["prompt"][row]) :].tolist()


@POLICIES
@pytest.mark.parametrize("name", sorted(set(TRACES) - OVERWRITTEN - {WITH_MASK}))
def test_every_forward_of_a_row(name, policy, models):
    """Each row alone: the block before every forward, and the text."""
    trace = TRACES[name]
    for row in range(len(trace["prompt"])):
        output, blocks = generate(models[trace["model"]], trace, slice(row, row + 1), policy)
        assert blocks == [block for _, block in published(trace, row)]
        assert text(answer(output, trace)) == text(answer_of(trace, row))
        assert output.num_forwards.tolist() == [len(blocks)]


@POLICIES
@pytest.mark.parametrize("name", [name for name, trace in TRACES.items() if trace["group"] == DINFER])
def test_every_step_of_a_batch(name, policy, models):
    """Rows of ours do not wait for each other; each commits every token in the step in which the published row does."""
    trace = TRACES[name]
    output, _ = generate(models[trace["model"]], trace, policy=policy)
    for row in range(len(trace["prompt"])):
        assert answer(output, trace, row) == answer_of(trace, row)
        assert output.commit_step[row].tolist() == steps_of(trace, row)
        assert output.num_forwards[row] == len(published(trace, row))


@pytest.mark.parametrize("name", [name for name in sorted(set(TRACES) - OVERWRITTEN) if EOS in answer_of(TRACES[name])])
def test_up_to_the_first_eos(name, models):
    """The package's own end of a row spends no forward behind an EOS with nothing open before it."""
    trace = TRACES[name]
    output, blocks = generate(models[trace["model"]], trace, schedule_config={})
    expected = [block for _, block in published(trace)]
    assert answer(output, trace) == text(answer_of(trace))
    assert blocks == expected[: len(blocks)]
    assert all(MASK in block[: block.index(EOS)] for block in blocks if EOS in block)


@POLICIES
def test_the_mask_id_as_a_token(policy):
    """Where the mask id is a token like any other, beside a mask of our own, the choices are the published ones."""
    trace = TRACES[WITH_MASK]
    model = LLaDA2MoeForMaskedDiffusion.from_pretrained(GOLDEN / "models" / trace["model"]).eval()
    model.resize_token_embeddings(MASK + 2, mean_resizing=False)
    with torch.no_grad():
        embeddings = model.get_input_embeddings().weight
        embeddings[MASK + 1] = embeddings[MASK]
    decoder = Published(inner=refining_decoder(trace["params"]), mask=MASK)
    output, blocks = generate(model, trace, policy=policy, decoder=decoder, mask_token_id=MASK + 1)
    blocks = [[MASK if token == MASK + 1 else token for token in block] for block in blocks]
    assert blocks == [block for _, block in published(trace)]
    assert answer(output, trace) == answer_of(trace)


@POLICIES
@pytest.mark.parametrize("name", sorted(OVERWRITTEN))
def test_a_prompt_that_the_published_code_overwrites_stays(name, policy, models):
    """One token differs behind the first block, of one forward. Put into the prompt, it leads to all that follows."""
    trace, model = TRACES[name], models["sdar"]
    prompt, length = trace["prompt"][0], trace["params"]["block_length"]
    block = trace["output"][0][: -(-len(prompt) // length) * length]
    ours, blocks = generate(model, trace, policy=policy)
    tokens, expected = ours.sequences[0].tolist(), [block for _, block in published(trace)]
    assert blocks[0] == expected[0] and tokens[: len(prompt)] == prompt
    assert [i for i, token in enumerate(block) if token != tokens[i]] == [len(prompt) - 1]
    rest = {**trace, "prompt": [block]}
    output, blocks = generate(model, rest, policy=policy)
    assert blocks == expected[1:]
    assert text(answer(output, rest)) == text(answer_of(rest))


@pytest.mark.parametrize("group", GROUPS)
def test_the_documented_number(group):
    traces = {name for name, trace in TRACES.items() if trace["group"] == group}
    left_out = len(traces & OVERWRITTEN)
    assert documented(group) == (len(traces), len(traces) - left_out, 0, 0, left_out)
    assert all(TRACES[name]["stable"] for name in traces)
