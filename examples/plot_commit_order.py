"""Draws in which step each position of an answer was committed (needs the extra `viz`)."""

import argparse

from dllm_generate.bundled import load

PROMPTS = (
    "Write a Python function mix(m, v): multiply v by 3, subtract v from m, add 7 to m, return m.",
    "Start at 40, then add: d=9, z=3, q=6, f=2, r=4, u=1.",
)
OPTIONS = {"decoder": "threshold", "threshold": 0.99, "block_length": 96}


def decode(model, tokenizer, prompt: str) -> tuple[list[str], list[int]]:
    """Returns the tokens of the answer and the step of each."""
    chat = [{"role": "user", "content": prompt}]
    inputs = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
    output = model.generate(**inputs, max_new_tokens=96, return_dict_in_generate=True, **OPTIONS)
    answer = output.sequences[0, inputs["input_ids"].shape[1] :].tolist()
    return [tokenizer.decode([token]) for token in answer], output.commit_step[0].tolist()


def draw(axes, tokens: list[str], steps: list[int], title: str) -> None:
    """One row of text per line of the answer, each token on the colour of its step."""
    import matplotlib

    colours = matplotlib.colormaps["viridis"].resampled(max(steps) + 1)
    x, y = 0.0, 0
    for token, step in zip(tokens, steps):
        shown = token.replace("\n", "\u21b5")
        width = max(len(shown), 1)
        axes.add_patch(matplotlib.patches.Rectangle((x, y), width, 0.9, color=colours(step), alpha=0.55, lw=0))
        axes.text(x + width / 2, y + 0.45, shown, family="monospace", ha="center", va="center", fontsize=7)
        x, y = (0.0, y + 1) if "\n" in token else (x + width, y)
    axes.set(xlim=(0, 48), ylim=(y + 1.2, -0.3), title=f"{title} ({max(steps) + 1} steps)")
    axes.axis("off")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", default="commit_order.svg")
    arguments = parser.parse_args()
    import matplotlib

    matplotlib.use("svg")
    import matplotlib.pyplot as plt

    model, tokenizer = load()
    figure, axes = plt.subplots(1, len(PROMPTS), figsize=(11, 2.8))
    for axis, prompt in zip(axes, PROMPTS):
        draw(axis, *decode(model, tokenizer, prompt), prompt)
        axis.title.set_fontsize(7)
    figure.tight_layout()
    figure.savefig(arguments.output)


if __name__ == "__main__":
    main()
