"""What property tests draw from, and schedules that watch a run or disturb it."""

import dataclasses
from typing import Any

import torch
from hypothesis import strategies as st
from models import EOS, PAD, VOCABULARY, padded

from dllm_generate.schedules.block_diffusion import BlockDiffusionSchedule
from dllm_generate.schedules.blockwise import BlockwiseSchedule
from dllm_generate.schedules.pipelined import PipelinedSchedule

DECODERS = [
    {"decoder": "fixed"},
    {"decoder": "fixed", "steps_per_block": 2},
    {"decoder": "fixed", "steps": 12},
    {"decoder": "fixed", "decoder_config": {"ranking": "margin"}},
    {"decoder": "fixed", "steps_per_block": 3, "decoder_config": {"ranking": "entropy"}},
    {"decoder": "threshold", "threshold": 0.3},
    {"decoder": "threshold", "threshold": 0.6, "decoder_config": {"strict": True, "near_tie": 0.05}},
    {"decoder": "factor", "decoder_config": {"factor": 0.9}},
    {"decoder": "factor", "decoder_config": {"factor": 1.6, "take_last": False}},
    {"decoder": "hierarchical", "threshold": 0.6, "decoder_config": {"low_threshold": 0.2}},
    {"decoder": "credit", "threshold": 0.5},
    {"decoder": "remasking", "threshold": 0.6, "decoder_config": {"low_threshold": 0.2, "remask_threshold": 0.5}},
    {"decoder": "entropy_bound", "decoder_config": {"gamma": 1.0}},
    {"decoder": "klass", "threshold": 0.3, "decoder_config": {"kl_threshold": 1.0}},
    {"decoder": "joint", "threshold": 0.3, "decoder_config": {"joint_threshold": 0.05, "radius": 1, "certain": 0.7}},
    {"decoder": "wino", "threshold": 0.2, "decoder_config": {"verify_threshold": 0.8}},
    {"decoder": "dynamic", "threshold": 0.4, "steps_per_block": 3},
    {"decoder": "editing", "threshold": 0.4, "decoder_config": {"editing_threshold": 0.3, "max_post_steps": 2}},
    {"decoder": "dream"},
    {"decoder": "dream", "steps": 12, "decoder_config": {"ranking": "margin", "eps": 0.1}},
    {"decoder": "paced", "threshold": 0.3, "steps": 12},
]
REVOCABLE = ("remasking", "wino", "editing")
MEMORYLESS = [options for options in DECODERS if options["decoder"] not in ("credit", "klass", *REVOCABLE)]
FINAL = [options for options in DECODERS if options["decoder"] not in REVOCABLE]
# Every step of the others commits. This one also looks at blocks that are complete.
COMMITTING = [options for options in DECODERS if options["decoder"] != "editing"]
NO_CACHE = {"cache_policy": "none"}
POLICIES = [NO_CACHE] + [
    {"cache_policy": name, "policy_config": {"refresh_interval": interval}}
    for name in ("prefix", "dual")
    for interval in (None, 1, 2, 3)
]
POLICIES += [
    {"cache_policy": "vicinity", "policy_config": {"prefix_look": 2, "after_look": 3, "refresh_interval": interval}}
    for interval in (None, 2)
]
# For loops over everything: no second interval.
GRID = [policy for policy in POLICIES if policy.get("policy_config", {}).get("refresh_interval") in (None, 2)]
# For block-causal models. A block of theirs has no shadow.
BLOCK_DECODERS = [options for options in DECODERS if options["decoder"] != "wino"] + [
    {"decoder": "fixed", "steps_per_block": 3, "decoder_config": {"quota": "block", "ranking": "left_to_right"}},
    {"decoder": "fixed", "steps_per_block": 7, "decoder_config": {"quota": "block"}},
    {"decoder": "dynamic", "threshold": 0.5, "decoder_config": {"quota": "block", "ranking": "span"}},
    {"decoder": "dynamic", "steps_per_block": 2, "threshold": 0.3, "decoder_config": {"quota": "block"}},
    {"decoder": "entropy_bound", "decoder_config": {"gamma": 2.0, "include_last": True}},
    {"decoder": "editing", "threshold": 0.9, "decoder_config": {"editing_threshold": 0.2, "at_least": 2}},
]
# What takes commits back cannot be built upon.
PIPELINE_DECODERS = [options for options in BLOCK_DECODERS if options["decoder"] not in REVOCABLE]
BLOCK_POLICIES = [NO_CACHE, {"cache_policy": "block"}]
BLOCK_CAUSAL = {"attention": "block_causal", "schedule": "block_diffusion"}
# Ids that the random model writes often: with them as EOS, rows end early and at different places.
COMMON = [EOS, 0, 17, 36, 45]


