"""Materialize a model from the meta device. Each rank reads its own shards from the files. Where they cannot
be read so (``models.loading.sharded_loading``), rank 0 builds the model on its host. The others receive it
tensor by tensor and keep their shards only.

Decisions that need real weights (which kernel computes a module) are taken by rank 0 and broadcast. No rank
computes weights or buffers alone. Buffers that no checkpoint holds, such as rotary frequencies, are broadcast
like weights, so that none can be left wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, TypedDict

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from paceline.core.errors import PacelineError
from paceline.core.json_types import Json, JsonObject
from paceline.models import codes
from paceline.models.fused_layers.qkv_rotary import FusedAttention
from paceline.models.fused_layers.rms_norm import FusedRMSNorm
from paceline.models.fused_layers.swiglu import FusedSwiGLU
from paceline.models.module_tensors import replace_tensors, replaced, tensors_of
from paceline.models.replace_forward import replace_forward
from paceline.models.role_module import RoleModule
from paceline.protocols.model import BuildOptions, ModelFactory, RootModule, Slices
from paceline.runtime.process_group.world import World

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from paceline.models.heads.sequence_classification import Attention, AutoClass
    from paceline.plan.plan import Quantization
    from paceline.protocols.model import HFModel


#: Kernel → the class that a module is swapped to, the attributes that a probe sets
_KERNELS: Mapping[str, tuple[type[nn.Module], tuple[str, ...]]] = {
    "norm": (FusedRMSNorm, ("paceline_eps", "paceline_offset")),
    "attention": (FusedAttention, ("paceline_passes",)),
    "mlp": (FusedSwiGLU, ("paceline_tanh",)),
}
Kernel = tuple[str, dict[str, Json]]  # norm, attention or mlp, and the attributes that a probe found
Read = Callable[[Sequence[int], Sequence[int]], Tensor]  # offsets, shape -> that block of a tensor
Place = Callable[[Tensor, Read, torch.device], Tensor]  # the tensor on meta -> this rank's part of it


def skeleton(
    auto: AutoClass,
    config: PreTrainedConfig,
    attention: Attention,
    code: Mapping[str, bool | str | None],
    dtype: torch.dtype = torch.float32,
) -> HFModel:
    """Return the Hugging Face model that ``auto`` builds from ``config``, without storage. ``code``: whether
    Python code from the hub runs, and its commit.
    """
    with torch.device("meta"):
        return from_config(auto, config, attention, code, dtype)


def build_on_meta(
    build: ModelFactory, options: BuildOptions, world: World
) -> tuple[RootModule, RootModule | None]:
    """Return the model without storage, and on rank 0 also the model with the weights that cannot be read in
    parts, which ``fill`` sends. Collective. A base whose layers are packed on the way (``options.packs``) and
    whose files cannot be read in parts is built by every rank instead.
    """
    root = build(replace(options, device=torch.device("meta")))
    if root.slices is None and quantization_of(root) is not None:
        return build(replace(options, packs=False)), None
    # Rank 0 alone decides by real weights; the others copy its decisions.
    source = build(replace(options, by_slices=True)) if world.is_main else None
    copy_decisions(root, source, world)
    return root, source


def quantization_of(root: RootModule) -> Quantization | None:
    """Return the 4-bit format of the weights under the adapters of ``root``, if they are packed."""
    adapter = root.adapter if isinstance(root, RoleModule) else None
    return None if adapter is None else adapter.spec.quantization


def name_trunk(hf: HFModel) -> None:
    """Correct the prefix of a class whose prefix is not its trunk's, so that ``hf.base_model`` is the trunk.
    Llama 4's causal class, for example, keeps the prefix of the class with a tower.
    """
    if not hasattr(hf, hf.base_model_prefix):
        from transformers import PreTrainedModel

        trunks = [name for name, module in hf.named_children() if isinstance(module, PreTrainedModel)]
        if len(trunks) == 1:
            hf.base_model_prefix = trunks[0]


def from_config(
    auto: AutoClass,
    config: PreTrainedConfig,
    attention: Attention,
    code: Mapping[str, bool | str | None],
    dtype: torch.dtype = torch.float32,
) -> HFModel:
    """Call ``auto.from_config``, with ``code_revision`` only if the class will be downloaded from the hub.

    Transformers would pass the option on to its own classes, and to a class from the hub that an earlier
    model of this process has registered. Neither accepts it.
    """
    kind = auto._model_mapping.get(type(config), None)
    registered = kind is not None and not getattr(kind, "__module__", "transformers.").startswith(
        "transformers."
    )
    brings_code = auto.__name__ in (getattr(config, "auto_map", None) or {}) and not registered
    options = dict(code) if brings_code else {k: v for k, v in code.items() if k != "code_revision"}
    return auto.from_config(config, dtype=dtype, attn_implementation=attention, **options)


class _Decisions(TypedDict):
    kernels: dict[str, Kernel]
    head: tuple[bool, str]
    base: JsonObject | None  # of the adapter
    generation: JsonObject | None


def copy_decisions(root: RootModule, source: RootModule | None, world: World) -> None:
    """Apply rank 0's decisions about ``source``'s modules to ``root``. Collective; ``source`` is None on the
    other ranks.
    """
    assert isinstance(root, RoleModule)
    decisions = world.broadcast_json(None if source is None else choices_of(source))
    modules = dict(root.hf.named_modules())
    for name, (kernel, values) in decisions["kernels"].items():
        swap_kernel(modules[name], kernel, values)
    root.head.fused, root.head.reason = decisions["head"]
    if root.adapter is not None:
        root.adapter = replace(root.adapter, base=decisions["base"] or {})
    if decisions["generation"] is not None:
        root.hf.generation_config = type(root.hf.generation_config).from_dict(decisions["generation"])


def choices_of(source: RootModule) -> _Decisions:
    assert isinstance(source, RoleModule)
    generation = getattr(source.hf, "generation_config", None)
    return {
        "kernels": kernels_of(source.hf),
        "head": (source.head.fused, source.head.reason),
        "base": None if source.adapter is None else dict(source.adapter.base),
        "generation": None if generation is None else generation.to_dict(),
    }


def kernels_of(hf: nn.Module) -> dict[str, Kernel]:
    """Return, by module name, which of Paceline's kernels computes it, with the attributes that a probe
    found.
    """
    return {
        name: (kernel, {attribute: getattr(module, attribute) for attribute in attributes})
        for name, module in hf.named_modules()
        for kernel, (kind, attributes) in _KERNELS.items()
        if isinstance(module, kind)
    }


def swap_kernel(module: nn.Module, kernel: str, values: Mapping[str, Json]) -> None:
    """Swap ``module`` to one of the kernels of ``kernels_of``."""
    kind = _KERNELS[kernel][0]
    if not isinstance(module, kind):
        module.__class__ = replace_forward(kind, type(module))
    for name, value in values.items():
        setattr(module, name, value)


@torch.no_grad()
def fill(
    root: RootModule,
    source: RootModule | None,
    world: World,
    device: torch.device,
    place: Place | None = None,
    tensors: Iterable[tuple[str, Tensor]] | None = None,
) -> None:
    """Give every parameter (plain or DTensor) and buffer of ``root`` its values, on ``device``: a rank's own
    part from the files (``root.slices``), or rank 0's. Collective. ``place`` makes a rank's part of a tensor
    (None: all of it, or the shard of a DTensor). ``tensors``: the tensors of ``root`` by their names in
    ``source``, where these differ.

    Rank 0 sends one full tensor at a time. Raises PacelineError
    ``models.not_filled`` if anything is left on meta.
    """
    place = place or own_part
    slices = None if source is None else source.slices
    _send_rows(slices, root, world)
    real = None if source is None else dict(tensors_of(source))
    stored = {n for n in real or () if slices is not None and slices.has(_plain(n))}
    listed = (
        [(n, tuple(t.shape), str(t.dtype), n in stored) for n, t in real.items()]
        if real is not None
        else None
    )
    mine: dict[str, list[Tensor]] = {}
    for name, tensor in tensors_of(root) if tensors is None else tensors:
        # A list: a pipeline rank may hold a tied weight twice under one name.
        mine.setdefault(name, []).append(tensor)
    new: dict[int, Tensor] = {}
    # Rank 0 has the list; all ranks broadcast the tensors in its order.
    for name, shape, dtype, in_files in world.broadcast_json(listed):
        if in_files:
            assert root.slices is not None
            for target in mine.get(name, ()):
                new[id(target)] = place(target, partial(root.slices.read, _plain(name)), device)
            continue
        full = torch.empty(shape, dtype=getattr(torch, dtype.removeprefix("torch.")), device=world.device)
        if real is not None:
            # ``pop``: rank 0's host copy is freed once it is sent.
            full.copy_(real.pop(name))
        dist.broadcast(full, 0)
        for target in mine.get(name, ()):
            new[id(target)] = place(target, partial(block_of, full), device)
        del full  # before the next is allocated beside it
    replace_tensors(root, new)
    filled = {id(tensor) for tensor in new.values()}
    left = [
        name
        for name, tensor in tensors_of(root)
        if tensor.is_meta or (isinstance(tensor, nn.Parameter) and id(tensor) not in filled)
    ]
    if left:
        raise PacelineError(codes.MODELS_NOT_FILLED(found=", ".join(left[:5])))


def _send_rows(slices: Slices | None, root: RootModule, world: World) -> None:
    """Give ``root`` the new rows of rank 0's ``slices``. Collective."""
    more = None if slices is None else slices.more
    listed = {name: list(rows.shape) for name, rows in (more or {}).items()}
    for name, shape in world.broadcast_json(listed if world.is_main else None).items():
        rows = torch.empty(shape, device=world.device)
        if more is not None:
            rows.copy_(more[name])
        dist.broadcast(rows, 0)
        assert root.slices is not None
        root.slices.more[name] = rows.cpu()


