"""Keys that other systems take over from Transformers, translated by the aliases that our own files use."""

from __future__ import annotations

from pydantic_core import PydanticCustomError

from paceline.config.import_export.argument_tables import NO_TRACKERS, defaults
from paceline.config.import_export.decide_keys import SENTENCES, decide
from paceline.config.import_export.local_files import config_of
from paceline.config.import_export.verdicts import KeyReader
from paceline.config.keys.aliases import ALIASES, SKIP, AlgorithmAlias, Alias, IgnoredKey, NoTranslation
from paceline.config.keys.valid_keys import RECOGNISED, same
from paceline.config.schema import field_of, homes_of, nested_model
from paceline.core.json_types import Json
from paceline.core.plugins.tables import ALGORITHMS

#: a key that names a tracker's project -> the tracker that reads it
_PROJECTS = {
    "wandb_project": "wandb",
    "swanlab_project": "swanlab",
    "trackio_project": "trackio",
    "trackio_project_name": "trackio",
    "mlflow_experiment_name": "mlflow",
    "project": "trackio",
}
# Defaults of keys that only name files or levels of logging
_NOT_WRITTEN = ("log_level", "model_revision", "eval_dataset", "train_dataset", "eval_strategy_")
_HOMES = ("training", "model", "data")
NO_VALUE = "it has no value"


def transformers_defaults() -> dict[str, object]:
    """Return the defaults of Transformers' own arguments."""
    return {**defaults("transformers"), **NO_TRACKERS}


def transformers(reader: KeyReader) -> None:
    """Decide every key of a file of Transformers' own arguments."""
    reader.set("training.algorithm", reader.facts["job"])
    transformers_keys(reader)


def transformers_keys(reader: KeyReader) -> None:
    """Decide the keys of Transformers' arguments that the system's own translator has left open."""
    decide(reader, "transformers", CODE)
    for key in reader.open_keys():
        by_alias(reader, key)
    _defaults(reader)


def _recomputation(reader: KeyReader) -> None:
    kwargs = reader.value("gradient_checkpointing_kwargs")
    if isinstance(kwargs, dict) and set(kwargs) <= {"use_reentrant"}:
        keys = ("gradient_checkpointing_kwargs", "gradient_checkpointing_kwargs.use_reentrant")
        reader.nothing(keys, "recomputation gives the same values with either implementation")


def _precision(reader: KeyReader) -> None:
    """Decide ``bf16`` and ``fp16``, unless the system's translator has; both off is float32."""
    if "training.mixed_precision" in reader.result.settings:
        reader.mapped(
            [key for key in ("fp16", "bf16") if not reader.decided(key)], ("training.mixed_precision",)
        )
        return
    fp16, bf16 = reader.on("fp16"), reader.on("bf16")
    bf16 = bf16 or "training.pure_bf16" in reader.result.settings
    word = "fp16" if fp16 else "bf16" if bf16 else "no"
    reader.set("training.mixed_precision", word, "fp16" if fp16 else "bf16")
    reader.mapped(("fp16", "bf16"), ("training.mixed_precision",))


def whole_weights_in(reader: KeyReader, key: str, word: str, system: str) -> None:
    """Decide the dtype ``word`` of weights that are all trained: Transformers' Trainer steps them as they are
    loaded, but under DeepSpeed and FSDP, which make float32 masters of them.
    """
    engine, stored = reader.engine(), ""
    if word == "auto" and not engine:
        model_config = config_of(reader)
        stored = str(model_config.get("dtype") or model_config.get("torch_dtype") or "")
        word = stored or word
    if word == "float32" or (word == "auto" and engine):
        reader.keep(key, "model.dtype", word)
    elif word == "auto":
        says = f"{system} trains the weights in the dtype of the files, which are not here; ours in float32"
        reader.differs(key, "model.dtype", word, says)
    elif engine:
        reader.keep(key, "model.dtype", word, f"loaded so; {engine} trains float32 masters of them, as here")
    elif word == "bfloat16":
        says = "weights, gradients and moments in bfloat16 alone"
        reader.set("model.dtype", word, key)
        reader.keep(key, "training.pure_bf16", True, says)
    else:
        says = (
            f"weights are loaded in {word} and trained as float32 masters; {system} trains the {word} weights"
        )
        reader.differs(key, "model.dtype", word, says)


