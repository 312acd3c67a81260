"""What reading and writing published checkpoints has to do, as tests for the class of a family to inherit."""

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

GOLDEN = Path(__file__).parent / "golden" / "models"
TINY = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
}


class PublishedFiles:
    """Tests of one family.

    Attributes:
        folder: golden data.
        model_class, body_class, config_class: the native classes.
        published: a config.json as published.
        parameters: number of parameters of that model.
        blocks: block length of every golden case; None where attention is bidirectional.
        refused: fields that make it another architecture.
    """

    folder: str
    model_class: Any
    body_class: Any
    config_class: Any
    published: dict[str, Any]
    parameters: int
    blocks: tuple[int | None, ...]
    refused: tuple[dict[str, Any], ...] = ({"use_sliding_window": True},)

    @pytest.fixture(autouse=True)
    def no_grad(self):
        with torch.no_grad():
            yield

    @property
    def path(self):
        return GOLDEN / self.folder

    def load(self, path=None, **kwargs):
        return self.model_class.from_pretrained(path or self.path, **kwargs)

    def set_blocks(self, model, case):
        """Gives a model the block length of a golden case."""
        if self.blocks[case] is not None:
            model.config.block_length = self.blocks[case]

    def tiny(self, **config):
        return self.model_class(self.config_class(**{**TINY, "mask_token_id": 63, **config})).eval()

    def allowed(self, length, block=None):
        """Who sees whom `(length, length)`, in a plain call of the loaded model or with blocks of another length."""
        block = block or getattr(self.load().config, "block_length", length)
        of = torch.arange(length) // block
        return of[:, None] >= of

    def test_round_trip_keeps_names_values_and_config(self, tmp_path):
        model, info = self.load(output_loading_info=True)
        assert not any(info.values())
        model.save_pretrained(tmp_path)
        saved, original = (load_file(path / "model.safetensors") for path in (tmp_path, self.path))
        assert saved.keys() == original.keys()
        assert all(torch.equal(saved[name], original[name]) for name in original)
        config, published = (json.loads((path / "config.json").read_text()) for path in (tmp_path, self.path))
        assert {name: config.get(name) for name in published} == published
        assert not {"rope_parameters", "layer_types", "sampling_defaults"} & config.keys()
        again, info = self.load(tmp_path, output_loading_info=True)
        assert not any(info.values())
        assert json.loads(again.config.to_json_string()) == config

    def test_body_and_auto_classes(self, tmp_path):
        model, ids = self.load(), torch.arange(12)[None]
        body = self.body_class.from_pretrained(self.path)
        hidden = body(ids).last_hidden_state
        assert torch.equal(model.lm_head(hidden), model(ids).logits)
        assert torch.equal(body(inputs_embeds=body.embed_tokens(ids)).last_hidden_state, hidden)
        body.save_pretrained(tmp_path)
        assert torch.equal(self.body_class.from_pretrained(tmp_path)(ids).last_hidden_state, hidden)
        assert type(model.get_decoder()) is self.body_class
        assert type(AutoConfig.from_pretrained(self.path)) is self.config_class
        for auto in (AutoModel, AutoModelForCausalLM):
            for trust in (None, True):
                assert type(auto.from_pretrained(self.path, trust_remote_code=trust)) is self.model_class

    def test_a_published_config_is_read_and_written_as_it_is(self, tmp_path):
        (tmp_path / "config.json").write_text(json.dumps(self.published))
        config = AutoConfig.from_pretrained(tmp_path, trust_remote_code=True)
        assert type(config) is self.config_class
        written = json.loads(config.to_json_string())
        # transformers renames the one and writes its own version; the backend is for the one who loads.
        left = {"torch_dtype", "transformers_version", "attn_implementation"}
        assert {name: written.get(name) for name in self.published if name not in left} == {
            name: value for name, value in self.published.items() if name not in left
        }
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        assert type(model) is self.model_class
        assert model.config._attn_implementation == "sdpa"
        assert model.num_parameters() == self.parameters

    def test_sampling_values_move_out_with_one_warning(self, tmp_path):
        values = {"temperature": 0.7, "top_p": 0.9, "do_sample": True, "max_new_tokens": 17}
        golden = json.loads((self.path / "config.json").read_text())
        (tmp_path / "config.json").write_text(json.dumps({**golden, **values, "top_k": None, "head_dim": 8}))
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            config = AutoConfig.from_pretrained(tmp_path)
        assert sum("holds sampling values" in str(warning.message) for warning in caught) == 1
        assert config.sampling_defaults == values
        config.save_pretrained(tmp_path)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            again = AutoConfig.from_pretrained(tmp_path)
        assert (again.sampling_defaults, again.mask_token_id) == ({}, 63)

    def test_scaled_rope_round_trip(self, tmp_path):
        golden = json.loads((self.path / "config.json").read_text())
        scaling = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
        (tmp_path / "config.json").write_text(json.dumps({**golden, "rope_scaling": scaling}))
        config = AutoConfig.from_pretrained(tmp_path)
        assert config.rope_parameters["rope_theta"] == golden["rope_theta"]
        config.save_pretrained(tmp_path)
        saved = json.loads((tmp_path / "config.json").read_text())
        assert scaling.items() <= saved["rope_scaling"].items() and saved["rope_theta"] == golden["rope_theta"]
        assert AutoConfig.from_pretrained(tmp_path).rope_parameters == config.rope_parameters

    def test_other_architectures_are_refused(self):
        for fields in self.refused:
            with pytest.raises(ValueError, match=f"`{next(iter(fields))}`"):
                self.config_class(**TINY, **fields)

    def test_small_config_without_ids_has_none(self):
        config = self.config_class(**TINY)
        ids = (config.mask_token_id, config.bos_token_id, config.eos_token_id, config.pad_token_id)
        assert ids == (None, None, None, None)
        assert self.model_class(config)(torch.arange(4)[None]).logits.shape == (1, 4, 64)

    def test_tied_heads(self, tmp_path):
        self.tiny(tie_word_embeddings=True).save_pretrained(tmp_path)
        assert "lm_head.weight" not in load_file(tmp_path / "model.safetensors")
        again, info = self.load(tmp_path, output_loading_info=True)
        assert not any(info.values())
        assert again.lm_head.weight is again.model.embed_tokens.weight
