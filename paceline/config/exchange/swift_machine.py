"""ms-swift: the model and its precision, adapters, the batch, and how a job is split over devices."""

from __future__ import annotations

import json
import math
from pathlib import Path

from paceline.config.exchange.common import HUB, KERNEL, whole_weights_in
from paceline.config.exchange.launcher_options import VARIABLES
from paceline.config.exchange.reading import KeyReader
from paceline.config.reading import read_text
from paceline.config.scalars import resolve_plain
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_object

#: The block of a YAML, here of a command line as well, that holds variables of the process
ENVIRONMENT = "ENV"
_PROCESSES = ("NPROC_PER_NODE", "NNODES")
_ROWS = 16  # of a step, where gradient_accumulation_steps is not given
_PRESETS = ("zero1", "zero2", "zero3")
_ATTENTION = {"flash_attn": "flash_attention_2", "sdpa": "sdpa", "eager": "eager"}
_ATTENTION |= {f"flash_attention_{n}": f"flash_attention_{n}" for n in (2, 3)}


def processes(reading: KeyReader) -> int:
    """Return how many processes ``swift`` starts in all: one, without NPROC_PER_NODE."""
    variables = as_object(reading.given.get(ENVIRONMENT))
    counts = [str(variables.get(name, 1)) for name in _PROCESSES]
    return math.prod(int(count) for count in counts if count.isdecimal())


def model(reading: KeyReader, adapters: bool) -> None:
    """Decide the keys of the model, its dtype and attention."""
    if reading.is_given("model"):
        reading.keep("model", "model.name_or_path", reading.given["model"])
    reading.nothing(("model_type", "use_hf", "load_args"), "it follows from the model's files")
    reading.nothing("hub_token", HUB)
    _precision(reading, adapters)
    attention = _ATTENTION.get(reading.text("attn_impl"))
    if attention:
        reading.keep("attn_impl", "model.attn_implementation", attention)
    reading.nothing(("attn_impl", "experts_impl") if not attention else "experts_impl", KERNEL)
    tokens = reading.given.get("new_special_tokens")
    listed = tokens if isinstance(tokens, list) else [tokens] if tokens else []
    if any(str(token).endswith(".txt") for token in listed):
        reading.lose("new_special_tokens", "write the tokens themselves, not a file of them")
    elif listed:
        reading.keep("new_special_tokens", "model.add_special_tokens", listed)
    template = reading.text("template")
    if template == "chatml":
        reading.keep("template", "model.chat_template", "chatml")
    elif template:
        says = f"ms-swift's own {template}; the tokenizer's template is used (or set model.chat_template)"
        reading.lose("template", says)
    if reading.is_given("system"):
        reading.lose("system", "a default system turn belongs into model.chat_template, or into the rows")


def config_of(reading: KeyReader) -> JsonObject:
    """Return the ``config.json`` of a model that is a folder here, or beside the file; else empty."""
    name = str(reading.given.get("model") or "")
    for base in (Path("."), Path(reading.result.file).parent):
        file = base / name / "config.json"
        if name and file.is_file():
            try:
                return as_object(json.loads(read_text(str(file))))
            except (ValueError, ConfigError):
                return {}
    return {}


def _precision(reading: KeyReader, adapters: bool) -> None:
    """The weights' dtype decides the precision: bfloat16 is bf16, float16 and float32 are fp16."""
    word = reading.text("torch_dtype")
    own = config_of(reading)
    note = "" if word else "of the model's config.json"
    found = own.get("dtype") or own.get("torch_dtype") or as_object(own.get("text_config")).get("dtype")
    word = word or str(found or "bfloat16")
    given = [key for key in ("bf16", "fp16") if reading.given.get(key) is not None]
    precision = "bf16" if word == "bfloat16" else "fp16"
    on = [key for key in given if reading.on(key)]
    off = [key for key in given if not reading.on(key)]
    chosen = on[0] if on else "no" if precision in off else precision
    reading.set("training.mixed_precision", chosen, given[0] if given else "torch_dtype", note)
    reading.mapped(given, ("training.mixed_precision",))
    if adapters:
        reading.keep(
            "torch_dtype", "model.dtype", word, note or "of the frozen weights; adapters are float32"
        )
    else:
        whole_weights_in(reading, "torch_dtype", word, "ms-swift")
    if not found and not reading.given.get("torch_dtype") and "model" in reading.given:
        says = (
            "ms-swift trains in the dtype of the model's config.json, which is not here: bfloat16 is assumed"
        )
        reading.differs("torch_dtype", "model.dtype", word, says)


def batch(reading: KeyReader, word: str) -> None:
    """Without gradient_accumulation_steps a step has 16 rows over all processes; GRPO accumulates nothing."""
    count, rows = processes(reading), reading.value("per_device_train_batch_size")
    if not reading.is_given("gradient_accumulation_steps"):
        steps, note = 1, ""
        if word != "grpo" and isinstance(rows, int):
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


