"""The plug into transformers: hooks, pipeline, models with and without the mixin, options that are refused."""

import copy
import inspect

import pytest
import torch
from models import byte_tokenizer, counted_forwards, tiny_llada
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    DynamicCache,
    GenerationConfig,
    GenerationMixin,
    StoppingCriteriaList,
    pipeline,
)

from dllm_generate import (
    DiffusionGenerationConfig,
    DiffusionGenerationMixin,
    LLaDAForMaskedDiffusion,
)

IDS = torch.tensor([[3, 1, 4, 1, 5]])


@pytest.mark.parametrize(
    ("hook", "parameters"),
    [
        (
            "_sample",
            "self input_ids logits_processor stopping_criteria generation_config synced_gpus streamer model_kwargs",
        ),
        ("_prepare_generation_config", "self generation_config kwargs"),
        (
            "_prepare_cache_for_generation",
            "self generation_config model_kwargs generation_mode batch_size max_cache_length",
        ),
        (
            "_get_logits_processor",
            "self generation_config input_ids_seq_length encoder_input_ids prefix_allowed_tokens_fn logits_processor "
            "device model_kwargs negative_prompt_ids negative_prompt_attention_mask",
        ),
        ("adjust_generation_fn", None),
        ("init_continuous_batching", None),
        ("generate_batch", None),
    ],
)
def test_the_hooks_that_we_override_are_there(hook, parameters):
    """A release of transformers that moves one of them fails here, by name."""
    theirs, ours = (
        list(inspect.signature(getattr(c, hook)).parameters) for c in (GenerationMixin, DiffusionGenerationMixin)
    )
    assert hook in vars(DiffusionGenerationMixin)
    if parameters is not None:
        assert theirs == parameters.split()
    if "args" not in ours:
        assert ours == theirs


def test_what_we_read_of_transformers():
    """Names outside of hooks that the plug relies on."""
    assert "_supported_generation_modes" in inspect.getsource(GenerationMixin._validate_generation_mode)
    source = inspect.getsource(GenerationMixin.generate)
    for name in ("streamer.put(input_ids.cpu())", "negative_prompt_ids", "assistant_model"):
        assert name in source
    assert "_pad_token_tensor" in inspect.getsource(GenerationMixin._prepare_special_tokens)
    ours, theirs = (inspect.signature(c.generate).parameters for c in (DiffusionGenerationMixin, GenerationMixin))
    assert set(theirs) - set(ours) <= {"trust_remote_code"}


def test_pipeline():
    tokenizer = byte_tokenizer()
    ids = {f"{name}_token_id": getattr(tokenizer, f"{name}_token_id") for name in ("mask", "eos", "pad")}
    model = tiny_llada(vocabulary=len(tokenizer), **ids)
    model.generation_config.update(do_sample=False, max_new_tokens=6)
    pipe = pipeline("text-generation", model=model, tokenizer=tokenizer)
    single = [pipe(text, return_full_text=False)[0]["generated_text"] for text in ("one", "three")]
    batch = pipe(["one", "three"], return_full_text=False, batch_size=2, decoder="threshold", threshold=1.0)
    assert [entry[0]["generated_text"] for entry in batch] == single and all(single)
    rows = pipe("one", do_sample=True, temperature=1.0, num_return_sequences=3)
    assert len({row["generated_text"] for row in rows}) == 3


def test_auto_classes(tmp_path, llada):
    llada.save_pretrained(tmp_path)
    for auto in (AutoModel, AutoModelForCausalLM):
        model = auto.from_pretrained(tmp_path)
        assert type(model) is LLaDAForMaskedDiffusion
        assert torch.equal(model.generate(IDS, max_new_tokens=5), llada.generate(IDS, max_new_tokens=5))


def test_another_custom_generate_still_works(llada):
    def own(model, input_ids, **kwargs):
        return input_ids + 1

    assert torch.equal(llada.generate(IDS, custom_generate=own, max_new_tokens=2), IDS + 1)


AUTOREGRESSIVE = [
    {"num_beams": 2},
    {"num_beams": 2, "do_sample": True},
    {"penalty_alpha": 0.6, "top_k": 4},
    {"prompt_lookup_num_tokens": 2},
    {"token_healing": True},
    {"dola_layers": "high"},
    {"cache_implementation": "paged"},
    {"cache_implementation": "offloaded"},
    {"output_attentions": True},
    {"output_hidden_states": True},
    {"output_logits": True},
    {"assistant_early_exit": 1},
    {"prefill_chunk_size": 8},
]


@pytest.mark.parametrize("option", AUTOREGRESSIVE, ids=lambda o: next(iter(o)))
@pytest.mark.parametrize("passed", ["call", "config", "model"])
def test_left_to_right_options_raise(llada, option, passed):
    """Never a silent left-to-right loop: the option is named, whichever way it comes."""
    model, name, options = copy.copy(llada), next(iter(option)), {}
    if passed == "model":
        model.generation_config = DiffusionGenerationConfig(**option)
    else:
        options = option if passed == "call" else {"generation_config": GenerationConfig(**option)}
    with counted_forwards(llada) as shapes, pytest.raises(ValueError, match=f"`{name}` is"):
        model.generate(IDS, max_new_tokens=3, **options)
    assert not shapes


def test_left_to_right_arguments_raise(llada):
    for name, value in (
        ("assistant_model", llada), ("inputs_embeds", torch.zeros(1, 2, 32)), ("cache", DynamicCache()),
        ("past_key_values", DynamicCache()), ("position_ids", IDS),
    ):  # fmt: skip
        with counted_forwards(llada) as shapes, pytest.raises(ValueError, match=f"`{name}` is"):
            llada.generate(IDS if name != "inputs_embeds" else None, max_new_tokens=3, **{name: value})
        assert not shapes
    for call in (llada.init_continuous_batching, lambda: llada.generate_batch([[1, 2]])):
        with pytest.raises(ValueError, match="Continuous batching decodes left to right"):
            call()


def test_repeated_rows_need_sampling(llada):
    with pytest.raises(ValueError, match="num_return_sequences"):
        llada.generate(IDS, num_return_sequences=2, do_sample=False, max_new_tokens=3)


def test_no_gradients_and_no_changes(llada):
    before = llada.generation_config.to_dict()
    criteria, processors = StoppingCriteriaList(), []
    ids = llada.generate(IDS.clone(), max_new_tokens=3, stopping_criteria=criteria, logits_processor=processors)
    assert not ids.requires_grad and len(criteria) == len(processors) == 0
    assert llada.generation_config.to_dict() == before


def test_a_misspelt_attribute_of_a_config_is_an_error(llada):
    config = DiffusionGenerationConfig(max_new_tokens=3)
    config.treshold = 0.7
    with pytest.raises(ValueError, match="Unknown generation options: .'treshold'."):
        llada.generate(IDS, generation_config=config)
