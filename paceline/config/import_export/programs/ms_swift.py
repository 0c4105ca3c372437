"""ms-swift's arguments (4.6): its YAML and JSON files, and the commands `swift sft`, `pt` and `rlhf`.

ms-swift's embedding models and rerankers: their losses, and what it writes around their texts.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from paceline.config.import_export.argument_tables import NO_TRACKERS, defaults
from paceline.config.import_export.commands.launcher_options import VARIABLES
from paceline.config.import_export.decide_keys import Code
from paceline.config.import_export.local_files import config_of
from paceline.config.import_export.programs import transformers
from paceline.config.import_export.programs.images import frozen_parts, reads_images, reads_others
from paceline.config.import_export.programs.ms_swift_data import completion_length, data, length, loss_scale
from paceline.config.import_export.programs.ms_swift_templates import (
    default_system,
    formats_of,
    template,
    template_names,
)
from paceline.config.import_export.programs.trl import judged_by
from paceline.config.import_export.verdicts import KeyReader
from paceline.config.yaml_text.read_file import read_text
from paceline.config.yaml_text.scalars import resolve_plain
from paceline.core.json_types import Json, JsonObject, as_list, as_number, as_object

#: ms-swift's task, and its loss there → ours
_LOSSES = {
    "embedding": {"infonce": "infonce", "cosine_similarity": "cosine_similarity"},
    "reranker": {"pointwise_reranker": "pointwise", "listwise_reranker": "listwise"},
}
#: variables that its losses read → their defaults
_TEMPERATURES = {"infonce": ("INFONCE_TEMPERATURE", 0.1), "listwise": ("LISTWISE_RERANKER_TEMPERATURE", 1.0)}
_UNREAD = (
    *("INFONCE_HARD_NEGATIVES", "INFONCE_MASK_FAKE_NEGATIVE", "INFONCE_INCLUDE_QQ", "INFONCE_INCLUDE_DD"),
    *("LISTWISE_RERANKER_MIN_GROUP_SIZE", "MAX_POSITIVE_SAMPLES", "MAX_NEGATIVE_SAMPLES"),
)
OF_LOSSES = frozenset((*(name for name, _ in _TEMPERATURES.values()), *_UNREAD, "INFONCE_USE_BATCH"))
#: Prompts of templates that write around texts what their tokenizers do: asked of ms-swift (tests/peers)
_AS_TOKENIZED = {"embedding": ["{{QUERY}}"], "reranker": ["{{QUERY}}[SEP]"]}
_DRAWN = "ms-swift draws one document that answers and up to 7 others of a row in each step; here it has all"


def retrieval(reader: KeyReader) -> None:
    """Decide task, loss and template of ``task_type: embedding`` and ``reranker``."""
    task, word = reader.text("task_type"), reader.text("loss_type")
    loss = _LOSSES[task].get(word, "")
    key = f"training.{task}"
    reader.keep("task_type", "training.algorithm", task)
    if not loss:
        known = ", ".join(_LOSSES[task])
        reader.lose("loss_type", f"{word or 'without one ms-swift does not start'}: {known} are supported")
        return
    reader.set(f"{key}.loss_type", loss, "loss_type")
    steps = reader.result.settings.get("training.gradient_accumulation_steps")
    several = (steps.value if steps else reader.value("gradient_accumulation_steps")) != 1
    if task == "reranker":
        reader.differs("loss_type", f"{key}.loss_type", loss, _DRAWN)
    elif loss == "infonce" and several and _variable(reader, "INFONCE_USE_BATCH", "true") == "true":
        says = "ms-swift compares a query with the documents of its micro-batch, here with those of the step"
        reader.differs("loss_type", f"{key}.loss_type", loss, says)
    else:
        reader.keep("loss_type", f"{key}.loss_type", loss)
    if loss in _TEMPERATURES:
        name, default = _TEMPERATURES[loss]
        reader.set(f"{key}.temperature", float(_variable(reader, name, str(default))), "loss_type", name)
    if _variable(reader, "INFONCE_USE_BATCH", "true") not in ("true", "1") and task == "embedding":
        reader.set(f"{key}.in_batch_negatives", False, "loss_type", "INFONCE_USE_BATCH")
    for name in _UNREAD:
        if reader.is_given(f"ENV.{name}"):
            reader.lose(f"ENV.{name}", "what this variable changes in ms-swift's loss is not supported")
    _template(reader, task)


def _variable(reader: KeyReader, name: str, default: str) -> str:
    key = f"ENV.{name}"
    reader.mapped(key, (f"training.{reader.text('task_type')}",))
    return reader.text(key) or default


def _template(reader: KeyReader, task: str) -> None:
    written, kind = reader.given.get("template"), str(reader.given.get("model_type") or "")
    model = str(reader.given.get("model") or "")
    names = [str(written)] if written else template_names(model, kind, config_of(reader))
    formats = formats_of(names[0]) if len(names) == 1 else {}
    as_tokenized = bool(formats.get("auto_add_bos")) and formats.get("prompt") == _AS_TOKENIZED[task]
    if as_tokenized or (task == "embedding" and formats.get("own") == "Qwen3EmbTemplate"):
        reader.nothing("template", "it writes around a text what the model's tokenizer does")
        return
    which = f" ({names[0]})" if len(names) == 1 else ""
    says = f"ms-swift writes its chat template{which} around each text; here the tokenizer's own ends alone"
    reader.departs("template", says, unset=True)


def classified(reader: KeyReader) -> None:
    """``task_type: seq_cls``: ms-swift writes the chat template around texts and turns, or around none."""
    if reader.text("use_chat_template") == "false":
        says = "texts are read as they are, as there; turns are written by the chat template here"
        reader.departs("use_chat_template", says)
    else:
        says = "ms-swift writes its chat template around texts, too; here around turns alone"
        reader.departs("use_chat_template", says, unset=True)


def split_rows(reader: KeyReader) -> None:
    """``sequence_parallel_size`` where a loss needs whole texts: its ranks take rows of their own instead,
    as many in a step as ms-swift's.
    """
    key, size = "sequence_parallel_size", reader.value("sequence_parallel_size")
    for path in ("training.per_device_train_batch_size", "training.gradient_accumulation_steps"):
        setting = reader.result.settings.get(path)
        rows = setting.value if setting else reader.value(path.rpartition(".")[2])
        if isinstance(size, int) and isinstance(rows, int) and rows % size == 0:
            note = f"a step has as many rows: the {size} ranks that share a text in ms-swift take one each"
            reader.set(path, rows // size, key, note)
            reader.mapped((key, path.rpartition(".")[2]), (path,), note)
            return
    reader.lose(key, f"{reader.text('task_type')} scores whole texts, and a step's rows do not divide")


#: What each command's argument class inherits, later ones over earlier ones (its method resolution, reversed)
_SFT = (
    *("TrainArgumentsMixin", "ModelArguments", "TemplateArguments", "DataArguments", "QuantizeArguments"),
    *("GenerationArguments", "BaseArguments", "TunerArguments", "SwanlabArguments", "SftArguments"),
)
_RLHF = (
    *("RewardModelArguments", "PPOArguments", "VllmArguments", "RolloutTrainerArgumentsMixin"),
    *("GRPOArgumentsMixin", "GRPOArguments", "TeacherModelArguments", "RLHFArguments"),
)
COMMANDS = {"sft": _SFT, "pt": (*_SFT, "PretrainArguments"), "rlhf": (*_SFT, *_RLHF)}


def command_of(arguments: JsonObject, word: str | None) -> str:
    """Return a file's command, from ``word`` (a command or an algorithm), else from its keys."""
    if word in COMMANDS:
        return word
    alone = set(defaults("swift", COMMANDS["rlhf"])) - set(defaults("swift", COMMANDS["sft"]))
    return "rlhf" if word not in (None, "sft") or alone & set(arguments) else "sft"


