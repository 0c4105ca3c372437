"""Keys that other systems take over from Transformers, translated by the aliases that our own files use."""

from __future__ import annotations

import difflib

from pydantic_core import PydanticCustomError

from paceline.config.import_export.decide_keys import SENTENCES, Code
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
OFF = "it is switched off"


def aliases(reader: KeyReader) -> None:
    """Decide the keys that a table has left open, by Paceline's own names."""
    for key in reader.open_keys():
        by_alias(reader, key)


def whole_weights_in(reader: KeyReader, key: str, word: str) -> None:
    """Decide the dtype ``word`` of fully trained weights. Transformers' Trainer updates them in the dtype
    that they were loaded in; under DeepSpeed and FSDP it updates float32 masters.
    """
    engine, system, stored = reader.engine(), reader.result.system, ""
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
    """Decide a key by Paceline's names, its aliases, and the keys known to have no effect."""
    value = reader.given[key]
    if value is None:
        reader.nothing(key, NO_VALUE)
        return
    info = field_of(f"training.{key}")
    is_section = info is not None and nested_model(info) is not None
    if key not in reader.defaults and "." not in key and (isinstance(value, dict) or is_section):
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
    elif value is False and reader.defaults.get(key, True) is None:
        reader.nothing(key, OFF)
    elif key in reader.defaults:
        reader.lose(key, "no key here does the same: the run goes without it; remove it, if that will do")
    elif reader.facts.get("unknown") == "ignored":
        close = difflib.get_close_matches(key, list(reader.defaults), 1)
        meant = f"; did you mean {close[0]}?" if close else ""
        reader.nothing(key, f"{reader.result.system} has no such argument, and ignores it{meant}")
    else:
        reader.lose(key, f"{reader.result.system} has no such argument, and neither has Paceline")


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
        reader.nothing(key, OFF)
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
    """Write out the system's defaults that differ from ours."""
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
    """Decide the keys that name a tracker's project; keep that of a tracker in ``report_to``."""
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
    """Return ``report_to`` as a list; other programs also take a word."""
    if value == "none":
        return ()
    return (value,) if isinstance(value, str) else tuple(value) if isinstance(value, list) else value


CODE: Code = {
    "project": lambda reader: project(reader, reader.value("report_to")),
    "aliases": aliases,
    "defaults": _defaults,
}
