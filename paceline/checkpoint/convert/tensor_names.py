"""A foreign checkpoint as named tensors that load on demand, and the mapping of its names to the model's.

Engines save an adapter among a whole model's tensors: only trained tensors are converted, not the base.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from paceline.checkpoint import codes
from paceline.checkpoint.base_model_files import base_files
from paceline.checkpoint.convert.pickle_reader.torch_tensors import LazyTensor
from paceline.checkpoint.export.architecture import gives_scores, is_known, trained_model_of
from paceline.checkpoint.format.foreign_folders import ADAPTER_CONFIG
from paceline.checkpoint.format.strict_json import parse_object
from paceline.core.errors import CheckpointError
from paceline.core.files import MAX_CONFIG_BYTES, open_file, read_bytes
from paceline.core.json_types import JsonObject
from paceline.models.lora.names import PEFT_PREFIX
from paceline.models.module_tensors import persistent_buffers
from paceline.plan.features.peft_settings import names_module
from paceline.plan.model.family import family_of
from paceline.plan.model.parameter_list import MAGNITUDE, NO_DECAY, of_adapter
from paceline.protocols.roles import Role
from paceline.strategies.optimizers.build import decays

Moments = dict[str, dict[str, LazyTensor]]  # parameter → kind (exp_avg …) → tensor


@dataclass
class ForeignState:
    """The state in a foreign checkpoint. ``form``: its program. ``weights``: tensors by the names in the
    file.

    role       the model's role
    trained    the shapes of the trained tensors, in the model's order; ``decaying``: those with weight decay
    moments    by the same names; empty where there are none
    optimizer  our name of the optimizer with these moments
    scaler     scale and growth tracker of fp16's scaler, where there is one
    adapter    the contents of adapter_config.json, where the weights are an adapter's
    base       folder or hub name of the model below an adapter, where it is known
    left       the parts that are lost, one sentence each
    """

    form: str
    step: int
    weights: dict[str, LazyTensor]
    moments: Moments = field(default_factory=dict)
    optimizer: str = ""
    scaler: tuple[float, int] | None = None
    adapter: JsonObject | None = None
    base: str = ""
    left: list[str] = field(default_factory=list)
    role: str = Role.POLICY.value
    trained: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    decaying: frozenset[str] = frozenset()


#: What is said of a step that no file of the folder has, and of a scheduler that is not brought over
NO_STEP = "the step: nothing in the folder says it, so it is 0; give it with --step"
SCHEDULER = "the learning rate's scheduler and client state: set schedule, warm-up and max_steps as they were"
#: What Adam keeps of a parameter; ``ADAM`` is our name of it. Other optimizers are not brought over.
ADAM_KINDS = frozenset({"exp_avg", "exp_avg_sq", "step"})
ADAM = "adamw_torch"


def misfit(what: str, where: str, found: str, hint: str = "") -> CheckpointError:
    """Return the error of files that do not fit one another."""
    return CheckpointError(codes.CONVERT_MISFIT(what, where, found, hint or "convert another step"))


def incomplete(what: str, where: str, found: str = "") -> CheckpointError:
    """Return the error of a part that is missing."""
    return CheckpointError(codes.CONVERT_INCOMPLETE(what, where, found, "copy the whole folder"))


def some_of(names: Sequence[str]) -> str:
    """Return the first names of a list, and how many more there are."""
    return ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")


T = TypeVar("T")


class Sized(Protocol):
    """Anything with a shape."""

    @property
    def shape(self) -> tuple[int, ...]: ...


_CONFIGS = ("config.json", "generation_config.json", "adapter_config.json")
_WRAPPERS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "module.")


@dataclass(frozen=True)
class ModelNames:
    """``parameters`` in the order of the model, with their shapes; ``decaying``: those that weight decay
    applies to; ``buffers``: those that a checkpoint holds; ``aliases``: other names of tied parameters.
    """

    parameters: Mapping[str, tuple[int, ...]]
    decaying: frozenset[str]
    buffers: Mapping[str, tuple[int, ...]]
    aliases: frozenset[str]


def model_names(config: JsonObject, where: Path) -> ModelNames:
    """Return the names of the model of a ``config.json``. Raises CheckpointError."""
    if not is_known(config):
        remedy = "export its weights with the program that wrote it, and set model.name_or_path"
        value = f"model_type: {config.get('model_type')!r}"
        raise misfit("Transformers has no causal language model of this type", str(where), value, remedy)
    try:
        model = trained_model_of(dict(config))
    except Exception as exc:  # whatever a config of a stranger makes Transformers raise
        problem, value = "Transformers builds no model of this config", f"{type(exc).__name__}: {exc}"[:300]
        raise misfit(problem, str(where / "config.json"), value, "put the model's own config there") from exc
    parameters = dict(model.named_parameters())
    buffers = {name: tuple(b.shape) for name, b in persistent_buffers(model)}
    return ModelNames(
        {name: tuple(p.shape) for name, p in parameters.items()},
        frozenset(name for name, p in parameters.items() if decays(name, p)),
        buffers,
        frozenset(set(model.state_dict()) - set(parameters) - set(buffers)),
    )


def by_model(tensors: Mapping[str, T], names: ModelNames, where: str) -> dict[str, T]:
    """Return tensors by the model's own names: without a wrapper's prefix, a tied one once.

    Raises CheckpointError if one is missing, or is none of the model's.
    """
    plain = unwrapped(tensors, set(names.parameters))
    expected = {*names.parameters, *names.buffers}
    missing, unknown = sorted(expected - set(plain)), sorted(set(plain) - expected - names.aliases)
    missing = [name for name in missing if name in names.parameters]
    for verdict, some in (("are missing", missing), ("are none of the model's", unknown)):
        if some:
            raise misfit(
                f"tensors {verdict}",
                where,
                some_of(some),
                "give the model's folder with --model" if len(some) > 5 else "",
            )
    return {name: plain[name] for name in expected if name in plain}


def model_state(form: str, tensors: Mapping[str, LazyTensor], names: ModelNames, where: str) -> ForeignState:
    """Return the state of a whole model, by its own names. Raises CheckpointError as ``by_model``."""
    weights = by_model(tensors, names, where)
    return ForeignState(form, 0, weights, trained=names.parameters, decaying=names.decaying)


def unwrapped(tensors: Mapping[str, T], expected: Collection[str]) -> dict[str, T]:
    """Return names without the words of wrappers, and without a prefix that all share."""
    plain: dict[str, T] = {}
    for name, value in tensors.items():
        bare = name
        for word in _WRAPPERS:
            bare = bare.replace(word, "") if word != "module." or bare.startswith(word) else bare
        bare = bare.removeprefix("module.")
        plain[bare] = value
    if any(name in expected for name in plain):
        return plain
    prefixes = {
        name[: -len(wanted)]
        for name in list(plain)[:50]
        for wanted in expected
        if name.endswith(f".{wanted}")
    }
    for prefix in sorted(prefixes, key=len):
        if all(f"{prefix}{wanted}" in plain for wanted in expected):
            return {name.removeprefix(prefix): v for name, v in plain.items() if name.startswith(prefix)}
    return plain


def adapter_name(name: str) -> str:
    """Return our name of an adapter's tensor: peft's, without its prefix and without the adapter's name."""
    bare = name.rpartition(PEFT_PREFIX)[2].removeprefix(
        "module."
    )  # an engine's own prefix comes before peft's
    for word in (".lora_A.default.", ".lora_B.default.", ".oft_R.default."):
        bare = bare.replace(word, word.replace("default.", ""))
    bare = bare.removesuffix(".default.weight") if MAGNITUDE in bare else bare
    return bare.replace(".modules_to_save.default.", ".").replace(".modules_to_save.", ".")


