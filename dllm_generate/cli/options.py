"""Options that several commands share."""

import functools
import inspect
import json
from collections.abc import Callable
from typing import Annotated, Any

import typer

from ..caches import POLICIES
from ..decoders import DECODERS
from ..evaluation.tasks import LONG_LEVEL, STANDARD_LEVEL, TASKS
from ..families import preset_names
from ..schedules import SCHEDULES

PRESET_DEFAULT = "Default: the preset's."
DECODING, SAMPLING, MODEL, PROBLEMS = "Decoding", "Sampling", "Model", "Held-out problems"


def parse_value(text: str) -> Any:
    """Reads JSON where the text is JSON, and takes it as a string otherwise."""
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


def parse_pair(text: str) -> tuple[str, Any]:
    """Reads `name=value`."""
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise typer.BadParameter(f"{text!r} is not of the form name=value.")
    return name.strip().replace("-", "_"), parse_value(value.strip())


def parse_dict(text: str) -> dict[str, Any]:
    """Reads a JSON object."""
    value = parse_value(text)
    if not isinstance(value, dict):
        raise typer.BadParameter(f"{text!r} is no JSON object.")
    return value


def _option(*names: str, help: str, panel: str = DECODING, **kwargs: Any) -> Any:
    return typer.Option(*names, help=help, rich_help_panel=panel, **kwargs)


def _json_option(name: str, part: str) -> Any:
    return _option(name, help=f"Hyper-parameters of the {part}, as JSON.", parser=parse_dict, metavar="JSON")


def _one_of(names: Any) -> str:
    return f"One of: {', '.join(sorted(names))}."


def generation_options(
    preset: Annotated[
        str | None,
        _option("--preset", help=f"Defaults of all that is unset: {', '.join(preset_names())}. Default: published."),
    ] = None,
    decoder: Annotated[
        str | None,
        _option("--decoder", help=f"Which predictions are committed. {_one_of(DECODERS.parts)} {PRESET_DEFAULT}"),
    ] = None,
    cache_policy: Annotated[
        str | None,
        _option("--cache-policy", help=f"What a step recomputes. {_one_of(POLICIES.parts)} {PRESET_DEFAULT}"),
    ] = None,
    schedule: Annotated[
        str | None,
        _option("--schedule", help=f"What may be committed now. {_one_of(SCHEDULES.parts)} {PRESET_DEFAULT}"),
    ] = None,
    block_length: Annotated[
        int | None, _option("--block-length", help=f"Positions of a block. {PRESET_DEFAULT}")
    ] = None,
    steps: Annotated[
        int | None, _option("--steps", help="Steps over the whole answer (fixed). Default: one per token.")
    ] = None,
    threshold: Annotated[
        float | None, _option("--threshold", help="Confidence from which a token is committed. Default: the decoder's.")
    ] = None,
    decoder_config: Annotated[Any, _json_option("--decoder-config", "decoder")] = None,
    policy_config: Annotated[Any, _json_option("--policy-config", "cache policy")] = None,
    schedule_config: Annotated[Any, _json_option("--schedule-config", "schedule")] = None,
    max_new_tokens: Annotated[int, _option("--max-new-tokens", help="Most tokens to write.")] = 128,
    temperature: Annotated[
        float | None, _option("--temperature", help="Above 0: sample. Default: greedy.", panel=SAMPLING)
    ] = None,
    top_p: Annotated[
        float | None, _option("--top-p", help="Sample from the likeliest tokens up to this mass.", panel=SAMPLING)
    ] = None,
    top_k: Annotated[
        int | None, _option("--top-k", help="Sample from so many likeliest tokens.", panel=SAMPLING)
    ] = None,
    seed: Annotated[int, _option("--seed", help="Of sampling.", panel=SAMPLING)] = 0,
    more: Annotated[
        list[str] | None,
        _option("--set", help="Any other option of generate as name=value; the value may be JSON. Repeatable."),
    ] = None,
) -> dict[str, Any]:
    """Returns the options of generate that were given, and the seed."""
    given = {name: value for name, value in locals().items() if name != "more" and value is not None}
    if temperature or (temperature is None and (top_p is not None or top_k is not None)):
        given["do_sample"] = True
    return {**given, **dict(parse_pair(text) for text in more or [])}


def model_options(
    model: Annotated[
        str | None, _option("--model", "-m", help="Local folder or Hub id. Default: the bundled model.", panel=MODEL)
    ] = None,
    dtype: Annotated[
        str, _option("--dtype", help="Of the weights: auto (as saved), float32, bfloat16 ...", panel=MODEL)
    ] = "auto",
    device: Annotated[
        str | None, _option("--device", help="cpu, cuda, auto ... Default: a GPU if there is one.", panel=MODEL)
    ] = None,
    threads: Annotated[
        int | None,
        _option("--threads", help="CPU threads. Default: 1 for the bundled model, else torch's.", panel=MODEL, min=1),
    ] = None,
    trust_remote_code: Annotated[
        bool, _option("--trust-remote-code", help="Run model code from the Hub.", panel=MODEL)
    ] = False,
) -> dict[str, Any]:
    """Returns the arguments of [`dllm_generate.bundled.load`], and `threads`."""
    return dict(locals())


def problem_options(
    tasks: Annotated[
        str | None,
        _option(
            "--tasks",
            help=f"Of: {', '.join(TASKS)}; commas between. Default: all but table.",
            panel=PROBLEMS,
        ),
    ] = None,
    level: Annotated[
        int, _option("--level", help="0 (short answers) to 3 (long ones).", panel=PROBLEMS, min=0, max=LONG_LEVEL)
    ] = STANDARD_LEVEL,
    seed: Annotated[int, _option("--seed", help="Another one, other problems.", panel=PROBLEMS)] = 0,
) -> dict[str, Any]:
    """Returns arguments of [`heldout_problems`]."""
    return {"tasks": [name.strip() for name in tasks.split(",")] if tasks else None, "level": level, "seed": seed}


def takes(**groups: Callable[..., dict[str, Any]]) -> Callable:
    """Adds the options of `groups` to a command, which receives the dict that each group returns.

    Args:
        groups: parameter of the command, and the function whose parameters are the options.
    """

    def decorate(command: Callable) -> Callable:
        own = [p for name, p in inspect.signature(command, eval_str=True).parameters.items() if name not in groups]
        members = {name: inspect.signature(group, eval_str=True).parameters for name, group in groups.items()}

        @functools.wraps(command)
        def wrapper(**values: Any) -> Any:
            built = {name: groups[name](**{key: values.pop(key) for key in keys}) for name, keys in members.items()}
            return command(**values, **built)

        shared = [p for parameters in members.values() for p in parameters.values()]
        keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in (*own, *shared)]
        wrapper.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]
        return wrapper

    return decorate
