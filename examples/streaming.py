"""Final text block by block from another thread, while generation runs."""

from threading import Thread

from transformers import TextIteratorStreamer

from dllm_generate.bundled import load


def main() -> None:
    model, tokenizer = load()
    chat = [{"role": "user", "content": "Add 70462 and 81917 column by column."}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True, skip_special_tokens=True)
    options = {"max_new_tokens": 64, "block_length": 16, "decoder": "threshold", "streamer": streamer}
    thread = Thread(target=model.generate, kwargs={**inputs, **options})
    thread.start()
    for piece in streamer:
        print(piece, end="", flush=True)
    thread.join()
    print()


if __name__ == "__main__":
    main()
