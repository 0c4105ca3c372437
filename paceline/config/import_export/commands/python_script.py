"""Python scripts that build a trainer's arguments, read by ``ast`` and never run.

Literal values become keys of TRL or Transformers; values known only at run time are listed with their line.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from paceline.config import codes
from paceline.config.import_export.argument_tables import defaults
from paceline.config.import_export.commands.command_line import Command
from paceline.config.import_export.commands.python_values import NotLiteral, ScriptValues, called
from paceline.config.import_export.programs.trl import TRAINERS, trl_defaults
from paceline.config.import_export.verdicts import Finding, KeyVerdict
from paceline.config.yaml_text.read_file import read_text
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, as_object

#: classes of arguments → the trainer of TRL; None: Transformers' own
_CONFIGS: Mapping[str, str | None] = {
    **{config: trainer for trainer, config in TRAINERS.items()},
    "TrainingArguments": None,
    "Seq2SeqTrainingArguments": None,
}
_OF_TRAINER: Mapping[str, str] = {
    config.replace("Config", "Trainer"): trainer for trainer, config in TRAINERS.items()
}
_PLAIN = ("Trainer", "Seq2SeqTrainer")
_OTHERS = ("ORPO", "CPO", "PPO", "GKD", "OnlineDPO", "NashMD", "XPO", "PRM", "BCO", "GOLD", "Distillation")
_MODELS = {"AutoModelForCausalLM": "", "AutoModelForSequenceClassification": "classification"}
_OF_MODEL = ("torch_dtype", "dtype", "attn_implementation", "trust_remote_code", "use_flash_attention_2")
_OF_LORA = {
    **{name: f"lora_{name}" for name in ("r", "target_modules", "modules_to_save", "target_parameters")},
    **{name: name for name in ("lora_alpha", "lora_dropout", "use_rslora", "use_dora")},
}
_OF_BITS = {
    **{name: name for name in ("load_in_4bit", "load_in_8bit", "bnb_4bit_quant_type")},
    "bnb_4bit_use_double_quant": "use_bnb_nested_quant",
}
_ROWS_KEPT = ("shuffle", "remove_columns", "with_format", "set_format", "cast", "cast_column", "flatten")
_COLLATORS = ("DataCollatorForLanguageModeling", "DataCollatorForSeq2Seq", "DataCollatorWithPadding")
_MADE = "the script's own function makes the rows: data.converter can call it, if it returns rows of text"
_FIRST_ROWS = re.compile(r"(\w+)\[:(\d+)\]")


@dataclass
class _ScriptReader:
    """Reads a script's calls; ``command`` collects the keys and the findings."""

    values: ScriptValues
    command: Command
    seen: set[int] = field(default_factory=set)

    def put(self, key: str, value: Json, line: int) -> None:
        self.command.data.setdefault(key, value)
        self.command.lines.setdefault(key, line)

    def report(
        self, key: str, source: str, line: int, says: str, verdict: KeyVerdict = KeyVerdict.LOST
    ) -> None:
        self.command.found.append(Finding(key, source, line, verdict, (), says))

    def report_open(self, key: str, problem: NotLiteral) -> None:
        self.report(
            key, problem.source, problem.line, "only running the script would tell it: write its value"
        )

    def literal(self, key: str, node: ast.expr) -> Json:
        """Return a literal; report one that is not literal and return None."""
        try:
            return self.values.of(node)
        except NotLiteral as problem:
            self.report_open(key, problem)
            return None

    def keywords(self, call: ast.Call, names: Mapping[str, str] | None = None) -> None:
        """Take a call's keyword arguments of these names (None: all)."""
        given, lines, problems = self.values.keywords(call)
        for name, value in given.items():
            if names is None or name in names:
                self.put(names[name] if names else name, value, lines[name])
        for name, problem in problems.items():
            if names is None or name in names:
                self.report_open(names[name] if names and name in names else name, problem)


