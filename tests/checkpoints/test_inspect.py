"""What a folder holds, and what it lacks."""

import json
import shutil

import pytest
import torch
from models import SHIFTED, tiny_llada
from published_files import GOLDEN
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM
from transformers.core_model_loading import MergeModulelist

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.bundled import bundled_model
from dllm_generate.checkpoints import convert_checkpoint, inspect_checkpoint
from dllm_generate.checkpoints.files import WeightFiles

EXPERT = "model.layers.1.mlp.experts.3.up_proj.weight"
FUSED = "model.layers.1.mlp.experts.gate_up_proj"
QKV = "model.layers.0.attention.query_key_value.weight"


def edited(folder, target, change, **config):
    """A copy of a folder with other weights and config fields."""
    shutil.copytree(folder, target)
    weights = load_file(target / "model.safetensors")
    change(weights)
    save_file(weights, target / "model.safetensors", metadata={"format": "pt"})
    content = json.loads((target / "config.json").read_text())
    (target / "config.json").write_text(json.dumps({**content, **config}))
    return target


def test_the_bundled_model():
    report = inspect_checkpoint(bundled_model())
    weights = load_file(bundled_model() / "model.safetensors")
    assert (report.family, report.attention, report.logits_shift) == ("llada", "bidirectional", False)
    assert (report.layout, report.complete, report.sharded) == ("published", True, False)
    assert report.parameters == sum(tensor.numel() for tensor in weights.values())
    assert report.bytes == sum(tensor.nbytes for tensor in weights.values())
    assert report.renamed.keys() == weights.keys() and report.files == ["model.safetensors"]
    assert "published" in report.presets and report.options_needed is None
    assert json.loads(json.dumps(report.to_dict()))["complete"] is True


def test_rules_and_renamed_names_are_those_of_loading():
    report = inspect_checkpoint(GOLDEN / "llada2_moe")
    model = AutoModelForCausalLM.from_pretrained(GOLDEN / "llada2_moe")
    targets = {name for names in report.renamed.values() for name in names}
    assert targets == model.state_dict().keys() - load_file(GOLDEN / "llada2_moe" / "model.safetensors").keys()
    assert report.renamed[QKV] == [f"model.layers.0.self_attn.{part}_proj.weight" for part in "qkv"]
    assert report.renamed[EXPERT] == [FUSED]
    assert report.rules["query_key_value -> q_proj + k_proj + v_proj (SplitRows)"] == 3
    assert report.rules["mlp.experts.*.down_proj.weight -> mlp.experts.down_proj (MergeModulelist)"] == 2 * 8
    assert (report.attention, report.block_length) == ("block_causal", 32)
    assert report.token_ids == {"mask_token_id": 63, "eos_token_id": 62, "pad_token_id": 60}


def test_no_weight_is_read(monkeypatch):
    def read(*args):
        raise AssertionError("a weight was read")

    monkeypatch.setattr(WeightFiles, "read", read)
    assert inspect_checkpoint(GOLDEN / "llada2_moe").complete


@pytest.mark.parametrize("layout, lost", [("published", EXPERT), ("published", QKV), ("native", FUSED)])
def test_a_missing_tensor_is_named_as_in_its_layout(layout, lost, tmp_path):
    convert_checkpoint(GOLDEN / "llada2_moe", tmp_path / "whole", to=layout)
    report = inspect_checkpoint(edited(tmp_path / "whole", tmp_path / "holed", lambda weights: weights.pop(lost)))
    assert (report.missing, report.unexpected, report.mismatched) == ([lost], [], {})
    assert not report.complete and report.layout == layout


def test_a_missing_expert_is_three_missing_tensors(tmp_path):
    lost = [f"model.layers.1.mlp.experts.0.{part}_proj.weight" for part in ("down", "gate", "up")]

    def change(weights):
        for name in lost:
            del weights[name]

    report = inspect_checkpoint(edited(GOLDEN / "llada_moe", tmp_path / "holed", change))
    assert sorted(report.missing) == lost and not report.mismatched and not report.unexpected


@pytest.mark.parametrize("name", [EXPERT, QKV, "lm_head.weight"])
def test_another_shape_is_named_as_stored(name, tmp_path):
    def change(weights):
        weights[name] = torch.cat([weights[name], weights[name][:1]])

    folder = edited(GOLDEN / "llada2_moe", tmp_path / "odd", change)
    right = list(load_file(GOLDEN / "llada2_moe" / "model.safetensors")[name].shape)
    report = inspect_checkpoint(folder)
    assert report.mismatched == {name: ([right[0] + 1, *right[1:]], right)}
    assert not report.missing and not report.unexpected and not report.complete


def test_both_layouts_in_one_file(tmp_path):
    def change(weights):
        experts = [weights.pop(f"model.layers.1.mlp.experts.{i}.down_proj.weight") for i in range(8)]
        weights["model.layers.1.mlp.experts.down_proj"] = torch.stack(experts)

    folder = edited(GOLDEN / "llada2_moe", tmp_path / "mixed", change)
    report = inspect_checkpoint(folder)
    assert (report.layout, report.complete, report.unexpected) == ("mixed", True, [])
    convert_checkpoint(folder, tmp_path / "back", to="published")
    back, published = (load_file(path / "model.safetensors") for path in (tmp_path / "back", GOLDEN / "llada2_moe"))
    assert back.keys() == published.keys() and all(torch.equal(back[name], published[name]) for name in published)