@dataclasses.dataclass
class Case:
    """One drawn call."""

    prompts: list[list[int]]
    side: str
    options: dict[str, Any]

    @property
    def inputs(self) -> dict[str, torch.Tensor]:
        return padded(self.prompts, self.side)

    def schedule(self, cls, **kwargs):
        """Takes the options of the schedule out, and returns an instance with the same values."""
        for name in ("steps", "schedule"):
            self.options.pop(name, None)
        return cls(self.options.pop("block_length"), **self.options.pop("schedule_config"), **kwargs)

    def single(self, row: int) -> dict[str, torch.Tensor]:
        """The row on its own, with neither padding nor mask."""
        return {"input_ids": torch.tensor([self.prompts[row]])}


@st.composite
def cases(draw, max_rows: int = 3, policies=POLICIES, decoders=DECODERS) -> Case:
    """Ragged batches over decoder x policy x lengths; prompts may hold the mask, pad and EOS ids inside."""
    # Ends are no pad: without a mask, a pad token at the end of a row is padding.
    end, inside = st.integers(0, PAD - 1), st.integers(0, VOCABULARY - 1)
    prompt = st.one_of(
        end.map(lambda token: [token]),
        st.tuples(end, st.lists(inside, max_size=9), end).map(lambda parts: [parts[0], *parts[1], parts[2]]),
    )
    new_tokens = draw(st.integers(1, 13))
    options = {
        **draw(st.sampled_from(decoders)),
        **draw(st.sampled_from(policies)),
        "max_new_tokens": new_tokens,
        "block_length": draw(st.sampled_from([1, 2, 3, 4, 5, 8, 64])),
        "schedule_config": {"align": draw(st.sampled_from(["prompt", "prompt", "position", "end"]))},
        "eos_token_id": draw(st.sampled_from([EOS, COMMON])),
        "return_dict_in_generate": True,
    }
    if "steps" in options:
        blocks = -(-new_tokens // options["block_length"])
        options["steps"] = max(options["steps"], blocks)
    rows = draw(st.lists(prompt, min_size=1, max_size=max_rows))
    return Case(rows, draw(st.sampled_from(["left", "right"])), options)


@st.composite
def block_cases(draw, max_rows: int = 3, decoders=BLOCK_DECODERS, policies=BLOCK_POLICIES) -> Case:
    """The same for block-causal models, with blocks counted from the first token or from the end of the prompt."""
    case = draw(cases(max_rows, policies, decoders))
    case.options |= {**BLOCK_CAUSAL, "schedule_config": {"prompt_is_one_block": draw(st.booleans())}}
    if "steps" in case.options:
        # A prompt that ends inside a block makes one block more.
        case.options["steps"] += 1
    return case


@st.composite
def pipelined_cases(draw, max_rows: int = 3, decoders=PIPELINE_DECODERS, policies=BLOCK_POLICIES) -> Case:
    """The same for pipelined blocks, with thresholds that admit some at once and others late."""
    case = draw(block_cases(max_rows, decoders, policies))
    share = st.sampled_from([0.1, 0.3, 0.5, 0.9, 1.0])
    case.options["schedule"] = "pipelined"
    case.options["schedule_config"] |= {
        "block_add_threshold": draw(share),
        "decoded_token_threshold": draw(share),
        "blocks_in_flight": draw(st.sampled_from([None, None, 1, 2, 3])),
    }
    return case


def answer(output: Any, row: int = 0) -> list[int]:
    """Generated ids of a row, EOS included and without the pad behind it."""
    steps = output.commit_step[row]
    return output.sequences[row, -len(steps) :][steps >= 0].tolist() if len(steps) else []


class Shared:
    """Schedules for tests: one object through all copies of the config."""

    def __deepcopy__(self, memo):
        return self


class Recording(Shared):
    """Notes in `log`, after every step, which rows ran and what is open."""

    def advance(self, canvas, ran):
        super().advance(canvas, ran)
        self.log.append((canvas.row.tolist(), ran.tolist(), canvas.open.sum(1).tolist()))


@dataclasses.dataclass(frozen=True)
class Recorder(Recording, BlockwiseSchedule):
    log: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class BlockRecorder(Recording, BlockDiffusionSchedule):
    log: list = dataclasses.field(default_factory=list)


class Resting(Shared):
    """Lets rows idle at random; at least one of those that are not finished goes on. A pure function of the canvas."""

    def active(self, canvas):
        blocks = super().active(canvas)
        unfinished = ~canvas.finished
        tick = int((canvas.open.sum(1) * unfinished).sum())
        draws = [hash((self.salt, tick, row)) % 1000 for row in canvas.row.tolist()]
        luck = torch.where(unfinished, torch.tensor(draws), -1)
        live = unfinished & ((luck >= 500) | (luck == luck.max()))
        return dataclasses.replace(blocks, live=blocks.live & live[:, None], force=blocks.force & live[:, None])


@dataclasses.dataclass(frozen=True)
class Idling(Resting, BlockwiseSchedule):
    salt: int = 0


@dataclasses.dataclass(frozen=True)
class BlockIdling(Resting, BlockDiffusionSchedule):
    salt: int = 0


@dataclasses.dataclass(frozen=True)
class PipelineRecorder(Recording, PipelinedSchedule):
    log: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class PipelineIdling(Resting, PipelinedSchedule):
    salt: int = 0
