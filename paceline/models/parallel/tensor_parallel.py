"""Tensor parallelism: shard a model over the ranks as ``tensor_parallel_cut`` says.

Every parameter becomes a DTensor on the tp mesh, sharded or replicated, so gradient norms, optimizers, FSDP2
and checkpoints need no special case. Activations are plain tensors (``tensor_parallel_layers``). The loss is
computed in full by every rank, or (``loss_parallel``) with embedding and head sharded over the vocabulary
(``models.heads.vocab_parallel``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Replicate, Shard

from paceline.models import codes
from paceline.models.fused_layers.rms_norm import fuse_norms
from paceline.models.heads.vocab_parallel import VocabularyPart
from paceline.models.parallel import tensor_parallel_layers, tensor_parallel_lora
from paceline.models.parallel.tensor_parallel_cut import (
    COLWISE,
    OWN_HEADS,
    TensorCut,
    how_cut,
    refused,
)
from paceline.models.parallel.tensor_parallel_layers import EXPERTS, Forward, TensorParallelGroup
from paceline.models.parallel.tp_regions import TP_AXIS, block_of
from paceline.models.recurrent_layers import PerDocumentLayer
from paceline.models.replace_forward import own_class
from paceline.models.role_module import RoleModule
from paceline.models.vision.whole_model import text_model
from paceline.protocols.model import RootModule

if TYPE_CHECKING:
    from peft.tuners.lora import Linear

    from paceline.protocols.model import HFModel


def apply_tensor_parallel(
    root: RootModule, mesh: DeviceMesh, *, sequence_parallel: bool = False, loss_parallel: bool = False
) -> None:
    """Shard the model of a root module over ``mesh`` (one axis, ``tp``), in place; call before
    ``fully_shard`` and the optimizer.

    The module must be built with ``fused=False``; its parameters may be on the meta device. Raises
    ConfigError ``models.tp_*``.
    """
    if mesh.mesh_dim_names != (TP_AXIS,):
        raise ValueError(
            f"the mesh of tensor parallelism must have one axis, {TP_AXIS}, not {mesh.mesh_dim_names}"
        )
    assert isinstance(root, RoleModule)
    trunk = text_model(root.hf).base_model  # a tower stays whole on every rank
    # All refusals come before the first change: a model is cut whole or not at all.
    cut = how_cut(root, mesh.size(), sequence_parallel=sequence_parallel)
    fuse_norms(root.hf)  # the only kernels that read no other module's weights
    tensors = TensorParallelGroup(mesh.get_group(), sequence_parallel)
    shares = _Shares(mesh)
    # First the vocabulary, then what the plan names, then everything else: a DTensor is not sharded twice.
    if loss_parallel:
        _share_vocabulary(root, tensors, shares)
    for name, style in cut.styled.items():
        _apply_style(trunk.get_submodule(name), name, style, tensors, shares)
    _replicate_rest(root.hf, cut, tensors, shares)
    # Where activations enter and leave sharded computation.
    for name, sharded in cut.blocks.items():
        block = trunk.get_submodule(name)
        if not sharded and (read := _read_by_block(block, name, cut.styled)):
            _set_forward(block, tensor_parallel_layers.with_local_children(block, read, tensors))
        if (
            own_class(block).__name__ == "BloomAttention"
        ):  # it keeps a number of heads, and gets biases of all
            _set_forward(block, tensor_parallel_layers.own_alibi_heads(block, tensors))
        _set_forward(
            block,
            (tensor_parallel_layers.sharded_block if sharded else tensor_parallel_layers.replicated_block)(
                block, tensors
            ),
        )
    for name, layer in trunk.named_modules():  # a layer with state reads weights of its children itself
        if isinstance(layer, PerDocumentLayer) and name not in cut.blocks:
            inner = [module for module in layer.modules() if module is not layer]
            _set_forward(layer, tensor_parallel_layers.with_local_children(layer, inner, tensors))
    if sequence_parallel:
        _set_forward(cut.stack[0], tensor_parallel_layers.first_layer(cut.stack[0], tensors))
    # A parameter left plain would drift apart between the ranks without an error.
    _assert_sharded(root.hf, mesh)
    root.notes_by_subject["tensor"] = _account(root, mesh.size(), sequence_parallel, loss_parallel)


class _Shares:
    """Converts each parameter once into a DTensor on the mesh, so that tied ones stay tied."""

    def __init__(self, mesh: DeviceMesh) -> None:
        self.mesh = mesh
        # keeps the old one: its id is not reused
        self._made: dict[int, tuple[nn.Parameter, nn.Parameter]] = {}

    @torch.no_grad()
    def take(self, module: nn.Module, name: str, dim: int | None, where: str) -> None:
        """Replace parameter ``name`` of ``module`` by a DTensor, sharded along ``dim`` or replicated
        (None).
        """
        old = module._parameters[name]
        if old is None or isinstance(old, DTensor):
            return
        if id(old) not in self._made:
            size = self.mesh.size()
            if dim is not None and old.shape[dim] % size:
                raise refused(
                    codes.MODELS_TP_WIDTH,
                    f"{where}.{name} cannot be split into {size} equal parts",
                    f"{tuple(old.shape)} along dim {dim}",
                    f"use a tp_size that divides {old.shape[dim]}",
                )
            block = old.detach() if dim is None else block_of(old.detach(), self.mesh.get_group(), dim)
            # A clone: a view would keep the whole weight alive on every rank.
            block = block if dim is None else block.clone(memory_format=torch.contiguous_format)
            placement = Replicate() if dim is None else Shard(dim)
            # Without a check, which would compare replicas by a collective for each parameter.
            shared = DTensor.from_local(block, self.mesh, [placement], run_check=False)
            self._made[id(old)] = (old, nn.Parameter(shared, requires_grad=old.requires_grad))
        module._parameters[name] = self._made[id(old)][1]


def _apply_style(
    module: nn.Module, name: str, style: str, tensors: TensorParallelGroup, shares: _Shares
) -> None:
    if tensor_parallel_lora.is_adapted(module):
        _adapt_style(module, name, style, tensors, shares)
        return
    if style == OWN_HEADS:
        for parameter in module._parameters:
            shares.take(module, parameter, None, name)
        _set_forward(module, tensor_parallel_layers.whole(module, tensors, partial=True, inside_cut=False))
        return
    if style == EXPERTS:
        for parameter in module._parameters:
            shares.take(module, parameter, 0, name)
        _set_forward(module, tensor_parallel_layers.local_experts_forward(module, tensors))
        return
    _take_linear(module, name, style, shares)
    if style in COLWISE:
        _set_forward(
            module, tensor_parallel_layers.colwise(module, tensors, gathers=style == "colwise_gather_output")
        )
    else:
        _set_forward(
            module, tensor_parallel_layers.rowwise(module, tensors, splits=style == "rowwise_split_input")
        )


def _take_linear(module: nn.Module, name: str, style: str, shares: _Shares) -> None:
    shares.take(module, "weight", 0 if style in COLWISE else 1, name)
    shares.take(module, "bias", 0 if style in COLWISE else None, name)


def _adapt_style(layer: Linear, name: str, style: str, tensors: TensorParallelGroup, shares: _Shares) -> None:
    """Shard a linear layer together with its adapter."""
    if style == OWN_HEADS:
        for module in tensor_parallel_lora.inside(layer):
            for parameter in module._parameters:
                shares.take(module, parameter, None, name)
        forwards = tensor_parallel_lora.own_heads(layer, tensors)
    else:
        _take_linear(layer.base_layer, name, style, shares)
        tensor_parallel_lora.share_factors(layer, name, 0 if style in COLWISE else 1, shares.take)
        if style in COLWISE:
            forwards = tensor_parallel_lora.colwise(layer, tensors, gathers=style == "colwise_gather_output")
        else:
            forwards = tensor_parallel_lora.rowwise(layer, tensors, splits=style == "rowwise_split_input")
    for module, forward in forwards.items():
        _set_forward(module, forward)


def _read_by_block(block: nn.Module, name: str, styled: Mapping[str, str]) -> list[nn.Module]:
    """Return the convolutions of a block that all ranks compute whole, whose weights it may read itself."""
    return [
        child
        for path, child in block.named_modules(prefix=name)
        if isinstance(child, nn.Conv1d) and path not in styled
    ]


def _share_vocabulary(root: RoleModule, tensors: TensorParallelGroup, shares: _Shares) -> None:
    """Shard embedding and head over the vocabulary; the loss is then computed without whole rows of
    logits.
    """
    embedding, head = root.hf.get_input_embeddings(), root.hf.get_output_embeddings()
    size, rows = tensors.group.size(), embedding.num_embeddings
    if rows % size or head.weight.shape[0] != rows:
        raise refused(
            codes.MODELS_TP_VOCABULARY,
            f"a parallel loss needs a vocabulary that is divisible by {size}",
            f"{rows} rows",
            f"set model.embedding_multiple: {size}, or loss_parallel: false",
        )
    # Equal shards, so the first row follows from the rank.
    start = tensors.group.rank() * (rows // size)
    for module, name in ((embedding, "embedding"), (head, "head")):
        for parameter in module._parameters:
            shares.take(module, parameter, 0, name)
    _set_forward(embedding, tensor_parallel_layers.vocabulary_rows(embedding, tensors, start))
    _set_forward(head, tensor_parallel_layers.colwise(head, tensors, gathers=True))
    root.parallelize_head(VocabularyPart(tensors.group, start))


def _replicate_rest(hf: HFModel, cut: TensorCut, tensors: TensorParallelGroup, shares: _Shares) -> None:
    """Replicate every other parameter; under sequence parallelism norms between blocks compute on this rank's
    tokens.
    """
    trunk = text_model(hf).base_model
    of_text = {id(m) for m in (trunk, *trunk.modules(), *filter(None, (hf.get_output_embeddings(),)))}
    # Under sequence parallelism modules between blocks see a rank's tokens only, those inside see all.
    inside = {id(m) for name in cut.blocks for m in trunk.get_submodule(name).modules()}
    # Mostly norms: their gradients are partial, each rank having seen its tokens.
    between = {id(m) for m in cut.stack.modules()} - inside
    for name, module in hf.named_modules():
        plain = [k for k, p in module._parameters.items() if p is not None and not isinstance(p, DTensor)]
        if not plain:
            continue
        for parameter in plain:
            shares.take(module, parameter, None, name)
        if cut.last is not None and module is cut.last:
            _set_forward(module, tensor_parallel_layers.final_norm(cut.last, tensors))
        else:
            _set_forward(
                module,
                tensor_parallel_layers.whole(
                    module, tensors, partial=False, inside_cut=id(module) in between
                ),
            )
    for module in () if trunk is hf.base_model else hf.modules():
        # Towers read weights of their layers themselves (torch's MultiheadAttention, interpolated positions)
        leaves = [child for child in module.children() if next(child.children(), None) is None]
        if id(module) not in of_text and leaves:
            _set_forward(module, tensor_parallel_layers.with_local_children(module, leaves, tensors))
    if trunk is not hf.base_model:
        tensor_parallel_layers.local_image_features(hf.base_model, tensors)
        embedding = hf.get_input_embeddings()  # Gemma 4 reads a row of it
        if isinstance(weight := embedding.weight, DTensor) and weight.placements[0].is_replicate():
            read = tensor_parallel_layers.with_local_children(hf.base_model, [embedding], tensors)
            _set_forward(hf.base_model, read)


def _assert_sharded(hf: nn.Module, mesh: DeviceMesh) -> None:
    """Check that every parameter is on the mesh, and that this rank's shards have the right size. Raises
    RuntimeError.
    """
    for name, parameter in hf.named_parameters():
        if not isinstance(parameter, DTensor):
            raise RuntimeError(f"tensor parallelism did not shard {name}")
        parts = mesh.size() if parameter.placements[0].is_shard() else 1
        if parameter.to_local().numel() * parts != parameter.numel():
            raise RuntimeError(
                f"{name}: this rank holds {tuple(parameter.to_local().shape)} of {tuple(parameter.shape)}"
            )


def _account(root: RoleModule, size: int, sequence_parallel: bool, loss_parallel: bool) -> str:
    """Describe what was sharded, for the log."""
    held = [(p.numel(), p.placements[0].is_shard()) for p in root.hf.parameters() if isinstance(p, DTensor)]
    share = sum(count for count, cut in held if cut) / sum(count for count, _ in held)
    extras = [
        "tokens sharded between blocks (sequence parallel)" if sequence_parallel else "",
        "vocabulary sharded" if loss_parallel else "head and embedding complete on every rank",
    ]
    lines = [
        f"{share:.0%} of the parameters sharded over {size} ranks by the model's own plan",
        *filter(None, extras),
    ]
    return ", ".join(lines)


def _set_forward(module: nn.Module, forward: Forward) -> None:
    """Replace the forward of one instance; class, names and hooks stay."""
    # In the instance's dict: ``nn.Module.__setattr__`` is for parameters and modules, and the class is
    # shared by all layers.
    vars(module)["forward"] = forward
