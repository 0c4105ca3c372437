"""Build the root module of a role, step by step: weights, adapters, modes, device and kernels, root module.

Where the weights come from is ``loading.weights_source``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import torch
from torch import nn

from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject
from paceline.models.activation_checkpointing import enable_recompute
from paceline.models.attention.packed_attention import choose_attention, register
from paceline.models.attention.rope_per_document import rope_by_document
from paceline.models.attention.sparse_indexer import freeze_selectors, use_compressors
from paceline.models.compute_dtype import head_of, low_alone
from paceline.models.expert_routing import freeze_routers
from paceline.models.fused_layers.qkv_rotary import fuse_attention
from paceline.models.fused_layers.rms_norm import fuse_norms
from paceline.models.fused_layers.swiglu import fuse_mlps
from paceline.models.heads.sequence_classification import SCALAR_ROLES, TRUNK_ROLES, Classes, head_layers
from paceline.models.loading.folder_tensors import FolderTensors
from paceline.models.loading.materialize import allocate, name_trunk
from paceline.models.loading.model_source import ModelSource
from paceline.models.loading.sharded_loading import FolderSlices, read_rest
from paceline.models.loading.weights_source import WeightsSource
from paceline.models.lora.expert_lora import compute_in_float64
from paceline.models.lora.lora import Adapter, add_adapter, base_fingerprint
from paceline.models.lora.names import plain_name
from paceline.models.module_tensors import move_tensor_by_tensor, persistent_buffers, stand_in_values, ties
from paceline.models.quantized_linear import check_quantisable, convert_to_fp8, empty_layers, quantise
from paceline.models.recurrent_layers import keep_documents_apart
from paceline.models.role_module import POOLER, RoleModule
from paceline.models.special_tokens import forget_defaults
from paceline.models.vision.tower import freeze_unreached, skip_pooling
from paceline.models.vision.whole_model import text_model, vision_parameters
from paceline.plan.features.freezing import ALL_TRAINED, Freezing
from paceline.plan.model.kernels import head_chunk_bytes
from paceline.plan.plan import AdapterSpec
from paceline.protocols.model import WHOLE, BuildOptions, Slices
from paceline.protocols.roles import Role
from paceline.runtime.device.device import device_memory

if TYPE_CHECKING:
    from paceline.protocols.model import HFModel

_PROBED_ROWS = 256  # of a head without weights


@dataclass(eq=False)
class HFModelFactory:
    """Callable that builds the ``RoleModule``; constructing the factory is cheap, it reads the config only.

    vocab_size    rows the tokenizer needs (None: leave the embedding as it is)
    seed          of the initial weights, and of new rows; equal on all ranks
    attention     ``auto``, ``paceline`` or a Transformers name
    recompute_keeps  kinds of operators whose outputs recomputation keeps (``plan.plan.KEPT_KINDS``)
    master_dtype  of the parameters: fp32, fp64 for verification, or bf16, which they then compute in as well
    adapter       ``Plan.adapter``: low-rank adapters are trained, the rest frozen (and quantized if it says
                  so)
    frozen        nothing is trained: low-precision copies, if any, replace the fp32 masters
    temperature   log-probabilities and entropies are those of softmax(logits / temperature)
    classes       of a classifier; None: the head has one output
    chunk_bytes   of logits that the head computes at a time; None: by the device's memory
    freeze_router a mixture's routers are not trained
    freezing      the parameters that stay as loaded
    fp8           the layers' products are computed in 8 bits, unless the model is frozen
    restored      parameters that a checkpoint brings before anything is computed: if it has all of them,
                  the model's own files are not read
    dropout       False: dropout layers, adapters' too, do nothing (TRL's ``disable_dropout_in_model``)
    vision        the whole model with its tower, under its own names; False: its language model alone
    fingerprint   of the initial weights, once they were built; None if on meta

    Raises ConfigError with a ``models.*`` code for anything the model cannot do.
    """

    model: ModelSource
    role: Role = Role.POLICY
    vocab_size: int | None = None
    seed: int = 42
    compute_dtype: torch.dtype = torch.float32
    attention: str = "auto"
    recompute: bool = False
    recompute_keeps: tuple[str, ...] = ()
    device: torch.device | str = "cpu"
    compile: bool = False
    compile_options: Mapping[str, str] = field(default_factory=dict)
    master_dtype: torch.dtype = torch.float32
    adapter: AdapterSpec | None = None
    frozen: bool = False
    temperature: float = 1.0
    classes: Classes | None = None
    chunk_bytes: int | None = None
    freeze_router: bool = False
    freezing: Freezing = ALL_TRAINED
    fp8: bool = False
    restored: Collection[str] = ()
    dropout: bool = True
    vision: bool = False
    fingerprint: str | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.fp8 = self.fp8 and not self.frozen
        self._unreached = ""
        self.weights = WeightsSource(
            self.model,
            self.role,
            self.vocab_size,
            self.seed,
            self.classes,
            self.frozen,
            self.adapter,
            self.restored,
            self.vision,
        )

    @property
    def tensors(self) -> FolderTensors | None:
        """The use of each of the folder's tensors, once the model is built."""
        return self.weights.tensors

    @property
    def hf_config(self) -> Mapping[str, Json]:
        """The Hugging Face config as plain JSON types, with the final number of embedding rows."""
        return {**self.weights.own_config.to_dict(), "vocab_size": self.weights.rows}

    @property
    def saved_config(self) -> JsonObject:
        """The ``config.json`` saved with the trained weights."""
        return self.weights.saved_config()

    def account(self) -> FolderTensors | None:
        """Return the use of every tensor of the folder, without loading it (``WeightsSource``)."""
        return self.weights.account()

    def __call__(self, options: BuildOptions = WHOLE) -> RoleModule:
        """Build the model. Raises ConfigError."""
        register()
        device = options.device or torch.device(self.device)
        meta = device.type == "meta"
        config = self.weights.own_config.get_text_config().to_dict()
        choice = choose_attention(self.attention, config, self.weights.takes_attention)
        # 1. The Hugging Face model, with its weights, or with where they are.
        implementation = None if choice.implementation == "auto" else choice.implementation
        hf, slices = self.weights.build(device, options, implementation)
        self._settle(hf)
        empty = slices is not None and not meta  # its parameters will be read in parts
        streamed = slices is not None and self.weights.packs and not (options.by_slices or meta)
        # 2. Adapters, before the kernels, which skip what an adapter wraps.
        adapter, slices = self._adapt(hf, device, slices, options.packs)
        if streamed and slices is not None:
            read_rest(hf, slices)
            slices, empty = None, False
        # 3. What is trained, and how; then the device, the dtype and the kernels.
        selectors = self._set_modes(hf)
        self._move(hf, None if empty else device, options)
        held = empty and not options.by_slices  # by the strategy as they are, for a checkpoint to fill
        if held:
            allocate(hf, device)
        # 4. The root module, and what needs it: the head's probe, notes, recomputation, compiled layers.
        module = RoleModule(
            self.role,
            hf,
            choice,
            self.compute_dtype,
            options.engine_casts or self.master_dtype == torch.bfloat16,
            adapter,
            self.temperature,
            head_chunk_bytes(device_memory(torch.device(self.device)))
            if self.chunk_bytes is None
            else self.chunk_bytes,
            keeps_frozen=not self.frozen and adapter is None and self.freezing.keeps_masters,
            gathers=options.in_step,
        )
        module.slices, module.unread = None if held else slices, held
        if selectors and not self.frozen:
            module.note(
                "selectors", f"{selectors} indexers of keys: no gradient reaches them, they stay as loaded"
            )
        module.notes_by_subject |= self.weights.notes(slices, options.by_slices or meta) | self._notes()
        if empty and (head := hf.get_output_embeddings()) is not None:
            with stand_in_values(head, rows=_PROBED_ROWS, every=held):
                module.choose_head()
        if self.recompute:
            enable_recompute(hf, module.slot, self.recompute_keeps)
        if self.compile:
            module.compile_layers(**self.compile_options)
        return module

    def _settle(self, hf: HFModel) -> None:
        """Apply run settings to the model's config, and compute the fingerprint of the weights."""
        if self.model.config is not None:
            forget_defaults(hf, self.model.config)
        name_trunk(hf)
        hf.config.use_cache = False
        if getattr(hf.config, "output_router_logits", False):  # requested by each forward that needs them
            hf.config.output_router_logits = False
        hf.config.architectures = [type(hf).__name__]  # tells an export a causal LM from a classifier
        self.fingerprint = base_fingerprint(hf) or self.fingerprint

    def _set_modes(self, hf: HFModel) -> int:
        """Switch off dropout, freeze untrained parameters and compute in float64, each on request.

        Return the number of frozen indexers of keys.
        """
        for module in () if self.dropout else hf.modules():
            if isinstance(module, nn.Dropout):
                # On the layers and not in the config, which is saved with the weights.
                module.p = 0.0
        if self.freeze_router:
            freeze_routers(hf)
        freezing = self.freezing.of_whole(hf.config.model_type) if self.vision else self.freezing
        if freezing and not self.frozen and self.adapter is None:
            self._freeze(hf, freezing)
        if self.role in TRUNK_ROLES and isinstance(pooler := getattr(hf, POOLER, None), nn.Module):
            pooler.requires_grad_(False)
        selectors = freeze_selectors(hf)
        use_compressors(hf)
        if self.vision:
            names = self.weights.unreached()
            skip_pooling(hf, names)
            if not self.frozen and any(p.requires_grad for _, p in vision_parameters(hf)):
                self._unreached = freeze_unreached(hf, names)
        if self.master_dtype == torch.float64:
            compute_in_float64(hf)
        if self.frozen:
            hf.requires_grad_(False)
        return selectors

    def _freeze(self, hf: HFModel, freezing: Freezing) -> None:
        """Freeze the parameters that ``freezing`` names. Raises ConfigError if a pattern matches nothing; a
        critic may lack parameters of the policy.
        """
        named = dict(hf.named_parameters())
        if self.role is not Role.VALUE and (wrong := list(freezing.check(named, ties(hf)))):
            raise ConfigError(*wrong)
        trained = freezing.trained(named)
        for name, parameter in named.items():
            parameter.requires_grad_(name in trained)

    def _notes(self) -> dict[str, str]:
        """Return notes of the dtypes of the weights and their products."""
        notes = dict[str, str]()
        if self.master_dtype == torch.bfloat16:
            notes["precision"] = "bfloat16 weights and activations, no fp32 master weights"
        if self._unreached:
            notes["vision"] = self._unreached
        if self.fp8:
            notes["fp8"] = f"{self._converted} linear layers, by torchao"
        return notes

    def _move(self, hf: HFModel, device: torch.device | None, options: BuildOptions) -> None:
        """Bring the model to ``device`` (None: parameters stay on meta) in the masters' dtype and swap
        kernels. Frozen weights that stay there only in low precision are cast on the way: then kernels are
        swapped, and probed, on the host.
        """
        low = self.compute_dtype in (torch.bfloat16, torch.float16) and not options.engine_casts
        frozen = low and (self.frozen or self.adapter is not None)
        if self.master_dtype == torch.bfloat16:  # the weights alone: buffers, such as frequencies, stay fp32
            move_tensor_by_tensor(
                hf, device, torch.float32, frozenset(id(p) for p in hf.parameters()), torch.bfloat16
            )
        elif device is None or device.type == "meta" or not frozen:
            move_tensor_by_tensor(hf, device, self.master_dtype)
        else:
            for tensor in (*hf.parameters(), *hf.buffers()):
                if tensor.dim() < 2 and tensor.is_floating_point():  # norms are probed too, and stay fp32
                    tensor.data = tensor.data.to(self.master_dtype)
            self.swap_kernels(hf, options)
            # After the swap, as ``low_alone`` looks at the classes that compute.
            kept = low_alone(text_model(hf).base_model, head_of(hf), self.compute_dtype, device)
            kept |= {id(p) for _, p in vision_parameters(hf) if not p.requires_grad and p.dim() > 1}
            move_tensor_by_tensor(hf, device, self.master_dtype, kept, self.compute_dtype)
            return
        self.swap_kernels(hf, options, stand_in=device is None)

    def swap_kernels(self, hf: HFModel, options: BuildOptions, stand_in: bool = False) -> None:
        """Swap in Paceline's own kernels wherever they compute the same as the model's classes. With
        ``stand_in`` they are probed with substitute values for parameters on meta.
        """
        text = text_model(hf)  # the tower computes by its own class
        rope_by_document(text)
        keep_documents_apart(text)
        # always: reads only its own weight, and computes in fp32 as Transformers' does
        fuse_norms(text, stand_in)
        if self.fp8:
            self._converted = convert_to_fp8(text.base_model)
        elif options.fused:
            fuse_mlps(text, stand_in)
            fuse_attention(text, stand_in)

    def _adapt(
        self, hf: HFModel, device: torch.device, slices: Slices | None, packs: bool
    ) -> tuple[Adapter | None, Slices | None]:
        """Inject the adapters, then quantize the weights under them if set (``packs``: leave that to the
        strategy); None if all weights are trained. Return also where its parameters are, by their names with
        adapters.
        """
        spec, source = self.adapter, self.model
        if spec is None:
            return None, slices
        base = {"name_or_path": source.name_or_path, "revision": source.revision}
        rows = (self.weights.old_rows, self.weights.rows) if source.config is None else None
        if self.role in SCALAR_ROLES:  # a fresh head, if frozen, would score at random
            spec = replace(spec, modules_to_save=tuple(sorted({*spec.modules_to_save, *head_layers(hf)})))
        files = slices if isinstance(slices, FolderSlices) else None
        # adapters have values beside weights that have none
        beside = files if device.type != "meta" else None
        adapter = add_adapter(hf, spec, self.seed, base, rows, self.master_dtype, beside)
        if files is not None:
            held = (*hf.named_parameters(), *persistent_buffers(hf))
            files = files.renamed({name: plain_name(name) for name, _ in held})
        if spec.quantization is None:
            return adapter, files
        if packs and files is not None:
            return adapter.noting(empty_layers(hf, spec.quantization, self.compute_dtype)), files
        if device.type == "meta":
            check_quantisable(hf)
            return adapter, files
        packed = quantise(hf, spec.quantization, self.compute_dtype, device, self.master_dtype, files)
        return adapter.noting(packed), files
