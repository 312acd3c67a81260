"""Narrow dtypes, models that are spread over devices, and models whose weights wait in memory or on disk."""

import pytest
import torch
from models import MASK, PAD, padded, tiny_llada
from probes import GRID
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import (
    AutoModelForCausalLM,
    BertConfig,
    BertForMaskedLM,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from dllm_generate import DiffusionCache, attach
from dllm_generate.backbone import Backbone
from dllm_generate.traits import Traits, traits_of

BATCH = padded([[5], [3, 1, 4, 1, 5], [9, 2, 6]])
FACTS = {"mask_token_id": MASK, "logits_shift": False, "attention": "bidirectional", "pad_token_id": PAD}
SIZES = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
HALF = pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
CALL = {"max_new_tokens": 9, "block_length": 4, "return_dict_in_generate": True}
DECODERS = [
    {"decoder": "fixed"},
    {"decoder": "threshold", "threshold": 0.3, "smoothing": True},
    {"decoder": "wino", "threshold": 0.2},
]
MAPS = {
    "auto": "auto",
    "all on one": {"": "cpu"},
    "some on disk": {
        **{"model.embed_tokens": "cpu", "model.layers.0": "disk", "model.layers.1": "cpu"},
        **{"model.norm": "disk", "model.rotary_emb": "cpu", "lm_head": "disk"},
    },
}
ON_DISK = dict.fromkeys(("model.embed_tokens", "model.layers", "model.norm", "model.rotary_emb", "lm_head"), "disk")


@HALF
@pytest.mark.parametrize("backend", ["sdpa", "eager"])
def test_narrow_dtypes_run_everything(dtype, backend):
    model = tiny_llada(attn_implementation=backend).to(dtype)
    for options in DECODERS:
        for policy in GRID:
            output = model.generate(**BATCH, **CALL, **options, **policy)
            assert output.confidence.isfinite().all() and (output.confidence <= 1).all()
            assert torch.equal(output.sequences[:, :5], BATCH["input_ids"])
            assert MASK not in output.sequences[:, 5:]
            again = model.generate(**BATCH, **CALL, **options, **policy)
            assert torch.equal(again.sequences, output.sequences)


@HALF
def test_narrow_dtypes_stay_close(dtype):
    """The first step of a call sees the same canvas in both."""
    exact, narrow = (tiny_llada().to(kind) for kind in (torch.float32, dtype))
    ids, seen = torch.tensor([[3, 1, 4, *[MASK] * 8]]), torch.ones(1, 11, dtype=torch.bool)
    scores = []
    for model in (exact, narrow):
        backbone = Backbone(model)
        with torch.no_grad():
            hidden = backbone.hidden_states(ids, torch.arange(11)[None], seen, None)
        assert hidden.dtype == model.dtype
        scores.append(backbone.scores(hidden).float())
    assert (scores[0] - scores[1]).norm() < (0.05 if dtype == torch.bfloat16 else 0.01) * scores[0].norm()


@HALF
def test_a_probe_finds_the_same_in_narrow_dtypes(dtype, caplog):
    """Rounding is not taken for a leak, for causal attention or for a head that does more."""
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "num_key_value_heads": 2}
    models = [
        (LlamaForCausalLM(LlamaConfig(**SIZES, is_causal=False)), Traits(probed=True)),
        (Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **experts, is_causal=False)), Traits(probed=True)),
        (BertForMaskedLM(BertConfig(**SIZES)), Traits(head="module", probed=True)),
    ]
    for model, traits in models:
        attach(model.eval().to(dtype))
        assert traits_of(model) == traits
        assert model.generate(**BATCH, **FACTS, max_new_tokens=6, eos_token_id=MASK).shape == (3, 11)
    assert not caplog.text
    attach(Qwen3MoeForCausalLM(Qwen3MoeConfig(**SIZES, **experts)).eval().to(dtype))
    assert "attends to earlier positions only" in caplog.text


