"""Keys that other systems take over from Transformers, translated by the aliases that our own files use."""

from __future__ import annotations

from pydantic_core import PydanticCustomError

from paceline.config.import_export.argument_tables import NO_TRACKERS, defaults
from paceline.config.import_export.decide_keys import SENTENCES, decide
from paceline.config.import_export.local_files import config_of
from paceline.config.import_export.verdicts import KeyReader
from paceline.config.keys.aliases import ALIASES, SKIP, Alias, Learnt, NoTranslation, Skip
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
_NOT_WRITTEN = ("log_level", "model_revision", "eval_dataset", "train_dataset", "eval_strategy_")
_HOMES = ("training", "model", "data")
NO_VALUE = "it has no value"


def transformers_defaults() -> dict[str, object]:
    """Return the defaults of Transformers' own arguments."""
    return {**defaults("transformers"), **NO_TRACKERS}


def transformers(reading: KeyReader) -> None:
    """Decide every key of a file of Transformers' own arguments."""
    reading.set("training.algorithm", reading.facts["job"])
    transformers_keys(reading)


def transformers_keys(reading: KeyReader) -> None:
    """Decide the keys of Transformers' arguments that the system's own translator has left open."""
    decide(reading, "transformers", CODE)
    for key in reading.open_keys():
        by_alias(reading, key)
    _defaults(reading)


def _recomputation(reading: KeyReader) -> None:
    kwargs = reading.value("gradient_checkpointing_kwargs")
    if isinstance(kwargs, dict) and set(kwargs) <= {"use_reentrant"}:
        keys = ("gradient_checkpointing_kwargs", "gradient_checkpointing_kwargs.use_reentrant")
        reading.nothing(keys, "recomputation gives the same values with either implementation")


def _precision(reading: KeyReader) -> None:
    """Decide ``bf16`` and ``fp16``, unless the system's translator has; both off is float32."""
    if "training.mixed_precision" in reading.result.settings:
        reading.mapped(
            [key for key in ("fp16", "bf16") if not reading.decided(key)], ("training.mixed_precision",)
        )
        return
    fp16, bf16 = reading.on("fp16"), reading.on("bf16")
    bf16 = bf16 or "training.pure_bf16" in reading.result.settings
    word = "fp16" if fp16 else "bf16" if bf16 else "no"
    reading.set("training.mixed_precision", word, "fp16" if fp16 else "bf16")
    reading.mapped(("fp16", "bf16"), ("training.mixed_precision",))


def whole_weights_in(reading: KeyReader, key: str, word: str, system: str) -> None:
    """Decide the dtype ``word`` of weights that are all trained: Transformers' Trainer steps them as they are
    loaded, but under DeepSpeed and FSDP, which make float32 masters of them.
    """
    engine, stored = reading.engine(), ""
    if word == "auto" and not engine:
        model_config = config_of(reading)
        stored = str(model_config.get("dtype") or model_config.get("torch_dtype") or "")
        word = stored or word
    if word == "float32" or (word == "auto" and engine):
        reading.keep(key, "model.dtype", word)
    elif word == "auto":
        says = f"{system} trains the weights in the dtype of the files, which are not here; ours in float32"
        reading.differs(key, "model.dtype", word, says)
    elif engine:
        reading.keep(key, "model.dtype", word, f"loaded so; {engine} trains float32 masters of them, as here")
    elif word == "bfloat16":
        says = "weights, gradients and moments in bfloat16 alone"
        reading.set("model.dtype", word, key)
        reading.keep(key, "training.pure_bf16", True, says)
    else:
        says = (
            f"weights are loaded in {word} and trained as float32 masters; {system} trains the {word} weights"
        )
        reading.differs(key, "model.dtype", word, says)


