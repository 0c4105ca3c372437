"""Find the use of every tensor of a model folder: loaded, converted, tied, carried or refused.

Transformers silently drops the tensors that a class lists as ignorable (such as DeepSeek-V3's further heads),
and reports others under converted names. Here each name of the files is followed through the same renamings
as in ``transformers.core_model_loading``, on headers and a model without storage.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from paceline.core.diagnostics import Diagnostic
from paceline.models import codes
from paceline.models.module_tensors import persistent_buffers

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel
    from transformers.core_model_loading import WeightConverter, WeightRenaming

SHOWN = 4  # names in a message
_NUMBER = re.compile(r"(?<=\.)\d+(?=\.)")


@dataclass(frozen=True)
class LoadingReport:
    """The names of a folder's tensors by their use.

    - ``used``: the model's own name (one that Transformers' converters fill) -> the names in the files,
      several where they are merged
    - ``ties``: the model's further names of weights -> the names that they are loaded under, where the files
      have both
    - ``carried``: not part of the model and without effect on it
    - ``refused``: not part of the model, although another class would compute with it in this module
    - ``missing``: names that no file fills
    """

    used: Mapping[str, tuple[str, ...]]
    ties: Mapping[str, str]
    carried: tuple[str, ...]
    refused: tuple[str, ...]
    missing: tuple[str, ...]

    @property
    def tied(self) -> tuple[str, ...]:
        """Names in the files of tied weights that are loaded under another name."""
        return tuple(name for target in self.ties for name in self.used[target])

    @property
    def converted(self) -> int:
        """Tensors of the files that are merged with others into one of the model."""
        return sum(len(names) for names in self.used.values() if len(names) > 1)


NOTHING = LoadingReport({}, {}, (), (), ())


def account(model: PreTrainedModel, names: Iterable[str]) -> LoadingReport:
    """Map each of ``names`` into ``model``, of which only names are read (it may be on meta)."""
    held = model.state_dict()
    find = partial(_name_in, model, held, _transforms(model))
    used: dict[str, list[str]] = defaultdict(list)
    others: list[tuple[str, str]] = []
    for name in sorted(names):
        target = find(name)
        if target in held:
            used[target].append(name)
        else:
            others.append((name, target))
    acting = set(_acts(model, [target for _, target in others]))
    return LoadingReport(
        used={name: tuple(some) for name, some in used.items()},
        ties={n: parameter for n, parameter in _ties(model).items() if n in used and parameter in used},
        carried=tuple(name for name, target in others if target not in acting),
        refused=tuple(name for name, target in others if target in acting),
        missing=(*_missing(model, used), *_gaps(used, held)),
    )


@dataclass(frozen=True)
class TensorMerge:
    """How several tensors of the files become one. They may be ``stacked`` along a new first dimension (a
    layer's experts). Then they are joined along ``dim``, ``part`` after ``part`` (None: there is one part).
    Or one tensor with two dimensions ``transposed`` (``or_not``: unless it has the model's shape as it is).
    """

    part: int
    stacked: bool
    dim: int | None
    transposed: tuple[int, int] | None = None
    or_not: bool = False


def conversions(model: PreTrainedModel, names: Iterable[str]) -> dict[str, TensorMerge | None]:
    """Return the ``names`` whose tensors Transformers' converters change, with the way they are joined; None:
    their values change in another way.
    """
    from transformers.core_model_loading import rename_source_key

    held, transforms, prefix = model.state_dict(), _transforms(model), model.base_model_prefix
    matched = {name: rename_source_key(name, *transforms, prefix, held)[1] for name in names}
    return {name: _join(transforms[1], how) for name, how in matched.items() if how is not None}


def _join(converters: list[WeightConverter], pattern: str) -> TensorMerge | None:
    """Return the operation of ``pattern``'s converter, if it only stacks and joins, or swaps dimensions."""
    from transformers.core_model_loading import Concatenate, MergeModulelist, Transpose

    matching = [one for one in converters if pattern in one.source_patterns]
    if (
        len(matching) != 1
        or len(matching[0].target_patterns) != 1
        or matching[0].quantization_operation is not None
    ):
        return None
    (converter,) = matching
    only = converter.operations[0] if len(converter.operations) == 1 else None
    if type(only) is Transpose and len(converter.source_patterns) == 1:
        return TensorMerge(0, False, None, (only.dim0, only.dim1), only.check_dims)
    stacks = [op for op in converter.operations if type(op) is MergeModulelist and op.dim == 0]
    joins = [op for op in converter.operations if type(op) is Concatenate and op.num_shards_attribute is None]
    if converter.operations not in ([*stacks, *joins], [*stacks[:1]]) or max(len(stacks), len(joins)) > 1:
        return None
    if not joins and len(converter.source_patterns) > 1:
        return None
    return TensorMerge(
        converter.source_patterns.index(pattern), bool(stacks), joins[0].dim if joins else None
    )


_Transforms: TypeAlias = "tuple[list[WeightRenaming], list[WeightConverter]]"


def _transforms(model: PreTrainedModel) -> _Transforms:
    """Return new transforms of the class, since some store their matches."""
    from transformers.conversion_mapping import get_model_conversion_mapping
    from transformers.core_model_loading import WeightConverter, WeightRenaming

    mapping = get_model_conversion_mapping(model)
    return (
        [transform for transform in mapping if isinstance(transform, WeightRenaming)],
        [transform for transform in mapping if isinstance(transform, WeightConverter)],
    )


def _name_in(model: PreTrainedModel, held: dict[str, Tensor], transforms: _Transforms, name: str) -> str:
    """Return the model's name for the files' ``name``, as in
    ``convert_and_load_state_dict_in_model``.
    """
    from transformers.core_model_loading import rename_source_key

    prefix = model.base_model_prefix
    target: str = rename_source_key(name, *transforms, prefix, held)[0]
    if target not in held and name in held:
        target = rename_source_key(name, [], [], prefix, held)[0]
    return target


def _ties(model: PreTrainedModel) -> dict[str, str]:
    """Return other names of tied weights -> the names of their parameters."""
    return dict(model.all_tied_weights_keys or {})


def _missing(model: PreTrainedModel, used: Collection[str]) -> list[str]:
    """Return parameters and persistent buffers that no file fills, under any of their names, and that no
    converter makes together with one that is filled.
    """
    aliases: dict[str, set[str]] = defaultdict(set)
    for name, parameter in _ties(model).items():
        aliases[parameter] |= {name, parameter}
        aliases[name] |= {name, parameter}
    needed = (n for n, _ in (*model.named_parameters(), *persistent_buffers(model)))
    filled = {*used, *_made_together(model, used)}
    return [n for n in needed if n not in filled and not aliases[n] & filled]


def _gaps(used: Mapping[str, Collection[str]], held: Mapping[str, Tensor]) -> list[str]:
    """Return the names that are missing among tensors that become one. Every expert of a layer must have the
    same parts, and every layer the same experts.
    """
    kinds: dict[str, set[tuple[str, int]]] = defaultdict(set)  # by target, for all layers
    for target, names in used.items():
        if len(names) > 1:
            parts = {_part(name, target) for name in names}
            rows = held[target].shape[0] if held[target].ndim == 3 else 0  # an expert each
            if 0 <= max(number for _, number in parts) < rows:
                parts |= {(pattern, number) for pattern, _ in parts for number in range(rows)}
            kinds[_NUMBER.sub("#", target, count=1)] |= parts
    gaps = []
    for target, names in used.items():
        parts = kinds.get(_NUMBER.sub("#", target, count=1), set())
        patterns, numbers = {pattern for pattern, _ in parts}, {number for _, number in parts}
        lacking = {(p, n) for p in patterns for n in numbers} - {_part(name, target) for name in names}
        layer = _NUMBER.search(target)
        gaps += [
            pattern.replace("*", layer[0] if layer else "", 1).replace("*", str(number))
            for pattern, number in sorted(lacking)
        ]
    return gaps


def _part(name: str, target: str) -> tuple[str, int]:
    """Return a name without its numbers, and the last of them if ``target`` has fewer: an expert's (else
    -1).
    """
    numbers = _NUMBER.findall(name)
    return _NUMBER.sub("*", name), int(numbers[-1]) if len(numbers) > len(_NUMBER.findall(target)) else -1


def _made_together(model: PreTrainedModel, used: Collection[str]) -> set[str]:
    """Return the names that converters produce together with those in ``used`` (a fused projection is
    split)."""
    names = set()
    for converter in _transforms(model)[1]:
        first, *others = (p.replace("\\", "") for p in converter.target_patterns)
        names |= {name.replace(first, other, 1) for name in used if first in name for other in others}
    return names


def _acts(model: PreTrainedModel, others: Iterable[str]) -> list[str]:
    """Return the names in ``others`` (unknown to the class) within a layer or a module with weights. A class
    that has them computes something else there.

    Tensors that the class lists as ignorable do not count.
    """
    # older files hold rotary frequencies, which every class computes
    patterns = {r"rotary_emb\.inv_freq", *(model._keys_to_ignore_on_load_unexpected or ())}
    computes = {
        path
        for path, module in model.named_modules()
        if any(part.isdigit() for part in path.split("."))
        or any(True for _ in module.parameters(recurse=False))
    }
    return [
        name
        for name in others
        if any(path in computes for path in _parents(name))
        and not any(re.search(pattern, name) for pattern in patterns)
    ]


def _parents(name: str) -> list[str]:
    parts = name.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def refusals(report: LoadingReport, where: str) -> list[Diagnostic]:
    """Return the errors of a folder that cannot be trained: missing tensors, and tensors that only another
    class computes with.
    """
    wrong = []
    if report.missing:
        wrong.append(
            codes.MODELS_MISSING_WEIGHTS(
                "the checkpoint lacks weights of this model",
                "model.name_or_path",
                f"{where}: {listed(report.missing)}",
                "use a complete checkpoint, or model.config to start from scratch",
            )
        )
    if report.refused:
        wrong.append(
            codes.MODELS_LOST_WEIGHTS(
                "model.name_or_path", f"{where}: {listed(report.refused)}", refused=len(report.refused)
            )
        )
    return wrong


def untied(model: PreTrainedModel, report: LoadingReport, where: str) -> list[Diagnostic]:
    """Return weights that the config ties, but that Transformers loaded apart: their values differ."""
    apart = [
        f"{name} and {parameter}"
        for name, parameter in report.ties.items()
        if model.get_parameter(name) is not model.get_parameter(parameter)
    ]
    return [codes.MODELS_UNTIED("model.name_or_path", f"{where}: {listed(apart)}")] if apart else []


def listed(names: Collection[str]) -> str:
    """Return the first names, and how many more there are."""
    more = len(names) - SHOWN
    return ", ".join(list(names)[:SHOWN]) + (f" and {more} more" if more > 0 else "")