def role_of(config: JsonObject, adapter: JsonObject | None, weights: Mapping[str, Sized]) -> Role:
    """Return the role of a foreign model, from its class or its adapter's. A model that gives one score
    is a reward model; one that gives several is a classifier.
    """
    scores = gives_scores(config) or (adapter is not None and adapter.get("task_type") == "SEQ_CLS")
    if not scores:
        return Role.POLICY
    family = family_of(config.get("model_type"))
    rows = [t.shape[0] for name, t in weights.items() if name == f"{family.head[-1]}.weight" and t.shape]
    return Role.CLASSIFIER if family.encoder or (rows and rows[0] > 1) else Role.REWARD


def read_config(folder: Path, name: str = "config.json") -> JsonObject:
    """Return a JSON file of a folder. Raises CheckpointError."""
    path = folder / name
    try:
        with open_file(path) as file:
            data = file.read(MAX_CONFIG_BYTES + 1)
    except OSError as exc:
        raise incomplete(f"{name} cannot be read", str(path), exc.strerror or "") from None
    return parse_object(data, str(path), max_bytes=MAX_CONFIG_BYTES)


def side_files(folder: Path) -> dict[str, bytes]:
    """Return the config, the tokenizer's files and the other side files of a model's folder, by name."""
    configs = {name: read_bytes(folder / name) for name in _CONFIGS if (folder / name).is_file()}
    files = {**base_files(folder), **configs}
    return {name: data for name, data in files.items() if not name.endswith(".json") or _is_json(data)}


