"""Run by torchrun: `parallel_moe.py MODELS OUT` says that models on several processes equal those on one."""

import sys
from pathlib import Path

import torch
from transformers.distributed import DistributedConfig

from dllm_generate.families.llada2 import LLaDA2MoeForMaskedDiffusion
from dllm_generate.families.lladamoe import LLaDAMoEForMaskedDiffusion
from dllm_generate.families.sdar_moe import SDARMoeForCausalLM

CASES = [
    (LLaDAMoEForMaskedDiffusion, "llada_moe_normtopk_dense0", {"tp_size": 2}),
    (LLaDAMoEForMaskedDiffusion, "llada_moe_normtopk_dense0", {"tp_size": 2, "ep_size": 2}),
    (LLaDA2MoeForMaskedDiffusion, "llada2_moe", {"tp_size": 2}),
    (LLaDA2MoeForMaskedDiffusion, "llada2_moe", {"tp_size": 2, "ep_size": 2}),
    (SDARMoeForCausalLM, "sdar_moe", {"tp_size": 2}),
    (SDARMoeForCausalLM, "sdar_moe", {"tp_size": 2, "ep_size": 2}),
]


@torch.no_grad()
def check(cls, folder, sizes, out):
    ids = torch.arange(40)[None]
    alone = cls.from_pretrained(folder)
    model = cls.from_pretrained(folder, distributed_config=DistributedConfig(**sizes))
    local = model.model.layers[1].mlp.experts.gate_up_proj.to_local()
    assert local.numel() * 2 == alone.model.layers[1].mlp.experts.gate_up_proj.numel()
    torch.testing.assert_close(model(ids).logits, alone(ids).logits, atol=1e-4, rtol=1e-4)
    if cls is LLaDAMoEForMaskedDiffusion:
        options = {"max_new_tokens": 8, "block_length": 4, "cache_policy": "dual", "decoder": "threshold"}
        assert torch.equal(model.generate(ids[:, :5], **options), alone.generate(ids[:, :5], **options))
    model.save_pretrained(out / f"{folder.name}_{'_'.join(sizes)}")


if __name__ == "__main__":
    torch.set_num_threads(1)
    for cls, name, sizes in CASES:
        if (folder := Path(sys.argv[1]) / name).is_dir():
            check(cls, folder, sizes, Path(sys.argv[2]))
    torch.distributed.destroy_process_group()
