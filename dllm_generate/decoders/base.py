"""What a decoder is."""

import dataclasses
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import torch

from ..registry import Registry, is_int, require
from ..rows import Rows
from ..sampling import Noise, Sampler
from ..schedules import Blocks

if TYPE_CHECKING:
    from ..config import DiffusionGenerationConfig
    from ..families import Family


@dataclasses.dataclass
class DecoderState(Rows):
    """State of one run of generate. Decoders with more to remember subclass it.

    Attributes:
        block (`LongTensor (R,)`): number of the block that the row works on, -1 before its first step.
        step (`LongTensor (R,)`): steps that the row has run in this block before the present one.
        block_count (`LongTensor (R,)`): number of blocks of the row.
        sampler: turns scores into tokens and confidences.
        noise: random numbers of this step; None if neither sampling nor the decoder needs any.
        editable (`BoolTensor (R, k)`): positions of the blocks that are not prompt, for revocable decoders only.
        verification (`FloatTensor (R, k)`): for decoders that verify only: float32 probability of the token in place at
            each position for a model that sees everything but this token; meaningless at open positions.
    """

    block: torch.Tensor
    step: torch.Tensor
    block_count: torch.Tensor
    sampler: Sampler
    noise: Noise | None = None
    editable: torch.Tensor | None = None
    verification: torch.Tensor | None = None

    def following(self, index: torch.Tensor) -> "DecoderState":
        """The state for blocks `index` `(B, slots)`: what is remembered of a block moves with it to its new slot."""
        batch, slots = index.shape
        if slots == 1 and self.block.numel() == batch:
            return self
        old = self.block.view(batch, -1)
        same = index[..., None] == old[:, None]
        known, slot = same.max(-1)
        rows = slot + old.shape[1] * torch.arange(batch, device=index.device)[:, None]
        state = self.select(rows.flatten())
        state.block = state.block.masked_fill(~known.flatten(), -1)
        return state

    def predict(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns tokens `(R, k)` and confidences `(R, k)` for scores `(R, k, V)`."""
        return self.sampler(scores, self.noise)


@dataclasses.dataclass
class DecoderOutput:
    """What a decoder decides in one step; all of shape `(R, k)`.

    Attributes:
        tokens (`LongTensor`): predicted token of every position.
        confidence (`FloatTensor`): float32 confidence of that token.
        commit (`BoolTensor`): positions to fix now. Only open positions of rows that ran count.
        reopen (`BoolTensor`, *optional*): committed positions to take back, from a revocable decoder. One that is also
            in `commit` gets its new token at once. A row that would not commit more than it reopens keeps all.
        edit (`BoolTensor`, *optional*): committed positions whose token is replaced, from a revocable decoder.
        rank (`FloatTensor`, *optional*): which position comes first where the schedule demands one and none was chosen;
            unset, the one of the highest confidence.
        provisional (`LongTensor`, *optional*): what positions that stay open hold in the next forward: a token, or
            where it is negative, as everywhere if unset, the mask, or fresh noise in a model of uniform noise.
        temperature (`FloatTensor (R,)`, *optional*): by which the decoder divided the scores, for models that are fed
            what they predicted; unset, 1.
        waits (`BoolTensor (R,)`, *optional*): rows that may commit nothing in this step. The decoder sees to it that
            such steps come to an end.
        settled (`BoolTensor (R,)`, *optional*): rows that may leave the block once nothing of it is open; the others
            stay, and the decoder sees to it that they leave one day. Unset, all may.
    """

    tokens: torch.Tensor
    confidence: torch.Tensor
    commit: torch.Tensor
    reopen: torch.Tensor | None = None
    edit: torch.Tensor | None = None
    rank: torch.Tensor | None = None
    provisional: torch.Tensor | None = None
    temperature: torch.Tensor | None = None
    waits: torch.Tensor | None = None
    settled: torch.Tensor | None = None

    @property
    def priority(self) -> torch.Tensor:
        """`(R, k)`: the open position with the highest one is next."""
        return self.confidence if self.rank is None else self.rank


@dataclasses.dataclass(frozen=True, kw_only=True)
class Decoder(ABC):
    """Chooses the predictions that are committed in a step.

    A decoder is a frozen dataclass of hyper-parameters and serves many threads: what changes lives in its state. It
    states its rule only; the step commits the best position where a schedule demands progress and nothing was chosen.
    A class that sets `memoryless` chooses by the present scores, step number and open positions alone.
    A class that sets `revocable` may take commits of the block in work back. For one that sets `verifies` every forward
    also rates the tokens in place (`DecoderState.verification`): a copy of the block, all masks, rides along.

    Args:
        postpone_eos (`bool`, defaults to `False`): commit the EOS tokens and the end-of-turn token of the family as
            late as possible: they are predicted, but with confidence 0, and the confidence of all others leaves them
            out (LLaDA's `confidence_eos_eot_inf`, arXiv 2502.09992).
        postpone_tokens (`tuple[int, ...]`): further token ids to treat so.
        filtered_confidence (`bool`, defaults to `False`): when sampling, take the confidence from the distribution
            after temperature, top-k and top-p instead of the unscaled logits (Dream's published sampler, arXiv
            2508.15487). Many positions then tie at 1.
    """

    name: ClassVar[str]
    memoryless: ClassVar[bool] = False
    needs_noise: ClassVar[bool] = False
    revocable: ClassVar[bool] = False
    verifies: ClassVar[bool] = False
    postpone_eos: bool = False
    postpone_tokens: tuple[int, ...] = ()
    filtered_confidence: bool = False

    def __post_init__(self) -> None:
        for option in ("postpone_eos", "filtered_confidence"):
            require(isinstance(getattr(self, option), bool), option, getattr(self, option), "a bool")
        ids = self.postpone_tokens
        valid = isinstance(ids, (list, tuple)) and all(is_int(i) and i >= 0 for i in ids)
        require(valid, "postpone_tokens", ids, "a list of token ids")
        changed = [o for o in ("postpone_eos", "postpone_tokens", "filtered_confidence") if getattr(self, o)]
        if changed and not self.ranks_by_confidence:
            raise ValueError(
                f"`{changed[0]}` is {getattr(self, changed[0])!r}, but must be unset: it changes the confidence, by "
                f"which {type(self).__name__} does not choose here."
            )
        # JSON knows no tuples.
        object.__setattr__(self, "postpone_tokens", tuple(ids))

    @property
    def ranks_by_confidence(self) -> bool:
        """Whether the confidence decides what is committed."""
        return True

    def validate(self, family: "Family", config: "DiffusionGenerationConfig") -> None:
        """Raises ValueError where this decoder cannot serve `family` or `config`."""

    def validate_blocks(self, count: torch.Tensor) -> None:
        """Raises ValueError where rows of so many blocks `(B,)`, each with open positions, cannot be served."""

    def start(self, blocks: Blocks, sampler: Sampler) -> DecoderState:
        """Makes the state of a run; `blocks` are those of the first step."""
        rows = blocks.index.flatten()
        count = blocks.count[:, None].expand_as(blocks.index).reshape(-1)
        return DecoderState(torch.full_like(rows, -1), torch.zeros_like(rows), count, sampler)

    def begin(self, state: DecoderState, block: torch.Tensor, ran: torch.Tensor) -> None:
        """Notes which block each row that runs works on, and resets the rows that enter a new one."""
        entered = ran & (state.block != block)
        state.block = torch.where(entered, block, state.block)
        state.step = torch.where(entered, 0, state.step)
        self.reset(state, entered)

    def reset(self, state: DecoderState, rows: torch.Tensor) -> None:
        """Clears what belongs to a block, for the `rows` (bool, `(R,)`) that enter a new one."""

    @abstractmethod
    def __call__(
        self,
        input_ids: torch.Tensor,
        scores: torch.Tensor,
        *,
        open_mask: torch.Tensor,
        ran: torch.Tensor,
        state: DecoderState,
        threshold: torch.Tensor | None = None,
    ) -> DecoderOutput:
        """Applies the rule to one step.

        Args:
            input_ids: `(R, k)` present tokens of the blocks.
            scores: `(R, k, V)` logits after bans and processors.
            open_mask: `(R, k)` positions that may be committed.
            ran: `(R,)` rows that take part; the state of all others must not move.
            state: what [`start`] returned.
            threshold: `(R,)` replaces the decoder's threshold in this step, where it has one.
        """


DECODERS: Registry[Decoder] = Registry("decoder", "decoder_config", __package__, Decoder)


def ranks(score: torch.Tensor, open_mask: torch.Tensor) -> torch.Tensor:
    """Rank of every open position by falling score, 0 first, left-most first on ties; closed ones come last.

    Args:
        score: `(R, k)`.
        open_mask: `(R, k)`.
    """
    order = score.masked_fill(~open_mask, float("-inf")).sort(dim=-1, descending=True, stable=True).indices
    places = torch.arange(order.shape[-1], device=order.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, places)


def ranking_score(ranking: str, scores: torch.Tensor, confidence: torch.Tensor) -> torch.Tensor:
    """What positions are ranked by, `(R, k)`: the highest first.

    Args:
        ranking: `"low_confidence"`, `"margin"`, `"entropy"` or `"left_to_right"`.
        scores: `(R, k, V)`.
        confidence: `(R, k)`.
    """
    if ranking == "low_confidence":
        return confidence
    if ranking == "left_to_right":
        # Equal ones are taken from the left.
        return torch.zeros_like(confidence)
    probabilities = scores.float().softmax(-1)
    if ranking == "margin":
        top = probabilities.topk(2, dim=-1).values
        return top[..., 0] - top[..., 1]
    return torch.xlogy(probabilities, probabilities).sum(-1)


def require_threshold(value: float) -> None:
    """Raises ValueError unless `value` is a probability above 0."""
    require(isinstance(value, (int, float)) and 0 < value <= 1, "threshold", value, "a number in (0, 1]")