def _is_json(data: bytes) -> bool:
    try:
        json.loads(data)
    except (ValueError, RecursionError):
        return False
    return True


def is_adapter(names: Iterable[str]) -> bool:
    """Whether tensors of these names are, or hold, an adapter's."""
    return any(map(of_adapter, names))


def adapter_state(
    weights: Mapping[str, LazyTensor],
    trained: Collection[str],
    folder: Path,
    names: ModelNames,
    form: str,
) -> ForeignState:
    """Return the adapter in ``weights``. ``trained``: names of the tensors with moments of the optimizer,
    where they are known. peft's factors are trained in any case, and so are the modules that
    ``adapter_config.json`` trains in full.

    Raises CheckpointError if that file is neither in ``folder`` nor in the one around it.
    """
    beside = next((path for path in (folder, folder.parent) if (path / ADAPTER_CONFIG).is_file()), None)
    if beside is None:
        raise misfit(
            "the folder holds an adapter, and nothing says its rank, scale and layers",
            str(folder),
            f"no {ADAPTER_CONFIG}",
            f"put peft's {ADAPTER_CONFIG} into the folder",
        )
    settings = read_config(beside, ADAPTER_CONFIG)
    saved = settings.get("modules_to_save")
    full_modules = [str(module) for module in saved] if isinstance(saved, list) else []
    mine = {adapter_name(name) for name in trained}
    kept = {}
    for stored_name, tensor in weights.items():
        name = adapter_name(stored_name)
        module = name.rpartition(".")[0]
        full = ".modules_to_save." in stored_name and names_module(full_modules, module)
        if of_adapter(name) or full or name in mine:
            kept[name] = tensor
    modules = {name.rpartition(".")[0] for name in names.parameters}
    layers = (of_adapter(name).replace(".base_layer", "") for name in kept if of_adapter(name))
    if strange := sorted(
        path for path in layers if not any(m == path or m.startswith(f"{path}.") for m in modules)
    ):
        raise misfit("the adapter's layers are none of the model's", str(folder), ", ".join(strange[:5]))
    return bare_adapter(kept, names, form, settings)


def bare_adapter(
    weights: dict[str, LazyTensor], names: ModelNames, form: str, settings: JsonObject
) -> ForeignState:
    """Return the state of tensors that are all an adapter's, under our names."""
    order = adapter_order(weights, names)
    matrices = (n for n, shape in order.items() if len(shape) > 1 or n.endswith(MAGNITUDE))
    decaying = frozenset(n for n in matrices if not NO_DECAY.search(n))
    return ForeignState(form, 0, weights, adapter=settings, trained=order, decaying=decaying)


def adapter_order(weights: Mapping[str, LazyTensor], names: ModelNames) -> dict[str, tuple[int, ...]]:
    """Return an adapter's tensors with their shapes in the order in which peft's model has them."""
    positions = {name.rpartition(".")[0]: number for number, name in enumerate(names.parameters)}

    def place(name: str) -> tuple[int, str]:
        return positions.get(of_adapter(name) or name.rpartition(".")[0], len(positions)), name

    return {name: weights[name].shape for name in sorted(weights, key=place)}
