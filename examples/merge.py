"""Adds what one fine-tuning changed to another model of the same origin: result = model + (tuned - origin).

    python examples/merge.py model --tuned tuned --origin origin --output merged

All three are folders with the same tensors; everything else in the result is that of the model.
"""

import argparse
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    for name in ("tuned", "origin", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    return parser.parse_args()


def weights(folder):
    return {name: tensor.float() for name, tensor in load_file(folder / "model.safetensors").items()}


def main():
    options = parse()
    model, tuned, origin = (weights(folder) for folder in (options.model, options.tuned, options.origin))
    if not model.keys() == tuned.keys() == origin.keys():
        raise SystemExit("The three folders hold different tensors.")
    merged = {name: (model[name] + tuned[name] - origin[name]).to(torch.bfloat16) for name in model}
    shutil.copytree(options.model, options.output)
    save_file(merged, options.output / "model.safetensors", {"format": "pt"})


if __name__ == "__main__":
    main()