def swift_defaults(command: str) -> dict[str, object]:
    """Return the defaults of a command's arguments, Transformers' below them."""
    changed = {"report_to": "tensorboard", "ddp_timeout": 18000000}
    return {**defaults("transformers"), **defaults("swift", COMMANDS[command]), **NO_TRACKERS, **changed}


#: The block of a YAML, here of a command line as well, that holds variables of the process
ENVIRONMENT = "ENV"
_PROCESSES = ("NPROC_PER_NODE", "NNODES")
_ROWS = 16  # of a step, where gradient_accumulation_steps is not given


def processes(reader: KeyReader) -> int:
    """Return the total number of processes that ``swift`` starts: one without NPROC_PER_NODE."""
    variables = as_object(reader.given.get(ENVIRONMENT))
    # auto and gpu are no numbers: one process is assumed
    counts = [str(variables.get(name, 1)) for name in _PROCESSES]
    return math.prod(int(count) for count in counts if count.isdecimal())


def precision(reader: KeyReader) -> None:
    """Decide the precision from the weights' dtype: bfloat16 gives bf16, float16 and float32 give fp16."""
    word = reader.text("torch_dtype")
    model_config = config_of(reader)
    note = "" if word else "of the model's config.json"
    stored = (
        model_config.get("dtype")
        or model_config.get("torch_dtype")
        or as_object(model_config.get("text_config")).get("dtype")
    )
    word = word or str(stored or "bfloat16")
    written = [key for key in ("bf16", "fp16") if reader.given.get(key) is not None]
    own_precision = "bf16" if word == "bfloat16" else "fp16"
    on = [key for key in written if reader.on(key)]
    off = [key for key in written if not reader.on(key)]
    chosen = on[0] if on else "no" if own_precision in off else own_precision
    reader.set("training.mixed_precision", chosen, written[0] if written else "torch_dtype", note)
    reader.mapped(written, ("training.mixed_precision",))
    if reader.facts["tuner_type"] != "full":
        reader.keep("torch_dtype", "model.dtype", word, note or "of the frozen weights; adapters are float32")
    else:
        transformers.whole_weights_in(reader, "torch_dtype", word)
    if not stored and not reader.given.get("torch_dtype") and "model" in reader.given:
        reader.differs(
            "torch_dtype",
            "model.dtype",
            word,
            "ms-swift trains in the dtype of the model's config.json, which is not here: bfloat16 is assumed",
        )


