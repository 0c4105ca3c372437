"""Builds the root module of a role from a config (from scratch) or from a folder or hub name (safetensors
only).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from torch import nn

from paceline.core.errors import ConfigError
from paceline.core.json_types import Json, JsonObject
from paceline.models import codes
from paceline.models.activation_checkpointing import enable_recompute
from paceline.models.attention.packed_attention import choose_attention, register
from paceline.models.attention.rope_per_document import rope_by_document
from paceline.models.attention.sparse_indexer import freeze_selectors, use_compressors
from paceline.models.compute_dtype import head_of, low_alone
from paceline.models.expert_routing import freeze_routers
from paceline.models.fused_layers.qkv_rotary import fuse_attention
from paceline.models.fused_layers.rms_norm import fuse_norms
from paceline.models.fused_layers.swiglu import fuse_mlps
from paceline.models.heads.sequence_classification import HEAD, SCALAR_ROLES, Classes, auto_class
from paceline.models.loading.folder_tensors import FolderTensors, folder_tensors
from paceline.models.loading.loading_report import NOTHING, refusals, untied
from paceline.models.loading.materialize import (
    Unread,
    draw,
    empty_model,
    from_config,
    give_storage,
    name_trunk,
    skeleton,
    unread,
)
from paceline.models.loading.model_source import (
    ModelSource,
    cannot_load,
    code_options,
    config_keys,
    load_hf_config,
    raw_config,
)
from paceline.models.loading.multimodal import load_text, whole_model
from paceline.models.loading.quantized_folder import load_dequantised, quantised_folder
from paceline.models.loading.resize_embeddings import resize_embeddings, vocabulary_names
from paceline.models.loading.sharded_loading import FolderSlices, folder_slices, read_rest
from paceline.models.loading.stored_dtype import buffers_keep_dtype, stored_dtype
from paceline.models.lora.expert_lora import compute_in_float64
from paceline.models.lora.lora import Adapter, add_adapter, base_fingerprint, plain_name
from paceline.models.module_tensors import arrive, persistent_buffers, stand_in_values
from paceline.models.quantized_linear import check_quantisable, convert_to_fp8, empty_layers, quantise
from paceline.models.recurrent_layers import keep_documents_apart
from paceline.models.role_module import RoleModule
from paceline.models.special_tokens import forget_defaults
from paceline.plan.model.family import text_part
from paceline.plan.model.kernels import head_chunk_bytes
from paceline.plan.model.quantized_weights import plain_config
from paceline.plan.model.supported import separated
from paceline.plan.plan import AdapterSpec
from paceline.protocols.model import WHOLE, BuildOptions, Slices
from paceline.protocols.roles import Role
from paceline.runtime.device.device import device_memory

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

    from paceline.protocols.model import HFModel

_PROBED_ROWS = 256  # of a head without weights
FROM_CHECKPOINT = "weights come from the checkpoint; the model's own files are not read"
READ_IN_PARTS = "each rank reads its own part of the files"
PACKED = "each layer is packed as it is read"


class HFModelFactory:
    """Callable that builds the ``RoleModule``; constructing the factory is cheap, it reads the config only.

    vocab_size    rows the tokenizer needs (None: leave the embedding as it is)
    seed          of the initial weights, and of new rows; equal on all ranks
    attention     ``auto``, ``paceline`` or a Transformers name
    master_dtype  of the parameters: fp32, fp64 for verification, or bf16, which they then compute in as well
    frozen        nothing is trained: low-precision copies, if any, replace the fp32 masters
    recompute_keeps  kinds of operators whose outputs recomputation keeps (``plan.recomputation``)
    temperature   log-probabilities and entropies are those of softmax(logits / temperature)
    classes       of a classifier; None: the head has one output
    chunk_bytes   of logits that the head computes at a time; None: by the device's memory
    freeze_router a mixture's routers are not trained
    fp8           the layers' products are computed in 8 bits, unless the model is frozen
    adapter       ``Plan.adapter``: low-rank adapters are trained, the rest frozen (and quantized if it says
                  so)
    restored      parameters that a checkpoint brings before anything is computed: if it has all of them,
                  the model's own files are not read
    dropout       False: dropout layers, adapters' too, do nothing (TRL's ``disable_dropout_in_model``)

    Raises ConfigError with a ``models.*`` code for anything the model cannot do.
    """

    def __init__(
        self,
        model: ModelSource,
        role: Role = Role.POLICY,
        vocab_size: int | None = None,
        seed: int = 42,
        compute_dtype: torch.dtype = torch.float32,
        attention: str = "auto",
        recompute: bool = False,
        recompute_keeps: tuple[str, ...] = (),
        device: torch.device | str = "cpu",
        compile: bool = False,
        compile_options: Mapping[str, str] | None = None,
        master_dtype: torch.dtype = torch.float32,
        adapter: AdapterSpec | None = None,
        frozen: bool = False,
        temperature: float = 1.0,
        classes: Classes | None = None,
        chunk_bytes: int | None = None,
        freeze_router: bool = False,
        fp8: bool = False,
        restored: Collection[str] = (),
        dropout: bool = True,
    ) -> None:
        self.role = role
        self.frozen = frozen
        self.fingerprint: str | None = None  # of the initial weights; None if built on meta
        self.tensors: FolderTensors | None = None  # of the folder, once it was built
        self._model, self._vocab_size, self._seed = model, vocab_size, seed
        self._compute_dtype, self._attention, self._master_dtype = compute_dtype, attention, master_dtype
        self._recompute_keeps = recompute_keeps
        self._freeze_router = freeze_router
        self._recompute, self._compile, self._device = recompute, compile, torch.device(device)
        self._compile_options = dict(compile_options or {})
        self._adapter, self._temperature, self._classes = adapter, temperature, classes
        self._fp8 = fp8 and not frozen
        self._restored, self._dropout = restored, dropout
        self._whole_because = ""  # the model was not read in parts
        self._chunk_bytes = (
            head_chunk_bytes(device_memory(self._device)) if chunk_bytes is None else chunk_bytes
        )
        config = load_hf_config(model)
        self._quantised = quantised_folder(model)
        self._whole = None if model.trust_remote_code else whole_model(config)
        self._config = self._load_config()
        self._class = _model_class(self._config, model, role)
        self._rows = _rows(model, self._config.get_text_config().vocab_size, vocab_size)

    @property
    def hf_config(self) -> Mapping[str, Json]:
        """The Hugging Face config as plain JSON types, with the final number of embedding rows."""
        return {**self._config.to_dict(), "vocab_size": self._rows}

    @property
    def saved_config(self) -> JsonObject:
        """The ``config.json`` saved with the trained weights: the base model's own keys, with only what
        training changes.
        """
        config = self._sized_config()
        scores = self.role in SCALAR_ROLES
        if self._model.name_or_path is None or (self._whole is not None and scores):
            made: JsonObject = json.loads(config.to_json_string())  # what differs from the defaults
        else:
            made = plain_config(raw_config(self._model))
            if self._rows != self._load_config().get_text_config().vocab_size:
                inner = made.get("text_config")
                (inner if isinstance(inner, dict) else made)["vocab_size"] = self._rows
        if self._class is not nn.Module and (self._whole is None or scores):
            made["architectures"] = [self._class.__name__]
        if scores:
            one: JsonObject = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
            made |= one if self._classes is None else self._classes.of_config
            made.pop("num_labels", None)
        return made

    def __call__(self, options: BuildOptions = WHOLE) -> RoleModule:
        """Build the model: load or initialize, resize embeddings, move, inject adapters, swap kernels. Raises
        ConfigError.
        """
        register()
        device = options.device or self._device
        known = self._class.__module__.startswith("transformers.models.")
        apart = known and separated(str(self._config.model_type))
        supported = apart or bool(getattr(self._class, "_supports_attention_backend", False))
        choice = choose_attention(self._attention, self._config.to_dict(), supported)
        implementation = None if choice.implementation == "auto" else choice.implementation
        hf, slices = self._made(device, options, implementation)
        if self._model.config is not None:
            forget_defaults(hf, self._model.config)
        empty = slices is not None and device.type != "meta"  # its parameters will be read in parts
        name_trunk(hf)
        hf.config.use_cache = False
        if getattr(hf.config, "output_router_logits", False):  # requested by each forward that needs them
            hf.config.output_router_logits = False
        hf.config.architectures = [type(hf).__name__]  # tells an export a causal LM from a classifier
        self.fingerprint = base_fingerprint(hf) or self.fingerprint
        streamed = slices is not None and self._streams and not (options.by_slices or device.type == "meta")
        # before the kernels: they skip what an adapter wraps
        adapter, slices = self._adapt(hf, device, slices, options.packs)
        if streamed and slices is not None:
            read_rest(hf, slices)
            slices, empty = None, False
        selectors = self._set_modes(hf)
        self._move(hf, None if empty else device, options)
        held = empty and not options.by_slices  # by the strategy as they are, for a checkpoint to fill
        if held:
            give_storage(hf, device)
        module = RoleModule(
            self.role,
            hf,
            choice,
            self._compute_dtype,
            options.engine_casts or self._master_dtype == torch.bfloat16,
            adapter,
            self._temperature,
            self._chunk_bytes,
        )
        if selectors and not self.frozen:
            module.note(
                "selectors", f"{selectors} indexers of keys: no gradient reaches them, they stay as loaded"
            )
        module.slices, module.unread = None if held else slices, held
        self._note_start(module, slices, options.by_slices or device.type == "meta")
        # What needs the root module: the head's probe, notes for the log, recomputation, compiled layers
        if empty and (head := hf.get_output_embeddings()) is not None:
            with stand_in_values(head, rows=_PROBED_ROWS, every=held):
                module.choose_head()
        self._note_weights(module)
        if self._recompute:
            enable_recompute(hf, module.slot, self._recompute_keeps)
        if self._compile:
            module.compile_layers(**self._compile_options)
        return module

    def _set_modes(self, hf: HFModel) -> int:
        """Switch off dropout, freeze what is not trained, compute in float64, each if asked.

        Return the number of frozen indexers of keys.
        """
        if not self._dropout:
            for module in hf.modules():
                if isinstance(module, nn.Dropout):
                    module.p = 0.0
        if self._freeze_router:
            freeze_routers(hf)
        selectors = freeze_selectors(hf)
        use_compressors(hf)
        if self._master_dtype == torch.float64:
            compute_in_float64(hf)
        if self.frozen:
            hf.requires_grad_(False)
        return selectors

    def _note_start(self, module: RoleModule, slices: Slices | None, in_parts: bool) -> None:
        """Note how the weights come from their files; ``in_parts``: each rank reads its own."""
        why = self._whole_because
        if isinstance(slices, Unread):
            module.note("start", FROM_CHECKPOINT)
        elif self.tensors is not None and in_parts:
            module.note("start", f"rank 0 reads the whole model: {why}" if why else READ_IN_PARTS)
        elif self.tensors is not None and self._streams:
            module.note("start", f"the whole model is read before it is packed: {why}" if why else PACKED)

    def _note_weights(self, module: RoleModule) -> None:
        """Note what became of the folder's tensors and config, and the dtypes of the weights."""
        if self.tensors is not None:
            had = self._load_config().get_text_config().vocab_size
            kept = self.tensors.of_former_vocabulary(had, self._rows)
            module.note("tensors", self.tensors.message + kept)
            module.note("config", config_keys(text_part(plain_config(raw_config(self._model))), self._config))
        if self._master_dtype == torch.bfloat16:
            module.note("precision", "bfloat16 weights and activations, no fp32 master weights")
        if self._fp8:
            module.note("fp8", f"{self._converted} linear layers, by torchao")

    def _made(
        self, device: torch.device, options: BuildOptions, attention: str | None
    ) -> tuple[HFModel, Slices | None]:
        """Return the model with its weights: none (meta), from the seed, or from safetensors; and where
        parameters on meta can be read in parts.
        """
        auto, code, meta = auto_class(self.role), code_options(self._model), device.type == "meta"
        own_class = self._class is not nn.Module
        by_slices = (options.by_slices or self._streams) and self._model.config is None and own_class
        if meta or by_slices or (self._restored and own_class):
            hf = skeleton(auto, self._sized_config(), attention, code)
            self._account(hf)
            found = self._slices(hf)
            slices = None if isinstance(found, str) else found
            self._whole_because = found if isinstance(found, str) else ""
            if meta:
                return hf, slices
            if slices is not None and (by_slices or isinstance(slices, Unread)):
                name, revision = self._model.name_or_path, self._model.revision or "main"
                hf = empty_model(auto, self._sized_config(), attention, code, name, revision)
                draw(hf, sorted(n for n in self._fresh if not slices.has(n)), self._seed)
                slices.grow(self._seed)
                return hf, slices
        if self._model.config is not None:
            return self._from_scratch(attention), None
        return self._from_weights(attention), None

    def _slices(self, hf: HFModel) -> Slices | str:
        """Return where the files have each parameter of ``hf`` as it is, that a checkpoint has them all, or
        why one is made otherwise.
        """
        if self._adapter is None and (brought := unread(hf, self._restored)) is not None:
            return brought
        if self.tensors is None:
            return "there are no files"
        if self._adapter is not None and self._adapter.init_lora_weights:
            return f"{self._adapter.init_lora_weights} decomposes whole weights"
        grows = self._rows > self._load_config().get_text_config().vocab_size
        whole = None if self._whole is None else self._whole.skeleton
        growing = vocabulary_names(hf) if grows else ()
        return folder_slices(hf, self.tensors, self._fresh, growing, whole, self._quantised)

    @property
    def _streams(self) -> bool:
        """Whether layers are packed in 4 bits, each when it is read."""
        return self._adapter is not None and self._adapter.quantization is not None

    def _move(self, hf: HFModel, device: torch.device | None, options: BuildOptions) -> None:
        """Bring the model to ``device`` (None: parameters stay on meta) in the masters' dtype and swap
        kernels. Frozen weights that are kept there in low precision alone come so: then kernels are swapped,
        and probed, on the host.
        """
        if self._master_dtype == torch.bfloat16:  # the weights alone: buffers, such as frequencies, stay fp32
            weights = frozenset(id(p) for p in hf.parameters())
            arrive(hf, device, torch.float32, weights, torch.bfloat16)
            self.swap_kernels(hf, options, stand_in=device is None)
            return
        low = self._compute_dtype in (torch.bfloat16, torch.float16) and not options.engine_casts
        frozen = self.frozen or self._adapter is not None
        if device is None or device.type == "meta" or not (low and frozen):
            arrive(hf, device, self._master_dtype)
            self.swap_kernels(hf, options, stand_in=device is None)
            return
        for tensor in (*hf.parameters(), *hf.buffers()):
            if tensor.dim() < 2 and tensor.is_floating_point():  # norms are probed too, and stay fp32
                tensor.data = tensor.data.to(self._master_dtype)
        self.swap_kernels(hf, options)
        kept = low_alone(hf.base_model, head_of(hf), self._compute_dtype, device)
        arrive(hf, device, self._master_dtype, kept, self._compute_dtype)

    def swap_kernels(self, hf: HFModel, options: BuildOptions, stand_in: bool = False) -> None:
        """Swap in Paceline's own kernels wherever they compute the same as the model's classes; by values
        that stand in for parameters on meta, if asked.
        """
        rope_by_document(hf)
        keep_documents_apart(hf)
        # always: reads only its own weight, and computes in fp32 as Transformers' does
        fuse_norms(hf, stand_in)
        if self._fp8:
            self._converted = convert_to_fp8(hf.base_model)
        elif options.fused:
            fuse_mlps(hf, stand_in)
            fuse_attention(hf, stand_in)

    def _adapt(
        self, hf: HFModel, device: torch.device, slices: Slices | None, packs: bool
    ) -> tuple[Adapter | None, Slices | None]:
        """Inject the adapters, then quantize the weights under them if set (``packs``: leave that to the
        strategy); None if all weights are trained. Return also where its parameters are, by their names with
        adapters.
        """
        if self._adapter is None:
            return None, slices
        m = self._model
        base = {"name_or_path": m.name_or_path, "revision": m.revision}
        had = self._config.get_text_config().vocab_size
        rows = (had, self._rows) if m.config is None else None
        spec = self._adapter
        if self.role in SCALAR_ROLES:  # a fresh head, if frozen, would score at random
            spec = replace(spec, modules_to_save=tuple(sorted({*spec.modules_to_save, HEAD})))
        files = slices if isinstance(slices, FolderSlices) else None
        beside = (
            files if device.type != "meta" else None
        )  # adapters have values beside weights that have none
        adapter = add_adapter(hf, spec, self._seed, base, rows, self._master_dtype, beside)
        if files is not None:
            named = (*hf.named_parameters(), *persistent_buffers(hf))
            files = files.renamed({name: plain_name(name) for name, _ in named})
        if spec.quantization is None:
            return adapter, files
        if packs and files is not None:
            return adapter.noting(empty_layers(hf, spec.quantization, self._compute_dtype)), files
        if device.type == "meta":
            check_quantisable(hf)
            return adapter, files
        packed = quantise(hf, spec.quantization, self._compute_dtype, device, self._master_dtype, files)
        return adapter.noting(packed), files

    def _from_scratch(self, attention: str | None) -> HFModel:
        """Initialize on the CPU from the seed alone: the same weights on every rank, device and thread
        count.
        """
        auto = auto_class(self.role)
        config = self._sized_config()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self._seed)
            return from_config(auto, config, attention, code_options(self._model))

    def _load_config(self) -> PreTrainedConfig:
        config = load_hf_config(self._model) if self._whole is None else copy.deepcopy(self._whole.text)
        if self.role in SCALAR_ROLES:
            config.num_labels = 1 if self._classes is None else len(self._classes.names)
        return config

    def _sized_config(self) -> PreTrainedConfig:
        config = self._load_config()
        config.get_text_config().vocab_size = self._rows
        return config

    def _from_weights(self, attention: str | None) -> HFModel:
        auto = auto_class(self.role)
        name = self._model.name_or_path
        assert name is not None
        if self._class is not nn.Module:
            self._account(skeleton(auto, self._load_config(), attention, code_options(self._model)))
        with torch.random.fork_rng(devices=[]):  # missing parameters: equal on all ranks
            torch.manual_seed(self._seed)
            try:
                hf, loading_info = self._loaded(name, attention)
            except (OSError, ValueError, RuntimeError, SafetensorError) as error:
                raise ConfigError(cannot_load(name, error)) from error
        if self._class is nn.Module:  # from the hub: known when it is loaded
            self._account(hf)
            if self.tensors is not None and (lost := self.tensors.carried):  # its exports are not re-read
                raise ConfigError(*refusals(replace(NOTHING, refused=lost), name))
        if self.tensors is not None and (apart := untied(hf, self.tensors.found, name)):
            raise ConfigError(*apart)
        # Refuse what the model would silently initialize, though every tensor was accounted for.
        missing = sorted(set(loading_info.get("missing_keys", ())) - self._fresh)
        if missing:
            raise ConfigError(*refusals(replace(NOTHING, missing=tuple(missing)), name))
        # Make room for the tokenizer's new tokens.
        old = hf.get_input_embeddings().weight.shape[0]
        if self._rows != old:
            for module in (hf.get_input_embeddings(), hf.get_output_embeddings()):
                if module is not None:
                    module.float()  # the new rows' mean is not rounded
            resize_embeddings(hf, self._rows, self._seed)
        hf.config.dtype = hf.config.get_text_config().dtype = torch.float32
        return hf

    def _loaded(self, name: str, attention: str | None) -> tuple[HFModel, Mapping[str, Collection[str]]]:
        """Return the model of the folder ``name`` and the keys that Transformers missed."""
        revision, dtype = self._model.revision or "main", self._stored_dtype(attention)
        if self._whole is not None:
            made = skeleton(auto_class(self.role), self._load_config(), attention, code_options(self._model))
            return load_text(self._whole, made, name, revision, dtype, attention, self._quantised)
        if self._quantised is not None:
            assert self.tensors is not None
            config, used = self._load_config(), self.tensors.used
            return load_dequantised(
                self._class, config, self._quantised, used, name, revision, dtype, attention
            )
        return auto_class(self.role).from_pretrained(
            name,
            config=self._load_config(),
            revision=revision,
            dtype=dtype,
            attn_implementation=attention,
            use_safetensors=True,
            output_loading_info=True,
            **code_options(self._model),
        )

    @property
    def _fresh(self) -> frozenset[str]:
        """Weights drawn from the seed where the folder has none: the score head that is trained."""
        trained = self.role in SCALAR_ROLES and not self.frozen
        return frozenset({f"{HEAD}.weight"}) if trained else frozenset()

    def account(self) -> FolderTensors | None:
        """Return what becomes of every tensor of the folder, without loading it; None without a folder, and
        for a class from the hub that was not built yet.
        """
        if self.tensors is None and self._class is not nn.Module:
            self._account(
                skeleton(auto_class(self.role), self._load_config(), None, code_options(self._model))
            )
        return self.tensors

    def _account(self, hf: HFModel) -> None:
        """Find what becomes of every tensor of the folder; ``hf`` may be on meta. Raises ConfigError."""
        name, scores = self._model.name_or_path, self.role in SCALAR_ROLES
        if self._model.config is None and name is not None:
            self.tensors = folder_tensors(
                hf,
                name,
                self._model.revision,
                fresh=self._fresh,
                leaves_out=scores,
                whole=self._whole,
                quantised=self._quantised,
            )

    def _stored_dtype(self, attention: str | None) -> torch.dtype:
        """Return the dtype to read the weights in: the stored one where no value of the model changes by
        it.
        """
        model = self._model
        if model.name_or_path is None or model.trust_remote_code:
            return torch.float32
        needed = frozenset({f"{HEAD}.weight"}) if self.role in SCALAR_ROLES else frozenset[str]()
        if self._quantised is None:
            found = stored_dtype(model.name_or_path, model.revision, needed)
        else:
            found = torch.bfloat16 if self._quantised.plain_bfloat16 and not needed else torch.float32
        keeps = found == torch.float32 or buffers_keep_dtype(
            auto_class(self.role), self._load_config(), attention, found
        )
        return found if keeps else torch.float32