def read_script(path: str) -> Command:
    """Return what a Python script trains. Raises ConfigError where it builds no arguments of a trainer."""
    try:
        tree = ast.parse(read_text(path), path)
    except (SyntaxError, ValueError, RecursionError) as exc:
        line = getattr(exc, "lineno", None) or 1
        raise ConfigError(
            codes.CONFIG_IMPORT_COMMAND("this is no Python that can be read", f"{path}:{line}", "", str(exc))
        ) from None
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    reader = _ScriptReader(ScriptValues(tree), Command(name=path))
    trainer = _trainer(calls, path)
    arguments = _arguments(calls, trainer, path)
    _system(reader.command, trainer, arguments)
    if arguments.args and arguments is not trainer:
        reader.put("output_dir", reader.literal("output_dir", arguments.args[0]), arguments.lineno)
    _set_later(reader, tree, arguments)
    if arguments is not trainer:
        reader.keywords(arguments)
    _model(reader, calls, trainer)
    _adapters(reader, calls)
    if trainer is not None:
        _of_trainer(reader, trainer)
    _rows(reader, calls, trainer)
    if (
        called(arguments) in ("TrainingArguments", "Seq2SeqTrainingArguments")
        and reader.command.system == "trl"
    ):
        _older_defaults(reader, arguments)
    return reader.command


def _trainer(calls: list[ast.Call], path: str) -> ast.Call | None:
    """Return the call that builds the trainer. Raises ConfigError for one that is not imported."""
    known = [call for call in calls if called(call) in {*_OF_TRAINER, *_PLAIN}]
    others = [call for call in calls if called(call) in {f"{name}Trainer" for name in _OTHERS}]
    if others and not known:
        raise ConfigError(
            codes.CONFIG_IMPORT_COMMAND(
                f"scripts of {called(others[0])} are not imported",
                f"{path}:{others[0].lineno}",
                called(others[0]),
                f"{', '.join(_OF_TRAINER)} and Trainer are; else write the YAML by hand",
            )
        )
    # a class of the script's own may stand for the plain one
    own = [call for call in calls if called(call).endswith("Trainer")]
    return next(iter(known or own), None)


def _arguments(calls: list[ast.Call], trainer: ast.Call | None, path: str) -> ast.Call:
    """Return the call that builds the arguments. Raises ConfigError unless there is one."""
    found = [call for call in calls if called(call) in _CONFIGS]
    wanted = TRAINERS.get(_OF_TRAINER.get(called(trainer), "") if trainer else "")
    found = [call for call in found if called(call) == wanted] or found
    if len(found) == 1:
        return found[0]
    if not found and trainer is not None and wanted and _keyword(trainer, "args") is None:
        return trainer  # all of its arguments are defaults
    parses = any(called(call).startswith("parse_args_") for call in calls)
    what = (
        "the script builds several arguments of trainers"
        if found
        else "the script builds no arguments of a trainer"
    )
    if not found and parses:
        what = "the script takes its arguments from the command line or a file"
    remedy = "import the command that starts it, in quotes, or the file that it reads"
    places = ", ".join(f"line {call.lineno}" for call in found)
    raise ConfigError(codes.CONFIG_IMPORT_COMMAND(what, f"{path}:1", places, remedy))


def _system(command: Command, trainer: ast.Call | None, arguments: ast.Call) -> None:
    of_trl = _OF_TRAINER.get(called(trainer)) if trainer else None
    algorithm = _CONFIGS.get(called(arguments)) or of_trl
    command.system, command.algorithm = ("trl", algorithm) if algorithm else ("hf", None)


def _set_later(reader: _ScriptReader, tree: ast.Module, arguments: ast.Call) -> None:
    """Take ``setattr(args, "beta", 0.2)`` and ``args.beta = 0.2`` after the arguments are built."""
    for node in ast.walk(tree):
        owner: ast.expr | None = None
        if isinstance(node, ast.Call) and called(node) == "setattr" and len(node.args) == 3:
            owner, key, value = node.args
            name = key.value if isinstance(key, ast.Constant) else ""
        elif isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Attribute):
            owner, name, value = target.value, target.attr, node.value
        if owner is not None and name and reader.values.origin(owner) is arguments:
            reader.put(str(name), reader.literal(str(name), value), value.lineno)


def _older_defaults(reader: _ScriptReader, arguments: ast.Call) -> None:
    """Use the defaults of TrainingArguments where a TRL trainer gets these instead of its own config
    class."""
    theirs = trl_defaults(reader.command.algorithm or "sft")
    for key, value in defaults("transformers").items():
        if theirs.get(key) != value and isinstance(value, (bool, int, float, str)) and key != "report_to":
            reader.put(key, value, arguments.lineno)