def batch(reader: KeyReader) -> None:
    """Decide the batch. Without gradient_accumulation_steps a step has 16 rows over all processes; GRPO has
    no accumulation."""
    count, rows = processes(reader), reader.value("per_device_train_batch_size")
    if not reader.is_given("gradient_accumulation_steps"):
        steps, note = 1, ""
        if reader.facts["word"] != "grpo" and isinstance(rows, int) and rows > 0:
            steps = max(1, math.ceil(_ROWS / rows / count))
            note = f"16 rows a step over {count} process{'es' * (count > 1)}, as ms-swift starts it"
        reader.set("training.gradient_accumulation_steps", steps, "gradient_accumulation_steps", note)
    variables = as_object(reader.given.get(ENVIRONMENT))
    reader.set("launch.nproc", 1, "NPROC_PER_NODE", "ms-swift starts one process without it")
    for name, path in VARIABLES.items():
        value = resolve_plain(str(variables.get(name, "")))
        if value is not None and (path == "launch.master_addr" or isinstance(value, int)):
            reader.set(path, value, f"{ENVIRONMENT}.{name}")
            reader.mapped(f"{ENVIRONMENT}.{name}", (path,))
    others = [f"{ENVIRONMENT}.{name}" for name in variables]
    says = "of the process: set it for this run as well, if it should hold"
    reader.nothing([key for key in others if not reader.decided(key)], says)
    reader.nothing(ENVIRONMENT, says)


