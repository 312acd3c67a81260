"""A model whose repository brings its own, old-fashioned code."""

import json

import pytest
import torch
import transformers
from models import MASK
from stock import CALL, by_hand, rows_are_single_runs
from torch import nn

from dllm_generate import attach
from dllm_generate.traits import traits_of

MODELING = """
import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel


class OldConfig(PreTrainedConfig):
    model_type = "old_fashioned"

    def __init__(self, vocab_size=64, width=32, **kwargs):
        self.vocab_size, self.width = vocab_size, width
        super().__init__(**kwargs)


class OldModel(PreTrainedModel):
    config_class = OldConfig

    def __init__(self, config):
        super().__init__(config)
        self.words, self.places = nn.Embedding(config.vocab_size, config.width), nn.Embedding(64, config.width)
        layer = nn.TransformerEncoderLayer(config.width, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.out = nn.Linear(config.width, config.vocab_size)
        self.post_init()

    def get_input_embeddings(self):
        return self.words

    def forward(self, input_ids{MASK}):
        hidden = self.words(input_ids) + self.places.weight[: input_ids.shape[1]]
        return self.out(self.encoder(hidden{PASSED}))
"""
PASSED = ", src_key_padding_mask=None if attention_mask is None else attention_mask == 0"


@pytest.fixture
def remote(tmp_path, monkeypatch):
    """Loads a model from a repository that brings its own code, with or without an attention mask."""
    cache = str(tmp_path / "modules")
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", cache)
    monkeypatch.syspath_prepend(cache)

    def load(masked):
        folder = tmp_path / f"repository_{masked}"
        folder.mkdir()
        mask, passed = (", attention_mask=None", PASSED) if masked else ("", "")
        (folder / "modeling_old.py").write_text(MODELING.replace("{MASK}", mask).replace("{PASSED}", passed))
        config = transformers.PreTrainedConfig(vocab_size=64, width=32, architectures=["OldModel"])
        config.auto_map = {"AutoConfig": "modeling_old.OldConfig", "AutoModelForCausalLM": "modeling_old.OldModel"}
        values = {**config.to_dict(), "model_type": "old_fashioned"}
        (folder / "config.json").write_text(json.dumps(values))
        torch.manual_seed(0)
        fresh = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.from_pretrained(folder, trust_remote_code=True), trust_remote_code=True
        )
        for parameter in fresh.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.35)
        torch.save(fresh.state_dict(), folder / "pytorch_model.bin")
        return transformers.AutoModelForCausalLM.from_pretrained(folder, trust_remote_code=True).eval()

    return load


def test_remote_code_of_an_old_fashion(remote):
    """No cache, no positions, no body of its own, logits and nothing else."""
    model = attach(remote(True))
    traits = traits_of(model)
    assert (traits.head, traits.masks, traits.own_positions, traits.takes_cache) == ("whole", "keys", True, False)
    ids = torch.tensor([[3, 1, 4, *[MASK] * 6]])
    expected, _ = by_hand(model, ids, 6)
    call = {**CALL, "eos_token_id": MASK, "max_new_tokens": 6}
    assert torch.equal(model.generate(ids[:, :3], **call).sequences, expected)
    rows_are_single_runs(model, max_new_tokens=9, block_length=4)
    with pytest.raises(ValueError, match="the model takes no cache"):
        model.generate(ids[:, :3], **call, cache_policy="prefix")
    with pytest.raises(ValueError, match="`smoothing` is on, but OldModel takes no `inputs_embeds`"):
        model.generate(ids[:, :3], **call, decoder="threshold", smoothing=True)


def test_remote_code_without_a_mask_is_refused(remote):
    with pytest.raises(ValueError, match=r"OldModel .*attention_mask"):
        attach(remote(False))
