"""``accelerate launch``: its options and its config file, read as one file of ``accelerate config``."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from paceline.config.backend_files.accelerate.environment import READ, SWITCHES
from paceline.config.import_export.commands.command_line import Command
from paceline.config.import_export.commands.launchers import Option
from paceline.config.import_export.import_backend_files import import_job, verdict_at
from paceline.config.import_export.verdicts import Finding, Imported, KeyVerdict, Setting
from paceline.config.keys.valid_keys import same
from paceline.config.yaml_text.scalars import resolve_plain
from paceline.core.json_types import Json, JsonObject, as_object, inner_object

_KINDS = {
    "multi_gpu": "MULTI_GPU",
    "use_deepspeed": "DEEPSPEED",
    "use_fsdp": "FSDP",
    "use_megatron_lm": "MEGATRON_LM",
    "tpu": "TPU",
}
_TOP = (
    *("mixed_precision", "num_processes", "num_machines", "machine_rank", "main_process_ip", "gpu_ids"),
    *("main_process_port", "same_network", "rdzv_backend", "main_training_function", "debug"),
    *("enable_cpu_affinity", "downcast_bf16"),
)
#: the beginning of an option → the block that it stands in, and the distributed type that reads the block
_BLOCKS = {
    "zero": ("deepspeed_config", "DEEPSPEED"),
    "offload_": ("deepspeed_config", "DEEPSPEED"),
    "deepspeed_": ("deepspeed_config", "DEEPSPEED"),
    "fsdp_": ("fsdp_config", "FSDP"),
    "megatron_lm_": ("megatron_lm_config", "MEGATRON_LM"),
    "parallelism_config_": ("parallelism_config", ""),
    "dynamo_": ("dynamo_config", ""),
    "fp8_": ("fp8_config", ""),
}
_SWITCH = {"parallelism_config_": "use_parallelism_config"}
_NOTES = {
    "num_cpu_threads_per_process": "set OMP_NUM_THREADS; the training is the same",
    "max_restarts": "set launch.max_restarts: restarts that go on from the newest checkpoint",
    "mpirun_hostfile": "start Paceline's ranks with mpirun itself",
}
_STARTS = "it says how processes are started, watched or logged; the training is the same"
#: what the Trainer's own arguments decide, which DeepSpeed's must equal → Transformers' default
_TRAINERS: dict[str, tuple[str, Json]] = {
    "gradient_accumulation_steps": ("training.gradient_accumulation_steps", 1),
    "gradient_clipping": ("training.max_grad_norm", 1.0),
}


@dataclass(frozen=True)
class _Origin:
    """Where a line of the merged file comes from: the key of an option or file, and its line."""

    key: str
    line: int
    value: Json


@dataclass
class AccelerateJob:
    """Accelerate's settings, and the verdict on each option and each key of its file."""

    imported: Imported
    engine: str = ""
    trainers: dict[str, _Origin] = field(default_factory=dict)


def accelerate_job(
    command: Command, below: JsonObject, lines: Mapping[str, int], file: str
) -> AccelerateJob | None:
    """Return what ``accelerate launch``, or Accelerate's variables next to another launcher, set, if
    anything.

    ``below``: the config file that the options name; its keys stand at ``lines`` of ``file``.
    """
    launch = command.launch
    options = [option for option in launch.options if option.launcher.startswith("accelerate")]
    if not any(name.startswith("accelerate") for name in launch.launchers):
        options = _of_variables(command.environment, command.places)
    if not options and not below:
        return None
    file_of_options = _Made(file, below, lines)
    file_of_options.options(options)
    return file_of_options.read()


def _of_variables(environment: Mapping[str, str], places: Mapping[str, int]) -> list[Option]:
    """Return the options that Accelerate's variables set; those of a block only if its switch is on."""
    options = []
    for name, value in environment.items():
        path, line = READ[name][0] if name in READ else "", places.get(name, 1)
        block, _, key = path.rpartition(".")
        switch = next((switch for switch, (of, _) in SWITCHES.items() if of == block), "")
        if name in SWITCHES and value.lower() in ("true", "1"):
            options.append(Option(name, name.removeprefix("ACCELERATE_").lower(), None, line))
        elif path and (not switch or environment.get(switch, "").lower() in ("true", "1")):
            options.append(Option(name, "cpu" if key == "use_cpu" else key, value, line))
    return options


