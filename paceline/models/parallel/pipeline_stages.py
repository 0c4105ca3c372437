"""Split a Hugging Face causal language model into pipeline stages: embedding and first layers, layers, last
layers with norm and head.

A stage is the model's own classes without the parts of other stages. A layer of another stage passes its
hidden states on, so every layer keeps its global index, its attention type and its plain name. A model's
class does not decide whether it can be split like this. Paceline runs the stages in turn on a few tokens and
compares them with the whole model.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from torch import Tensor, nn

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ConfigError
from paceline.models import codes
from paceline.models.attention.packed_attention import placeholder_mask
from paceline.models.attention.sequence_info import PackedSequenceInfo
from paceline.models.compute_dtype import LowPrecisionCopies
from paceline.models.heads.lm_head import Head
from paceline.models.loading.materialize import name_trunk
from paceline.models.role_module import RoleModule
from paceline.plan.model.shrink import shrunk
from paceline.plan.strategies.pipeline import no_stages
from paceline.plan.workload.local_tensors import layer_ranges
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Output

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

_LOW = (torch.bfloat16, torch.float16)
_PROBE_TOKENS = 5
M = TypeVar("M", bound=nn.Module)


class OtherStageLayer(nn.Module):
    """Replaces a layer of another stage: an identity on hidden states. Plain attributes that trunks read are
    kept.
    """

    def __init__(self, layer: nn.Module, as_tuple: bool) -> None:
        super().__init__()
        self._as_tuple = as_tuple
        for name, value in vars(layer).items():
            if not name.startswith("_") and isinstance(value, (str, int, float)):
                setattr(self, name, value)

    def forward(self, hidden_states: Tensor, *_: Any, **__: Any) -> Tensor | tuple[Tensor]:
        """Return the hidden states [.., H] unchanged."""
        return (hidden_states,) if self._as_tuple else hidden_states


class StageModule(nn.Module):
    """Stage ``index`` of ``count``: ``forward`` runs its layers, ``answer`` (last stage only) the head.

    ``hf`` is the model without the parts of other stages. ``tied_name`` is the plain name of a weight of
    which the first and the last stage each hold a copy. It is None on other stages and for models without
    tied weights.
    """

    def __init__(self, whole: RoleModule, hf: HFModel, index: int, count: int) -> None:
        super().__init__()
        self.hf = hf
        self.index, self.count = index, count
        self.attention, self.slot = whole.attention, whole.slot
        self.compute_dtype = whole.compute_dtype
        self.notes_by_subject = whole.notes_by_subject
        self.tied_name: str | None = None
        self.head = whole.head if index == count - 1 else None
        self.low_precision: LowPrecisionCopies | None = None

    @property
    def first(self) -> bool:
        """Whether this stage embeds tokens."""
        return self.index == 0

    @property
    def last(self) -> bool:
        """Whether this stage has the head."""
        return self.index == self.count - 1

    @property
    def boundary_dtype(self) -> torch.dtype:
        """The dtype of hidden states sent between stages."""
        return self.compute_dtype if self.compute_dtype in _LOW else next(self.hf.parameters()).dtype

    def forward(self, states: Tensor, batch: Batch) -> Tensor:
        """Token ids int64 [R, L] (first stage) or hidden states [R, L, H] -> hidden states [R, L, H] of
        ``batch`` (see ``token_ids``).
        """
        packed = self.attention.layout == "packed"
        inputs = {"input_ids": states} if self.first else {"inputs_embeds": states}
        about = (
            self.slot.packed_sequences(PackedSequenceInfo.of(batch))
            if packed
            else self.slot.padded_rows(PackedSequenceInfo.of(batch))
        )
        with self._autocast(states), about:
            hidden: Tensor = self.hf.base_model(**inputs, **positions(batch, packed)).last_hidden_state
        return hidden if self.last else hidden.to(self.boundary_dtype)

    def answer(self, hidden: Tensor, batch: Batch, required: frozenset[Output]) -> dict[str, Tensor]:
        """Return the outputs in ``required`` from the final hidden states [R, L, H], as
        ``RoleModule.forward`` does.
        """
        assert isinstance(self.head, Head)
        if self.attention.layout != "packed":
            hidden = PackedSequenceInfo.of(batch).padded.unpad(hidden).unsqueeze(0)
        with self._autocast(hidden):
            return self.head(hidden, batch, required)

    def plain_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this stage's parameters under the whole model's Hugging Face names; a tied weight has one
        name on both of its stages.
        """
        held = None if self.tied_name is None or not self.last else self.hf.get_output_embeddings().weight
        for name, parameter in self.hf.named_parameters():
            yield (self.tied_name if self.tied_name is not None and parameter is held else name), parameter

    def lower_precision(self, *, copies: bool) -> None:
        """Compute in bf16 or fp16 if the model does: with copies of the fp32 masters, or with weights that an
        engine casts.
        """
        if self.compute_dtype in _LOW:
            head = self.hf.get_output_embeddings() if self.last else None
            self.low_precision = LowPrecisionCopies(
                self.hf.base_model, head, self.compute_dtype, copies=copies
            )

    def refresh_compute_weights(self) -> None:
        """Cast the masters into the low-precision copies again."""
        if self.low_precision is not None:
            self.low_precision.refresh()

    def notes(self) -> dict[str, str]:
        """Return how this stage computes, by subject: for the log."""
        ran = self.slot.kernels.describe()
        notes = {"attention": f"{self.attention.reason}{ran}", **self.notes_by_subject}
        if self.head is not None:
            notes["head"] = self.head.reason
        if self.low_precision is not None:
            notes["precision"] = self.low_precision.reason
        return notes

    def _autocast(self, states: Tensor) -> torch.autocast | nullcontext[None]:
        low = self.low_precision
        return nullcontext() if low is None else low.autocast(states.device.type)


