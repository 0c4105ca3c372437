"""GaLore in other systems' files: Transformers' names of it, and LLaMA-Factory's switch."""

from __future__ import annotations

from paceline.config.exchange.reading import KeyReader
from paceline.core.json_types import Json

_OURS, _OPTIM, _ARGS = "galore_adamw", "training.optim", "training.optim_args"
_LAYERWISE = (
    "the updates are the same, without clipping; here the gradients of all layers are kept until the step"
)
#: What Transformers hands GaLore's AdamW, whatever the arguments say
_FIXED: dict[str, Json] = {"weight_decay": 0.0, "adam_epsilon": 1e-6}
_FIXED |= {"adam_beta1": 0.9, "adam_beta2": 0.999}
#: LLaMA-Factory's keys → GaLore's options
_OPTIONS = {
    "galore_rank": "rank",
    "galore_update_interval": "update_proj_gap",
    "galore_scale": "scale",
    "galore_proj_type": "proj_type",
}


def transformers_galore(reading: KeyReader, key: str) -> None:
    """``optim: galore_adamw`` of Transformers: it passes on the rate alone, no betas, epsilon or decay."""
    name = reading.text(key)
    if name not in (_OURS, f"{_OURS}_layerwise"):
        return
    if engine := reading.engine():
        for lost in (key, "optim_target_modules", "optim_args"):
            if reading.is_given(lost):
                reading.lose(lost, f"GaLore needs whole gradients, which {engine} shards")
        return
    reading.keep(key, _OPTIM, _OURS, _LAYERWISE if name != _OURS else "")
    if name != _OURS:
        _no_clipping(reading, key)
    if reading.text("optim_target_modules").replace("_", "-") == "all-linear":
        reading.keep("optim_target_modules", "training.optim_target_modules", ".*", "the head, too")
    for argument, value in _FIXED.items():
        reading.set(f"training.{argument}", value, key, "what Transformers' GaLore has")
        reading.nothing(argument, f"Transformers does not pass it to {name}")


def llamafactory_galore(reading: KeyReader) -> None:
    """``use_galore`` and its keys. Its defaults: rank 16, scale 2; of AdamW, not of 8 bits or Adafactor."""
    if not reading.on("use_galore"):
        return
    if reading.text("finetuning_type") == "lora" or reading.engine():
        return  # refused there, too, or sharded; lost with the other switches
    if not str(reading.value("optim") or "adamw_torch").startswith("adamw_torch"):
        return  # lost with the other switches
    reading.keep("use_galore", _OPTIM, _OURS)
    reading.mapped("optim", (_OPTIM,), "GaLore's AdamW")
    targets = reading.value("galore_target")
    listed: Json = [word.strip() for word in targets.split(",")] if isinstance(targets, str) else targets
    reading.keep(
        "galore_target", "training.optim_target_modules", listed if listed != ["all"] else "all-linear"
    )
    options = ",".join(f"{ours}={reading.value(theirs)}" for theirs, ours in _OPTIONS.items())
    reading.set(_ARGS, options, "galore_rank")
    reading.mapped(_OPTIONS, (_ARGS,))
    if reading.on("galore_layerwise"):
        reading.mapped("galore_layerwise", (_OPTIM,), _LAYERWISE)
        _no_clipping(reading, "galore_layerwise")
    else:
        reading.nothing("galore_layerwise", "off, as here")


def _no_clipping(reading: KeyReader, key: str) -> None:
    reading.set("training.max_grad_norm", 0.0, key, "layers are stepped before a norm of all is known")
    reading.nothing("max_grad_norm", "layers are stepped before a norm of all gradients is known")