def load(model, folder, **kwargs):
    model.save_pretrained(folder / "model")
    (folder / "offload").mkdir()
    cls = AutoModelForCausalLM if hasattr(model, "generate") else type(model)
    return cls.from_pretrained(
        folder / "model", dtype=torch.float32, offload_folder=folder / "offload", **kwargs
    ).eval()


@pytest.mark.parametrize("name", MAPS)
def test_a_spread_model_generates_as_a_whole_one(tmp_path, name):
    whole = tiny_llada()
    model = load(whole, tmp_path, device_map=MAPS[name])
    assert any(p.is_meta for p in model.parameters()) == (name == "some on disk")
    for options in DECODERS:
        for policy in GRID:
            expected = whole.generate(**BATCH, **CALL, **options, **policy)
            output = model.generate(**BATCH, **CALL, **options, **policy)
            assert torch.equal(output.sequences, expected.sequences)
            assert torch.equal(output.confidence, expected.confidence)


def test_everything_on_disk(tmp_path):
    whole = tiny_llada()
    model = load(whole, tmp_path, device_map=ON_DISK)
    assert all(parameter.is_meta for parameter in model.parameters())
    options = {"max_new_tokens": 9, "block_length": 4, "cache_policy": "dual"}
    assert torch.equal(model.generate(**BATCH, **options), whole.generate(**BATCH, **options))
    with pytest.raises(ValueError, match="`smoothing` is on, but the input embeddings of the model are offloaded"):
        model.generate(**BATCH, **options, decoder="threshold", smoothing=True)


@pytest.mark.parametrize("cls", [BertForMaskedLM, LlamaForCausalLM])
def test_a_model_on_disk_can_be_attached(tmp_path, cls):
    """Its weights come by when they are needed, also for a head that is taken from its forward."""
    torch.manual_seed(0)
    values = {"is_causal": False} if cls is LlamaForCausalLM else {}
    whole = cls(cls.config_class(**SIZES, **values)).eval()
    for parameter in whole.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    parts = {name: "disk" for name, _ in whole.named_children()}
    model = attach(load(whole, tmp_path, device_map=parts))
    assert any(parameter.is_meta for parameter in model.parameters())
    attach(whole)
    assert traits_of(model) == traits_of(whole)
    for policy in ("none", "dual"):
        call = {**FACTS, "max_new_tokens": 9, "block_length": 4, "eos_token_id": MASK, "cache_policy": policy}
        assert torch.equal(model.generate(**BATCH, **call), whole.generate(**BATCH, **call))


class Beside(TorchDispatchMode):
    """Collects operations whose operands lie on several devices. Copies are made for that."""

    def __init__(self):
        super().__init__()
        self.mixed = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor) and x.dim()]
        if len({x.device for x in tensors}) > 1 and "copy" not in str(func):
            self.mixed.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [None, torch.tensor([1, 0])])
def test_a_cache_beside_a_layer_on_another_device(rows):
    """Tensors without content stand for that device."""
    cache, states = DiffusionCache(2, 9), torch.empty(2, 2, 3, 8, device="meta")
    with Beside() as beside:
        for _ in range(2):
            cache.seek(torch.tensor([[1, 2, 3], [4, 5, 0]]), rows)
            for written in cache.update(states, states, 0):
                assert written.device.type == "meta" and written.shape == (2, 2, 9, 8)
        cache.batch_select_indices(torch.tensor([1]))
    assert not beside.mixed


def test_hidden_states_come_back_to_the_canvas():
    """Fake tensors know where they lie, and hold nothing."""
    model = tiny_llada()
    with FakeTensorMode(allow_non_fake_inputs=True):
        backbone = Backbone(model)
        backbone.body = lambda **kwargs: torch.empty(2, 3, 32, device="cuda")
        ids, seen = torch.zeros(2, 3, dtype=torch.long), torch.ones(2, 3, dtype=torch.bool)
        hidden = backbone.hidden_states(ids, ids, seen, None)
        backbone.head = lambda states: torch.empty(2, 3, 64, device="cuda")
        assert hidden.device.type == backbone.scores(hidden).device.type == "cpu"
