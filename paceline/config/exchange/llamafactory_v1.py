"""Files of LLaMA-Factory's version 1 (``model``, ``dist_config``, ``peft_config``), and Megatron's keys."""

from __future__ import annotations

from pathlib import Path

from paceline.config.exchange.common import CHUNKED, KERNEL
from paceline.config.exchange.reading import KeyReader
from paceline.config.reading import read_text
from paceline.config.yaml_tree import parse_yaml
from paceline.core.json_types import Json, JsonObject, as_object

_FUSED = (
    "bias_activation_fusion",
    "apply_rope_fusion",
    "masked_softmax_fusion",
    "moe_grouped_gemm",
    "use_flash_attn",
)
_OVERLAPPED = (
    "overlap_param_gather",
    "overlap_grad_reduce",
    "use_distributed_optimizer",
    "moe_token_dispatcher_type",
    "gradient_accumulation_fusion",
    "tp_comm_overlap",
)
_SIZES = {
    "tensor_model_parallel_size": "tp_size",
    "pipeline_model_parallel_size": "pp_size",
    "context_parallel_size": "cp_size",
}
_STEPS = ("kt_config.kt_num_threads", "cpu_infer", "chunk_size", "kt_optimize_rule")


def megatron(reading: KeyReader) -> None:
    """Parallel sizes and fused kernels of Megatron: the same function, split and computed in another way."""
    reading.nothing(_FUSED, KERNEL)
    reading.nothing(_OVERLAPPED, "it hides communication; the sums are the same")
    for key, ours in _SIZES.items():
        if reading.is_given(key):
            reading.keep(key, f"training.parallelism.{ours}", reading.given[key])
    if reading.is_given("sequence_parallel"):
        reading.keep(
            "sequence_parallel", "training.parallelism.sequence_parallel", reading.on("sequence_parallel")
        )
    reading.nothing(
        "expert_model_parallel_size", "experts are sharded like all other weights; the sums are the same"
    )
    if reading.text("recompute_granularity") == "full":
        reading.keep("recompute_granularity", "training.gradient_checkpointing", True)
    reading.nothing(("recompute_method", "recompute_num_layers"), CHUNKED)


def ktransformers(reading: KeyReader) -> None:
    """Experts computed on the CPU in bfloat16 are the same experts; quantised ones are others."""
    config = as_object(reading.given.get("kt_config"))
    word = str(config.get("kt_expert_weight_format", "bf16")).lower()
    keys = [key for key in reading.given if key.startswith(("kt_", "use_kt")) or key in _STEPS]
    if word in ("bf16", "bfloat16"):
        reading.nothing(
            keys, "it computes the same experts on the CPU; here they lie on the devices (see the plan)"
        )
        return
    for key in keys:
        reading.lose(key, f"experts quantised to {word} on the CPU are not supported")


def version_1(reading: KeyReader) -> None:
    """Decide the keys of version 1."""
    if not (
        reading.is_given("model")
        and ({"model_class", "dist_config", "train_dataset", "peft_config"} & set(reading.given))
    ):
        return
    reading.keep("model", "model.name_or_path", reading.given["model"])
    if reading.text("model_class") in ("llm", ""):
        reading.nothing("model_class", "the class follows from the model's config")
    if reading.is_given("train_dataset"):
        _data(reading, str(reading.given["train_dataset"]))
    reading.nothing(("init_config", "init_config.name"), "weights are streamed to every rank")
    reading.nothing([key for key in reading.given if key.startswith("kernel_config")], KERNEL)
    size = reading.given.get("train_size")
    if isinstance(size, float) and 0 < size < 1:
        reading.keep("train_size", "data.validation_split", round(1 - size, 6))
    if reading.text("batching_strategy") in ("normal", "padding_free"):
        reading.keep("batching_strategy", "data.packing", False, "padding never weighs anything")
    _distribution(reading)
    _adapter(reading)
    method = reading.text("cp_mode")
    if method in ("ulysses",) and reading.is_given("cp_size"):
        reading.keep("cp_size", "training.parallelism.cp_size", reading.given["cp_size"])
        reading.keep("cp_mode", "training.parallelism.cp_method", method)


def _data(reading: KeyReader, name: str) -> None:
    """Data sets are listed in a YAML of their own: name → path, source, split."""
    file = next((f for f in (Path(name), Path(reading.result.file).parent / name) if f.is_file()), None)
    if file is None or file.suffix not in (".yaml", ".yml"):
        reading.keep(
            "train_dataset",
            "data.train",
            [name],
            "" if file else "the file that lists the data sets is not here",
        )
        return
    tree = parse_yaml(read_text(str(file)), str(file))
    listed = as_object(tree.data() if tree else None)
    found: list[Json] = [{"path": as_object(item).get("path")} for item in listed.values()]
    reading.keep("train_dataset", "data.train", found)


def _distribution(reading: KeyReader) -> None:
    config = as_object(reading.given.get("dist_config"))
    name = str(config.get("name"))
    if name == "fsdp2":
        reading.set("training.distributed_strategy", "fsdp", "dist_config")
    elif name == "deepspeed":
        reading.set("training.deepspeed", config.get("config_file"), "dist_config")
    else:
        return
    reading.mapped(
        [key for key in reading.given if key.startswith("dist_config")], ("training.distributed_strategy",)
    )


def _adapter(reading: KeyReader) -> None:
    config = as_object(reading.given.get("peft_config"))
    keys = [key for key in reading.given if key.startswith("peft_config")]
    if not config:
        _quantised(reading, False)
        return
    if config.get("name") != "lora":
        for key in keys:
            reading.lose(key, f"{config.get('name')} is not supported: lora or full")
        return
    for key, ours in (
        ("r", "r"),
        ("lora_alpha", "alpha"),
        ("lora_dropout", "dropout"),
        ("target_modules", "target_modules"),
        ("adapter_name_or_path", "adapter_name_or_path"),
    ):
        if config.get(key) is not None:
            value = config[key]
            reading.keep(
                f"peft_config.{key}",
                f"lora.{ours}",
                "all-linear" if value in ("all", "all-linear") else value,
            )
    reading.nothing(
        [key for key in keys if ".export" in key or ".merge" in key], "merging is `paceline export --merge`"
    )
    reading.mapped([key for key in keys if not reading.decided(key)], ("lora",))
    _quantised(reading, True)


def _quantised(reading: KeyReader, adapter: bool) -> None:
    config: JsonObject = as_object(reading.given.get("quant_config"))
    keys = [key for key in reading.given if key.startswith("quant_config")]
    if config.get("name") in ("bnb", "auto") and adapter:
        reading.set("lora.quantization_bit", config.get("quantization_bit"), "quant_config")
        reading.mapped(keys, ("lora.quantization_bit",))
