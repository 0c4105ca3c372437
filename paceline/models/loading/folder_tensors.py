"""The tensors of a model folder, and those that training carries into its exports."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from paceline.core.errors import ConfigError
from paceline.core.safetensors_header import StoredTensor, header_of
from paceline.core.units import human_bytes
from paceline.models.loading.loading_report import LoadingReport, account, listed, refusals
from paceline.models.loading.model_source import weights_folder
from paceline.models.loading.multimodal import WholeModel
from paceline.models.loading.quantized_folder import QuantisedFolder
from paceline.plan import codes as plan_codes
from paceline.plan.model.files.safetensors_headers import weights_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel


@dataclass(frozen=True)
class FolderTensors:
    """The use of each tensor of a folder. ``leaves_out``: tensors that are not trained are not exported
    either (a score head in place of the language-model head).
    """

    folder: Path
    stored: Mapping[str, StoredTensor]
    found: LoadingReport
    leaves_out: bool = False
    dequantised: str = ""  # how many weights were stored quantized, and their size as plain ones

    @property
    def carried(self) -> tuple[str, ...]:
        """Names of the tensors that an export copies from the folder."""
        return () if self.leaves_out else self.found.carried

    @property
    def used(self) -> list[str]:
        """Names that the model is loaded from."""
        return [name for some in self.found.used.values() for name in some]

    @property
    def message(self) -> str:
        """One line for the log."""
        loaded = len(self.stored) - len(self.found.carried) - len(self.found.tied)
        parts = [f"{len(self.stored)} in the folder", f"{loaded} loaded"]
        if self.dequantised:
            parts.append(self.dequantised)
        if self.found.converted:
            parts.append(f"{self.found.converted} of them merged")
        if self.found.tied:
            parts.append(f"{len(self.found.tied)} tied")
        if self.found.carried:
            size = sum(s.span[1] - s.span[0] for n in self.found.carried for s in (self.stored[n],))
            fate = (
                "left out by the score head's class"
                if self.leaves_out
                else "not trained, copied unchanged into an export"
            )
            parts.append(
                f"{len(self.found.carried)} {fate} ({human_bytes(size)}): {listed(self.found.carried)}"
            )
        return ", ".join(parts)

    def of_former_vocabulary(self, had: int, rows: int) -> str:
        """Return a phrase that lists the carried tensors with the former vocabulary's ``had`` rows.

        An example is a further prediction head's embeddings. Empty if there are none, or if ``had == rows``.
        """
        kept = [n for n in self.carried if had != rows and self.stored[n].shape[:1] == (had,)]
        if not kept:
            return ""
        return f"; {len(kept)} of them keep {had} rows beside a vocabulary of {rows} ({listed(kept)})"


def folder_tensors(
    model: PreTrainedModel,
    name: str,
    revision: str | None,
    *,
    fresh: frozenset[str],
    leaves_out: bool,
    whole: WholeModel | None = None,
    quantised: QuantisedFolder | None = None,
) -> FolderTensors | None:
    """Find the use of every tensor of the folder (or the hub's ``name``), from the files' headers only.

    ``model`` may be on meta; it is the language model of ``whole``, if given; ``fresh``: names that
    may be initialized from the seed. None if the files cannot be read: the load then reports why. Raises
    ConfigError ``models.missing_weights`` and ``models.lost_weights``.
    """
    try:
        folder = weights_folder(name, revision)
        stored = {key: entry for file in weights_of(folder, []) for key, entry in header_of(file).items()}
    except (OSError, ValueError):
        return None
    if not stored:
        return None
    names = stored if quantised is None else quantised.names.plain(stored)
    report = account(model, names) if whole is None else whole.account(model, names)
    report = replace(report, missing=tuple(n for n in report.missing if n not in fresh))
    if wrong := refusals(replace(report, refused=() if leaves_out else report.refused), name):
        raise ConfigError(*wrong)
    if quantised is None:
        return FolderTensors(folder, stored, report, leaves_out)
    packed = quantised.names
    if inside := [tensor for tensor in report.carried if tensor in packed.weights and not leaves_out]:
        raise ConfigError(
            plan_codes.PLAN_QUANTISED_BASE(
                "weights beside the language model are stored quantized, and an export could not copy them:"
                " the class with all parts would not read them without its quantization_config",
                "model.name_or_path",
                f"{name}: {listed(inside)}",
                "use the release of this model in bfloat16",
            )
        )
    report = replace(report, carried=tuple(n for tensor in report.carried for n in packed.files_of(tensor)))
    size = human_bytes(packed.num_bytes)
    counted = f"{len(packed.weights)} quantized weights read as bfloat16 ({size})"
    if packed.idle:
        counted += f", {len(packed.idle)} scales of activations left out"
    return FolderTensors(folder, stored, report, leaves_out, counted)