def by_alias(reader: KeyReader, key: str) -> None:
    """Decide a key by our own names, our aliases, and the keys known to have no effect."""
    value = reader.given[key]
    if value is None:
        reader.nothing(key, NO_VALUE)
        return
    if key not in reader.defaults and "." not in key and (isinstance(value, dict) or _is_section(key)):
        # a name of ours alone: what the program would mean by it is not known
        for name in (key, *(inner for inner in reader.given if inner.startswith(f"{key}."))):
            reader.lose(name, f"{reader.result.system} has no block {key}: write its keys at the left margin")
        return
    homes = [home for home in _HOMES if home in homes_of(key)]
    alias = ALIASES.get(key) or (Alias(f"{homes[0]}.{key}") if homes else None)
    if alias is not None:
        _through(reader, key, alias, value)
        return
    recognised = RECOGNISED.get(key)
    if recognised is not None and key in ("dataset_dir",) and key in reader.defaults:
        reader.nothing(key, "it says where data sets are looked for, and none is named")
    elif recognised is not None and recognised.accepts(value):
        reader.nothing(key, recognised.says)
    elif recognised is not None:
        reader.lose(key, recognised.says)
    elif "." in key and reader.decided(key.partition(".")[0]):
        outer = reader.result.findings[key.partition(".")[0]]
        reader.result.findings[key] = type(outer)(
            key, value, reader.line(key), outer.verdict, outer.to, outer.says
        )
    elif key in reader.defaults and same(value, reader.defaults[key]):  # type: ignore[arg-type]
        reader.nothing(key, f"it is {reader.result.system}'s default, and nothing here uses it")
    elif key in reader.defaults:
        reader.lose(key, "no key here does the same: the run goes without it; remove it, if that will do")
    else:
        reader.lose(key, f"{reader.result.system} has no such argument, and neither has Paceline")


def _is_section(key: str) -> bool:
    info = field_of(f"training.{key}")
    return info is not None and nested_model(info) is not None


def _through(reader: KeyReader, key: str, alias: Alias, value: Json) -> None:
    try:
        converted: Json | IgnoredKey = alias.value(value) if alias.value else value
    except NoTranslation as exc:
        reader.lose(key, f"{exc.what}: {exc.hint}")
        return
    except PydanticCustomError as exc:
        reader.lose(key, exc.message())
        return
    if converted is SKIP:
        reader.nothing(key, "it is switched off")
    elif isinstance(converted, AlgorithmAlias):
        reader.keep(key, "training.algorithm", str(converted))
    elif not isinstance(converted, IgnoredKey):
        path = home_of(reader, alias)
        if (other := _of_another(reader, path)) is not None:
            is_argument, system = key in reader.defaults, reader.result.system
            says = "it does not act with {}" if is_argument else f"{system} has no such argument for {{}}"
            (reader.nothing if is_argument else reader.lose)(key, says.format(other))
            return
        before = reader.result.settings.get(path)
        if before is not None and before.line and not same(before.value, converted):
            reader.lose(key, f"{before.key} (line {before.line}) sets {path} already")
        else:
            reader.keep(key, path, converted)


def _of_another(reader: KeyReader, path: str) -> str | None:
    """Return this run's algorithm where the path is an option of another one."""
    algorithm = reader.result.settings.get("training.algorithm")
    parts = path.split(".")
    inside = len(parts) > 2 and parts[0] == "training" and parts[1] in ALGORITHMS.names()
    if not inside or algorithm is None or parts[1] == algorithm.value:
        return None
    return str(algorithm.value)


def home_of(reader: KeyReader, alias: Alias) -> str:
    """Return the alias's path, in the section of this run's algorithm if options are shared."""
    algorithm = reader.result.settings.get("training.algorithm")
    option = alias.to.rpartition(".")[2]
    if not alias.of_algorithm or algorithm is None:
        return alias.to
    section = ALGORITHMS.section(str(algorithm.value))
    return f"training.{algorithm.value}.{option}" if section and option in section.model_fields else alias.to


def _defaults(reader: KeyReader) -> None:
    """Write out the system's defaults where ours are others."""
    for key, value in reader.defaults.items():
        if key in _NOT_WRITTEN or value in ([], ()):
            continue
        path = ALIASES[key].to if key in ALIASES else f"training.{key}"
        info = field_of(path)
        plain = key not in ALIASES or ALIASES[key].value is None
        top = path.count(".") == 1 and not path.startswith(
            "lora."
        )  # options of algorithms are their translators'
        if (key in reader.given and reader.given[key] is not None) or info is None or not plain or not top:
            continue
        if path in reader.result.settings or value is None or isinstance(value, dict):
            continue
        if not same(_listed(info.default), _listed(value)):  # type: ignore[arg-type]
            reader.set(path, value, key)  # type: ignore[arg-type]


