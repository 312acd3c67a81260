"""What a position must not become: bans, biases and penalties that need no left-to-right order."""

import dataclasses
from collections.abc import Iterable

import torch
from transformers import LogitsProcessor, LogitsProcessorList
from transformers.generation import logits_process as hf

from .canvas import Canvas
from .rows import Rows

# Their result at a position depends on its own scores alone.
ORDER_FREE = (hf.SuppressTokensLogitsProcessor, hf.InfNanRemoveLogitsProcessor, hf.LogitNormalization)
# Made by transformers from an option, of the call or of the model's generation config.
ORDERED = {
    hf.ForcedBOSTokenLogitsProcessor: "forced_bos_token_id",
    hf.ForcedEOSTokenLogitsProcessor: "forced_eos_token_id",
    hf.NoRepeatNGramLogitsProcessor: "no_repeat_ngram_size",
    hf.EncoderNoRepeatNGramLogitsProcessor: "encoder_no_repeat_ngram_size",
    hf.EncoderRepetitionPenaltyLogitsProcessor: "encoder_repetition_penalty",
    hf.ExponentialDecayLengthPenalty: "exponential_decay_length_penalty",
}
# These shape the distribution that a token is drawn from; confidence is not to know of them.
WARPERS = (
    hf.TemperatureLogitsWarper,
    hf.TopKLogitsWarper,
    hf.TopPLogitsWarper,
    hf.MinPLogitsWarper,
    hf.TopHLogitsWarper,
    hf.TypicalLogitsWarper,
    hf.EpsilonLogitsWarper,
    hf.EtaLogitsWarper,
)


@dataclasses.dataclass
class Constraints(Rows):
    """Edits the scores of a block before the decoder sees them, position by position.

    Attributes:
        mask_token_id: never a prediction; negative if the model has no mask.
        processors: order-free processors; they see one position per row of their `(n, V)` input.
        eos_token_ids: the ids that `no_eos` is about.
        pad_token_id: banned where EOS is, for the sake of the text behind; None if there is no such id.
        begin_tokens: banned in the column `begin_column`.
        penalty: repetition penalty over the committed tokens and the prompt of a row; 1 is off.
        no_eos (`BoolTensor (B, 1 + T)` or None): cells where a row must not end.
    """

    mask_token_id: int
    processors: LogitsProcessorList
    eos_token_ids: tuple[int, ...]
    pad_token_id: int | None
    begin_tokens: tuple[int, ...] = ()
    begin_column: int = 0
    penalty: float = 1.0
    no_eos: torch.Tensor | None = None

    @classmethod
    def build(
        cls, processors: Iterable[LogitsProcessor], canvas: Canvas, *, mask_token_id: int, pad_token_id: int | None
    ) -> "Constraints":
        """Sorts transformers' processors into what can be applied at any position in any order.

        Raises:
            ValueError: for a processor that needs left-to-right order.
        """
        made = cls(mask_token_id, LogitsProcessorList(), canvas.eos_token_ids, pad_token_id)
        first_free = 0
        for processor in processors:
            if isinstance(processor, WARPERS):
                continue
            if isinstance(processor, hf.MinNewTokensLengthLogitsProcessor):
                first_free = max(first_free, processor.prompt_length_to_skip + processor.min_new_tokens)
            elif isinstance(processor, hf.MinLengthLogitsProcessor):
                first_free = max(first_free, processor.min_length)
            elif isinstance(processor, hf.SuppressTokensAtBeginLogitsProcessor):
                made.begin_tokens = tuple(processor.begin_suppress_tokens.tolist())
                made.begin_column = canvas.first + processor.begin_index
            elif isinstance(processor, hf.RepetitionPenaltyLogitsProcessor):
                made.penalty = processor.penalty
            else:
                made.processors.append(_order_free(processor))
        made.no_eos = _no_eos(canvas, canvas.first + first_free)
        return made

    def __call__(self, scores: torch.Tensor, canvas: Canvas, columns: torch.Tensor) -> torch.Tensor:
        """Args: scores `(B, n, V)`, which may be changed in place; columns `(B, n)` of the canvas."""
        if self.penalty != 1.0:
            scores = self._penalised(scores, canvas)
        if self.processors:
            flat = scores.flatten(0, 1)
            ids = canvas.input_ids.gather(1, columns).reshape(-1, 1)
            scores = self.processors(ids, flat).view_as(scores)  # type: ignore[arg-type]
        if self.mask_token_id >= 0:
            scores[..., self.mask_token_id] = float("-inf")
        if self.begin_tokens:
            self._ban(scores, self.begin_tokens, columns == self.begin_column)
        if self.no_eos is not None:
            banned = self.eos_token_ids if self.pad_token_id is None else (*self.eos_token_ids, self.pad_token_id)
            self._ban(scores, banned, self.no_eos.gather(1, columns))
        return scores

    @staticmethod
    def _ban(scores: torch.Tensor, tokens: tuple[int, ...], where: torch.Tensor) -> None:
        for token in tokens:
            scores[..., token].masked_fill_(where, float("-inf"))

    def _penalised(self, scores: torch.Tensor, canvas: Canvas) -> torch.Tensor:
        counted = canvas.real & ~canvas.open
        filler = canvas.input_ids.gather(1, counted.int().argmax(1, keepdim=True))
        seen = torch.zeros_like(scores[:, 0], dtype=torch.bool)
        seen.scatter_(1, torch.where(counted, canvas.input_ids, filler), True)
        penalised = torch.where(scores < 0, scores * self.penalty, scores / self.penalty)
        return torch.where(seen[:, None], penalised, scores)


def _order_free(processor: LogitsProcessor) -> LogitsProcessor:
    """Returns the processor if its result at a position needs no other position. Raises ValueError otherwise."""
    if isinstance(processor, hf.SequenceBiasLogitsProcessor):
        if all(len(sequence) == 1 for sequence in processor.sequence_bias):
            return processor
        raise ValueError(
            f"{type(processor).__name__} (`sequence_bias` / `bad_words_ids`) has an entry of several tokens, which "
            "needs left-to-right order; diffusion decoding takes entries of one token only."
        )
    if isinstance(processor, ORDER_FREE) or getattr(processor, "order_free", False):
        return processor
    option = ORDERED.get(type(processor))
    name = f"`{option}` is set, of which the {type(processor).__name__}" if option else type(processor).__name__
    raise ValueError(
        f"{name} may depend on left-to-right order, in which a diffusion model does not write. "
        "Order-free processors (bans, biases, temperature, top-k, top-p, minimum length) work; set `order_free = True` "
        "on the class of your own if its result at a position depends on the scores of that position alone."
    )


def _no_eos(canvas: Canvas, first_free: int) -> torch.Tensor | None:
    """Cells in front of the column `first_free`, and cells with fixed text behind them (infilling)."""
    columns = torch.arange(canvas.width, device=canvas.input_ids.device)
    fixed = canvas.real & ~canvas.editable
    last_fixed = torch.where(fixed, columns, 0).amax(1, keepdim=True)
    banned = canvas.editable & ((columns < first_free) | (columns < last_fixed))
    return banned if bool(banned.any()) else None
