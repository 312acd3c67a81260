"""Dream against logits of its published code, as a citizen of transformers, and decoded."""

import pytest
import torch
from models import MASK, PAD, padded
from published import BACKENDS, PublishedModel
from torch import nn

from dllm_generate.decoders.dream import DreamDecoder
from dllm_generate.families import family_of
from dllm_generate.families.dream import DREAM, DreamConfig, DreamForMaskedDiffusion, DreamModel


class TestDream(PublishedModel):
    folder = "dream"
    model_class, body_class, config_class = DreamForMaskedDiffusion, DreamModel, DreamConfig
    blocks = (None, None, None)
    parameters = 7_615_616_512
    refused = (
        {"use_sliding_window": True},
        {"use_mrope": True},
        {"full_attn_mask": False},
        {"block_size": 32},
    )
    published = {
        "architectures": ["DreamModel"],
        "attention_dropout": 0.0,
        "auto_map": {"AutoConfig": "configuration_dream.DreamConfig", "AutoModel": "modeling_dream.DreamModel"},
        "bos_token_id": 151643,
        "eos_token_id": 151643,
        "full_attn_mask": True,
        "hidden_act": "silu",
        "hidden_size": 3584,
        "initializer_range": 0.02,
        "intermediate_size": 18944,
        "mask_token_id": 151666,
        "max_position_embeddings": 131072,
        "max_window_layers": 28,
        "model_type": "Dream",
        "num_attention_heads": 28,
        "num_hidden_layers": 28,
        "num_key_value_heads": 4,
        "pad_token_id": 151643,
        "rms_norm_eps": 1e-06,
        "rope_scaling": None,
        "rope_theta": 1000000.0,
        "sliding_window": None,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.46.2",
        "use_cache": True,
        "use_mrope": False,
        "use_sliding_window": False,
        "vocab_size": 152064,
    }

    @BACKENDS
    @pytest.mark.parametrize("mask", [None, torch.ones(1, 16, dtype=torch.long)], ids=["no mask", "ones"])
    def test_every_position_sees_every_other(self, backend, mask):
        model, ids = self.load(attn_implementation=backend), torch.arange(16)[None]
        base = model(ids, attention_mask=mask).logits
        for changed in (0, 15):
            other = ids.clone()
            other[0, changed] = 40
            assert ((model(other, attention_mask=mask).logits - base).abs().amax(-1) > 1e-5).all()


def tiny_dream():
    """Random weights, wide enough that no choice is near a tie."""
    torch.manual_seed(0)
    model = TestDream().tiny(pad_token_id=PAD).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.35)
    nn.init.normal_(model.lm_head.weight, std=0.5)
    return model


def test_family():
    family = family_of(tiny_dream())
    assert (family.name, family.mask_token_id, family.logits_shift) == ("dream", MASK, True)
    assert (family.attention, family.block_length) == ("bidirectional", None)
    assert DREAM.special_token_ids == {"eos": 151643, "eot": 151645}
    assert DREAM.presets["published"]["cache_policy"] == "none"


@pytest.mark.parametrize("policy", ["none", "prefix", "dual", "vicinity"])
@pytest.mark.parametrize("decoder", ["fixed", "threshold"])
def test_ragged_rows_equal_their_single_run(decoder, policy):
    model, prompts = tiny_dream(), [[3, 9, 27, 17, 51, 25], [7], [40, 2, 30]]
    options = {"max_new_tokens": 24, "block_length": 8, "decoder": decoder, "cache_policy": policy}
    output = model.generate(**padded(prompts), **options)
    assert output.shape == (3, 6 + 24) and not (output[:, 6:] == MASK).any()
    for row, prompt in enumerate(prompts):
        assert torch.equal(output[row, -24:], model.generate(torch.tensor([prompt]), **options)[0, -24:])


def test_a_position_is_predicted_by_the_one_before_it():
    model, ids = tiny_dream(), torch.tensor([[5, 9, 11]])
    canvas = torch.cat([ids, torch.full((1, 1), MASK)], 1)
    logits = model(canvas).logits[0, 2].index_fill(0, torch.tensor([MASK]), float("-inf"))
    assert model.generate(ids, max_new_tokens=1)[0, -1] == logits.argmax()


def test_generate_runs_the_published_sampler():
    """Entropy over the whole answer, a token per timestep but for those whose share is less than one."""
    model, inputs = tiny_dream(), padded([[3, 9, 27, 17], [7]])
    output = model.generate(**inputs, max_new_tokens=40, return_dict_in_generate=True)
    again = model.generate(
        **inputs,
        max_new_tokens=40,
        decoder=DreamDecoder(ranking="entropy"),
        block_length=40,
        cache_policy="none",
        return_dict_in_generate=True,
    )
    assert output.sequences.equal(again.sequences) and output.commit_step.equal(again.commit_step)
    assert output.num_forwards.tolist() == [39, 39]
    assert not output.sequences.equal(model.generate(**inputs, max_new_tokens=40, block_length=8))


def test_the_whole_answer_as_one_block_costs_no_logits_of_the_prompt():
    model, shapes = tiny_dream(), []
    hook = model.lm_head.register_forward_pre_hook(lambda module, args: shapes.append(tuple(args[0].shape[:2])))
    model.generate(**padded([[3] * 30, [7]]), max_new_tokens=12, steps=2)
    hook.remove()
    assert shapes == [(2, 12)] * 2