class _Made:
    """The merged file of options and a config file, with the origin of each of its lines."""

    def __init__(self, file: str, below: JsonObject, lines: Mapping[str, int]) -> None:
        self.file = file
        self.data: JsonObject = {key: dict(v) if isinstance(v, dict) else v for key, v in below.items()}
        self.origins = {
            key: _Origin(f"{file}:{lines.get(key, 1)} {key}", 1, value) for key, value in below.items()
        }
        self.trainers: dict[str, _Origin] = {}
        self.findings: list[Finding] = []
        self._blocks: set[str] = set()  # that options alone make
        # The Trainer's own arguments decide these; they are compared with them in the end
        for key in _TRAINERS:
            for path in (key, f"deepspeed_config.{key}"):
                outer = path.rpartition(".")[0]
                block = as_object(self.data.get(outer)) if outer else self.data
                if block.get(key) not in (None, "auto"):
                    self.trainers[key] = _Origin(f"{file}:{lines.get(path, 1)} {key}", 1, block[key])
                block.pop(key, None)
            self.origins.pop(key, None)

    def options(self, options: list[Option]) -> None:
        """Override the file's keys with the options."""
        names = {option.name for option in options}
        for option in options:
            if option.name == "config_file":
                here = Path(self.file).is_file()
                verdict = KeyVerdict.MAPPED if here else KeyVerdict.LOST
                says = (
                    "its keys are listed beside it" if here else "the file is not here: nothing of it is read"
                )
                self.findings.append(Finding(option.key, option.value, option.line, verdict, (), says))
                self.origins = {k: replace(o, line=option.line) for k, o in self.origins.items()}
                self.trainers = {k: replace(o, line=option.line) for k, o in self.trainers.items()}
        kinds = [name for name in _KINDS if name in names]
        for option in options:
            if option.name in _KINDS:
                self._put("distributed_type", _KINDS[option.name], option)
        kind = str(self.data.get("distributed_type") or "NO").upper()
        for option in options:
            start = next((start for start in _BLOCKS if option.name.startswith(start)), "")
            block, wanted = _BLOCKS.get(start, ("", ""))
            value: Json = True if option.value is None else resolve_plain(option.value)
            if option.name in _KINDS or option.name == "config_file":
                continue
            if option.name in _TRAINERS:
                self.trainers[option.name] = _Origin(option.key, option.line, value)
            elif option.name == "cpu":
                self._put("use_cpu", value, option)
            elif block and wanted and wanted != kind:
                switch = next(name for name, of in _KINDS.items() if of == wanted)
                self._idle(option, f"accelerate reads it with --{switch} only")
            elif start in _SWITCH and _SWITCH[start] not in names and not self.data.get(block):
                self._idle(option, f"accelerate reads it with --{_SWITCH[start]} only")
            elif block:
                self._put(f"{block}.{option.name}", value, option)
            elif option.name in _TOP:
                self._put(option.name, value, option)
            elif option.name == "use_parallelism_config":
                self._idle(option, "the sizes beside it are read")
            else:
                self._idle(option, _NOTES.get(option.name, _STARTS))
        if not kinds and "num_processes" in self.data and "distributed_type" not in self.data:
            self.data["distributed_type"] = "MULTI_GPU" if self.data["num_processes"] != 1 else "NO"
            self.origins["distributed_type"] = self.origins["num_processes"]

    def _files(self) -> None:
        """Resolve the path of a DeepSpeed file: next to the config file, or in the current directory."""
        block = as_object(self.data.get("deepspeed_config"))
        name = block.get("deepspeed_config_file")
        for folder in (Path("."), Path(self.file).parent):
            if isinstance(name, str) and (folder / name).is_file():
                block["deepspeed_config_file"] = str((folder / name).resolve())
                return

    def _put(self, path: str, value: Json, option: Option) -> None:
        block, _, key = path.rpartition(".")
        (inner_object(self.data, block) if block else self.data)[key] = value
        self.origins[path] = _Origin(option.key, option.line, value)
        if block and block not in self.origins:
            self.origins[block] = self.origins[path]
            self._blocks.add(block)

    def _idle(self, option: Option, says: str) -> None:
        value: Json = True if option.value is None else resolve_plain(option.value)
        self.findings.append(Finding(option.key, value, option.line, KeyVerdict.NO_EFFECT, (), says))

    def read(self) -> AccelerateJob:
        """Read the file as ``paceline config import`` reads Accelerate's."""
        self._files()
        # One key a line, so that a finding's line tells its key
        text, lines = _text(self.data)
        with tempfile.TemporaryDirectory(prefix="paceline-import-") as folder:
            path = Path(folder) / "accelerate.yaml"
            path.write_text(text, encoding="utf-8")
            job = import_job(self.data, lines, str(path), "accelerate")
        imported = Imported("Accelerate", self.file)
        keys_by_line = {line: key for key, line in lines.items() if key in self.origins}
        for ours, setting in job.settings.items():
            key = keys_by_line.get(setting.line) or keys_by_line.get(lines.get(setting.key, 0)) or setting.key
            origin = self.origins.get(key, _Origin(self.file, 1, None))
            imported.settings[ours] = replace(setting, key=origin.key, line=origin.line)
        for key, origin in self.origins.items():
            if key in self._blocks:
                continue
            finding = verdict_at(key, lines.get(key, 0), job, str(path))
            self.findings.append(replace(finding, key=origin.key, line=origin.line, value=origin.value))
        for finding in self.findings:
            imported.findings[finding.key] = finding
        kind = str(self.data.get("distributed_type") or "").upper()
        return AccelerateJob(imported, kind.lower() if kind in ("DEEPSPEED", "FSDP") else "", self.trainers)


