"""A rank reads only its own part of a model from the safetensors files.

That needs each parameter to be one tensor of the files, or several that are stacked or joined (the experts of
a layer). It may also be a head drawn from the seed, or have new rows next to those of the files. For any
other conversion one rank reads the whole model.

Room in the embedding (and the head) for a tokenizer's new tokens.

New rows are the mean of the old ones plus a thousandth of their standard deviation as noise, from the seed.
They are equal on all ranks and distinct from each other. This is the rule of Hewitt 2021, "Initializing new
word embeddings", without its covariance.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor, nn

from paceline.core.errors import ConfigError
from paceline.core.safetensors_header import FLOATS, StoredTensor, header_of
from paceline.models.loading.folder_tensors import FolderTensors
from paceline.models.loading.loading_report import TensorMerge, conversions
from paceline.models.loading.model_source import cannot_load
from paceline.models.loading.quantized_folder import QuantisedFiles, QuantisedFolder
from paceline.models.loading.safetensors_files import OpenedFiles, TensorFiles
from paceline.models.module_tensors import persistent_buffers, replace_tensors
from paceline.plan.model.files.safetensors_headers import weights_of
from paceline.protocols.model import Slices

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from paceline.protocols.model import HFModel


_COLUMNS = 256  # of the old rows that are held in fp32 at a time

Columns = Callable[[int, int], Tensor]  # (first, number) -> these columns of the old rows, [old, number]


@torch.no_grad()
def new_rows(columns: Columns, rows: int, width: int, generator: torch.Generator) -> Tensor:
    """Return ``rows`` further rows [rows, width], fp32, of a weight whose old ones ``columns`` returns. The
    same bits however these are read.
    """
    # Drawn whole, so that the bits do not depend on how many columns are read at a time.
    noise = torch.randn(rows, width, generator=generator)
    for first in range(0, width, _COLUMNS):
        old = columns(first, min(_COLUMNS, width - first)).float().contiguous()
        noise[:, first : first + _COLUMNS].mul_(1e-3 * old.std(0)).add_(old.mean(0))
    return noise


@torch.no_grad()
def resize_embeddings(hf: HFModel, rows: int, seed: int) -> None:
    """Grow or shrink the embedding (and the head) of a model on the CPU to ``rows``, in place."""
    old = hf.get_input_embeddings().weight.shape[0]
    # Without Transformers' own rule for new rows: ours are written below.
    hf.resize_token_embeddings(rows, mean_resizing=False)
    if rows <= old:
        return
    generator = torch.Generator().manual_seed(seed)
    for name in vocabulary_names(hf):
        weight = hf.get_parameter(name)
        if weight.shape[0] != rows:
            continue
        if weight.ndim == 1:
            weight[old:] = weight[:old].mean()
            continue

        def columns(first: int, number: int, weight: Tensor = weight) -> Tensor:
            return weight[:old, first : first + number]

        weight[old:] = new_rows(columns, rows - old, weight.shape[1], generator)


def vocabulary_names(hf: HFModel) -> list[str]:
    """Return the names of the parameters with a row a token: the embedding's weight, then the head's weight
    and bias, a tied one once.
    """
    vocabulary: list[str] = []
    names = {id(parameter): name for name, parameter in hf.named_parameters()}
    for module in (hf.get_input_embeddings(), hf.get_output_embeddings()):
        for leaf in ("weight", "bias"):
            parameter = getattr(module, leaf, None)
            name = names.get(id(parameter)) if isinstance(parameter, nn.Parameter) else None
            if name is not None and name not in vocabulary:
                vocabulary.append(name)
    return vocabulary


Shape = tuple[int, ...]
T = TypeVar("T")


@dataclass(frozen=True)
class FileBlock:
    """A tensor of the files, which is the block of ``shape`` at ``offsets`` of a parameter. Leading size-1
    dimensions may be missing, and two dimensions may be ``transposed``.
    """

    file: Path
    name: str
    offsets: Shape
    shape: Shape
    transposed: tuple[int, int] | None = None

    def as_stored(self, dims: Sequence[T]) -> tuple[T, ...]:
        """Reorder per-dimension values of the parameter to the file's dimensions."""
        order = [*dims]
        if self.transposed is not None:
            dim, other = self.transposed
            order[dim], order[other] = order[other], order[dim]
        return tuple(order)