def split(
    whole: RoleModule, count: int, wanted: Sequence[int], as_tuple: bool | None = None
) -> list[StageModule]:
    """Return stages ``wanted`` of ``count``; ``whole`` is taken apart and must not be used again.
    ``as_tuple``: the result of ``layers_pass_tuples``, if known (None: compute it).

    Raises ConfigError ``models.too_few_layers``, or ``models.no_stages`` if the stages compute something else
    than the whole.
    """
    as_tuple = layers_pass_tuples(whole, count) if as_tuple is None else as_tuple
    stages = _cut(whole, count, as_tuple)
    if count > 1:
        _untie(whole.hf, stages)
    return [stages[i] for i in wanted]


def layers_pass_tuples(whole: RoleModule, count: int) -> bool:
    """Return whether the layers of ``whole`` pass tuples on, tested by running ``count`` stages in turn
    against it. Raises ConfigError as ``split``.
    """
    for as_tuple in (False, True):
        if _same(whole, _cut(whole, count, as_tuple)):
            return as_tuple
    raise ConfigError(
        _refusal(
            whole.hf, "run one after the other, its stages compute other results than the complete model"
        )
    )


def _cut(whole: RoleModule, count: int, as_tuple: bool) -> list[StageModule]:
    """Return all stages; their modules are those of ``whole``."""
    parts = split_layers(len(_layers(whole.hf)), count)
    return [
        StageModule(whole, _shell(whole.hf, part, i == 0, i == count - 1, as_tuple), i, count)
        for i, part in enumerate(parts)
    ]


def split_layers(num_layers: int, count: int) -> list[range]:
    """Return the consecutive layers of each stage, as evenly as possible (``plan.workload.step_spec.stages``
    counts the same way).

    Remaining layers go to the middle stages, then to the first; the last has the head. Raises ConfigError
    ``models.too_few_layers``.
    """
    if num_layers < count:
        raise ConfigError(
            codes.MODELS_TOO_FEW_LAYERS(
                "training.parallelism.pp_size", f"{count} stages", num_layers=num_layers, count=count
            )
        )
    return layer_ranges(num_layers, count)


def positions(batch: Batch, packed: bool) -> dict[str, Tensor | bool]:
    """Return the trunk's other inputs on every stage: for ids [1, T] if packed, else for one right-padded row
    per document.
    """
    if packed:
        mask = placeholder_mask(batch.input_ids.device)
        return {"position_ids": batch.position_ids, "attention_mask": mask, "use_cache": False}
    real = PackedSequenceInfo.of(batch).padded.real
    offsets = torch.arange(batch.max_seqlen, device=real.device)[None, :].expand(real.shape)
    return {"position_ids": offsets, "attention_mask": real.long(), "use_cache": False}


def token_ids(batch: Batch, packed: bool) -> Tensor:
    """Return what the first stage embeds: int64 [1, T] if packed, else [documents, longest]."""
    return batch.input_ids if packed else batch.input_ids[0][PackedSequenceInfo.of(batch).padded.index]


def _layers(hf: HFModel) -> nn.ModuleList:
    """Return the trunk's list of decoder layers. Raises ConfigError ``models.no_stages``."""
    number = hf.config.get_text_config().num_hidden_layers
    for child in hf.base_model.children():
        if isinstance(child, nn.ModuleList) and len(child) == number:
            return child
    raise ConfigError(_refusal(hf, "its list of layers was not found"))


