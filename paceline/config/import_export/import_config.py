"""Import a config of another system: read it, decide each key, and compose a YAML of ours."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from paceline.config import codes
from paceline.config.backend_files.detect import kind_of, not_imported, program_of
from paceline.config.backend_files.json_text import json_lines, parse_json
from paceline.config.import_export.argument_tables import NO_TRACKERS, Defaults, as_parsed, defaults
from paceline.config.import_export.commands.accelerate_options import (
    AccelerateJob,
    accelerate_job,
    joined,
    outranked,
)
from paceline.config.import_export.commands.command_line import Command
from paceline.config.import_export.commands.launcher_options import STARTERS, left_open
from paceline.config.import_export.commands.launcher_options import options as launch_options
from paceline.config.import_export.commands.launcher_options import variables as launch_variables
from paceline.config.import_export.commands.other_jobs import refuse_other_file
from paceline.config.import_export.decide_keys import Code, decide
from paceline.config.import_export.import_backend_files import import_job
from paceline.config.import_export.programs import axolotl, llamafactory, ms_swift, trl
from paceline.config.import_export.programs.ms_swift import ENVIRONMENT, OF_LOSSES
from paceline.config.import_export.programs.transformers import NO_VALUE
from paceline.config.import_export.verdicts import Finding, Imported, KeyReader, KeyVerdict, flat
from paceline.config.registries.object_store_url import is_url
from paceline.config.sections.training_steps import to_resume
from paceline.config.yaml_text.read_file import read_text
from paceline.config.yaml_text.tree import parse_yaml
from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject, as_object


@dataclass(frozen=True)
class Translator:
    """A program whose files are imported by its table, with ``code`` for what no row can decide.

    - ``job``: finds a file's trainer or command, from the algorithm that the user names or from its keys
    - ``defaults``: the defaults of that trainer
    - ``parsed``: its command lines are read by Transformers' HfArgumentParser
    """

    name: str
    code: Code
    defaults: Callable[[str], Defaults]
    job: Callable[[JsonObject, str | None], str] = lambda data, named: named or "sft"
    parsed: bool = True


TRANSLATORS = {
    "trl": Translator("TRL", trl.CODE, trl.trl_defaults, trl.trainer_of),
    "llamafactory": Translator(
        "LLaMA-Factory", llamafactory.CODE, llamafactory.llamafactory_defaults, llamafactory.version_of
    ),
    "axolotl": Translator("axolotl", axolotl.CODE, lambda job: axolotl.axolotl_defaults(), parsed=False),
    "swift": Translator("ms-swift", ms_swift.CODE, ms_swift.swift_defaults, ms_swift.command_of),
    "hf": Translator("Transformers", trl.CODE, lambda job: {**defaults("transformers"), **NO_TRACKERS}),
}
_JOBS = ("deepspeed", "accelerate")
#: whose null the programs themselves replace by the default
_MAY_BE_NULL = ("bf16", "report_to")


def read_foreign(
    path: str, repeated: dict[str, tuple[int, int]] | None = None
) -> tuple[JsonObject, dict[str, int]]:
    """Return the mapping in a YAML or JSON file, and the line of every inner path. ``repeated`` gets the two
    lines of keys that stand twice, of which other programs read the last. Raises ConfigError.
    """
    text = read_text(path)
    if Path(path).suffix == ".json":
        data, _ = parse_json(text, path, "config", lenient=True)
        lines = json_lines(text)
    else:
        tree = parse_yaml(text, path, repeated)
        data, lines = (tree.data(), tree.lines()) if tree else ({}, {})
    if not isinstance(data, dict):
        raise ConfigError(
            codes.CONFIG_NOT_A_MAPPING(
                "a config is a mapping of keys to values", f"{path}:1", hint="key: value"
            )
        )
    return data, lines


def import_config(path: str, system: str | None = None, algorithm: str | None = None) -> Imported:
    """Return the settings and verdicts of a foreign config file. Raises ConfigError."""
    repeated: dict[str, tuple[int, int]] = {}
    data, lines = read_foreign(path, repeated)
    imported = import_data(data, lines, path, system, algorithm)
    for key, (first, last) in repeated.items():
        says = f"the key stands again in line {last}, which {imported.system} reads"
        name = f"{key} (line {first})"
        imported.findings[name] = Finding(name, None, first, KeyVerdict.NO_EFFECT, (), says)
    return imported


def import_command(command: Command, system: str | None = None, algorithm: str | None = None) -> Imported:
    """Return the settings and verdicts of a command line; its flags win over a config file that it names.

    Raises ConfigError.
    """
    data, name = command.data, command.name
    below, places = lower_keys(command)
    lines = places | command.lines
    if command.config is not None and command.config not in command.files:
        name = f"{command.config} and {name}"
    chosen = system or command.system or system_of(below | data)
    algorithm = algorithm or command.algorithm
    translator = TRANSLATORS.get(chosen or "")
    arguments = (
        translator.defaults(translator.job(below | data, algorithm))
        if translator and translator.parsed
        else {}
    )
    data, renamed = as_parsed(data, arguments) if arguments else (data, {})
    lines |= {key: lines[written] for key, written in renamed.items()}
    # What starts the program sets processes and nodes; its own file may name them, too
    launched = Imported("", "")
    left_open(command.launch, launched)
    job = _accelerate(command)
    launch_options(command.launch, launched)
    _variables(command, chosen, launched)
    if job is not None:
        outranked(launched, job)
    settings = {**launched.settings, **(job.imported.settings if job else {})}
    counts = {key: setting.value for key, setting in settings.items()}
    data = below | data
    if chosen == "swift":
        counted = {"NPROC_PER_NODE": counts.get("launch.nproc"), "NNODES": counts.get("launch.nnodes")}
        variables: JsonObject = {name: str(count) for name, count in counted.items() if count}
        variables |= {name: value for name, value in command.environment.items() if name in OF_LOSSES}
        data |= {ENVIRONMENT: {**as_object(below.get(ENVIRONMENT)), **variables}}
    imported = import_data(data, lines, name, chosen, algorithm, job.engine if job else "")
    if ENVIRONMENT not in below:
        imported.findings = {k: f for k, f in imported.findings.items() if k.partition(".")[0] != ENVIRONMENT}
    for key, written in renamed.items():
        imported.findings[written] = replace(
            imported.findings.pop(key), key=written, value=command.data[written]
        )
    imported.settings |= launched.settings
    imported.findings |= launched.findings | {finding.key: finding for finding in command.found}
    if job is not None:
        joined(imported, job)
    return imported


def lower_keys(command: Command) -> tuple[JsonObject, dict[str, int]]:
    """Return the keys of the config file that a command names, with their lines. Raises ConfigError."""
    if command.config in command.files:
        return _written(command, command.config)
    return ({}, {}) if command.config is None else read_foreign(command.config)


def _written(command: Command, file: str) -> tuple[JsonObject, dict[str, int]]:
    """Return a file that the script itself writes, with the script's lines. Raises ConfigError."""
    text, first = command.files[file]
    if text is None:
        raise ConfigError(
            codes.CONFIG_IMPORT_COMMAND(
                f"what the script writes into {file} only bash tells",
                f"{command.name}:{first}",
                file,
                f"write {file}, and import it",
            )
        )
    tree = parse_yaml(text, command.name)
    data = tree.data() if tree else None
    return as_object(data), {key: n + first - 1 for key, n in (tree.lines() if tree else {}).items()}


