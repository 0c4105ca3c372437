"""The root module of a role (contract 1): trunk and head behind one forward, so that algorithms never handle
logits.

Calls of an encoder's trunk: positions, token types (first or second text), no pooler.

The trunk returns hidden states only; a head pools them (``models.heads``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from paceline.models.attention.packed_attention import AttentionChoice, placeholder_mask
from paceline.models.attention.padded_documents import PaddedRows
from paceline.models.attention.rope_per_document import DocumentRope
from paceline.models.attention.sequence_info import AttentionContext, PackedSequenceInfo
from paceline.models.compile_layers import CompiledLayers
from paceline.models.compute_dtype import LowPrecisionCopies, head_of
from paceline.models.expert_routing import RouterLoad, RouterSums
from paceline.models.heads.chunked_cross_entropy import CHUNK_BYTES
from paceline.models.heads.distillation_divergence import Comparison, TeacherHead
from paceline.models.heads.lm_head import Head, Vocabulary
from paceline.models.heads.sequence_classification import SCALAR_ROLES, TRUNK_ROLES, NoHead, scalar_head
from paceline.models.lora.lora import Adapter, switched_off
from paceline.models.module_tensors import persistent_buffers, replaced
from paceline.models.recurrent_layers import has_state, how_kept_apart
from paceline.models.shared_prefix import SharedPrompts, draws_at_random
from paceline.models.special_tokens import SECOND
from paceline.models.vision.tower import TrunkInputs, VisionTower
from paceline.models.vision.whole_model import text_model
from paceline.plan.model.family import family_of
from paceline.protocols.batch import Batch
from paceline.protocols.model import RootModule
from paceline.protocols.roles import Divergence, Output, Role

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel


POOLER = "pooler"  # of a trunk: it knows one document a row, and is never run


@dataclass(frozen=True)
class EncoderInputs:
    """``first``: the position of a document's first token; ``token_types``: whether the trunk reads them."""

    first: int
    token_types: bool

    @staticmethod
    def of(hf: HFModel) -> EncoderInputs | None:
        """Return the inputs of ``hf``'s trunk; None if it is no encoder."""
        family = family_of(hf.config.model_type)
        if not family.encoder:
            return None
        # RoBERTa counts positions from the padding token's id + 1, as fairseq did.
        first = (hf.config.pad_token_id or 0) + 1 if family.padding_first else 0
        # RoBERTa's classes take types, and its models know one
        several = int(getattr(hf.config, "type_vocab_size", 0)) > 1
        return EncoderInputs(first, family.token_types and several)

    def arguments(self, batch: Batch, positions: Tensor, rows: PaddedRows | None = None) -> dict[str, Tensor]:
        """Return the trunk's arguments for ``positions``, int64 [1, T], or [D, L] of padded ``rows``."""
        found = {"position_ids": positions + self.first}
        if self.token_types and SECOND in batch.extras:
            types = token_types(batch)
            found["token_type_ids"] = types if rows is None else types[0][rows.index]
        return found


def token_types(batch: Batch) -> Tensor:
    """Return int64 [1, T]: 1 for a token of its document's second text, 0 for others."""
    device, tokens = batch.input_ids.device, batch.input_ids.shape[1]
    begins = batch.extras[SECOND].to(device).long()
    lengths = batch.boundaries().diff()
    # int64 [T]: where the second text of each token's document begins; ``output_size`` spares the host a
    # wait.
    of_token = torch.repeat_interleave(begins, lengths, output_size=tokens)
    return ((of_token > 0) & (batch.position_ids[0] >= of_token)).long()[None]


def without_pooler(trunk: nn.Module) -> AbstractContextManager[None]:
    """Inside the context ``trunk`` does not pool: its own pooler expects one document per row."""
    pools = isinstance(getattr(trunk, POOLER, None), nn.Module)
    return replaced(trunk, **{POOLER: None}) if pools else nullcontext()


_ROUTED = {"output_router_logits": True}  # records the routers' logits


