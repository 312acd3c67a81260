"""One prompt, decoded with growing parallelism."""

from dllm_generate.bundled import load


def main() -> None:
    model, tokenizer = load()
    chat = [{"role": "user", "content": "Add 381 and 457 column by column."}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    prompt = inputs["input_ids"].shape[1]
    for options in ({"decoder": "fixed"}, {"decoder": "threshold", "threshold": 0.9}, {"decoder": "factor"}):
        output = model.generate(**inputs, max_new_tokens=64, return_dict_in_generate=True, **options)
        text = tokenizer.decode(output.sequences[0, prompt:], skip_special_tokens=True)
        print(f"{options}: {int(output.num_forwards[0])} forwards\n{text}\n")


if __name__ == "__main__":
    main()