def _accelerate(command: Command) -> AccelerateJob | None:
    """Return the settings of ``accelerate launch`` or of Accelerate's variables. Raises ConfigError for its
    file."""
    files = [o.value for o in command.launch.options if o.name == "config_file" and o.value]
    file = files[-1] if files else ""
    below, lines = read_foreign(file) if Path(file).is_file() else ({}, {})
    return accelerate_job(command, below, lines, file)


def _variables(command: Command, chosen: str | None, imported: Imported) -> None:
    starters = [name for name in command.launch.launchers if name in STARTERS]
    reads_variables = chosen in ("swift", "llamafactory") and not starters
    counts = "torchrun" not in starters and (bool(starters) or chosen == "llamafactory")
    pixels = chosen == "swift"
    launch_variables(command.environment, command.places, reads_variables, counts, imported, pixels)


def import_data(
    data: JsonObject,
    lines: Mapping[str, int],
    path: str,
    system: str | None = None,
    algorithm: str | None = None,
    engine: str = "",
) -> Imported:
    """``import_config`` for a mapping that has been read; ``engine``: deepspeed or fsdp of a launcher."""
    chosen = system or system_of(data)
    if chosen in ("llamafactory", None):
        refuse_other_file(data, path)
    if chosen is None:
        keys, program = ", ".join(list(data)[:4]), program_of(data)
        message, remedy = (
            "the config's system is not recognised",
            f"name the system: --from {' | '.join(SYSTEMS)}",
        )
        if program is not None:
            message, remedy = not_imported(program.name)
            remedy += f"; `paceline plan {path}` begins it"
        raise ConfigError(codes.CONFIG_IMPORT_SYSTEM(message, f"{path}:1", keys, remedy))
    if chosen in _JOBS:
        return import_job(data, lines, path, chosen)
    translator = TRANSLATORS[chosen]
    job = translator.job(data, algorithm)
    reader = KeyReader(translator.name, path, flat(data), lines, translator.defaults(job))
    reader.facts |= {"job": job, "named": algorithm, "engine": engine}
    reader.facts["engine"] = reader.engine()
    decide(reader, chosen, translator.code)
    imported = reader.result
    for name, older in reader.renamed.items():
        imported.findings[older] = replace(imported.findings.pop(name), key=older)
    if translator.parsed:
        _nulls(reader)
    _rolled_up(imported)
    _attention(imported)
    _weights_dtype(imported)
    _code_of_the_hub(imported)
    _constant(imported)
    if imported.lost_algorithm():
        imported.settings.pop("training.algorithm", None)  # one that was assumed in its place
    _resumed(imported)
    return imported


