"""D2F's pipelined decoding on a tiny LLaDA and a tiny Dream: what every forward is given, and the text."""

import functools

import pytest
import torch
from kit import GOLDEN, cases, documented, recorded_inputs

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.families.dream import DreamForMaskedDiffusion
from dllm_generate.families.llada import LLaDAForMaskedDiffusion

LLADA = {trace["id"]: trace for trace in cases("traces/traces_d2f")}
DREAM = {trace["id"]: trace for trace in cases("models/d2f_dream_traces")}
FALLBACKS = {"neg_entropy": "entropy", "margin_confidence": "margin"}
EOS, MASK = 62, 63


@functools.cache
def model_of(name):
    if name == "dream":
        return DreamForMaskedDiffusion.from_pretrained(GOLDEN / "models" / name).eval()
    return LLaDAForMaskedDiffusion.from_pretrained(GOLDEN / "traces" / name).eval()


def run(trace, **options):
    """Returns the answer, and the input ids of every forward."""
    params = trace["params"]
    thresholds = {name: params[name] for name in ("block_add_threshold", "decoded_token_threshold")}
    config = DiffusionGenerationConfig(
        decoder="threshold",
        threshold=params["skip_threshold"],
        decoder_config={
            "strict": True,
            "fallback": FALLBACKS.get(params.get("sampling_strategy"), "low_confidence"),
        },
        schedule="pipelined",
        schedule_config={**thresholds, "prompt_is_one_block": True},
        block_length=params["block_size"],
        attention="block_causal",
        max_new_tokens=params["max_new_tokens"],
        mask_token_id=MASK,
        eos_token_id=EOS,
        return_dict_in_generate=True,
        **options,
    )
    model, prompt = model_of(trace["model"]), torch.tensor(trace["prompt"])
    with recorded_inputs(model) as inputs:
        output = model.generate(prompt, attention_mask=torch.ones_like(prompt), generation_config=config)
    assert output.num_forwards.tolist() == [len(inputs)]
    return output.sequences[0, prompt.shape[1] :].tolist(), [ids[0] for ids in inputs]


def until_eos(tokens):
    return tokens[: tokens.index(EOS) + 1] if EOS in tokens else tokens


@pytest.mark.parametrize("name", [*LLADA, *DREAM])
def test_every_forward_and_the_text(name):
    """From the step after an EOS on, ours leaves out the blocks behind it, which no block before sees."""
    trace = (LLADA | DREAM)[name]
    answer, inputs = run(trace, cache_policy="block")
    assert answer[: len(until_eos(trace["output"]))] == until_eos(trace["output"])
    assert EOS in trace["output"] or len(answer) == len(trace["output"])

    published = [call["input_ids"][0] for call in trace["forward_calls"]]
    prompt = len(trace["prompt"][0])
    # With shifted logits the hidden row of the last final position is computed again, not stored.
    again = int(trace["model"] == "dream")
    for number, (ours, theirs) in enumerate(zip(inputs, published, strict=False)):
        generated = theirs[prompt:] if number == 0 else theirs
        if EOS in generated:
            break
        assert ours == theirs if number == 0 else ours[again:] == theirs
    assert len(inputs) <= len(published)
    assert EOS in trace["output"] or len(inputs) == len(published)


@pytest.mark.parametrize("name", [*LLADA, *DREAM])
def test_the_exact_cache_equals_no_cache(name):
    trace = (LLADA | DREAM)[name]
    answer, inputs = run(trace, cache_policy="none")
    cached, windows = run(trace, cache_policy="block")
    assert answer == cached
    assert len(inputs) == len(windows)


def test_the_documented_numbers():
    assert documented("d2f") == (len(LLADA), len(LLADA), 0, 0, 0)
    assert documented("d2f_dream") == (len(DREAM), len(DREAM), 0, 0, 0)
    assert all(trace["stable"] for trace in (LLADA | DREAM).values())
