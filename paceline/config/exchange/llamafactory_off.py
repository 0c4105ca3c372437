"""LLaMA-Factory's features that have a switch: off, their keys have no effect; on, they cannot be kept."""

from __future__ import annotations

from paceline.config.exchange.common import project
from paceline.config.exchange.reading import KeyReader
from paceline.core.json_types import Json

#: switch → (the beginning of its other keys, why it cannot be kept)
_SWITCHES = {
    "use_galore": (
        "galore_",
        "its AdamW is supported, in full training without DeepSpeed",
    ),
    "use_apollo": ("apollo_", "APOLLO is not supported"),
    "use_badam": ("badam_", "BAdam's updates block by block are not supported"),
    "use_adam_mini": ("adam_mini_", "Adam-mini is not supported"),
    "use_kt": ("kt_", "KTransformers' experts on the CPU are not supported"),
    "use_llama_pro": ("llama_pro_", "training added blocks alone is not supported"),
    "use_mca": ("mca_", "Megatron's trainer is not used"),
    "use_hyper_parallel": ("hyper_parallel_", "its trainer is not used"),
    "use_asft_loss": ("asft_", "the ASFT loss is not supported"),
    "use_dft_loss": ("dft_", "the DFT loss is not supported"),
    "use_eaft_loss": ("eaft_", "the EAFT loss is not supported"),
    "use_unsloth": ("unsloth_", "Unsloth is not used"),
    "use_dora": ("dora_", "DoRA is not supported; plain LoRA and rsLoRA are"),
    "pissa_init": ("pissa_", "PiSSA's fast approximation is random; the exact one is read (pissa_iter: -1)"),
    "shift_attn": ("shift_", "shifted sparse attention is not supported"),
    "use_swanlab": ("swanlab_", "SwanLab reads it from its own variables"),
    "enable_torch_profiler": ("profiler_", "training.profile: {steps: …} records single steps"),
    "mask_history": ("mask_history_", "for loss on the last answer alone give each row loss_mask: [0, …, 1]"),
    "freeze_language_model": ("freeze_language_", "a frozen language model is not supported"),
}
_NO_MATTER = ("use_swanlab", "enable_torch_profiler")  # of what is watched, not of what is trained
_FREEZE = ("freeze_trainable_layers", "freeze_trainable_modules", "freeze_extra_modules")
_IMAGES = (
    "image_",
    "video_",
    "audio_",
    "crop_to_patches",
    "use_audio_in_video",
    "visual_inputs",
    "media_dir",
)
_TOWERS = ("freeze_vision_tower", "freeze_multi_modal_projector")
#: Optimizers and layers that are chosen by a word
_WORDS = {
    "mixture_of_depths": "mixture of depths changes the model",
    "rope_scaling": "set rope_scaling in the model's config",
}
_DEFAULT_OFF = (
    "mixture_of_depths",
    "rope_scaling",
    "upcast_lmhead_output",
    "split_special_tokens",
    "disable_shuffling",
    "early_stopping_steps",
    "compute_accuracy",
    "eval_on_each_dataset",
    "data_shared_file_system",
)
_RAY = ("ray_", "placement_strategy", "resources_per_worker")


def switched(reading: KeyReader, algorithm: str) -> None:
    """Decide the keys of optional features."""
    _swanlab(reading)
    for switch, (prefix, why) in _SWITCHES.items():
        keys = [k for k in reading.given if (k == switch or k.startswith(prefix)) and not reading.decided(k)]
        if not reading.on(switch):
            reading.nothing(keys, f"{switch} is off")
        elif switch in _NO_MATTER:
            reading.nothing(keys, f"{why}; the training is the same")
        else:
            for key in keys:
                reading.lose(key, why)
    kind = reading.text("finetuning_type")
    if kind != "freeze":
        reading.nothing(_FREEZE, f"it belongs to finetuning_type: freeze, and this is {kind}")
    if kind != "oft":
        reading.nothing(
            [key for key in reading.given if key.startswith(("oft_", "module_dropout"))],
            "it belongs to finetuning_type: oft",
        )
    else:
        for key in (key for key in reading.given if key.startswith(("oft_", "module_dropout"))):
            reading.lose(key, "OFT is not supported; LoRA is")
    if reading.on("use_muon"):
        reading.keep("use_muon", "training.optim", "muon")
    _images(reading)
    _rest(reading, algorithm)


def _swanlab(reading: KeyReader) -> None:
    """SwanLab has a switch of its own beside ``report_to``."""
    if not reading.on("use_swanlab"):
        return
    given = reading.value("report_to")
    names = [given] if isinstance(given, str) else given if isinstance(given, list) else []
    used: list[Json] = [name for name in names if name not in ("none", "swanlab")]
    reading.set("training.report_to", [*used, "swanlab"], "use_swanlab")
    reading.mapped(("use_swanlab", "report_to"), ("training.report_to",))
    project(reading, [*used, "swanlab"])


def _images(reading: KeyReader) -> None:
    """Images and video are not read: with rows of text alone these keys have no effect."""
    rows = reading.text("dataset")
    seen = "mllm" in rows or "video" in rows or reading.on("visual_inputs")
    for key in [key for key in reading.given if key.startswith(_IMAGES) or key in _TOWERS]:
        if key in _TOWERS and reading.on(key):
            reading.nothing(key, "what is beside the language model is never trained here, and kept as it is")
        elif seen:
            reading.lose(key, "images, video and sound are not read")
        else:
            reading.nothing(key, "the rows have no images, video or sound")


def _rest(reading: KeyReader, algorithm: str) -> None:
    for key, why in _WORDS.items():
        if reading.on(key):
            reading.lose(key, why)
    if reading.on("disable_shuffling"):
        reading.lose("disable_shuffling", "rows are always permuted by seed")
    if reading.is_given("early_stopping_steps"):
        reading.keep(
            "early_stopping_steps", "training.early_stopping_patience", reading.given["early_stopping_steps"]
        )
    reading.nothing("compute_accuracy", "token accuracy is always measured in evaluation")
    for key in _DEFAULT_OFF:
        if not reading.on(key):
            reading.nothing(key, "off, as here")
    reading.nothing(
        [key for key in reading.given if key.startswith(_RAY)],
        "the launcher starts the processes, without Ray",
    )
    reading.nothing(("master_addr", "master_port"), "the launcher sets them") if reading.is_given(
        "ray_num_workers"
    ) else None
    reading.nothing("include_effective_tokens_per_second", "tokens per second are always shown")
    if algorithm != "kto":
        reading.nothing(("kto_chosen_weight", "kto_rejected_weight"), "it belongs to stage: kto")
    if algorithm != "ppo":
        reading.nothing(
            [k for k in reading.given if k.startswith(("ppo_", "reward_model"))], "it belongs to stage: ppo"
        )
    if reading.on("fp8"):
        reading.keep("fp8", "training.fp8", True)
        if reading.text("fp8_backend") in ("auto", "torchao"):
            reading.nothing("fp8_backend", "torchao, as here")
    else:
        reading.nothing([k for k in reading.given if k.startswith("fp8")], "fp8 is off")
