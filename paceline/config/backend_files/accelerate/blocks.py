"""The blocks of an Accelerate file: DeepSpeed, FSDP, Megatron-LM, parallelism, dynamo."""

from __future__ import annotations

import math

from paceline.config import codes
from paceline.config.backend_files.deepspeed.normalize import table
from paceline.config.backend_files.layer import SettingsReader
from paceline.config.keys.nearest import did_you_mean
from paceline.config.yaml_text.read_file import read_table, texts
from paceline.core.json_types import Json, JsonObject, as_object

_TABLE = read_table("accelerate", "backend_files")
_DEEPSPEED, _DEEPSPEED_NOTES = texts(_TABLE["deepspeed"]), texts(_TABLE["deepspeed_said"])
_PARALLEL_NOTES, _MEGATRON = texts(_TABLE["parallelism_said"]), texts(_TABLE["megatron"])
# filled in from the training arguments by Accelerate
_OPEN = (
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
    "gradient_clipping",
)
_MOE = ("deepspeed_moe_layer_cls_names", "transformer_moe_cls_names")
_AXES = ("dp_replicate_size", "dp_shard_size", "tp_size", "cp_size", "sp_size")
_MEGATRON_OFF = (
    "expert_model_parallel_size",
    "expert_tensor_parallel_size",
    "optimizer_cpu_offload",
    "use_custom_fsdp",
)


def _unknown(reader: SettingsReader, block: str, key: str, valid_keys: tuple[str, ...]) -> None:
    reader.problem(
        codes.ACCELERATE_UNKNOWN_KEY,
        f"Accelerate's {block} has no setting '{key}'",
        key,
        key,
        did_you_mean(key, valid_keys),
    )


def deepspeed_block(reader: SettingsReader, file_data: JsonObject) -> None:
    """Convert the block to the DeepSpeed JSON that Accelerate makes of it, or note the file that it names."""
    document, data = reader.document, reader.document.data
    # A file replaces the block's own settings
    file = data.get("deepspeed_config_file")
    if file and str(file).lower() != "none":
        reader.layer.blocks["training.deepspeed"] = f"{document.place('deepspeed_config_file')}\n{file}"
        for key in data:
            if key in _DEEPSPEED:
                reader.note(key, f"{key}: the DeepSpeed file takes precedence, as in accelerate")
            elif key != "deepspeed_config_file":
                _deepspeed_other(reader, key, {}, {})
        return
    # Translate each key, remembering where it came from
    json: JsonObject = {}
    origin: dict[str, str] = {}
    for key, value in data.items():
        if key in _DEEPSPEED:
            if value is not None and not (key.endswith("nvme_path") and str(value).lower() == "none"):
                _put(json, _DEEPSPEED[key], value)
                origin[_DEEPSPEED[key]] = key
        elif key != "deepspeed_config_file":
            _deepspeed_other(reader, key, json, origin)
    # Accelerate's defaults
    if isinstance(zero := json.setdefault("zero_optimization", {}), dict):
        zero.setdefault("stage", 2)
    sequence = as_object(file_data.get("parallelism_config")).get("parallelism_config_sp_size")
    if isinstance(sequence, int) and sequence > 1:
        json["sequence_parallel_size"] = sequence
    open_keys = {key: "auto" for key in _OPEN if key not in json}
    reader.layer.blocks["training.deepspeed"] = document.made(json | open_keys, origin)


def _deepspeed_other(reader: SettingsReader, key: str, json: JsonObject, origin: dict[str, str]) -> None:
    value = reader.document.data[key]
    if key in _DEEPSPEED_NOTES:
        if value not in (None, False, "", "standard"):
            reader.note(key, f"{key}: {_DEEPSPEED_NOTES[key]}")
    elif key in _MOE:
        if names := [name.strip() for name in str(value or "").split(",") if name.strip()]:
            _put(json, "zero_optimization.leaf_module.classes", names)
            origin["zero_optimization.leaf_module.classes"] = key
    elif key in ("enable_msamp", "msamp_opt_level"):
        if value not in (None, False):
            reader.problem(
                codes.ACCELERATE_NOT_BUILT,
                f"{key}: 8-bit training is not supported",
                key,
                str(value),
                "remove it",
            )
    elif key in table():
        json[key] = _merged(json.get(key), value)
        origin |= {path: path for path in reader.document.lines if f"{path}.".startswith(f"{key}.")}
        reader.note(
            key,
            f"{key}: read as a key of DeepSpeed's JSON; accelerate itself ignores it here",
            "name a JSON file in deepspeed_config_file",
        )
    else:
        valid_keys = (*_DEEPSPEED, *_DEEPSPEED_NOTES, *_MOE, "deepspeed_config_file")
        _unknown(reader, "deepspeed_config", key, valid_keys)


