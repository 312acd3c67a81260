"""LLaDA's generate step by step: the real loop on stored logits."""

import pytest
import torch
from kit import LLaDADecoder, cases, documented, tensors
from models import Scripted

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.decoders.fixed import FixedDecoder

CASES = {case["id"]: case for case in cases("scripted/llada_generate")}
LOGITS = tensors("scripted/llada_generate")


def decoder_of(case):
    params, prompt = case["params"], case["prompt"]
    ranking = {"low_confidence": "low_confidence", "random": "random"}[params["remasking"]]
    postponed = ()
    if params.get("confidence_eos_eot_inf"):
        # With a temperature the published code forgets EOS.
        postponed = (case["eot_id"],) if params.get("temperature") else (case["eot_id"], case["eos_id"])
    common = {"steps": params["steps"], "ranking": ranking, "postpone_tokens": postponed}
    if not case["rng"]:
        return FixedDecoder(**common)
    return LLaDADecoder(
        **common,
        seed=params["torch_seed"],
        batch=len(prompt),
        length=len(prompt[0]) + params["gen_length"],
        temperature=params.get("temperature", 0.0),
    )


def model_of(case):
    logits = LOGITS[case["id"]].to(getattr(torch, case["run_dtype"]))
    model = Scripted(lambda call: logits[call.number], vocab_size=logits.shape[-1]).to(logits.dtype)
    # LLaDA's generate knows no EOS: it decodes everything.
    model.generation_config.eos_token_id = None
    return model


@pytest.mark.parametrize("name", CASES)
def test_every_step(name):
    case, params = CASES[name], CASES[name]["params"]
    config = DiffusionGenerationConfig(
        decoder=decoder_of(case),
        max_new_tokens=params["gen_length"],
        block_length=params["block_length"],
        guidance_scale=params["cfg_scale"] + 1 if "cfg_scale" in params else None,
        suppress_tokens=[case["eos_id"]] if params.get("logits_eos_inf") else None,
        return_dict_in_generate=True,
    )
    model = model_of(case)
    output = model.generate(torch.tensor(case["prompt"]), generation_config=config)
    # Under guidance the conditional rows come first; the golden data records only those.
    batch = len(case["prompt"])
    assert [call.input_ids[:batch].tolist() for call in model.calls] == case["x_before_each_forward"]
    assert output.sequences.tolist() == case["output"]
    assert output.num_forwards.tolist() == [len(LOGITS[name])] * batch


def test_the_documented_number():
    assert documented("llada_generate") == (len(CASES), len(CASES), 0, 0, 0)
