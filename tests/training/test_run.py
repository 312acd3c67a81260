"""Whole runs of recipes on small models: what they write, and what must not change them."""

import json

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.training.run import train


def weights(folder):
    return load_file(f"{folder}/model.safetensors")


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_writes_model_metrics_and_recipe(recipe, tmp_path, optimizer, folders):
    training = train(recipe(optimizer=optimizer, warmup=1))
    run = tmp_path / "run"
    assert training.written == [run / "final"] and not list(run.glob("**/*.bin.index.json"))
    before = weights(folders("llada"))
    assert weights(run / "final").keys() == before.keys() and not same(weights(run / "final"), before)
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert lines == training.metrics and [line["step"] for line in lines] == [1, 2, 3, 4]
    assert set(lines[0]) == {"step", "loss", "grad_norm", "learning_rate", "tokens", "seconds"}
    for name in ("tokens", "seconds"):
        values = [line[name] for line in lines]
        assert values == sorted(values) and values[0] > 0
    assert [line["learning_rate"] for line in lines] == pytest.approx([0, 1e-2, 7.5e-3, 2.5e-3])
    model, tokenizer = AutoModelForCausalLM.from_pretrained(run / "final"), AutoTokenizer.from_pretrained(run / "final")
    assert model.generation_config.do_sample is False
    ids = tokenizer("1 and 2?", return_tensors="pt").input_ids
    assert model.generate(ids, max_new_tokens=4).shape[1] <= ids.shape[1] + 4
    train(run / "recipe.yaml", output=str(tmp_path / "again"))
    assert same(weights(run / "final"), weights(tmp_path / "again" / "final"))


@pytest.mark.parametrize("name", ["dream", "sdar", "fast_dllm", "llama"])
def test_models_of_every_kind_learn(recipe, name):
    objective = {"dream": "masked_diffusion", "llama": "causal_lm"}.get(name, "block_diffusion")
    training = train(recipe(name, objective=objective, steps=12, rows=12, save_every=100))
    losses = [line["loss"] for line in training.metrics]
    assert sum(losses[-3:]) < 0.8 * sum(losses[:3])
    saved = training.output / "final"
    assert json.loads((saved / "config.json").read_text())["architectures"] == [
        json.loads((training.output / "checkpoint-12" / "config.json").read_text())["architectures"][0]
    ]
    if name == "llama":
        assert "mask_token_id" not in GenerationConfig.from_pretrained(saved).to_diff_dict()


def test_checkpointing_changes_nothing(recipe, tmp_path):
    train(recipe())
    train(recipe(gradient_checkpointing=True, output=str(tmp_path / "other")))
    assert same(weights(tmp_path / "run" / "final"), weights(tmp_path / "other" / "final"))


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_bfloat16_autocast_trains_float32_weights(recipe, backend, monkeypatch):
    asked = []
    monkeypatch.setattr(
        "transformers.PreTrainedModel.get_correct_attn_implementation",
        lambda self, *args, **kwargs: backend,
    )
    hook = torch.nn.modules.module.register_module_forward_hook(
        lambda module, args, output: asked.append(output.dtype) if isinstance(module, torch.nn.Linear) else None
    )
    try:
        training = train(recipe(bf16=True, steps=2))
    finally:
        hook.remove()
    assert training.model.config._attn_implementation == backend
    assert set(asked) == {torch.bfloat16} and training.model.dtype == torch.float32
    assert all(torch.isfinite(torch.tensor(line["loss"])) for line in training.metrics)


def test_lora_writes_an_adapter_and_the_merged_model(recipe, tmp_path, folders):
    training = train(recipe(lora={"r": 4, "targets": ["q_proj", "v_proj"], "merge": True}, objective="block_diffusion"))
    adapter, final = training.written
    assert (adapter.name, final.name) == ("adapter", "final")
    base = AutoModelForCausalLM.from_pretrained(folders("llada"))
    ids = torch.arange(12)[None]
    plain = base(ids).logits
    wrapped = PeftModel.from_pretrained(base, adapter).eval()
    merged = AutoModelForCausalLM.from_pretrained(final)
    torch.testing.assert_close(merged(ids).logits, wrapped(ids).logits, atol=1e-3, rtol=1e-4)
    assert not torch.allclose(merged(ids).logits, plain, atol=1e-2)
    assert weights(final).keys() == weights(folders("llada")).keys()
    for folder in (adapter, final):
        assert DiffusionGenerationConfig.from_pretrained(folder).attention == "block_causal"
        assert AutoTokenizer.from_pretrained(folder).mask_token_id == base.config.mask_token_id


def test_lora_alone_writes_no_model(recipe, tmp_path):
    training = train(recipe(lora={"r": 2}, steps=2))
    assert [path.name for path in training.written] == ["adapter"] and not (tmp_path / "run" / "final").exists()
    assert isinstance(training.model, PeftModel)


def test_a_model_of_no_family_needs_its_facts(recipe):
    with pytest.raises(ValueError, match="`mask_token_id`, `logits_shift`, `attention`"):
        train(recipe("llama"))
    facts = {"mask_token_id": 258, "logits_shift": True, "attention": "bidirectional"}
    training = train(recipe("llama", family=facts, steps=2))
    saved = DiffusionGenerationConfig.from_pretrained(training.written[0])
    assert {key: getattr(saved, key) for key in facts} == facts


def test_errors_that_need_the_model(recipe):
    with pytest.raises(ValueError, match="`max_length` is 513, but must be at most 512"):
        train(recipe(max_length=513))
    with pytest.raises(ValueError, match="`max_length` is 5, but must be at least"):
        train(recipe(max_length=5))
    with pytest.raises(ValueError, match="nowhere"):
        train(recipe(lora={"targets": ["nowhere"]}))
    with pytest.raises(FileNotFoundError, match="nothing.jsonl"):
        train(recipe(data="nothing.jsonl"))


def test_nothing_is_loaded_before_the_data_are_read(recipe, tmp_path, monkeypatch):
    (tmp_path / "bad.jsonl").write_text('{"prompt": "a"}')
    monkeypatch.setattr("dllm_generate.training.run.load_model", lambda recipe: pytest.fail("loaded"))
    with pytest.raises(ValueError, match="bad.jsonl, line 1"):
        train(recipe(data=str(tmp_path / "bad.jsonl")))