def _text(data: JsonObject) -> tuple[str, dict[str, int]]:
    """Return a YAML with one key a line, and the line of each key and inner key."""
    rows: list[str] = []
    lines: dict[str, int] = {}
    for key, value in data.items():
        inner = value if isinstance(value, dict) and value else {}
        rows.append(f"{json.dumps(key)}:" if inner else f"{json.dumps(key)}: {json.dumps(value)}")
        lines[key] = len(rows)
        for name, item in inner.items():
            rows.append(f"  {json.dumps(name)}: {json.dumps(item)}")
            lines[f"{key}.{name}"] = len(rows)
    return "\n".join(rows) + "\n", lines


def outranked(launched: Imported, job: AccelerateJob) -> None:
    """Accelerate's counts win over those of what starts it, and of the variables around it."""
    for ours, setting in job.imported.settings.items():
        before = launched.settings.pop(ours, None)
        if before is not None and not same(before.value, setting.value):
            _overruled(launched, ours, f"{setting.key} says {setting.value}")


def joined(imported: Imported, job: AccelerateJob) -> None:
    """Add Accelerate's settings to the program's, which win where both set something."""
    for ours, setting in job.imported.settings.items():
        before = imported.settings.get(ours)
        off = ours == "training.mixed_precision" and before is not None and before.value == "no"
        if before is None or (off and setting.value != "no"):
            imported.settings[ours] = setting
        elif not same(before.value, setting.value):
            _overruled(job.imported, ours, f"the program's own {before.key} wins")
    for key, finding in job.imported.findings.items():
        imported.findings[key] = finding
    for name, origin in job.trainers.items():
        path, default = _TRAINERS[name]
        held = imported.settings.get(path, Setting(default, "", 0)).value
        alike = same(held, origin.value)
        verdict = KeyVerdict.MAPPED if alike else KeyVerdict.NO_EFFECT
        says = "" if alike else f"the program's own arguments decide it: {held}"
        if not alike and job.engine == "deepspeed":
            verdict = KeyVerdict.LOST
            says = (
                f"the program's own arguments say {held}: Transformers refuses to start where the two differ"
            )
        to = (path,) if alike else ()
        imported.findings[origin.key] = Finding(origin.key, origin.value, origin.line, verdict, to, says)


def _overruled(job: Imported, ours: str, says: str) -> None:
    """Options whose settings are all overridden have no effect."""
    for key, finding in list(job.findings.items()):
        if ours in finding.to:
            to = tuple(path for path in finding.to if path != ours)
            verdict = finding.verdict if to else KeyVerdict.NO_EFFECT
            job.findings[key] = replace(finding, verdict=verdict, to=to, says=finding.says if to else says)