def _model(reader: _ScriptReader, calls: list[ast.Call], trainer: ast.Call | None) -> None:
    """Take the model that ``from_pretrained`` loads, or that the trainer is given by name."""
    loads = [
        (call, call.func.value)
        for call in calls
        if isinstance(call.func, ast.Attribute) and called(call) == "from_pretrained"
    ]
    models = [(call, called(owner)) for call, owner in loads if "Model" in called(owner)]
    for call, owner in models[:1]:
        name = call.args[0] if call.args else _keyword(call, "pretrained_model_name_or_path", "model_name")
        if name is not None:
            reader.put("model_name_or_path", reader.literal("model_name_or_path", name), call.lineno)
        reader.keywords(call, {**{k: k for k in _OF_MODEL}, "revision": "model_revision"})
        reader.keywords(call, {k: _OF_BITS[k] for k in ("load_in_4bit", "load_in_8bit")})
        if owner in _MODELS and reader.command.system == "hf":
            reader.command.algorithm = _MODELS[owner] or reader.command.algorithm
        elif owner.startswith("AutoModelFor") and owner not in _MODELS:
            reader.report("task_type", owner, call.lineno, f"models of {owner} are not trained")
    named = _keyword(trainer, "model") if trainer else None
    if not models and named is not None:
        reader.put("model_name_or_path", reader.literal("model_name_or_path", named), named.lineno)


def _adapters(reader: _ScriptReader, calls: list[ast.Call]) -> None:
    for call in [call for call in calls if called(call) == "LoraConfig"][:1]:
        reader.put("use_peft", True, call.lineno)
        for name, value in {"lora_r": 8, "lora_alpha": 8, "lora_dropout": 0.0}.items():
            ours = "r" if name == "lora_r" else name
            if not any(word.arg == ours for word in call.keywords):
                reader.put(name, value, call.lineno)  # peft's own
        reader.keywords(call, _OF_LORA)
        bias = _keyword(call, "bias")
        if isinstance(bias, ast.Constant) and bias.value != "none":
            reader.report("bias", str(bias.value), bias.lineno, "biases are not trained beside adapters")
    for call in [call for call in calls if called(call) == "BitsAndBytesConfig"][:1]:
        reader.keywords(call, _OF_BITS)


def _of_trainer(reader: _ScriptReader, trainer: ast.Call) -> None:
    """Take older arguments and reward functions of TRL's trainers; report arguments that stay in the
    script."""
    if reader.command.system == "trl":
        known = trl_defaults(reader.command.algorithm or "sft")
        older = ("max_seq_length", "max_prompt_length", "max_target_length")
        names = [name for name in (*known, *older) if name not in ("model", "args", "reward_funcs")]
        reader.keywords(trainer, {name: name for name in names})
    functions = _keyword(trainer, "reward_funcs")
    if functions is not None:
        functions = reader.values.origin(functions) or functions
        listed = functions.elts if isinstance(functions, (ast.List, ast.Tuple)) else [functions]
        reader.put("reward_funcs", [called(item) or ast.unparse(item) for item in listed], functions.lineno)
    for name, says in {
        "callbacks": "callbacks of the script's own are not called",
        "compute_metrics": "metrics of the script's own are not computed: training.eval_metrics names ours",
        "formatting_func": _MADE,
        "optimizers": "an optimizer that the script builds: training.optim names one",
    }.items():
        if (given := _keyword(trainer, name)) is not None:
            reader.report(name, ast.unparse(given)[:80], given.lineno, says)
    collator = reader.values.origin(_keyword(trainer, "data_collator"))
    if isinstance(collator, ast.Call) and called(collator) == "DataCollatorForCompletionOnlyLM":
        reader.put("assistant_only_loss", True, collator.lineno)
    elif collator is not None and called(collator) not in _COLLATORS:
        reader.report(
            "data_collator", ast.unparse(collator)[:80], collator.lineno, "batches of the script's own"
        )


