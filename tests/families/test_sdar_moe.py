"""SDAR-MoE against transformers' own Qwen3-MoE on a checkpoint in the published layout, and through `generate`.

No published tensors were at hand: the checkpoint is written here, name by name.
"""

import json
from pathlib import Path

import pytest
import torch
from models import EOS, MASK, PAD, VOCABULARY, padded
from probes import BLOCK_DECODERS, BLOCK_POLICIES
from processes import on_two_processes
from promises import compare, same
from published import BACKENDS, BlockCausalModel, four_dimensional
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import Qwen3MoeForCausalLM

from dllm_generate.families import family_of
from dllm_generate.families.sdar import SDAR
from dllm_generate.families.sdar_moe import SDAR_MOE, SDARMoeConfig, SDARMoeForCausalLM, SDARMoeModel

HIDDEN, HEAD, HEADS, GROUPS, EXPERT, DENSE = 32, 8, 4, 2, 16, 64
CONFIG = {
    "architectures": ["SDARMoeForCausalLM"],
    "attention_bias": False,
    "block_size": 4,
    "bos_token_id": 61,
    "decoder_sparse_step": 1,
    "eos_token_id": EOS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "hidden_size": HIDDEN,
    "intermediate_size": DENSE,
    "mask_token_id": MASK,
    "max_position_embeddings": 512,
    "mlp_only_layers": [0],
    "model_type": "sdar_moe",
    "moe_intermediate_size": EXPERT,
    "norm_topk_prob": True,
    "num_attention_heads": HEADS,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 3,
    "num_key_value_heads": GROUPS,
    "pad_token_id": PAD,
    "rms_norm_eps": 1e-06,
    "rope_scaling": None,
    "rope_theta": 1000000,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "use_cache": False,
    "use_sliding_window": False,
    "vocab_size": VOCABULARY,
}


def feed_forward(width):
    return {"gate_proj": (width, HIDDEN), "up_proj": (width, HIDDEN), "down_proj": (HIDDEN, width)}


def published_shapes():
    """Names and shapes of the published tensors."""
    heads = {"q_proj": (HEADS * HEAD, HIDDEN), "o_proj": (HIDDEN, HEADS * HEAD)}
    heads |= dict.fromkeys(("k_proj", "v_proj"), (GROUPS * HEAD, HIDDEN))
    heads |= dict.fromkeys(("q_norm", "k_norm"), (HEAD,))
    experts = {f"experts.{i}.{name}": shape for i in range(8) for name, shape in feed_forward(EXPERT).items()}
    shapes = {"model.embed_tokens": (VOCABULARY, HIDDEN), "model.norm": (HIDDEN,), "lm_head": (VOCABULARY, HIDDEN)}
    for layer in range(3):
        parts = {f"self_attn.{name}": shape for name, shape in heads.items()}
        parts |= dict.fromkeys(("input_layernorm", "post_attention_layernorm"), (HIDDEN,))
        mlp = {"gate": (8, HIDDEN), **experts} if layer else feed_forward(DENSE)
        parts |= {f"mlp.{name}": shape for name, shape in mlp.items()}
        shapes |= {f"model.layers.{layer}.{name}": shape for name, shape in parts.items()}
    return {f"{name}.weight": shape for name, shape in shapes.items()}


