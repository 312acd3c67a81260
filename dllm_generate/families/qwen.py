"""What the configs of published models on Qwen2 and Qwen3 layers have in common."""

from typing import Any, ClassVar

from dllm_generate.families.published import (
    drop_ids_outside_vocabulary,
    refuse_others,
    take_sampling_values,
    with_published_rope,
)

_IDS = ("bos_token_id", "eos_token_id", "pad_token_id", "mask_token_id")


class PublishedQwenConfig:
    """Goes in front of `Qwen2Config` or `Qwen3Config`, whose field names the published configs share.

    Attributes:
        published_name: the model, for messages.
        published_classes: what config.json calls our classes, where they have another name.
        architecture: fields that the published format can express, and the only value that is supported.
        sampling_defaults (`dict`): sampling values found in the model config. They belong in the generation config,
            are kept out of the saved config, and cause one warning.
    """

    published_name: ClassVar[str]
    published_classes: ClassVar[dict[str, str]] = {}
    architecture: ClassVar[dict[str, Any]] = {"use_sliding_window": False}

    def __post_init__(self, **kwargs: Any) -> None:
        refuse_others(self.published_name, {**vars(self), **kwargs}, self.architecture)
        self.sampling_defaults = take_sampling_values(kwargs)
        published_ids = {name: getattr(type(self), name) for name in _IDS}
        # A small model that does not name its ids has none.
        drop_ids_outside_vocabulary(self, **{name: token for name, token in published_ids.items() if token is not None})
        # Some published files say null, which the layers would take for a size.
        if kwargs.get("head_dim", 0) is None:
            del kwargs["head_dim"]
        super().__post_init__(**kwargs)  # type: ignore[misc]

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """As transformers', without an attention backend that the file names: who loads the model chooses it."""
        kept = {name: value for name, value in config_dict.items() if name != "attn_implementation"}
        return super().from_dict(kept, **kwargs)  # type: ignore[misc]

    def to_dict(self) -> dict[str, Any]:
        """As transformers', without `sampling_defaults`."""
        values = super().to_dict()  # type: ignore[misc]
        values.pop("sampling_defaults", None)
        return values

    def to_diff_dict(self) -> dict[str, Any]:
        """The content of config.json.

        Returns:
            Published names and values, so that other loaders of these checkpoints can read what we save.
        """
        saved = super().to_diff_dict()  # type: ignore[misc]
        saved.pop("layer_types", None)
        saved = with_published_rope(saved, self.rope_parameters or {}, "rope_theta")  # type: ignore[attr-defined]
        scaling = saved.pop("rope_parameters", None)
        saved["rope_scaling"] = scaling and {name: scaling[name] for name in scaling if name != "rope_theta"}
        if saved.get("architectures"):
            saved["architectures"] = [self.published_classes.get(name, name) for name in saved["architectures"]]
        return saved