def _shell(hf: HFModel, kept_layers: range, first: bool, last: bool, as_tuple: bool) -> HFModel:
    """Return ``hf`` without the parts of other stages; modules that stay are the same objects."""
    trunk, layers, embedding = hf.base_model, _layers(hf), hf.get_input_embeddings()
    # What comes before the layers belongs to the first stage, what comes after them to the last.
    kept: dict[str, nn.Module | None] = {}
    before = True
    for name, child in trunk._modules.items():
        if child is layers:
            before = False
            kept[name] = nn.ModuleList(
                x if i in kept_layers else OtherStageLayer(x, as_tuple) for i, x in enumerate(layers)
            )
        elif child is embedding:
            kept[name] = child if first else _placeholder(embedding)
        elif isinstance(child, nn.Dropout) or (before and _has_parameters(child)):
            kept[name] = child if first else nn.Identity()
        elif _has_parameters(child):
            kept[name] = child if last else nn.Identity()
        else:
            kept[name] = child
    # The head and anything else outside of the trunk belong to the last stage.
    outer = {name: child for name, child in hf._modules.items() if last or not _has_parameters(child)}
    outer[hf.base_model_prefix] = _with_modules(trunk, kept)
    return _with_modules(hf, outer)


def _with_modules(module: M, modules: Mapping[str, nn.Module | None]) -> M:
    clone = copy.copy(module)
    clone._modules = dict(modules)
    return clone


def _has_parameters(module: nn.Module | None) -> bool:
    return module is not None and next(module.parameters(), None) is not None


def _placeholder(embedding: nn.Module) -> nn.Module:
    """Replace the embedding: keeps its sizes, which models read, and no weight."""
    absent = nn.Identity()
    for name in ("num_embeddings", "embedding_dim"):
        if hasattr(embedding, name):
            setattr(absent, name, getattr(embedding, name))
    return absent


@torch.no_grad()
def _same(whole: RoleModule, stages: Sequence[StageModule]) -> bool:
    """Return whether the stages in turn compute the whole trunk's hidden states. This is assumed for weights
    on the meta device, and for weights from a checkpoint.
    """
    weight = next(whole.hf.parameters())
    if weight.device.type == "meta" or whole.unread:
        return True
    ids = torch.arange(_PROBE_TOKENS, device=weight.device)[None]
    bounds = torch.tensor([0, _PROBE_TOKENS], dtype=torch.int32)
    batch = Batch(ids, ids, ids, bounds, _PROBE_TOKENS, torch.zeros(1, dtype=torch.int64), 1)
    mode = whole.hf.training
    whole.hf.eval()
    try:
        expected, _ = whole._states(batch)
        states = token_ids(batch, whole.attention.layout == "packed")
        for stage in stages:
            states = stage(states, batch)
    except (RuntimeError, TypeError, ValueError, AttributeError, IndexError):
        return False
    finally:
        whole.hf.train(mode)
    states = states.reshape(expected.shape).to(expected.dtype)
    # the order of sums may differ, what is computed may not
    tolerance = 1e-2 if whole.compute_dtype in _LOW else 1e-5
    return torch.allclose(states, expected, rtol=tolerance, atol=tolerance)


def _untie(hf: HFModel, stages: Sequence[StageModule]) -> None:
    """Give a head that shares the embedding's weight a separate copy. The strategy sums both gradients, so
    the copies stay equal.
    """
    embedding, head = hf.get_input_embeddings(), hf.get_output_embeddings()
    weight = getattr(embedding, "weight", None)
    shared = weight is not None and id(getattr(head, "weight", None)) == id(weight)
    if not shared or not isinstance(weight, nn.Parameter):
        return
    stages[0].tied_name = stages[-1].tied_name = next(n for n, p in hf.named_parameters() if p is weight)
    head.weight = nn.Parameter(weight.detach().clone(), requires_grad=weight.requires_grad)


def _refusal(hf: HFModel, why: str) -> Diagnostic:
    return no_stages(f"{type(hf).__name__}: {why}")


_SEED = 0
_MISFITS = (RuntimeError, TypeError, ValueError, AttributeError, LookupError, ArithmeticError, ImportError)


def small_layers_pass_tuples(whole: RoleModule, count: int) -> bool | None:
    """Return ``layers_pass_tuples`` of a model of ``whole``'s class with as many layers and small sizes. None
    if no small model can be made, or its stages compute something else. Raises ConfigError
    ``models.too_few_layers``.
    """
    split_layers(whole.hf.config.get_text_config().num_hidden_layers, count)
    try:
        return layers_pass_tuples(_small(whole), count)
    except (ConfigError, *_MISFITS):  # sizes that this class needs in other proportions, for example
        return None


def _small(whole: RoleModule) -> RoleModule:
    """Return a model of the same class from a seed, computing in fp32."""
    hf = whole.hf
    config = hf.config
    layers = config.get_text_config().num_hidden_layers
    small_config = type(config).from_dict(shrunk(config.to_dict(), layers=layers))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        build, attention = type(hf)._from_config, config._attn_implementation
        small: HFModel = build(small_config, attn_implementation=attention)  # type: ignore[no-untyped-call]
    name_trunk(small)
    small.config.use_cache = False
    module = RoleModule(whole.role, small.eval(), whole.attention)
    module.requires_grad_(False)
    return module