def _nulls(reader: KeyReader) -> None:
    """Decide nulls that replace a default value."""
    for key, finding in list(reader.result.findings.items()):
        default = reader.defaults.get(key)
        unset = key in reader.given and reader.given[key] is None and key not in _MAY_BE_NULL
        acts = finding.verdict is KeyVerdict.MAPPED or finding.says == NO_VALUE
        if unset and acts and default not in (None, False, "", 0, [], {}, "none"):
            reader.lose(
                key,
                f"null is not {reader.result.system}'s default, {default}: remove the line for that, or"
                " write a value",
            )


def _attention(imported: Imported) -> None:
    """Drop an attention kernel under context parallelism, which uses Paceline's own attention here."""
    size = imported.settings.get("training.parallelism.cp_size")
    kernel = imported.settings.get("model.attn_implementation")
    if size is None or kernel is None or not isinstance(size.value, int) or size.value < 2:
        return
    says = f"{size.key} exchanges keys and values, for which Paceline's own kernel computes the attention"
    _idle(imported, "model.attn_implementation", says)


def _code_of_the_hub(imported: Imported) -> None:
    """Use the library's class unless the config pins the model's code to a commit."""
    path = "model.trust_remote_code"
    setting, revision = imported.settings.get(path), imported.settings.get("model.revision")
    pinned = revision is not None and re.fullmatch(r"[0-9a-f]{40}|[0-9a-f]{64}", str(revision.value))
    if setting is None or setting.value is not True or revision is None or pinned:
        return
    del imported.settings[path]
    says = (
        "no code from the hub runs without a pin: Transformers' own class is loaded; for a model that has"
        " none, set model.trust_remote_code and model.revision to the commit that you have reviewed"
    )
    if (finding := imported.findings.get(setting.key)) is not None:
        imported.findings[setting.key] = replace(finding, verdict=KeyVerdict.DIFFERS, says=says, to=())


