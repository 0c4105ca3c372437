"""The YAML (or JSON) of ``accelerate config``, read as the lowest layer.

It gives precision, processes, nodes, the distributed type, and blocks of settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from paceline.config import codes
from paceline.config.backend_files.accelerate import blocks
from paceline.config.backend_files.layer import Document, Foreign, SettingsReader
from paceline.config.keys.nearest import did_you_mean
from paceline.config.source import shown
from paceline.config.yaml_text.read_file import names, read_table, texts
from paceline.core.diagnostics import Severity
from paceline.core.json_types import Json, JsonObject, as_number, as_object

_TABLE = read_table("accelerate", "backend_files")
KNOWN, _NOT_DRIVEN = frozenset(names(_TABLE["keys"])), names(_TABLE["not_driven"])
_STRATEGY, REFUSED, _PLAIN = (texts(_TABLE[name]) for name in ("strategies", "refused", "plain"))
#: key → (the note if its value requests something, values besides null, false and "" that do not)
NOTES_BY_KEY = {
    key: (str(row["says"]), names(row.get("silent")))
    for key, row in ((key, as_object(row)) for key, row in as_object(_TABLE["said"]).items())
}
_BLOCKS: dict[str, tuple[str, Callable[[SettingsReader, JsonObject], None]]] = {
    "deepspeed_config": ("DEEPSPEED", blocks.deepspeed_block),
    "fsdp_config": ("FSDP", blocks.fsdp_block),
    "megatron_lm_config": ("MEGATRON_LM", blocks.megatron_block),
    "parallelism_config": ("", blocks.parallelism_block),
    "dynamo_config": ("", blocks.dynamo_block),
}


def read(document: Document, layer: Foreign, upper: Mapping[str, Json] | None = None) -> None:
    """Add this document's settings to the lowest layer; FSDP and DeepSpeed settings go to ``layer.blocks``.

    ``upper``: the values of higher layers by path; settings that they decide are not reported.
    """
    _AccelerateReader(document, layer).run(upper or {})


class _AccelerateReader(SettingsReader):
    def run(self, upper: Mapping[str, Json]) -> None:
        data = self.document.data
        if "SAGEMAKER" in str(data.get("compute_environment", "")).upper() or "ec2_instance_type" in data:
            self._refuse("compute_environment", str(data.get("compute_environment")), REFUSED["SAGEMAKER"])
            return
        for key in data:
            if key not in KNOWN and not key.startswith(("_", "//", "#")):
                self.problem(
                    codes.ACCELERATE_UNKNOWN_KEY,
                    f"Accelerate has no setting '{key}'",
                    key,
                    key,
                    did_you_mean(key, sorted(KNOWN)),
                )
        kind = self._distribution()
        if kind is None and "distributed_type" in data:
            return
        self._plain_keys()
        # After the plain keys: they may name the precision
        self._no_precision(upper)
        if kind in _NOT_DRIVEN:
            self.note(
                "distributed_type",
                f"distributed_type {kind}: such devices are not supported; on a machine with them a start is"
                " refused without use_cpu: true",
                "MULTI_GPU or MULTI_CPU",
                Severity.WARNING,
            )
        if kind == "MULTI_CPU":
            self.set_entry("training.use_cpu", True, "distributed_type")
        self._processes()
        self._ignored_keys()
        # Older versions write the backend alone, at the top level
        if isinstance(data.get("dynamo_backend"), str):
            alone = Document(
                {"dynamo_backend": data["dynamo_backend"]}, self.document.name, self.document.lines
            )
            blocks.dynamo_block(SettingsReader(alone, self.layer), data)
        self._blocks(kind)

    def _plain_keys(self) -> None:
        """Read the precision and other plain keys."""
        data = self.document.data
        eight_bits = str(data.get("mixed_precision")).lower() == "fp8"
        if eight_bits or data.get("fp8_config"):
            path = "mixed_precision" if eight_bits else "fp8_config"
            self.note(
                path,
                f"{path}: 8-bit matrix products are not supported; the run computes in bf16, which they"
                " approximate: more exact and slower",
                "mixed_precision: bf16",
                Severity.WARNING,
            )
        for key, to in _PLAIN.items():
            if data.get(key) not in (None, ""):
                bf16 = key == "mixed_precision" and eight_bits
                self.set_entry(to, "bf16" if bf16 else data[key], key)

    def _blocks(self, kind: str | None) -> None:
        """Read the blocks of this distributed_type; others are ignored, as in Accelerate."""
        data = self.document.data
        for name, (wanted, read_block) in _BLOCKS.items():
            block = data.get(name)
            if block and not isinstance(block, dict):
                self.problem(
                    codes.CONFIG_TYPE,
                    f"{name} must be a mapping",
                    name,
                    shown(name, block),
                    f"{name}: with indented keys below it",
                )
            if not isinstance(block, dict) or not any(value is not None for value in block.values()):
                continue
            if wanted and kind not in (None, wanted):
                self.note(
                    name,
                    f"{name} is ignored with distributed_type {kind}, as in accelerate",
                    f"distributed_type: {wanted}",
                )
            else:
                read_block(SettingsReader(self.document.part(name), self.layer), data)
        if kind in ("DEEPSPEED", "FSDP") and not data.get(name := f"{kind.lower()}_config"):
            _BLOCKS[name][1](SettingsReader(self.document.bare("distributed_type"), self.layer), data)

    def _no_precision(self, upper: Mapping[str, Json]) -> None:
        """Without mixed_precision use float32, as Accelerate does, unless a policy or DeepSpeed sets it."""
        data = self.document.data
        elsewhere = any(
            key.endswith(("mixed_precision_policy", "config_file"))
            for name in ("fsdp_config", "deepspeed_config")
            for key in as_object(data.get(name))
        )
        has_precision = any(data.get(key) not in (None, "") for key in ("mixed_precision", "fp16"))
        decided = upper.get("training.mixed_precision", "auto") != "auto"
        if "distributed_type" in data and not (
            has_precision or data.get("fp8_config") or elsewhere or decided
        ):
            self.set_entry("training.mixed_precision", "no", "distributed_type")
            self.note(
                "mixed_precision",
                "mixed_precision is absent: float32, as in accelerate",
                "set mixed_precision: bf16, or training.mixed_precision",
            )

    def _distribution(self) -> str | None:
        """Return Accelerate's distributed_type, or None when it is not given or not supported."""
        kind = self.document.data.get("distributed_type")
        if kind is None:
            return None
        # A bare NO is read as the word "NO"; some write it as false.
        name = "NO" if kind is False else str(kind).upper()
        if name in _STRATEGY:
            if _STRATEGY[name]:
                self.set_entry("training.distributed_strategy", _STRATEGY[name], "distributed_type")
            return name
        if name in REFUSED:
            self._refuse("distributed_type", name, REFUSED[name])
        else:
            self.problem(
                codes.CONFIG_VALUE,
                f"distributed_type {name} is not supported",
                "distributed_type",
                name,
                f"one of {', '.join(_STRATEGY)}",
            )
        return None

    def _refuse(self, path: str, value: str, why: str) -> None:
        self.problem(
            codes.ACCELERATE_NOT_BUILT,
            f"{path} {value}: {why}",
            path,
            value,
            "use MULTI_GPU, FSDP or DEEPSPEED on the available devices",
        )

    def _processes(self) -> None:
        total, machines = self.document.data.get("num_processes"), self.document.data.get("num_machines") or 1
        if total is None or total == -1:
            return
        numbers = isinstance(total, int) and isinstance(machines, int) and min(total, machines) > 0
        if numbers and as_number(total) % as_number(machines) == 0:
            self.set_entry("launch.nproc", int(as_number(total) // as_number(machines)), "num_processes")
        else:
            self.problem(
                codes.CONFIG_VALUE,
                "num_processes must be a multiple of num_machines",
                "num_processes",
                f"{total} over {machines}",
                "set num_processes to the number of processes of all machines together",
            )

    def _ignored_keys(self) -> None:
        data = self.document.data
        for key, (says, silent) in NOTES_BY_KEY.items():
            value = data.get(key)
            word = value.strip().lower() if isinstance(value, str) else value
            if word not in (None, False, "", "no", "false", [], {}) and word not in silent:
                self.note(key, f"{key}: {says}", "you can remove the line")
        machines = data.get("num_machines") or 1
        if data.get("same_network") is False and isinstance(machines, int) and machines > 1:
            self.note(
                "same_network",
                "same_network: the machines must reach each other's ports; if they cannot, the first"
                " collective fails within its timeout",
            )