def project(reader: KeyReader, report_to: Json) -> None:
    """Decide the keys that name a tracker's project: the one of a tracker in ``report_to`` is kept."""
    used = [report_to] if isinstance(report_to, str) else report_to if isinstance(report_to, list) else []
    kept = ""
    for key, tracker in _PROJECTS.items():
        if key not in reader.given or reader.decided(key):
            continue
        value = reader.given[key]
        if not kept and value and (tracker in used or "all" in used):
            kept = str(value)
            reader.keep(key, "training.project", kept)
        elif value == kept:
            reader.mapped(key, ("training.project",))
        else:
            reader.nothing(key, f"only {tracker} reads it, which nothing is sent to; {SENTENCES['LOGGED']}")


def _listed(value: object) -> object:
    """``report_to`` is a list here and may be a word elsewhere."""
    if value == "none":
        return ()
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


CODE = {
    "project": lambda reader: project(reader, reader.value("report_to")),
    "precision": _precision,
    "recomputation": _recomputation,
    "galore": lambda reader: transformers_galore(reader, "optim"),
}


_OURS, _OPTIM, _ARGS = "galore_adamw", "training.optim", "training.optim_args"
_LAYERWISE = (
    "the updates are the same, without clipping; here the gradients of all layers are kept until the step"
)
#: What Transformers hands GaLore's AdamW, whatever the arguments say
_FIXED: dict[str, Json] = {"weight_decay": 0.0, "adam_epsilon": 1e-6}
_FIXED |= {"adam_beta1": 0.9, "adam_beta2": 0.999}
#: LLaMA-Factory's keys → GaLore's options
_OPTIONS = {
    "galore_rank": "rank",
    "galore_update_interval": "update_proj_gap",
    "galore_scale": "scale",
    "galore_proj_type": "proj_type",
}


def transformers_galore(reader: KeyReader, key: str) -> None:
    """``optim: galore_adamw`` of Transformers: it passes on the rate alone, no betas, epsilon or decay."""
    name = reader.text(key)
    if name not in (_OURS, f"{_OURS}_layerwise"):
        return
    if engine := reader.engine():
        for lost in (key, "optim_target_modules", "optim_args"):
            if reader.is_given(lost):
                reader.lose(lost, f"GaLore needs whole gradients, which {engine} shards")
        return
    reader.keep(key, _OPTIM, _OURS, _LAYERWISE if name != _OURS else "")
    if name != _OURS:
        _no_clipping(reader, key)
    if reader.text("optim_target_modules").replace("_", "-") == "all-linear":
        reader.keep("optim_target_modules", "training.optim_target_modules", ".*", "the head, too")
    for argument, value in _FIXED.items():
        reader.set(f"training.{argument}", value, key, "what Transformers' GaLore has")
        reader.nothing(argument, f"Transformers does not pass it to {name}")


def llamafactory_galore(reader: KeyReader) -> None:
    """``use_galore`` and its keys. Its defaults: rank 16, scale 2; of AdamW, not of 8 bits or Adafactor."""
    if not reader.on("use_galore"):
        return
    if reader.text("finetuning_type") == "lora" or reader.engine():
        return  # refused there, too, or sharded; lost with the other switches
    if not str(reader.value("optim") or "adamw_torch").startswith("adamw_torch"):
        return  # lost with the other switches
    reader.keep("use_galore", _OPTIM, _OURS)
    reader.mapped("optim", (_OPTIM,), "GaLore's AdamW")
    targets = reader.value("galore_target")
    listed: Json = [word.strip() for word in targets.split(",")] if isinstance(targets, str) else targets
    reader.keep(
        "galore_target", "training.optim_target_modules", listed if listed != ["all"] else "all-linear"
    )
    options = ",".join(f"{ours}={reader.value(theirs)}" for theirs, ours in _OPTIONS.items())
    reader.set(_ARGS, options, "galore_rank")
    reader.mapped(_OPTIONS, (_ARGS,))
    if reader.on("galore_layerwise"):
        reader.mapped("galore_layerwise", (_OPTIM,), _LAYERWISE)
        _no_clipping(reader, "galore_layerwise")
    else:
        reader.nothing("galore_layerwise", "off, as here")


def _no_clipping(reader: KeyReader, key: str) -> None:
    reader.set("training.max_grad_norm", 0.0, key, "layers are stepped before a norm of all is known")
    reader.nothing("max_grad_norm", "layers are stepped before a norm of all gradients is known")