def _constant(imported: Imported) -> None:
    """Drop a warm-up that the schedule ``constant`` ignores, in Transformers as here."""
    name, steps = "training.lr_scheduler_type", "training.warmup_steps"
    chosen = imported.settings.get(name)
    if steps in imported.settings and chosen is not None and chosen.value == "constant":
        _idle(imported, steps, "the schedule constant has no warm-up")


def _resumed(imported: Imported) -> None:
    """Report that another program's checkpoint must be converted before a resume."""
    setting = imported.settings.get("training.resume_from_checkpoint")
    where = to_resume(setting.value) if setting else None
    if setting is None or not isinstance(where, str) or where in ("latest", "auto") or is_url(where):
        return
    folder = Path(where).expanduser()
    if (folder / "manifest.json").is_file() or (folder / "checkpoints").is_dir():
        return
    says = f"convert it first (paceline checkpoints convert {where} --to DIR), and resume from DIR"
    if (folder / "adapter_config.json").is_file():
        says += "; or, for a new run from its adapter, set lora.adapter_name_or_path to it instead"
    imported.settings["training.resume_from_checkpoint"] = replace(setting, note=says)
    if (finding := imported.findings.get(setting.key)) is not None:
        imported.findings[setting.key] = replace(finding, verdict=KeyVerdict.DIFFERS, says=says)


def _idle(imported: Imported, path: str, says: str) -> None:
    """Take out a setting that has no effect, with its key's verdict."""
    key = imported.settings.pop(path).key
    if key in imported.findings:
        before = imported.findings[key]
        imported.findings[key] = replace(before, verdict=KeyVerdict.NO_EFFECT, to=(), says=says)


def _weights_dtype(imported: Imported) -> None:
    """Turn a load dtype into the compute dtype, or report it as lost: Paceline loads weights as stored."""
    path, computes = "model.dtype", "training.mixed_precision"
    setting = imported.settings.get(path)
    word = {"bfloat16": "bf16", "float16": "fp16"}.get(str(setting.value)) if setting else None
    if setting is None or word is None:
        return
    del imported.settings[path]
    chosen = imported.settings.get(computes)
    for key, finding in list(imported.findings.items()):
        if path not in finding.to:
            continue
        others = tuple(to for to in finding.to if to != path)
        finding = replace(finding, to=others or (computes,))
        if finding.verdict is KeyVerdict.MAPPED and not others and (chosen is None or chosen.value != word):
            computed = chosen.value if chosen else "auto"
            says = f"weights are read as they are stored; mixed_precision: {computed} is computed in"
            finding = replace(finding, verdict=KeyVerdict.DIFFERS, says=says)
        imported.findings[key] = finding


def _rolled_up(imported: Imported) -> None:
    """Mark a mapping or list as not kept if one of its parts is not."""
    for key, finding in list(imported.findings.items()):
        outer = imported.findings.get(key.partition(".")[0])
        if "." not in key or outer is None or finding.verdict not in (KeyVerdict.LOST, KeyVerdict.DIFFERS):
            continue
        if outer.verdict in (KeyVerdict.MAPPED, KeyVerdict.NO_EFFECT):
            imported.findings[outer.key] = replace(
                outer, verdict=finding.verdict, says=f"{key}: {finding.says}"
            )


SYSTEMS = ("llamafactory", "trl", "axolotl", "accelerate", "deepspeed", "hf", "swift")
_PROGRAMS = {"axolotl": "axolotl", "ms-swift": "swift", "LLaMA-Factory": "llamafactory", "TRL": "trl"}


def system_of(data: Json) -> str | None:
    """Return the system (one of SYSTEMS) whose config this is; None for an unknown one."""
    kind = kind_of(data)
    if kind in ("deepspeed", "accelerate"):
        return kind
    program = program_of(data)
    if program is not None:
        return _PROGRAMS.get(program.name)
    if isinstance(data, dict) and not {"model", "data", "training"} & set(data):
        if "model_name_or_path" in data and {
            "attn_implementation",
            "torch_dtype",
            "dtype",
            "model_revision",
        } & set(data):
            return "trl"
        if {"output_dir", "learning_rate", "per_device_train_batch_size"} & set(data):
            return "hf"
    return None
