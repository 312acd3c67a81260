"""A ragged batch gives the tokens of the single runs, with a cache as well."""

import torch

from dllm_generate import DiffusionGenerationConfig
from dllm_generate.bundled import load


def main() -> None:
    model, tokenizer = load(dtype="float32")
    tokenizer.padding_side = "left"
    sums = ((12, 35), (381, 457), (70462, 81917))
    chats = [[{"role": "user", "content": f"Add {a} and {b} column by column."}] for a, b in sums]
    prepare = {"add_generation_prompt": True, "return_tensors": "pt", "return_dict": True}
    config = DiffusionGenerationConfig(decoder="threshold", cache_policy="dual", max_new_tokens=64)

    batch = tokenizer.apply_chat_template(chats, padding=True, **prepare)
    together = model.generate(**batch, generation_config=config)[:, batch["input_ids"].shape[1] :]
    for chat, row in zip(chats, together):
        single = tokenizer.apply_chat_template(chat, **prepare)
        alone = model.generate(**single, generation_config=config)[0, single["input_ids"].shape[1] :]
        assert torch.equal(row[: alone.numel()], alone)
        print(tokenizer.decode(alone, skip_special_tokens=True).splitlines()[-1])


if __name__ == "__main__":
    main()