def generations(reader: KeyReader) -> None:
    """Decide ``generation_batch_size`` (answers over all processes) and ``steps_per_generation``
    (micro-batches)."""
    rows, answers = reader.value("per_device_train_batch_size"), reader.given.get("generation_batch_size")
    if reader.is_given("steps_per_generation"):
        steps = reader.given["steps_per_generation"]
        reader.keep("steps_per_generation", "training.rollout.steps_per_generation", steps)
        reader.mapped("generation_batch_size", ("training.rollout.steps_per_generation",))
    elif (
        isinstance(answers, int)
        and isinstance(rows, int)
        and rows > 0
        and answers % (rows * processes(reader)) == 0
    ):
        steps = answers // (rows * processes(reader))
        reader.keep("generation_batch_size", "training.rollout.steps_per_generation", steps)
    elif answers:
        reader.lose("generation_batch_size", "it is no multiple of the rows of all processes")


def new_tokens(reader: KeyReader) -> None:
    """``new_special_tokens`` are tokens, or .txt files of them, divided by white space."""
    tokens = list[Json]()
    for name in map(str, as_list(reader.given["new_special_tokens"])):
        here = [file for file in (Path(name), Path(reader.result.file).parent / name) if file.is_file()]
        if name.endswith(".txt") and not here:
            reader.lose("new_special_tokens", f"{name} is not here: write the tokens themselves")
            return
        tokens += read_text(str(here[0]), "the file of tokens").split() if here else [name]
    reader.keep("new_special_tokens", "model.add_special_tokens", tokens)


_FORMAT = r"^<think>.*?</think>\s*<answer>.*?</answer>(?![\s\S])"
_REACT = r"^<think>.*?</think>\s*Action:.*?Action Input:"
#: ms-swift's own reward functions as ours
REWARDS: dict[str, JsonObject] = {
    "format": {"name": "regex", "options": {"pattern": _FORMAT}},
    "react_format": {"name": "regex", "options": {"pattern": _REACT}},
    "accuracy": {"name": "math_verify", "options": {"tag": "answer"}},
}


def rewards(reader: KeyReader) -> None:
    """Decide reward functions and models; the list of weights covers first the functions, then the models."""
    names, models = (
        list(map(str, as_list(reader.given.get(key)))) for key in ("reward_funcs", "reward_model")
    )
    known, path = dict(REWARDS), "training.rollout.rewards"
    buffer = reader.given.get("soft_cache_length")
    if isinstance(buffer, int):
        longest = reader.given.get("soft_max_length") or completion_length(reader)
        known["soft_overlong"] = {"name": "overlong", "options": {"max_length": longest, "buffer": buffer}}
    unknown = [name for name in names if name not in known]
    if unknown:
        says = f"{', '.join(unknown)}: write it as a function of yours in {path} (docs/how-to/rollouts.md)"
        reader.lose("reward_funcs", says)
    weights = as_list(reader.given.get("reward_weights"))
    shares = weights if len(weights) == len(names) + len(models) else [1.0] * (len(names) + len(models))
    items: list[JsonObject] = [known.get(name, {"name": "ended"}) for name in names]
    items += [{"name": "model", "options": {"model": name}} for name in models]
    listed: list[Json] = [{**item, "weight": share} for item, share in zip(items, shares, strict=True)]
    if unknown or not items:
        return
    reader.set(path, listed, "reward_funcs" if names else "reward_model")
    if "accuracy" in names:
        judged_by(reader, "solution")
    keys = ("reward_funcs", "reward_model", "reward_weights", "soft_cache_length", "soft_max_length")
    reader.mapped([key for key in keys if not reader.decided(key)], (path,))