def tuner(reading: KeyReader) -> bool:
    """Decide the keys of adapters; return whether adapters are trained (the default)."""
    kind = reading.text("tuner_type") or "lora"
    own = ("target_modules", "target_regex", "use_rslora", "modules_to_save", "init_weights", "use_dora")
    keys = [key for key in reading.given if key.startswith("lora") or key in own]
    if kind == "full":
        reading.nothing("tuner_type", "all weights are trained where there is no lora section")
        reading.nothing(keys, "all weights are trained")
        return False
    if kind != "lora":
        reading.lose("tuner_type", f"{kind} is not supported: lora or full")
        return True
    reading.mapped("tuner_type", ("lora",))
    reading.keep("lora_rank", "lora.r", reading.value("lora_rank"))
    alpha = reading.value("lora_alpha")
    reading.keep(
        "lora_alpha", "lora.alpha", int(alpha) if isinstance(alpha, float) and alpha == int(alpha) else alpha
    )
    reading.keep("lora_dropout", "lora.dropout", reading.value("lora_dropout"))
    reading.keep("lora_bias", "lora.bias", reading.value("lora_bias"))
    _targets(reading)
    if reading.on("use_rslora"):
        reading.keep("use_rslora", "lora.use_rslora", True)
    for key, ours in (("modules_to_save", "modules_to_save"), ("target_parameters", "target_parameters")):
        if reading.is_given(key):
            reading.keep(key, f"lora.{ours}", reading.given[key])
    if (init := reading.text("init_weights")) in ("pissa", "olora"):
        reading.keep("init_weights", "lora.init_lora_weights", init)
    elif init != "true":
        reading.lose("init_weights", "adapters begin at zero, or as PiSSA's and OLoRA's (true, pissa, olora)")
    for key, why in (
        ("use_dora", "DoRA"),
        ("lorap_lr_ratio", "LoRA+"),
        ("use_swift_lora", "ms-swift's own LoRA"),
    ):
        reading.lose(key, f"{why} is not supported") if reading.on(key) else reading.nothing(
            key, "off, as here"
        )
    if reading.text("lora_dtype") in ("", "float32"):
        reading.nothing("lora_dtype", "adapters are float32, as here")
    else:
        reading.lose("lora_dtype", "adapters and their moments are float32 here")
    reading.nothing([key for key in keys if key.startswith("lora_ga")], "it belongs to init_weights: lora-ga")
    _adapters(reading)
    _quantised(reading)
    return True


def _targets(reading: KeyReader) -> None:
    key = "target_regex" if reading.is_given("target_regex") else "target_modules"
    targets = reading.value(key)
    if targets in ("all-linear", ["all-linear"]):
        reading.keep(key, "lora.target_modules", "all-linear")
    elif "all-embedding" in str(targets) or (isinstance(targets, list) and "all-linear" in targets):
        reading.lose(key, "all-linear beside others is not supported: name the modules")
    else:
        reading.keep(key, "lora.target_modules", targets)
    if key == "target_regex":
        reading.nothing("target_modules", "target_regex wins over it")


def _adapters(reading: KeyReader) -> None:
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


def _quantised(reading: KeyReader) -> None:
    method = reading.text("quant_method")
    keys = [key for key in reading.given if key.startswith(("quant_", "bnb_4bit", "hqq_"))]
    if not method:
        reading.nothing(keys, "the weights are not quantised: no quant_method")
    elif method != "bnb":
        reading.lose("quant_method", f"{method} is not supported: bnb")
    else:
        reading.keep("quant_bits", "lora.quantization_bit", reading.value("quant_bits"))
        reading.mapped("quant_method", ("lora.quantization_bit",))
        reading.keep("bnb_4bit_quant_type", "lora.quantization_type", reading.value("bnb_4bit_quant_type"))
        double = reading.on("bnb_4bit_use_double_quant")
        reading.keep("bnb_4bit_use_double_quant", "lora.double_quant", double)
        reading.nothing("bnb_4bit_quant_storage", KERNEL)
        if not reading.is_given("bnb_4bit_compute_dtype"):
            reading.nothing("bnb_4bit_compute_dtype", "it has no value")


def machine(reading: KeyReader) -> None:
    """Decide how the job is split over devices."""
    stage = reading.text("deepspeed")
    if stage in _PRESETS:
        reading.keep("deepspeed", "training.distributed_strategy", stage)
    elif stage == "zero0":
        reading.keep("deepspeed", "training.distributed_strategy", "ddp", "stage 0 shards nothing")
    elif stage in ("zero2_offload", "zero3_offload"):
        reading.keep("deepspeed", "training.deepspeed", _offloaded(int(stage[4])))
    fsdp = reading.text("fsdp")
    if fsdp == "fsdp2":
        reading.keep("fsdp", "training.distributed_strategy", "fsdp")
        reading.set("training.gradient_checkpointing", True, "fsdp", "the preset recomputes activations")
    elif fsdp:
        reading.lose("fsdp", "ms-swift's own file: set training.fsdp and training.fsdp_config")
    if reading.value("sequence_parallel_size") not in (None, 1):
        size = reading.given["sequence_parallel_size"]
        reading.keep("sequence_parallel_size", "training.parallelism.cp_size", size)
    if reading.is_given("deepspeed_autotp_size"):
        size = reading.given["deepspeed_autotp_size"]
        reading.keep("deepspeed_autotp_size", "training.parallelism.tp_size", size)
    if reading.is_given("zero_hpz_partition_size"):
        reading.lose("zero_hpz_partition_size", "write it in a DeepSpeed JSON (training.deepspeed)")
    reading.nothing(("device_map", "max_memory"), "each process holds its own model, as strategies say")


def _offloaded(stage: int) -> JsonObject:
    place: JsonObject = {"device": "cpu", "pin_memory": True}
    zero: JsonObject = {"stage": stage, "offload_optimizer": place}
    return {"zero_optimization": zero | ({"offload_param": dict(place)} if stage == 3 else {})}