@dataclass(frozen=True)
class FolderSlices:
    """``places``: a parameter or persistent buffer of the model -> its blocks in the files; ``grown``: a
    parameter with new rows -> its shapes in the files and in the model; ``more``: the new rows.
    """

    places: Mapping[str, tuple[FileBlock, ...]]
    grown: Mapping[str, tuple[Shape, Shape]] = field(default_factory=dict)
    more: dict[str, Tensor] = field(default_factory=dict)
    opened: TensorFiles = field(default_factory=OpenedFiles, compare=False)

    def grow(self, seed: int) -> None:
        """Make the rows of ``more``: read these parameters in turn, some columns at a time."""
        generator = torch.Generator().manual_seed(seed)
        for name, (old, new) in self.grown.items():
            if len(old) == 1:
                self.more[name] = self._stored(name, (0,), old).float().mean().expand(new[0] - old[0])
                continue

            def columns(first: int, number: int, name: str = name, rows: int = old[0]) -> Tensor:
                return self._stored(name, (0, first), (rows, number))

            self.more[name] = new_rows(columns, new[0] - old[0], old[1], generator)

    def has(self, name: str) -> bool:
        return name in self.places

    def read(self, name: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return the block of ``shape`` at ``offsets`` on the CPU, in the file's dtype (fp32 with rows of
        ``more``). Raises ConfigError ``models.cannot_load``.
        """
        if name not in self.grown:
            return self._stored(name, offsets, shape)
        old = self.grown[name][0][0]
        first, end = offsets[0], offsets[0] + shape[0]
        columns = tuple(slice(o, o + n) for o, n in zip(offsets[1:], shape[1:], strict=True))
        parts = [self.more[name][(slice(max(first - old, 0), max(end - old, 0)), *columns)]]
        if first < old:
            parts.insert(0, self._stored(name, offsets, (min(end, old) - first, *shape[1:])).float())
        return torch.cat(parts)

    def picked(self, name: str, shape: Shape, step: int, count: int) -> Tensor:
        """Return ``count`` values of the flattened parameter of ``shape``, one every ``step``, in fp32."""
        index = torch.arange(0, math.prod(shape), step)[:count]
        if name in self.grown:
            return self.read(name, (0,) * len(shape), shape).flatten()[index].float()
        where, values = torch.unravel_index(index, shape), torch.empty(len(index))
        for block in self.places[name]:
            inside, flat = torch.ones(len(index), dtype=torch.bool), torch.zeros_like(index)
            dims = block.as_stored([*zip(where, block.offsets, block.shape, strict=True)])
            for index_in_dim, first, number in dims:
                inside &= (index_in_dim >= first) & (index_in_dim < first + number)
                flat = flat * number + (index_in_dim - first)
            with _named(block.file):
                values[inside] = self.opened.values_of(block.file, block.name, flat[inside]).float()
        return values

    def read_by(self, opened: TensorFiles) -> FolderSlices:
        """Return the same, read by ``opened``."""
        return replace(self, opened=self.opened.read_by(opened))

    def renamed(self, names: Mapping[str, str]) -> FolderSlices:
        """Return the same for a model in which a parameter's name (a key of ``names``) was another (its
        value).
        """
        return replace(
            self,
            places={name: self.places[was] for name, was in names.items() if was in self.places},
            grown={name: self.grown[was] for name, was in names.items() if was in self.grown},
            more={name: self.more[was] for name, was in names.items() if was in self.more},
        )

    def _stored(self, name: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return a block of the tensor in the files."""
        blocks = self.places[name]
        if len(blocks) == 1:
            return self._part(blocks[0], offsets, shape)
        out: Tensor | None = None
        for block in blocks:
            first = [max(o, b) for o, b in zip(offsets, block.offsets, strict=True)]
            last = [
                min(o + n, b + m)
                for o, n, b, m in zip(offsets, shape, block.offsets, block.shape, strict=True)
            ]
            size = [end - start for start, end in zip(first, last, strict=True)]
            if min(size) <= 0:
                continue
            part = self._part(block, [f - b for f, b in zip(first, block.offsets, strict=True)], size)
            out = torch.empty(tuple(shape), dtype=part.dtype) if out is None else out
            out[tuple(slice(f - o, e - o) for f, e, o in zip(first, last, offsets, strict=True))] = part
        assert out is not None, f"{name} has no values at {offsets}"
        return out

    def _part(self, block: FileBlock, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return a part of one of the files' tensors, in ``shape``."""
        with _named(block.file):
            stored_slice = self.opened.slice_of(block.file, block.name)
            stored = len(stored_slice.get_shape())
            where = tuple(slice(o, o + n) for o, n in zip(offsets, shape, strict=True))
            if block.transposed is not None:
                return stored_slice[block.as_stored(where)].transpose(*block.transposed).contiguous()
            return (stored_slice[where[len(shape) - stored :]] if shape else stored_slice[()]).reshape(
                tuple(shape)
            )


@contextmanager
def _named(file: Path) -> Iterator[None]:
    """Turn errors inside of reading a file into ConfigError."""
    from safetensors import SafetensorError

    try:
        yield
    except (OSError, SafetensorError) as error:
        raise ConfigError(cannot_load(str(file), error)) from error


def folder_slices(
    model: PreTrainedModel,
    tensors: FolderTensors,
    fresh: Collection[str] = (),
    growing: Collection[str] = (),
    converting: PreTrainedModel | None = None,
    quantised: QuantisedFolder | None = None,
) -> FolderSlices | str:
    """Return where each parameter and persistent buffer of ``model`` (which may be on meta) is in its folder.
    If one of them cannot be read in parts, return why. Missing ones of ``fresh`` are left out; those of
    ``growing`` may have fewer rows there. ``converting``: the folder's class, if it differs;
    ``quantised``: how its weights are stored, if not plain.
    """
    if tensors.found.ties:  # whether they are equal is known when both are read
        return "the files hold tied weights twice"
    if quantised is None:
        stored = tensors.stored
        files = {name: file for file in weights_of(tensors.folder, []) for name in header_of(file)}
    else:
        stored = quantised.plain()
        files = {name: quantised.file_of(name) for name in stored}
    converted = conversions(model if converting is None else converting, stored)
    ties = dict(model.all_tied_weights_keys or {})
    aliases = {parameter: name for name, parameter in ties.items()}
    places: dict[str, tuple[FileBlock, ...]] = {}
    grown: dict[str, tuple[Shape, Shape]] = {}
    for name, tensor in (*model.named_parameters(), *persistent_buffers(model)):
        used = tensors.found.used
        names = used.get(name) or used.get(aliases.get(name, "")) or used.get(ties.get(name, "")) or ()
        if not names and name in fresh:
            continue
        if not names:
            return f"the files have no {name}"
        shape = tuple(tensor.shape)
        have = stored[names[0]].shape
        if name in growing and have[:1] < shape[:1]:
            grown[name] = (have, shape)
            shape = (have[0], *shape[1:])
        blocks = _blocks(shape, names, stored, converted)
        if not blocks:
            return f"{name} is made from other tensors of the files"
        places[name] = tuple(
            FileBlock(
                files[source],
                source,
                offsets,
                size,
                _transposed_dims(converted.get(source), stored[source].shape, shape),
            )
            for source, offsets, size in blocks
        )
    opened = OpenedFiles() if quantised is None else QuantisedFiles(quantised)
    return FolderSlices(places, {n: grown[n] for n in growing if n in grown}, opened=opened)


def _transposed_dims(how: TensorMerge | None, have: Shape, shape: Shape) -> tuple[int, int] | None:
    """Return the two dimensions to swap to turn a stored tensor of shape ``have`` into ``shape``."""
    return None if how is None or (how.or_not and have == shape) else how.transposed


def _blocks(
    shape: Shape,
    names: Collection[str],
    stored: Mapping[str, StoredTensor],
    converted: Mapping[str, TensorMerge | None],
) -> list[tuple[str, Shape, Shape]]:
    """Return (name, offsets, shape) of the blocks that fill a tensor of ``shape`` side by side. Return
    nothing if these tensors of the files do not fill it.
    """
    # blocks of one parameter are read into one tensor, in the files' dtype
    if len({stored[name].dtype for name in names}) > 1 or stored[next(iter(names))].dtype not in FLOATS:
        return []
    joins = [converted.get(name) for name in names if name in converted]
    if not joins:
        (name, *more) = names
        return [] if more or stored[name].shape != shape else [(name, (0,) * len(shape), shape)]
    how = joins[0]
    if how is None or len(joins) < len(names) or any(j is None or j.stacked != how.stacked for j in joins):
        return []
    if how.transposed is not None:
        (name, *more) = names
        have = stored[name].shape
        block = FileBlock(Path(), name, (0,) * len(shape), shape, _transposed_dims(how, have, shape))
        alike = len(have) == len(shape) > max(how.transposed) and block.as_stored(shape) == have
        return [] if more or not alike else [(name, block.offsets, shape)]
    blocks = list(_joined(names, stored, converted, how, shape))
    dims = range(len(shape))
    fits = all(
        len(size) == len(shape) and all(offsets[d] + size[d] <= shape[d] for d in dims)
        for _, offsets, size in blocks
    )
    return blocks if fits and sum(math.prod(size) for _, _, size in blocks) == math.prod(shape) else []


def _joined(
    names: Collection[str],
    stored: Mapping[str, StoredTensor],
    converted: Mapping[str, TensorMerge | None],
    how: TensorMerge,
    shape: Shape,
) -> Iterator[tuple[str, Shape, Shape]]:
    """Yield the position of each tensor, as in Transformers. Parts follow their converter's order; the
    tensors of one part follow the numbers in their names.
    """
    from transformers.core_model_loading import dot_natural_key

    parts: dict[int, list[str]] = defaultdict(list)
    for name in sorted(names, key=dot_natural_key):
        if (join := converted[name]) is not None:
            parts[join.part].append(name)
    along = 0
    for _, some in sorted(parts.items()):
        for number, name in enumerate(some):
            size = ((1,) if how.stacked else ()) + stored[name].shape
            offsets = [0] * len(size)
            if how.stacked:
                offsets[0] = number
            if how.dim is not None:
                offsets[how.dim] = along
            yield name, tuple(offsets), size
            if how.dim is not None and not how.stacked:
                along += size[how.dim]
        if how.dim is not None and how.stacked:
            along += size[how.dim]


@torch.no_grad()
def read_rest(hf: PreTrainedModel, slices: Slices) -> None:
    """Give the parameters of ``hf`` that are on meta, and its persistent buffers, their values on the host.
    They have the files' dtype, except where they are trained.
    """
    new: dict[int, Tensor] = {}
    for name, tensor in (*hf.named_parameters(), *persistent_buffers(hf)):
        parameter = isinstance(tensor, nn.Parameter)
        if not slices.has(name) or (parameter and not tensor.is_meta):
            continue
        values = slices.read(name, (0,) * tensor.ndim, tensor.shape)
        if tensor.requires_grad or not parameter:
            values = values.to(tensor.dtype)
        new[id(tensor)] = nn.Parameter(values, tensor.requires_grad) if parameter else values
    replace_tensors(hf, new)