def test_unexpected_tensors_and_those_that_loading_ignores(tmp_path):
    def change(weights):
        weights["model.extra.weight"] = torch.zeros(2)
        weights["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)

    report = inspect_checkpoint(edited(GOLDEN / "sdar", tmp_path / "more", change))
    assert report.unexpected == ["model.extra.weight"] and report.complete


def test_a_second_tensor_for_a_place_is_left_over(tmp_path):
    experts = [f"model.layers.1.mlp.experts.{i}.down_proj.weight" for i in range(8)]

    def change(weights):
        weights["model.embed_tokens.weight"] = weights["model.word_embeddings.weight"] + 1
        weights["model.layers.1.mlp.experts.down_proj"] = torch.stack([weights[name] for name in experts])

    report = inspect_checkpoint(edited(GOLDEN / "llada2_moe", tmp_path / "twice", change))
    assert report.unexpected == ["model.word_embeddings.weight", *experts] and report.layout == "mixed"


def test_what_cannot_be_put_together_is_not_complete(monkeypatch):
    def convert(*args, **kwargs):
        raise RuntimeError

    monkeypatch.setattr(MergeModulelist, "convert", convert)
    report = inspect_checkpoint(GOLDEN / "llada_moe")
    assert not report.complete and "model.layers.1.mlp.experts.gate_up_proj" in report.missing


def test_a_body_of_another_width(tmp_path):
    """Its names are neither those of the layers nor the published ones, which begin with `model.`."""
    tiny_llada().model.save_pretrained(tmp_path / "body")
    folder = edited(tmp_path / "body", tmp_path / "wide", lambda weights: None, d_model=64)
    report = inspect_checkpoint(folder)
    names = load_file(folder / "model.safetensors").keys()
    assert report.mismatched.keys() == names and report.missing == ["model.transformer.ff_out.weight"]
    name = next(name for name in names if name.endswith("blocks.1.attn_norm.weight"))
    assert report.mismatched[name] == ([32], [64])


def test_a_tied_head_is_not_missing(tmp_path):
    tiny_llada(tie_word_embeddings=True).save_pretrained(tmp_path)
    report = inspect_checkpoint(tmp_path)
    assert report.complete and report.tensors == 2 * 9 + 2


def test_a_body_alone_lacks_its_head(tmp_path):
    AutoModelForCausalLM.from_pretrained(GOLDEN / "sdar").model.save_pretrained(tmp_path)
    report = inspect_checkpoint(tmp_path)
    assert report.missing == ["lm_head.weight"] and not report.unexpected


def test_ids_come_from_where_generate_takes_them(tmp_path, tokenizer):
    config = {"vocab_size": 512, "mask_token_id": None, "eos_token_id": 7}
    LlamaForCausalLM(LlamaConfig(hidden_size=8, intermediate_size=8, num_attention_heads=2, **config)).save_pretrained(
        tmp_path
    )
    assert "No mask token" in " ".join(inspect_checkpoint(tmp_path).notes)
    tokenizer.save_pretrained(tmp_path)
    DiffusionGenerationConfig(eos_token_id=9).save_pretrained(tmp_path)
    report = inspect_checkpoint(tmp_path)
    ids = {"mask_token_id": tokenizer.mask_token_id, "eos_token_id": 9, "pad_token_id": None}
    assert report.token_ids == ids and not report.notes


def test_a_mask_id_outside_the_vocabulary_is_noted(tmp_path):
    folder = edited(GOLDEN / "sdar", tmp_path / "new", lambda weights: None, mask_token_id=700)
    report = inspect_checkpoint(folder)
    assert report.notes == ["`mask_token_id` is 700, but the model has 64 token embeddings."]
    assert report.family == "sdar" and report.token_ids["mask_token_id"] == 700


def test_an_unknown_family_says_which_options_make_it_run(tmp_path):
    config = LlamaConfig(vocab_size=64, hidden_size=8, intermediate_size=8, num_attention_heads=2, num_hidden_layers=1)
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    report = inspect_checkpoint(tmp_path)
    assert report.family is None and report.complete and report.layout == "one"
    assert "LlamaForCausalLM belongs to no supported family" in report.options_needed
    assert all(f"`{option}`" in report.options_needed for option in SHIFTED)


def test_an_unknown_model_type_is_told_without_the_names(tmp_path):
    change = {"model_type": "newdlm", "architectures": ["NewDLM"], "auto_map": {"AutoConfig": "config.NewConfig"}}
    report = inspect_checkpoint(edited(GOLDEN / "sdar", tmp_path / "new", lambda weights: None, **change))
    assert report.layout is None and report.parameters > 0 and report.complete
    assert "NewDLM belongs to no supported family" in report.options_needed
    assert "not checked" in " ".join(report.notes)


def test_a_lora_adapter(tmp_path):
    peft = pytest.importorskip("peft")
    options = {"peft_type": "LORA", "r": 2, "lora_alpha": 4}
    config = peft.LoraConfig(r=2, lora_alpha=4, target_modules=["q_proj", "v_proj"])
    peft.get_peft_model(tiny_llada(), config).save_pretrained(tmp_path)
    content = json.loads((tmp_path / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps({**content, "base_model_name_or_path": "some/base"}))
    report = inspect_checkpoint(tmp_path)
    assert report.kind == "adapter" and report.complete and report.tensors == 2 * 2 * 2
    assert sorted(report.adapter.pop("target_modules")) == ["q_proj", "v_proj"]
    assert report.adapter == {"base_model": "some/base", **options}
    (tmp_path / "adapter_model.safetensors").unlink()
    assert inspect_checkpoint(tmp_path).missing == ["adapter_model.safetensors"]