def _plain(name: str) -> str:
    return name.removeprefix("hf.")


def block_of(full: Tensor, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
    return full[tuple(slice(o, o + n) for o, n in zip(offsets, shape, strict=True))]


def own_part(target: Tensor, read: Read, device: torch.device) -> Tensor:
    """Return this rank's shard as a tensor of ``target``'s kind, with storage on ``device``; ``read`` returns
    the block of a shape at offsets.
    """
    if not isinstance(target, DTensor):
        values = read((0,) * target.ndim, target.shape).to(device=device, dtype=target.dtype, copy=True)
        return nn.Parameter(values, target.requires_grad) if isinstance(target, nn.Parameter) else values
    shape, offsets = compute_local_shape_and_global_offset(
        target.shape, target.device_mesh, target.placements
    )
    # A dim smaller than the group leaves this rank an empty shard.
    block = read(offsets, shape) if math.prod(shape) else torch.empty(shape)
    local = block.to(device=device, dtype=target.dtype, copy=True).contiguous()
    # By the target's own spec: ``from_local`` would take uneven shards for even ones.
    shared = DTensor(local, target._spec, requires_grad=False)  # type: ignore[no-untyped-call]
    return nn.Parameter(shared, target.requires_grad)


def empty_model(
    auto: AutoClass,
    config: PreTrainedConfig,
    attention: Attention,
    code: Mapping[str, bool | str | None],
    name: str | None,
    revision: str,
) -> HFModel:
    """Return the model that ``auto.from_pretrained(name)`` would, in fp32, with its parameters on meta;
    without a name, the one that ``auto.from_config`` would.
    """
    from transformers.initialization import no_init_weights

    with no_init_weights(), _parameters_on_meta():
        model = from_config(auto, config, attention, code)
    model.tie_weights()
    if name is None:
        return model
    model.config.dtype = model.config.get_text_config().dtype = torch.float32
    adjust: Callable[..., None] | None = getattr(model, "adjust_generation_fn", None)
    if model.can_generate() and adjust is not None:
        adjust(  # as from_pretrained calls it
            generation_config=None,
            from_auto_class=True,
            from_pipeline=False,
            pretrained_model_name_or_path=name,
            cache_dir=None,
            force_download=False,
            proxies=None,
            local_files_only=False,
            token=None,
            revision=revision,
            subfolder="",
            trust_remote_code=False,
        )
    return model.eval()


@torch.no_grad()
def draw(hf: HFModel, names: Iterable[str], seed: int) -> None:
    """Initialise the parameters ``names`` of a model on meta, and others in the same modules, from ``seed``
    on the CPU, as ``from_pretrained`` does.
    """
    drawn = {name.rpartition(".")[0] for name in names}
    for path in drawn:
        hf.get_submodule(path).to_empty(device="cpu", recurse=False)
    for name, parameter in hf.named_parameters():  # Transformers' own mark: it leaves such parameters alone
        parameter._is_hf_initialized = name.rpartition(".")[0] not in drawn  # type: ignore[attr-defined]
    # The seed is for these weights alone: the run's own generator stays as it was.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for path, module in _inside_out(hf):  # a module around a drawn one may draw it otherwise
            if any(f"{inner}.".startswith(f"{path}." if path else "") for inner in drawn):
                hf._init_weights(module)  # type: ignore[no-untyped-call]


def _inside_out(module: nn.Module, path: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield all modules by name, children before their parent."""
    for name, child in module.named_children():
        yield from _inside_out(child, f"{path}.{name}" if path else name)
    yield path, module


def _parameters_on_meta() -> AbstractContextManager[None]:
    """Inside the context a module's parameters lose their storage when they are registered."""
    register = nn.Module.register_parameter

    def on_meta(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        if parameter is not None and not parameter.is_meta:
            parameter = nn.Parameter(parameter.detach().to("meta"), parameter.requires_grad)
        register(module, name, parameter)

    return replaced(nn.Module, register_parameter=on_meta)


@dataclass(frozen=True)
class RestoredWeights:
    """``names``: the model's parameters, all of which the checkpoint has. They are NaN until the import, so
    that training never uses one that the import misses.
    """

    names: frozenset[str]
    more: dict[str, Tensor] = field(default_factory=dict)  # nothing

    def grow(self, seed: int) -> None:
        """New rows come from the checkpoint as well."""

    def has(self, name: str) -> bool:
        return name in self.names

    def read(self, name: str, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
        """Return a block of NaN, fp32."""
        return torch.full(tuple(shape), math.nan)


def unread(hf: nn.Module, restored: Collection[str]) -> RestoredWeights | None:
    """Return ``Slices`` that read no file, if all parameters of ``hf`` (which may be on meta) are
    ``restored``."""
    names = frozenset(name for name, _ in hf.named_parameters())
    return RestoredWeights(names) if restored and names.issubset(restored) else None


@torch.no_grad()
def allocate(hf: nn.Module, device: torch.device) -> None:
    """Put parameters that are on meta on ``device``, as NaN, and all buffers with them. Ties hold."""
    new: dict[int, Tensor] = {}
    for parameter in hf.parameters():
        if parameter.is_meta:
            values = torch.full(parameter.shape, math.nan, dtype=parameter.dtype, device=device)
            new[id(parameter)] = nn.Parameter(values, parameter.requires_grad)
    replace_tensors(hf, new)
    hf.to(device)
