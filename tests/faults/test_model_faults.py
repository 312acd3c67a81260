"""Faults of models, families, configs and integration that users of other tools have reported; by their numbers."""

import json
import warnings

import pytest
import torch
from models import EOS, MASK, PAD, SHIFTED, Scripted, byte_tokenizer, padded, row_of_logits, tiny_llada
from probes import answer
from torch import nn
from transformers import AutoModel, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, pipeline

from dllm_generate import DiffusionGenerationConfig, attach

ONE = torch.tensor([[1]])


def gpt2():
    return GPT2LMHeadModel(GPT2Config(n_embd=16, n_head=2, n_layer=1, vocab_size=64, is_causal=False)).eval()


@pytest.mark.parametrize("missing", [None, "mask_token_id", "logits_shift", "attention"])
def test_b021_an_architecture_that_nobody_knows(missing):
    """The error lists what is supported and the three options that make it work by hand."""
    facts = {"mask_token_id": MASK, "logits_shift": False, "attention": "bidirectional"}
    model = attach(gpt2())
    options = {**facts, "max_new_tokens": 4, "pad_token_id": 0}
    if missing is None:
        assert model.generate(ONE, **options).shape == (1, 5)
        return
    with pytest.raises(ValueError) as error:
        model.generate(ONE, **{**options, missing: None})
    assert all(word in str(error.value) for word in ("GPT2LMHeadModel", "llada", *facts))


REMOTE = """
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

rotary = ROPE_INIT_FUNCTIONS["default"]


class LLaDAModelLM(PreTrainedModel):
    pass
"""


@pytest.mark.parametrize("trust", [False, True])
@pytest.mark.parametrize("auto", [AutoModel, AutoModelForCausalLM])
def test_b031_remote_code_of_an_older_transformers(tmp_path, llada, auto, trust):
    """A repository whose code looks up a rope entry that is gone: a known family never runs that code."""
    llada.save_pretrained(tmp_path)
    (tmp_path / "modeling_llada.py").write_text(REMOTE)
    path = tmp_path / "config.json"
    code = dict.fromkeys(("AutoModel", "AutoModelForCausalLM"), "modeling_llada.LLaDAModelLM")
    path.write_text(json.dumps({**json.loads(path.read_text()), "auto_map": code}))
    model = auto.from_pretrained(tmp_path, trust_remote_code=trust)
    assert torch.equal(model.generate(ONE, max_new_tokens=6), llada.generate(ONE, max_new_tokens=6))


def test_b043_integration():
    """A pipeline denoises; options of left-to-right decoding raise by name."""
    tokenizer = byte_tokenizer()
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("mask", "eos", "pad")}
    model = tiny_llada(vocabulary=len(tokenizer), **ids)
    model.generation_config.do_sample = False
    inputs = tokenizer("abc", return_tensors="pt", return_token_type_ids=False)
    expected = tokenizer.decode(model.generate(**inputs, max_new_tokens=8)[0, 3:], skip_special_tokens=True)
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
    assert pipe("abc", max_new_tokens=8, return_full_text=False)[0]["generated_text"] == expected
    with pytest.raises(ValueError, match="`num_beams` is 2"):
        model.generate(**inputs, num_beams=2, max_new_tokens=4)
    with pytest.raises(ValueError, match="`assistant_model` is a LLaDAForMaskedDiffusion"):
        model.generate(**inputs, assistant_model=model, max_new_tokens=4)


@pytest.mark.parametrize(
    "options", [{"threshold": 0.5}, {"decoder": "threshold", "steps": 4}, {"decoder": "factor", "threshold": 0.5}]
)
def test_b047_an_option_that_is_ignored_says_so(llada, options):
    name = "steps" if "steps" in options else "threshold"
    with pytest.warns(UserWarning, match=f"`{name}` has no effect"):
        llada.generate(ONE, max_new_tokens=4, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        llada.generate(ONE, max_new_tokens=4, decoder="threshold", threshold=0.5)


def test_b049_sampling_values_in_a_model_config(tmp_path):
    """They move to the generation config with one warning; model facts stay; nothing crashes at load or save."""
    tiny_llada().save_pretrained(tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "temperature": 0.6, "top_p": 0.9}))
    with pytest.warns(UserWarning, match="sampling values"):
        model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert (model.generation_config.temperature, model.generation_config.top_p) == (0.6, 0.9)
    assert model.config.mask_token_id == MASK
    model.generation_config.do_sample = True
    model.save_pretrained(tmp_path / "again")
    again = AutoModelForCausalLM.from_pretrained(tmp_path / "again")
    assert "temperature" not in json.loads((tmp_path / "again" / "config.json").read_text())
    assert again.generation_config.temperature == 0.6 and again.generate(ONE, max_new_tokens=3).shape == (1, 4)