def server(reader: KeyReader) -> None:
    """Decide ``vllm_mode: server`` and its address; Paceline needs vLLM's own server, not `swift rollout`."""
    base, host = (
        as_list(reader.given.get("vllm_server_base_url")),
        as_list(reader.given.get("vllm_server_host")),
    )
    port = as_list(reader.value("vllm_server_port")) or [8000]
    address = str(base[0]) if base else f"http://{host[0]}:{port[0]}" if host else ""
    if not address:
        reader.lose(
            "vllm_mode", "without vllm_server_host ms-swift does not start: set training.rollout.server"
        )
        return
    path = "training.rollout.server"
    note = "start `vllm serve` there, not `swift rollout`"
    ports = port if len(port) == len(host) else [*port[:1]] * len(host)
    several = [str(url) for url in base] or [
        f"http://{name}:{number}" for name, number in zip(host, ports, strict=True)
    ]
    if len(several) > 1:
        path = f"{path}s"
    reader.keep("vllm_mode", path, list[Json](several) if len(several) > 1 else {"url": address}, note)
    keys = ("vllm_server_base_url", "vllm_server_host", "vllm_server_port", "use_vllm")
    reader.mapped([key for key in keys if not reader.decided(key)], (path,))


def freezing(reader: KeyReader) -> None:
    """Decide the names that are frozen and the exceptions that are trained: by prefix, or by a regular
    expression that is searched (``swift.utils.freeze_parameters`` and ``activate_parameters``).
    """
    named: dict[str, list[Json]] = {}
    for kind in ("freeze", "trainable"):
        regex = reader.value(f"{kind}_parameters_regex")
        begins = [f"^{re.escape(str(name))}" for name in as_list(reader.value(f"{kind}_parameters"))]
        named[kind] = [*begins, *([f"^.*(?:{regex})"] if regex else [])]
    ratio = as_number(reader.value("freeze_parameters_ratio")) or 0.0
    if 0 < ratio < 1:
        reader.lose("freeze_parameters_ratio", "how far it reaches depends on the model: name the layers")
    keys = [key for key in reader.given if key.startswith(("freeze_parameters", "trainable_parameters"))]
    left = [key for key in keys if not reader.decided(key)]
    if not named["freeze"] and ratio != 1:
        reader.nothing(left, "nothing is frozen")
        return
    if ratio != 1:  # else all is frozen, which unfreeze alone says
        reader.set("training.freeze", named["freeze"], "freeze_parameters")
    if named["trainable"]:
        reader.set("training.unfreeze", named["trainable"], "trainable_parameters")
    reader.mapped(left, ("training.freeze", "training.unfreeze"))


def _images(reader: KeyReader) -> None:
    """Decide what is frozen of a model that reads images (``freeze_vit`` and others)."""
    names = reader.value("model"), reader.value("model_type")
    sees = reads_images(*names)
    reader.facts["sees_images"] = sees
    if reads_others(*names):
        reader.lose("model", "its images, video or sound are not read: the language model alone is trained")
    if sees:
        keys = {"vision": "freeze_vit", "projector": "freeze_aligner", "text": "freeze_llm"}
        frozen_parts(reader, keys, reader.text("tuner_type") == "full")


CODE: Code = {
    **transformers.CODE,
    "loss_scale": loss_scale,
    "template": template,
    "system": default_system,
    "precision": precision,
    "batch": batch,
    "data": data,
    "length": length,
    "completion": lambda reader: reader.set(
        "training.rollout.max_completion_length", completion_length(reader), "max_completion_length"
    ),
    "distilled": lambda reader: reader.keep(
        "max_completion_length", "training.distillation.max_completion_length", completion_length(reader)
    ),
    "rewards": rewards,
    "server": server,
    "generations": generations,
    "freezing": freezing,
    "images": _images,
    "new_tokens": new_tokens,
    "classified": classified,
    "retrieval": retrieval,
    "split_rows": split_rows,
}