def by_alias(reading: KeyReader, key: str) -> None:
    """Decide a key by our own names, our aliases, and the keys known to have no effect."""
    value = reading.given[key]
    if value is None:
        reading.nothing(key, NO_VALUE)
        return
    if key not in reading.defaults and "." not in key and (isinstance(value, dict) or _is_section(key)):
        # a name of ours alone: what the program would mean by it is not known
        for name in (key, *(inner for inner in reading.given if inner.startswith(f"{key}."))):
            reading.lose(
                name, f"{reading.result.system} has no block {key}: write its keys at the left margin"
            )
        return
    homes = [home for home in _HOMES if home in homes_of(key)]
    alias = ALIASES.get(key) or (Alias(f"{homes[0]}.{key}") if homes else None)
    if alias is not None:
        _through(reading, key, alias, value)
        return
    recognised = RECOGNISED.get(key)
    if recognised is not None and key in ("dataset_dir",) and key in reading.defaults:
        reading.nothing(key, "it says where data sets are looked for, and none is named")
    elif recognised is not None and recognised.accepts(value):
        reading.nothing(key, recognised.says)
    elif recognised is not None:
        reading.lose(key, recognised.says)
    elif "." in key and reading.decided(key.partition(".")[0]):
        outer = reading.result.findings[key.partition(".")[0]]
        reading.result.findings[key] = type(outer)(
            key, value, reading.line(key), outer.verdict, outer.to, outer.says
        )
    elif key in reading.defaults and same(value, reading.defaults[key]):  # type: ignore[arg-type]
        reading.nothing(key, f"it is {reading.result.system}'s default, and nothing here uses it")
    elif key in reading.defaults:
        reading.lose(key, "no key here does the same: the run goes without it; remove it, if that will do")
    else:
        reading.lose(key, f"{reading.result.system} has no such argument, and neither has Paceline")


def _is_section(key: str) -> bool:
    info = field_of(f"training.{key}")
    return info is not None and nested_model(info) is not None


def _through(reading: KeyReader, key: str, alias: Alias, value: Json) -> None:
    try:
        converted: Json | Skip = alias.value(value) if alias.value else value
    except NoTranslation as exc:
        reading.lose(key, f"{exc.what}: {exc.hint}")
        return
    except PydanticCustomError as exc:
        reading.lose(key, exc.message())
        return
    if converted is SKIP:
        reading.nothing(key, "it is switched off")
    elif isinstance(converted, Learnt):
        reading.keep(key, "training.algorithm", str(converted))
    elif not isinstance(converted, Skip):
        path = home_of(reading, alias)
        if (other := _of_another(reading, path)) is not None:
            is_argument, system = key in reading.defaults, reading.result.system
            says = "it does not act with {}" if is_argument else f"{system} has no such argument for {{}}"
            (reading.nothing if is_argument else reading.lose)(key, says.format(other))
            return
        before = reading.result.settings.get(path)
        if before is not None and before.line and not same(before.value, converted):
            reading.lose(key, f"{before.key} (line {before.line}) sets {path} already")
        else:
            reading.keep(key, path, converted)


def _of_another(reading: KeyReader, path: str) -> str | None:
    """Return this run's algorithm where the path is an option of another one."""
    algorithm = reading.result.settings.get("training.algorithm")
    parts = path.split(".")
    inside = len(parts) > 2 and parts[0] == "training" and parts[1] in ALGORITHMS.names()
    if not inside or algorithm is None or parts[1] == algorithm.value:
        return None
    return str(algorithm.value)


def home_of(reading: KeyReader, alias: Alias) -> str:
    """Return the alias's path, in the section of this run's algorithm if options are shared."""
    algorithm = reading.result.settings.get("training.algorithm")
    option = alias.to.rpartition(".")[2]
    if not alias.of_algorithm or algorithm is None:
        return alias.to
    section = ALGORITHMS.section(str(algorithm.value))
    return f"training.{algorithm.value}.{option}" if section and option in section.model_fields else alias.to


def _defaults(reading: KeyReader) -> None:
    """Write out the system's defaults where ours are others."""
    for key, value in reading.defaults.items():
        if key in _NOT_WRITTEN or value in ([], ()):
            continue
        path = ALIASES[key].to if key in ALIASES else f"training.{key}"
        info = field_of(path)
        plain = key not in ALIASES or ALIASES[key].value is None
        top = path.count(".") == 1 and not path.startswith(
            "lora."
        )  # options of algorithms are their translators'
        if (key in reading.given and reading.given[key] is not None) or info is None or not plain or not top:
            continue
        if path in reading.result.settings or value is None or isinstance(value, dict):
            continue
        if not same(_listed(info.default), _listed(value)):  # type: ignore[arg-type]
            reading.set(path, value, key)  # type: ignore[arg-type]