def _rows(reader: _ScriptReader, calls: list[ast.Call], trainer: ast.Call | None) -> None:
    """Take the data set that the trainer gets, followed to where it is loaded."""
    given = _keyword(trainer, "train_dataset") if trainer else None
    loaded = list(_loads(reader, given)) if given is not None else []
    loaded = loaded or [(call, "") for call in calls if called(call) in ("load_dataset", "load_from_disk")]
    if not loaded:
        if given is not None:
            reader.report("train_dataset", ast.unparse(given)[:80], given.lineno, _MADE)
        return
    call, part = loaded[0]
    for other, _ in loaded[1:]:
        if ast.dump(other) != ast.dump(call):
            reader.report(
                "load_dataset",
                ast.unparse(other)[:80],
                other.lineno,
                "a second data set: add it to data.train",
            )
    _loaded(reader, call, part)


def _loaded(reader: _ScriptReader, call: ast.Call, part: str) -> None:
    """Take ``load_dataset(path, name, split=…, data_files=…)``."""
    words, _, problems = reader.values.keywords(call)
    for name in ("path", "name", "split", "data_files", "data_dir", "streaming"):
        if name in problems:
            reader.report_open(
                {"path": "dataset_name", "name": "dataset_config"}.get(name, name), problems[name]
            )
    for name, node in zip(("path", "name"), call.args, strict=False):
        words[name] = reader.literal({"path": "dataset_name"}.get(name, "dataset_config"), node)
    split = str(words.get("split") or part or "train")
    if words.get("data_files") or words.get("data_dir"):
        item = {key: words[key] for key in ("path", "name", "data_files", "data_dir") if words.get(key)}
        files = as_object(item.get("data_files"))
        if files:  # a file for each split
            item["data_files"] = files.get(split, next(iter(files.values())))
        reader.put("datasets", [{**item, "split": split}], call.lineno)
        return
    for key, value in (("dataset_name", words.get("path")), ("dataset_config", words.get("name"))):
        if value is not None:
            reader.put(key, value, call.lineno)
    reader.put("dataset_train_split", split, call.lineno)
    if words.get("streaming"):
        reader.put("dataset_streaming", True, call.lineno)


def _loads(reader: _ScriptReader, node: ast.expr, part: str = "") -> Iterator[tuple[ast.Call, str]]:
    """Yield the calls that load the data of an expression, and the split taken from each."""
    if id(node) in reader.seen:
        return
    reader.seen.add(id(node))
    if isinstance(node, ast.Name):
        for value in reader.values.all_of(node.id):
            yield from _loads(reader, value, part)
    elif isinstance(node, ast.Subscript):
        name = node.slice.value if isinstance(node.slice, ast.Constant) else ""
        yield from _loads(reader, node.value, str(name) if isinstance(name, str) and name else part)
    elif isinstance(node, ast.IfExp):
        yield from _loads(reader, node.body, part)
    elif isinstance(node, ast.Call) and called(node) in ("load_dataset", "load_from_disk"):
        yield node, part
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        _changed(reader, node)
        yield from _loads(reader, node.func.value, part)
    elif isinstance(node, ast.Call) and node.args:
        reader.report("train_dataset", ast.unparse(node)[:80], node.lineno, _MADE)
        yield from _loads(reader, node.args[0], part)


def _changed(reader: _ScriptReader, call: ast.Call) -> None:
    """Give a verdict on a call (``map``, ``filter`` …) between loading a data set and training on it."""
    name, source = called(call), ast.unparse(call)
    if name in _ROWS_KEPT:
        return
    if name == "train_test_split":
        size = _keyword(call, "test_size") or ast.Constant(value=0.25)
        reader.put("test_split_size", reader.literal("test_split_size", size), call.lineno)
    elif name == "select" and (first := re.search(r"select\(range\((\d+)\)\)$", source)):
        reader.put("max_rows", int(first[1]), call.lineno)
    else:
        says = _MADE if name == "map" else f"`{name}` of the script: keep these rows in a file of their own"
        reader.report(f"train_dataset.{name}", source[-80:], call.lineno, says)


def _keyword(call: ast.Call | None, *names: str) -> ast.expr | None:
    words = {word.arg: word.value for word in call.keywords} if call else {}
    return next((words[name] for name in names if name in words), None)