def test_b051_where_the_mask_id_comes_from():
    """Call, passed config, model's generation config, model config, tokenizer; else an error that names the option."""
    model, tokenizer = tiny_llada(), byte_tokenizer()
    tokenizer.mask_token_id = 40

    def used(model, **options):
        seen = []
        hook = model.model.register_forward_pre_hook(
            lambda m, a, k: seen.append(int(k["input_ids"][0, -1])), with_kwargs=True
        )
        model.generate(ONE, max_new_tokens=2, **options)
        hook.remove()
        return seen[0]

    assert used(model, tokenizer=tokenizer) == MASK
    model.generation_config.mask_token_id = 50
    assert used(model) == 50
    assert used(model, generation_config=DiffusionGenerationConfig(mask_token_id=51)) == 51
    assert used(model, generation_config=DiffusionGenerationConfig(mask_token_id=51), mask_token_id=52) == 52
    nameless = tiny_llada(mask_token_id=None)
    assert used(nameless, tokenizer=tokenizer) == 40
    with pytest.raises(ValueError, match="set `mask_token_id`"):
        nameless.generate(ONE, max_new_tokens=2)


def test_b051_two_models_of_different_mask_ids():
    one, two = tiny_llada(), tiny_llada(mask_token_id=60, pad_token_id=0)
    first = one.generate(ONE, max_new_tokens=6)
    assert 60 not in two.generate(ONE, max_new_tokens=6)[0, 1:]
    assert torch.equal(one.generate(ONE, max_new_tokens=6), first)


def counting(shift):
    """Says 10 + p for position p: at its own place, or one place before. Surer to the right, so blocks end in front."""
    cells = torch.stack([row_of_logits(10 + p + shift, 0.5 + p / 100) for p in range(24)])
    model = Scripted(cells)
    model.generation_config.logits_shift = bool(shift)
    return model


@pytest.mark.parametrize("policy", ["none", "prefix", "dual"])
@pytest.mark.parametrize("interval", [None, 2])
@pytest.mark.parametrize("shift", [0, 1])
@pytest.mark.parametrize("decoder", ["fixed", "threshold", "factor"])
def test_b053_the_shift(policy, interval, shift, decoder):
    """After a prompt of one token, at block borders, with what lies before in the cache, and in ragged batches."""
    config = {} if policy == "none" else {"policy_config": {"refresh_interval": interval}}
    model = counting(shift)
    ids = model.generate(
        **padded([[1], [1] * 4]), decoder=decoder, cache_policy=policy, block_length=3, max_new_tokens=8, **config
    )
    assert ids[:, 4:].tolist() == [list(range(11, 19)), list(range(14, 22))]


def test_b053_a_shift_can_be_overridden():
    assert counting(1).generate(ONE, max_new_tokens=3, logits_shift=False).tolist() == [[1, 12, 13, 14]]
    assert counting(0).generate(ONE, max_new_tokens=3, logits_shift=True).tolist() == [[1, 10, 11, 12]]


@pytest.mark.parametrize("policy", ["none", "prefix", "dual"])
def test_b053_a_shifted_row_is_its_single_run(llada, policy):
    """Windows start one column earlier; refresh in every step is still no cache."""
    rows, options = [[5], [3, 1, 4, 1]], {"cache_policy": policy, "block_length": 3, "max_new_tokens": 8, **SHIFTED}
    output = llada.generate(**padded(rows), **options, return_dict_in_generate=True)
    for row, prompt in enumerate(rows):
        alone = llada.generate(torch.tensor([prompt]), **options, return_dict_in_generate=True)
        assert answer(output, row) == answer(alone)
    if policy != "none":
        fresh = llada.generate(**padded(rows), **options, policy_config={"refresh_interval": 1})
        assert torch.equal(fresh, llada.generate(**padded(rows), **{**options, "cache_policy": "none"}))


def test_b053_infilling_with_a_shift():
    """A first cell that is open keeps its own row: there is none before it."""
    ids = counting(1).generate(torch.tensor([[MASK, 2, MASK, MASK]]), infill=True, block_length=2)
    assert ids.tolist() == [[11, 2, 12, 13]] and EOS != PAD


def test_b065_a_plan_for_tensor_parallelism():
    """The family brings one that knows its names, for a checkpoint of the published layout, too."""
    model = tiny_llada()
    plan = {pattern.replace("*", "0") for pattern in model.tp_plan}
    linear = {name for name, module in model.named_modules() if isinstance(module, nn.Linear) and ".1." not in name}
    assert linear <= plan and plan <= {name for name, _ in model.named_modules()}


def test_b065_ranks_sample_the_same_tokens(llada, monkeypatch):
    """With one seed on all of them, as transformers wants it: the rank itself plays no part."""
    drawn = []
    for rank in ("0", "1"):
        for name in ("RANK", "LOCAL_RANK"):
            monkeypatch.setenv(name, rank)
        torch.manual_seed(7)
        drawn.append(llada.generate(ONE.expand(2, 1), max_new_tokens=12, do_sample=True, temperature=1.0))
    assert torch.equal(*drawn) and not torch.equal(drawn[0][0], drawn[0][1])