def write_checkpoint(folder):
    """Random weights, wide enough that no choice of a token or an expert is near a tie."""
    noise = torch.Generator().manual_seed(0)
    weights = {
        name: 1 + 0.1 * torch.randn(shape, generator=noise)
        if len(shape) == 1
        else 0.35 * torch.randn(shape, generator=noise)
        for name, shape in published_shapes().items()
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models") / "sdar_moe"
    folder.mkdir()
    return write_checkpoint(folder)


@pytest.fixture
def model(checkpoint):
    with torch.no_grad():
        yield SDARMoeForCausalLM.from_pretrained(checkpoint)


class TestSDARMoe(BlockCausalModel):
    model_class, body_class, config_class = SDARMoeForCausalLM, SDARMoeModel, SDARMoeConfig
    # Of Qwen3-30B-A3B, from which the models were trained.
    parameters = 30_532_122_624
    published = {
        **CONFIG,
        "auto_map": {
            "AutoConfig": "configuration_sdar_moe.SDARMoeConfig",
            "AutoModelForCausalLM": "modeling_sdar_moe.SDARMoeForCausalLM",
        },
        "bos_token_id": 151643,
        "eos_token_id": 151643,
        "head_dim": 128,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "mask_token_id": 151669,
        "max_position_embeddings": 32768,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "num_attention_heads": 32,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "num_hidden_layers": 48,
        "num_key_value_heads": 4,
        "pad_token_id": 151643,
        "vocab_size": 151936,
    }
    # There is no stored data of the published code: `test_logits_equal_qwen3_moe` stands in their place.
    test_golden_logits = test_bits_equal_the_plain_formula = None

    @pytest.fixture(autouse=True, scope="class")
    def files(self, request, checkpoint):
        request.cls.path = checkpoint

    @BACKENDS
    @pytest.mark.parametrize("block", [4, 8])
    @pytest.mark.parametrize("normalised", [True, False])
    def test_logits_equal_qwen3_moe(self, normalised, block, backend):
        ids = torch.randint(VOCABULARY, (2, 24), generator=torch.Generator().manual_seed(1))
        stock = Qwen3MoeForCausalLM.from_pretrained(
            self.path, attn_implementation=backend, config=self.qwen(norm_topk_prob=normalised)
        )
        model = self.load(attn_implementation=backend, block_size=block, norm_topk_prob=normalised)
        expected = stock(ids, attention_mask=four_dimensional(self.allowed(24, block), backend)).logits
        assert torch.equal(model(ids).logits, expected)
        assert not torch.allclose(self.load(block_size=3)(ids).logits, expected, atol=1e-3)

    def qwen(self, **changes):
        values = {name: value for name, value in CONFIG.items() if name not in ("model_type", "architectures")}
        return Qwen3MoeForCausalLM.config_class(**{**values, **changes})

    def test_expert_parallel_plan_and_fused_layout(self, tmp_path):
        model, ids = self.load(), torch.arange(12)[None]
        assert model.config._experts_implementation == "grouped_mm"
        assert model.tp_plan["model.layers.*.mlp.experts"] == "moe_tp_experts"
        assert model.ep_plan["model.layers.*.mlp.experts"] == "ep_dispatch_experts"
        model.save_pretrained(tmp_path, save_original_format=False)
        torch.testing.assert_close(self.load(tmp_path)(ids).logits, model(ids).logits, atol=1e-5, rtol=1e-5)

    def test_the_router_is_balanced_in_training(self):
        model, ids = self.load(), torch.arange(12)[None]
        plain, balanced = (model(ids, labels=ids, output_router_logits=on).loss for on in (False, True))
        assert balanced > plain


def test_family(model):
    family = family_of(model)
    assert (family.name, family.mask_token_id, family.block_length) == ("sdar_moe", MASK, 4)
    assert (SDAR_MOE.presets, SDAR_MOE.special_token_ids) == (SDAR.presets, SDAR.special_token_ids)


def test_two_processes_equal_one(checkpoint, tmp_path):
    on_two_processes(Path(__file__).with_name("parallel_moe.py"), checkpoint.parent, tmp_path)
    original = load_file(checkpoint / "model.safetensors")
    for folder in (tmp_path / "sdar_moe_tp_size", tmp_path / "sdar_moe_tp_size_ep_size"):
        written = load_file(folder / "model.safetensors")
        assert written.keys() == original.keys()
        assert all(torch.equal(written[name], original[name]) for name in original)


def test_head_dim_of_null():
    sizes = {"hidden_size": HIDDEN, "num_attention_heads": HEADS}
    assert SDARMoeConfig(head_dim=None, **sizes).head_dim == 8
    assert SDARMoeConfig(num_local_experts=4, **sizes).num_experts == 4


@pytest.mark.parametrize("decoder", BLOCK_DECODERS, ids=str)
def test_rows_and_policies_agree_with_every_decoder(model, decoder):
    prompts = [[5, 9, 11, 3, 3, 20], [7], [1, 2, 3]]
    options = {**decoder, "max_new_tokens": 9, "return_dict_in_generate": True}
    outputs = []
    for policy in BLOCK_POLICIES:
        torch.manual_seed(3)
        outputs.append(model.generate(**padded(prompts), **options, **policy))
    same(*outputs)
    for row, prompt in enumerate(prompts):
        torch.manual_seed(3)
        compare(outputs[0], row, model.generate(torch.tensor([prompt]), **options, **BLOCK_POLICIES[0]))


def test_the_published_preset_is_the_default(model):
    preset = {"decoder": "dynamic", "threshold": 0.85, "cache_policy": "block", "schedule": "block_diffusion"}
    prompt = torch.tensor([[5, 9, 11]])
    assert torch.equal(model.generate(prompt, max_new_tokens=8), model.generate(prompt, max_new_tokens=8, **preset))


def test_initial_weights_train():
    model = SDARMoeForCausalLM(SDARMoeConfig(**CONFIG))
    assert all(0.01 < p.std() < 0.03 for p in model.parameters() if p.dim() > 1 and isinstance(p, nn.Parameter))