def project(reading: KeyReader, report_to: Json) -> None:
    """Decide the keys that name a tracker's project: the one of a tracker in ``report_to`` is kept."""
    used = [report_to] if isinstance(report_to, str) else report_to if isinstance(report_to, list) else []
    kept = ""
    for key, tracker in _PROJECTS.items():
        if key not in reading.given or reading.decided(key):
            continue
        value = reading.given[key]
        if not kept and value and (tracker in used or "all" in used):
            kept = str(value)
            reading.keep(key, "training.project", kept)
        elif value == kept:
            reading.mapped(key, ("training.project",))
        else:
            reading.nothing(key, f"only {tracker} reads it, which nothing is sent to; {SENTENCES['LOGGED']}")


def _listed(value: object) -> object:
    """``report_to`` is a list here and may be a word elsewhere."""
    if value == "none":
        return ()
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


CODE = {
    "project": lambda reading: project(reading, reading.value("report_to")),
    "precision": _precision,
    "recomputation": _recomputation,
    "galore": lambda reading: transformers_galore(reading, "optim"),
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


def transformers_galore(reading: KeyReader, key: str) -> None:
    """``optim: galore_adamw`` of Transformers: it passes on the rate alone, no betas, epsilon or decay."""
    name = reading.text(key)
    if name not in (_OURS, f"{_OURS}_layerwise"):
        return
    if engine := reading.engine():
        for lost in (key, "optim_target_modules", "optim_args"):
            if reading.is_given(lost):
                reading.lose(lost, f"GaLore needs whole gradients, which {engine} shards")
        return
    reading.keep(key, _OPTIM, _OURS, _LAYERWISE if name != _OURS else "")
    if name != _OURS:
        _no_clipping(reading, key)
    if reading.text("optim_target_modules").replace("_", "-") == "all-linear":
        reading.keep("optim_target_modules", "training.optim_target_modules", ".*", "the head, too")
    for argument, value in _FIXED.items():
        reading.set(f"training.{argument}", value, key, "what Transformers' GaLore has")
        reading.nothing(argument, f"Transformers does not pass it to {name}")


def llamafactory_galore(reading: KeyReader) -> None:
    """``use_galore`` and its keys. Its defaults: rank 16, scale 2; of AdamW, not of 8 bits or Adafactor."""
    if not reading.on("use_galore"):
        return
    if reading.text("finetuning_type") == "lora" or reading.engine():
        return  # refused there, too, or sharded; lost with the other switches
    if not str(reading.value("optim") or "adamw_torch").startswith("adamw_torch"):
        return  # lost with the other switches
    reading.keep("use_galore", _OPTIM, _OURS)
    reading.mapped("optim", (_OPTIM,), "GaLore's AdamW")
    targets = reading.value("galore_target")
    listed: Json = [word.strip() for word in targets.split(",")] if isinstance(targets, str) else targets
    reading.keep(
        "galore_target", "training.optim_target_modules", listed if listed != ["all"] else "all-linear"
    )
    options = ",".join(f"{ours}={reading.value(theirs)}" for theirs, ours in _OPTIONS.items())
    reading.set(_ARGS, options, "galore_rank")
    reading.mapped(_OPTIONS, (_ARGS,))
    if reading.on("galore_layerwise"):
        reading.mapped("galore_layerwise", (_OPTIM,), _LAYERWISE)
        _no_clipping(reading, "galore_layerwise")
    else:
        reading.nothing("galore_layerwise", "off, as here")


def _no_clipping(reading: KeyReader, key: str) -> None:
    reading.set("training.max_grad_norm", 0.0, key, "layers are stepped before a norm of all is known")
    reading.nothing("max_grad_norm", "layers are stepped before a norm of all gradients is known")