class TrunkOutput(Protocol):
    """The fields of a trunk's result that are read."""

    last_hidden_state: Tensor
    router_logits: tuple[Tensor, ...] | None  # if requested


class RoleModule(RootModule):
    """A Hugging Face causal language model as the root module of ``role``. For reward, value and classifier
    roles it is a sequence classification model, also of an encoder.

    ``forward(batch, required)`` returns fp32 tensors by name (see ``Output``). A micro-batch without labels
    still gives every trainable parameter a gradient. ``hf`` is the model itself, for saving and generation;
    its parameters keep their Hugging Face names. ``carries_state``: layers of it pass a state from token to
    token outside of attention.
    """

    hf: HFModel

    def __init__(
        self,
        role: Role,
        hf: HFModel,
        attention: AttentionChoice,
        compute_dtype: torch.dtype = torch.float32,
        engine_casts: bool = False,
        adapter: Adapter | None = None,
        temperature: float = 1.0,
        chunk_bytes: int = CHUNK_BYTES,
        keeps_frozen: bool = False,
        gathers: bool = False,
    ) -> None:
        """``temperature``: log-probabilities and entropies are those of softmax(logits / temperature);
        ``chunk_bytes``: of logits that the head computes at a time; ``keeps_frozen``: frozen weights keep
        their masters in low precision too.

        ``gathers``: an engine gathers or shards single submodules.
        """
        super().__init__()
        self.role = role
        self.hf = hf
        self.adapter = adapter
        self.attention = attention
        self.compute_dtype = compute_dtype
        self.notes_by_subject: dict[str, str] = {}  # changes after it was built, for ``notes``
        self.slot = AttentionContext()
        self.vision = VisionTower.of(hf, gathers, compute_dtype)
        text = text_model(hf)  # a tower's attention and layers are its class's own
        self.slot.attach(text)
        self.head = (
            scalar_head(hf)
            if role in SCALAR_ROLES
            else NoHead()
            if role in TRUNK_ROLES
            else Head(hf, chunk_bytes, temperature, self.slot.row_kernels)
        )
        self._lent: TeacherHead | None = None
        self._comparison: Comparison | None = None
        self.low_precision: LowPrecisionCopies | None = None
        # After the head, whose modules the copies swap too.
        if compute_dtype in (torch.bfloat16, torch.float16):
            self.low_precision = LowPrecisionCopies(
                text.base_model, head_of(hf), compute_dtype, not engine_casts, keeps_frozen
            )
        by_length = any(
            isinstance(module, DocumentRope) for module in text.modules()
        )  # reads whole documents
        self.encoder = EncoderInputs.of(hf)
        self._shares = (
            attention.layout == "packed"
            and self.encoder is None
            and not by_length
            and not draws_at_random(text.base_model, text.config)
        )
        self.carries_state = has_state(hf)
        self._compiled: CompiledLayers | None = None
        self._routers: RouterSums | None = None
        self._load = RouterLoad(text)

    def forward(self, batch: Batch, required: frozenset[Output]) -> dict[str, Tensor]:
        """Return the outputs in ``required`` for ``batch``: sums and per-token tensors at labelled positions,
        fp32.
        """
        with self.computing(batch.input_ids.device.type):
            hidden, sums = self._states(batch, Output.ROUTER in required)
            if Output.HIDDEN in required:
                if self._lent is not None:  # a teacher's, whose weights are gathered now
                    self._lent.copy_head()
                return {Output.HIDDEN.value: hidden}
            # The head's own outputs, then the divergence, which needs the teacher's head too.
            # Those two do not come from this head alone.
            of_head = required - {Output.DIVERGENCE, Output.ROUTER}
            outputs = self.head(hidden, batch, of_head) if of_head else {}
            if sums is not None:
                outputs[Output.ROUTER.value] = sums
            if Output.DIVERGENCE in required:
                assert self._comparison is not None, "there is no teacher to compare with"
                outputs[Output.DIVERGENCE.value] = self._comparison(hidden, batch)
            return outputs

    def plain_named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield parameters under their Hugging Face names, tied ones once; with an adapter only the trained
        ones, under peft's names.
        """
        if self.adapter is None:
            yield from self.hf.named_parameters()
            return
        for name, parameter in self.hf.named_parameters():
            if name in self.adapter.trained:
                yield self.adapter.trained[name], parameter

    def plain_named_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield persistent buffers (the load-balancing bias of a router, say) under their Hugging Face names;
        none with an adapter.
        """
        return iter(()) if self.adapter is not None else persistent_buffers(self.hf)

    def choose_head(self) -> None:
        """Choose the head's computation again, by a probe on its current weights."""
        if isinstance(self.head, Head):
            self.head.choose(self.hf)

    def refresh_compute_weights(self) -> None:
        """Cast the masters into the low-precision copies again (a no-op in fp32)."""
        if self.low_precision is not None:
            self.low_precision.refresh()

    def computing(self, device_type: str) -> torch.autocast | nullcontext[None]:
        """Return the context for calling ``hf`` directly (decoding), so that it computes in the same dtype as
        ``forward``.
        """
        return nullcontext() if self.low_precision is None else self.low_precision.autocast(device_type)

    def without_adapter(self) -> AbstractContextManager[None]:
        """Inside the context the model computes as its base does; parameters and ``requires_grad`` do not
        change.
        """
        return switched_off(self.hf)

    def compile_layers(self, *, backend: str = "inductor", mode: str | None = None) -> None:
        """Compile the decoder layers with torch.compile (not the head, which is one autograd
        function); names do not change.
        """
        # Its hooks would break the compiled graphs.
        self._load.stop()
        self._compiled = CompiledLayers(text_model(self.hf), self.slot, backend, mode)

    def parallelize_head(self, vocabulary: Vocabulary) -> None:
        """Compute the head's losses through ``vocabulary`` (tensor parallelism)."""
        self.head.vocabulary = vocabulary

    def compare_with(self, teacher: RootModule, how: Divergence) -> None:
        """Set the teacher of ``Output.DIVERGENCE``; its head is read in each of its own forwards."""
        assert isinstance(teacher, RoleModule)
        assert isinstance(teacher.head, Head)
        assert isinstance(self.head, Head)
        teacher._lent = teacher._lent or TeacherHead(teacher.head)
        self._comparison = Comparison(self.head, teacher._lent, how)

    def expert_tokens(self) -> Tensor | None:
        """Return how many tokens each expert got since the last call, int64 [layers, experts]."""
        return self._load.taken()

    def note(self, subject: str, text: str) -> None:
        """Add a note on how this module ran, for ``notes``."""
        self.notes_by_subject[subject] = text

    def notes(self) -> dict[str, str]:
        """Return how this module computes, and why, by subject: for the log."""
        ran = self.slot.kernels.describe()
        notes = {"attention": f"{self.attention.reason}{ran}", "head": self.head.reason}
        if self.carries_state:
            notes["layers with state"] = how_kept_apart(self.hf)
        if rows := self.slot.row_kernels.describe():
            notes["row-wise kernels"] = rows
        if self.low_precision is not None:
            notes["precision"] = self.low_precision.reason
        if self.adapter is not None:
            notes["adapter"] = self.adapter.note
        if self._compiled is not None:
            notes["compile"] = self._compiled.describe()
        return notes | self.notes_by_subject

    def _states(self, batch: Batch, routed: bool = False) -> tuple[Tensor, Tensor | None]:
        """Return the hidden states [1, T, H] of the flat batch, and ``Output.ROUTER`` if ``routed``."""
        return (self._packed if self.attention.layout == "packed" else self._padded)(batch, routed)

    def _trunk(
        self,
        batch: Batch,
        ids: Tensor,
        positions: Tensor,
        routed: bool,
        rows: PaddedRows | None = None,
    ) -> TrunkOutput:
        """Call the trunk on ``ids`` at ``positions``: all of ``batch`` in one row, or in padded ``rows``."""
        trunk = self.hf.base_model
        mask = placeholder_mask(ids.device) if rows is None else rows.real.long()
        if self.encoder is not None:
            of_encoder = self.encoder.arguments(batch, positions, rows)
            with without_pooler(trunk):
                found: TrunkOutput = trunk(input_ids=ids, attention_mask=mask, **of_encoder)
                return found
        inputs, types = TrunkInputs(input_ids=ids), dict[str, Tensor]()
        if self.vision is not None and batch.images is not None:
            if rows is not None:
                ids, types = self.vision.in_rows(ids, rows.real)
            inputs = self.vision.inputs(ids, batch.images)
        output: TrunkOutput = trunk(
            **inputs,
            **types,
            position_ids=positions,
            attention_mask=mask,
            # A cache of keys and values would only hold memory: no token follows.
            use_cache=False,
            **(_ROUTED if routed else {}),
        )
        return output

    def _positions(self, batch: Batch) -> Tensor:
        """Return the rotary positions of ``batch``: [1, T], or [A, 1, T] on several axes."""
        several = None if batch.images is None else batch.images.position_ids
        return batch.position_ids if several is None else several

    @contextmanager
    def _touching_tower(self, batch: Batch) -> Iterator[None]:
        """Inside the context, if ``batch`` has no images, a zero of the tower's parameters is added to the
        embeddings. Features of images enter there, so gradients come in the same order.
        """
        zero = None
        if self.vision is not None and batch.images is None:
            # DDP and FSDP2 wait for every parameter's gradient on every rank, also where a rank has no
            # images.
            zero = self.vision.nothing(batch.input_ids.device)
        if zero is None:
            yield
            return
        added = zero
        hook = self.hf.get_input_embeddings().register_forward_hook(lambda _, __, out: out + added.to(out))
        try:
            yield
        finally:
            hook.remove()

    def _sums(
        self,
        output: TrunkOutput,
        batch: Batch,
        shared: SharedPrompts | None = None,
        rows: PaddedRows | None = None,
    ) -> Tensor:
        """Return ``Output.ROUTER`` from a trunk's output."""
        self._routers = self._routers or RouterSums(self.hf)
        return self._routers(output.router_logits, batch, shared, rows)

    def _packed(self, batch: Batch, routed: bool) -> tuple[Tensor, Tensor | None]:
        """``_states`` of one row; prompts that its documents share are computed once."""
        # Not for a rank's part of a batch (context parallelism): a shared prompt may lie on another rank.
        shares = self._shares and type(batch) is Batch and batch.images is None
        shared = SharedPrompts.of(batch) if shares else None
        ids, positions = batch.input_ids, self._positions(batch)
        if shared is not None:
            ids, positions = shared.kept(ids, 1), shared.kept(positions, 1)
        ways = "" if self.vision is None else self.vision.both_ways
        layout = PackedSequenceInfo.of(batch, shared, causal=self.encoder is None, both_ways=ways)
        with (
            self._touching_tower(batch),
            self.slot.packed_sequences(layout),
            self._load.counting(batch, shared=shared),
        ):
            output = self._trunk(batch, ids, positions, routed)
        hidden = output.last_hidden_state
        sums = self._sums(output, batch, shared) if routed else None
        return (hidden if shared is None else shared.full(hidden, 1)), sums

    def _padded(self, batch: Batch, routed: bool) -> tuple[Tensor, Tensor | None]:
        """Return the same from one right-padded row per document: for models whose documents cannot be kept
        apart by attention alone.
        """
        layout = PackedSequenceInfo.of(batch)
        rows = layout.padded
        offsets = torch.arange(batch.max_seqlen, device=batch.input_ids.device)
        with (
            self._touching_tower(batch),
            self.slot.padded_rows(layout),
            self._load.counting(batch, rows=rows),
        ):
            ids, positions = batch.input_ids[0][rows.index], offsets[None, :].expand(rows.index.shape)
            if batch.images is not None and batch.images.position_ids is not None:
                positions = batch.images.position_ids[:, 0][:, rows.index]
            output = self._trunk(batch, ids, positions, routed, rows)
        hidden = rows.unpad(output.last_hidden_state).unsqueeze(0)
        return hidden, self._sums(output, batch, rows=rows) if routed else None