def _rows(model: ModelSource, have: int, need: int | None) -> int:
    """Return the number of embedding rows: what the tokenizer needs, padded to the multiple, but never fewer
    than the model has.
    """
    if need is not None and model.config is not None and "vocab_size" not in model.config:
        have = 0  # a drawn model without a size of its own takes the tokenizer's
    if need is None or need <= have:
        return have
    if model.resize_embeddings == "never":
        raise ConfigError(
            codes.MODELS_VOCAB_TOO_LARGE("model.resize_embeddings", "never", need=need, have=have)
        )
    multiple = max(1, model.embedding_multiple)
    return -(-need // multiple) * multiple


def _model_class(config: PreTrainedConfig, model: ModelSource, role: Role) -> type[nn.Module]:
    # Which class Transformers will build decides whether attention can be packed.
    if model.trust_remote_code and getattr(config, "auto_map", None):
        return nn.Module  # a class from the hub: nothing is known of its attention
    try:
        found = auto_class(role)._model_mapping[type(config)]
        return found[0] if isinstance(found, tuple) else found
    except KeyError as error:
        if role in SCALAR_ROLES:
            raise ConfigError(
                codes.MODELS_NO_SCALAR_HEAD(
                    "this model type has no class for sequence classification",
                    "model",
                    str(config.model_type),
                    "use a decoder of another family: llama, qwen2, qwen3, mistral, gemma2, gpt2, …",
                )
            ) from error
        raise ConfigError(codes.MODELS_NOT_CAUSAL("model", str(config.model_type))) from error
