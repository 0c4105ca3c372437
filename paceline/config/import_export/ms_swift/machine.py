"""ms-swift: precision, adapters and the batch, which no row of its table can say."""

from __future__ import annotations

import math

from paceline.config.import_export.commands.launcher_options import VARIABLES
from paceline.config.import_export.key_reader import KeyReader
from paceline.config.import_export.model_defaults import config_of
from paceline.config.import_export.transformers_keys import whole_weights_in
from paceline.config.yaml_text.scalars import resolve_plain
from paceline.core.json_types import Json, as_object

#: The block of a YAML, here of a command line as well, that holds variables of the process
ENVIRONMENT = "ENV"
_PROCESSES = ("NPROC_PER_NODE", "NNODES")
_ROWS = 16  # of a step, where gradient_accumulation_steps is not given


def processes(reading: KeyReader) -> int:
    """Return how many processes ``swift`` starts in all: one, without NPROC_PER_NODE."""
    variables = as_object(reading.given.get(ENVIRONMENT))
    counts = [str(variables.get(name, 1)) for name in _PROCESSES]
    return math.prod(int(count) for count in counts if count.isdecimal())


def new_tokens(reading: KeyReader) -> None:
    """Decide the tokens that the tokenizer gets."""
    tokens = reading.given.get("new_special_tokens")
    listed = tokens if isinstance(tokens, list) else [tokens] if tokens else []
    if any(str(token).endswith(".txt") for token in listed):
        reading.lose("new_special_tokens", "write the tokens themselves, not a file of them")
    elif listed:
        reading.keep("new_special_tokens", "model.add_special_tokens", listed)


def precision(reading: KeyReader) -> None:
    """The weights' dtype decides the precision: bfloat16 is bf16, float16 and float32 are fp16."""
    word = reading.text("torch_dtype")
    own = config_of(reading)
    note = "" if word else "of the model's config.json"
    found = own.get("dtype") or own.get("torch_dtype") or as_object(own.get("text_config")).get("dtype")
    word = word or str(found or "bfloat16")
    given = [key for key in ("bf16", "fp16") if reading.given.get(key) is not None]
    own_precision = "bf16" if word == "bfloat16" else "fp16"
    on = [key for key in given if reading.on(key)]
    off = [key for key in given if not reading.on(key)]
    chosen = on[0] if on else "no" if own_precision in off else own_precision
    reading.set("training.mixed_precision", chosen, given[0] if given else "torch_dtype", note)
    reading.mapped(given, ("training.mixed_precision",))
    if reading.facts["adapters_trained"] == "yes":
        reading.keep(
            "torch_dtype", "model.dtype", word, note or "of the frozen weights; adapters are float32"
        )
    else:
        whole_weights_in(reading, "torch_dtype", word, "ms-swift")
    if not found and not reading.given.get("torch_dtype") and "model" in reading.given:
        reading.differs(
            "torch_dtype",
            "model.dtype",
            word,
            "ms-swift trains in the dtype of the model's config.json, which is not here: bfloat16 is assumed",
        )


def batch(reading: KeyReader) -> None:
    """Without gradient_accumulation_steps a step has 16 rows over all processes; GRPO accumulates nothing."""
    count, rows = processes(reading), reading.value("per_device_train_batch_size")
    if not reading.is_given("gradient_accumulation_steps"):
        steps, note = 1, ""
        if reading.facts["word"] != "grpo" and isinstance(rows, int) and rows > 0:
            steps = max(1, math.ceil(_ROWS / rows / count))
            note = f"16 rows a step over {count} process{'es' * (count > 1)}, as ms-swift starts it"
        reading.set("training.gradient_accumulation_steps", steps, "gradient_accumulation_steps", note)
    variables = as_object(reading.given.get(ENVIRONMENT))
    reading.set("launch.nproc", 1, "NPROC_PER_NODE", "ms-swift starts one process without it")
    for name, path in VARIABLES.items():
        value = resolve_plain(str(variables.get(name, "")))
        if value is not None and (path == "launch.master_addr" or isinstance(value, int)):
            reading.set(path, value, f"{ENVIRONMENT}.{name}")
            reading.mapped(f"{ENVIRONMENT}.{name}", (path,))
    others = [f"{ENVIRONMENT}.{name}" for name in variables]
    says = "of the process: set it for this run as well, if it should hold"
    reading.nothing([key for key in others if not reading.decided(key)], says)
    reading.nothing(ENVIRONMENT, says)


def targets(reading: KeyReader) -> None:
    """Decide which modules have adapters."""
    key = "target_regex" if reading.is_given("target_regex") else "target_modules"
    names = reading.value(key)
    if names in ("all-linear", ["all-linear"]):
        reading.keep(key, "lora.target_modules", "all-linear")
    elif words := _expanded(names):
        reading.lose(key, f"{', '.join(words)}: only all-linear alone is supported; name the modules")
    else:
        reading.keep(key, "lora.target_modules", names)
    if key == "target_regex":
        reading.nothing("target_modules", "target_regex wins over it")


def whole_modules(reading: KeyReader) -> None:
    """Decide which modules are trained in full."""
    names = reading.value("modules_to_save")
    if words := _expanded(names):
        says = f"ms-swift looks for {', '.join(words)} in the model that it has built"
        reading.lose("modules_to_save", f"{says}: name the modules (embed_tokens, for example)")
    else:
        reading.keep("modules_to_save", "lora.modules_to_save", names)


def _expanded(names: Json) -> list[str]:
    """Return the words (``all-embedding`` …) in whose place swift puts modules of the model it has built."""
    listed = names if isinstance(names, list) else str(names).split()
    return [str(name) for name in listed if str(name).startswith("all-")]


def adapters(reading: KeyReader) -> None:
    """One adapter is trained on; the reference is the base without it, unless ref_adapters names it again."""
    names: dict[str, list[Json]] = {}
    for key in ("adapters", "ref_adapters"):
        value = reading.given.get(key)
        names[key] = list(value) if isinstance(value, list) else [value] if value else []
    if len(names["adapters"]) > 1:
        reading.lose("adapters", "one adapter is trained on")
    elif names["adapters"]:
        reading.keep("adapters", "lora.adapter_name_or_path", names["adapters"][0])
    reading.nothing("adapters", "none") if not names["adapters"] else None
    if names["ref_adapters"] and names["ref_adapters"] != names["adapters"]:
        reading.lose("ref_adapters", "the reference is the model as the run finds it, or a whole model")
