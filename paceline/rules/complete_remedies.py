"""Complete remedies: add the further lines that this config needs for them to be accepted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from paceline.config.registries.optimizers import supports
from paceline.config.schema import Config
from paceline.config.sections.training import TrainingSection
from paceline.config.sections.training_scale import MESH_SIZES, Parallelism
from paceline.config.source import DEFAULTS, FOREIGN, Source
from paceline.core.diagnostics import Diagnostic
from paceline.core.json_types import as_object
from paceline.core.plugins.tables import STRATEGIES
from paceline.plan.hardware.device_kinds import kind_of
from paceline.plan.strategies.spec import StrategySpec, strategy_spec, strategy_specs
from paceline.rules.rule import Facts

_KEY = re.compile(r"\b(\w+): ")
_OFFER = re.compile(r"distributed_strategy: (\w+(?:(?:,? (?:or|to|and) |, )\w+)*)")


def complete_remedies(
    findings: Iterable[Diagnostic], config: Config, facts: Facts, provenance: Mapping[str, Source]
) -> list[Diagnostic]:
    """Return the findings; a hint that offers another strategy also names what that strategy needs here.

    Another engine's section, a mesh axis that the strategy lacks, or this number of processes may have to
    change. A key that the config has under another name (``bf16``) must not be set twice.
    """
    renamed = {
        path.rpartition(".")[2]: written
        for path, source in provenance.items()
        if (written := source.text.partition("=")[0].rpartition(".")[2]) not in ("", *path.split("."))
        and not source.text.startswith(f"{path}.")
        and source.layer not in (DEFAULTS, FOREIGN)
    }
    lines = _RemedyLines(config.training, facts, renamed)
    return [replace(d, hint="; ".join([d.hint, *lines.further(d.hint)])) for d in findings]


@dataclass(frozen=True)
class _RemedyLines:
    """The lines that remedies lack, for a config and its machine.

    ``renamed``: keys by our name → the name under which the config writes them.
    """

    training: TrainingSection
    facts: Facts
    renamed: Mapping[str, str]

    def further(self, hint: str) -> Iterator[str]:
        """Yield the lines that a hint lacks."""
        by_lines: dict[tuple[str, ...], list[str]] = {}
        keys = _KEY.findall(hint)
        for name, before in _offered(hint):
            lines = tuple(line for line in self.lines(strategy_spec(name)) if line not in before)
            if lines:
                by_lines.setdefault(lines, []).append(name)
        for lines, names in by_lines.items():
            yield f"{' and '.join(names)} also need{'s' if len(names) == 1 else ''} {' and '.join(lines)}"
            keys += _KEY.findall(" and ".join(lines))
        for key in dict.fromkeys(keys):
            if key in self.renamed:
                yield f"{key} takes the place of {self.renamed[key]}"

    def lines(self, spec: StrategySpec) -> Iterator[str]:
        """Yield the lines with which this config works under the strategy."""
        training, facts = self.training, self.facts
        world = facts.world_size
        # Sections of another engine, or of another stage of this one
        for section in sorted({key for other in strategy_specs() for key in other.sections}):
            written = getattr(training, section)
            stage = as_object(as_object(written).get("zero_optimization")).get("stage", spec.zero_stage)
            if written and (section not in spec.sections or (spec.zero_stage not in (None, stage))):
                yield f"{section}: null"
        sizes = training.parallelism or Parallelism()
        for name in MESH_SIZES:
            if getattr(sizes, name) > 1 and spec.lacks(name.removesuffix("_size")):
                yield f"{name}: 1"
        if spec.stages and sizes.pp_size == 1:
            yield "pp_size: 2"
        if training.distributed is spec.one_process and not spec.multi_device:
            yield f"distributed: {'false' if spec.one_process else 'true'}"
        if not supports(training.optim, spec.state_split):
            yield "optim: adamw_torch_fused"
        if training.mixed_precision == "fp16" and not spec.loss_scale:
            yield f"mixed_precision: {'no' if facts.bf16 is False else 'bf16'}"
        if training.torch_compile and spec.not_compiled:
            yield "torch_compile: false"
        # Processes
        few = world is not None and world < spec.min_processes
        if few:
            yield f"--nproc {spec.min_processes}"
        elif world is not None and world > 1 and spec.one_process:
            yield "--nproc 1"
        if (
            (few or spec.needs_group)
            and facts.device
            and not (kind_of(facts.device).backend or training.use_cpu)
        ):
            yield "use_cpu: true"


def _offered(hint: str) -> Iterator[tuple[str, str]]:
    """Yield each strategy that a hint offers, and the words before it, which may already name its lines."""
    for offer in _OFFER.finditer(hint):
        for name in re.findall(r"\w+", offer[1]):
            if name in STRATEGIES.names():
                yield name, hint[: offer.start()]
