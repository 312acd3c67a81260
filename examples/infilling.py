"""Fills gaps anywhere in a text; everything else stays as it is."""

import torch

from dllm_generate.bundled import load


def main() -> None:
    model, tokenizer = load()
    chat = [{"role": "user", "content": "Add 381 and 457 column by column."}]
    prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
    answer = "1+7+0=08\n8+5+0=13\n3+4+1=08\nSum 838"
    ids = tokenizer(prompt + answer, add_special_tokens=False, return_tensors="pt").input_ids
    gaps = torch.zeros_like(ids, dtype=torch.bool)
    gaps[0, -24:-18] = gaps[0, -3:] = True
    holes = ids.masked_fill(gaps, tokenizer.mask_token_id)
    filled = model.generate(holes, infill=True, decoder="threshold")
    assert torch.equal(filled[~gaps], ids[~gaps])
    print(tokenizer.decode(holes[0]), tokenizer.decode(filled[0]), sep="\n\n")


if __name__ == "__main__":
    main()