def _merged(lower: Json, upper: Json) -> Json:
    """Merge ``upper`` over ``lower``, recursively."""
    if not (isinstance(lower, dict) and isinstance(upper, dict)):
        return upper
    return {**lower, **{key: _merged(lower.get(key), value) for key, value in upper.items()}}


def _put(data: JsonObject, path: str, value: Json) -> None:
    *outer, last = path.split(".")
    for part in outer:
        inner = data.setdefault(part, {})
        if not isinstance(inner, dict):
            return  # the reader of the JSON says that a mapping belongs there
        data = inner
    data[last] = value


def fsdp_block(reader: SettingsReader, file_data: JsonObject) -> None:
    """Keep the FSDP settings for the FSDP reader."""
    reader.layer.blocks["training.fsdp_config"] = reader.document


def parallelism_block(reader: SettingsReader, file_data: JsonObject) -> None:
    """Convert the mesh sizes.

    Ulysses (``sp_size``) and context parallelism (``cp_size``) both split the sequence.
    """
    sizes: JsonObject = {}
    for key, value in reader.document.data.items():
        name = key.removeprefix("parallelism_config_")
        if value is None:
            continue
        if name in _AXES:
            sizes[name] = value
        elif name in _PARALLEL_NOTES:
            reader.note(key, f"{key}: {_PARALLEL_NOTES[name]}")
        else:
            valid_keys = tuple(f"parallelism_config_{axis}" for axis in (*_AXES, *_PARALLEL_NOTES))
            _unknown(reader, "parallelism_config", key, valid_keys)
    if sizes.get("sp_size", 1) != 1 and sizes.get("cp_size", 1) != 1:
        reader.problem(
            codes.ACCELERATE_NOT_BUILT,
            "sp_size and cp_size both split the sequence; only one can be used",
            "",
            str(sizes),
            "set sp_size: 1, or cp_size: 1",
        )
        return
    # sp_size is Ulysses, cp_size gathers keys and values
    for name, size in sizes.items():
        path = f"parallelism_config_{name}"
        if name not in ("cp_size", "sp_size"):
            reader.set_entry(f"training.parallelism.{name}", size, path)
        elif size != 1:
            reader.set_entry("training.parallelism.cp_size", size, path)
            method = "allgather" if name == "cp_size" else "ulysses"
            reader.set_entry("training.parallelism.cp_method", method, path)


def megatron_block(reader: SettingsReader, file_data: JsonObject) -> None:
    """Convert Megatron's parallel degrees to the native mesh, which splits the model in the same way."""
    data = {
        key.removeprefix("megatron_lm_"): (key, value)
        for key, value in reader.document.data.items()
        if value is not None
    }
    for name, (key, value) in data.items():
        if name in _MEGATRON:
            reader.set_entry(_MEGATRON[name], value, key)
        elif name in _MEGATRON_OFF and value not in (False, 1):
            reader.problem(
                codes.ACCELERATE_NOT_BUILT, f"{key} is not supported", key, str(value), "remove it"
            )
        elif name != "use_distributed_optimizer":
            reader.note(key, f"{key} belongs to Megatron's own training loop and is ignored")
    # Ranks beyond tp · pp · cp are data-parallel and shard weights and optimizer states
    degrees = [data.get(name, ("", 1))[1] for name in ("tp_degree", "pp_degree", "context_parallel_size")]
    strategy = "pipeline" if degrees[1] != 1 else "fsdp"
    reader.set_entry("training.distributed_strategy", strategy, "megatron_lm_pp_degree")
    numbers = [degree for degree in degrees if isinstance(degree, int)]
    total, split = file_data.get("num_processes"), math.prod(numbers) if len(numbers) == 3 else 0
    if isinstance(total, int) and split and total % split == 0 and total > split:
        reader.set_entry("training.parallelism.dp_shard_size", total // split, "megatron_lm_tp_degree")
    reader.note(
        "megatron_lm_use_distributed_optimizer",
        "Megatron-LM itself is not used: the same parallel degrees are set on Paceline's mesh, with"
        " weights and optimizer sharded over the data-parallel ranks",
    )


def dynamo_block(reader: SettingsReader, file_data: JsonObject) -> None:
    """Convert ``dynamo_backend`` and its options to torch_compile."""
    data = {key.removeprefix("dynamo_"): (key, value) for key, value in reader.document.data.items()}
    key, backend = data.pop("backend", ("", "no"))
    if str(backend).lower() in ("no", "false", "none", ""):
        return
    reader.set_entry("training.torch_compile", True, key)
    reader.set_entry("training.torch_compile_backend", str(backend).lower(), key)
    for name, (path, value) in data.items():
        if name == "mode":
            if value not in (None, "default"):
                reader.set_entry("training.torch_compile_mode", value, path)
        elif value not in (None, False):
            reader.note(path, f"{path}: ignored; torch.compile chooses its own settings")
