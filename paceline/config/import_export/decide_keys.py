"""Decide the keys of another program by its table, ``keys/PROGRAM.toml``.

A table is a list of steps. A step acts where its ``when`` holds: a condition, or several that all hold
(``NAME is [not] WORD``, joined by ``and``, then ``or``). A word is on, off, given, decided, set, set to A|B,
its default, blank (without a value in the file), a mapping, a list, a text, a number, a file here, or the
values A|B|empty. ``NAME matches PATTERN`` looks for a regular expression in a text, ``NAME has only A|B`` at
the keys of a mapping or the items of a list. The other entries of a step are verbs. A verb takes keys with a
row each, or a list of keys that share ``says`` or ``to``. ``galore_*`` stands for the file's keys with that
beginning; ``each`` is a condition on every key. The first step that decides a key wins, but for a step with
``again``. ``$name`` in a text is the value of that key, or one of SENTENCES; a ``value`` that is ``$name``
alone is the value itself.

    keep         given: set ``to`` to the value; the row may hold a ``value`` of its own, ``words`` (theirs →
                 ours; ``otherwise``), ``as`` (one of CONVERTERS, or ``switch``), ``inside`` (a key of the
                 mapping that is set), a ``note``, or how it ``differs``
    write        as ``keep``, and the program's default as well (``otherwise``: a default of its code)
    enable       on: set ``to`` to true, or to ``value``
    set          our path → its ``value`` (else that of the key ``of``), on behalf of ``key``, with a ``note``
    let          a name that later conditions and texts may use → its value, as a row of ``keep`` has it
    older        a name of earlier versions → today's, which the file lacks
    part         other settings of ours hold the meaning: ``to``
    nothing      the run is the same without it, and why
    off          off: as here; on: left to later steps
    alter        on: the run goes without it, and what that changes; off: as here
    lose         given: it cannot be kept, and why (``unset``: nor can the program's default; ``fine``: values
                 that ask for nothing)
    unsupported  on: it cannot be kept, and why; off: as here
    feature      a switch → its other ``keys``: off, none acts; on, they cannot be kept (``lose``), have no
                 effect (``nothing``), or are left to later steps; a text is why keys that begin so are lost
    code         the name of a function that decides what no row can
    table        another table, whose steps follow here
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from paceline.config.import_export.argument_tables import steps
from paceline.config.import_export.verdicts import KeyReader
from paceline.core.json_types import Json, JsonObject, as_list, as_object

Code = Mapping[str, Callable[[KeyReader], None]]

#: Sentences of several tables, which name them as ``$KERNEL``
SENTENCES = {
    "GENERATED": "the training processes generate the answers themselves, from the same distribution",
    "HUB": (
        "uploading is a step of its own: the training is the same, and `paceline export` writes the folder"
    ),
    "KERNEL": "another kernel for the same function; the fused cross entropy is always on here",
    "QUANTISED": "quantised weights are not trained without adapters, there and here",
    "LOGGED": "it changes what is logged, not the training",
    "MEMORY": "it saves memory; sums and updates are the same",
    "SFT_TERM": "the SFT term is averaged over the tokens of a micro-batch in ms-swift, here of a step",
    "SMOOTHED": "TRL's losses but robust, exo_pair and aot do not read it",
}
_OFF = "off, as here"
_NAMED = re.compile(r"\$(?:\{([\w.]+)\}|(\w+))")
_TYPES: dict[str, type | tuple[type, ...]] = {
    "a mapping": dict,
    "a list": list,
    "a text": str,
    "a whole number": int,
    "a number": (int, float),
}


def decide(reader: KeyReader, program: str, code: Code | None = None) -> None:
    """Decide the keys of ``reader`` by the table of ``program``; ``code``: the functions that it names."""
    for step in steps(program):
        _decide(reader, as_object(step), code or {})


def _decide(reader: KeyReader, step: JsonObject, code: Code) -> None:
    if not holds(reader, step.get("when", [])):
        return
    for verb, rows in step.items():
        if verb == "code":
            code[str(rows)](reader)
        elif verb == "table":
            decide(reader, str(rows), code)
        elif verb == "step" and isinstance(rows, list):
            for inner in rows:
                _decide(reader, as_object(inner), code)
        elif verb in OF_NAMES:
            for name, row in as_object(rows).items():
                OF_NAMES[verb](reader, name, row)
        elif verb in VERBS:
            shared = step.get("to" if verb in ("keep", "part") else "says", _OFF)
            named_rows = rows.items() if isinstance(rows, dict) else [(_list(rows), shared)]
            for names, row in named_rows:
                for key in _keys(reader, _list(names), str(step.get("each", "")), again="again" in step):
                    VERBS[verb](reader, key, row)


def _list(value: Json) -> list[Json]:
    return list(value) if isinstance(value, list) else [value]


def _keys(reader: KeyReader, names: Iterable[Json], each: str = "", *, again: bool = False) -> list[str]:
    """Return the keys without a verdict (``again``: with one, too) for which the conditions ``each`` hold."""
    candidates = [str(name) for name in names]
    # `galore_*`: keys of the file with that beginning, also those no table knows
    begun = tuple(name[:-1] for name in candidates if name.endswith("*"))
    if begun:
        candidates = [key for key in reader.given if key in candidates or key.startswith(begun)]
    conditions = each.split(" and ") if each else []
    return [
        key
        for key in candidates
        if (again or not reader.decided(key)) and all(_clause(reader, f"{key} {each}") for each in conditions)
    ]


def holds(reader: KeyReader, condition: Json) -> bool:
    """Whether a step's ``when`` holds."""
    return all(
        any(
            all(_clause(reader, clause) for clause in part.split(" and ")) for part in str(line).split(" or ")
        )
        for line in _list(condition)
    )


_HERE = {"a file here": Path.exists, "a folder here": Path.is_dir}
_CLAUSE = re.compile(r"(.*?) (is not|is|has only|matches) (.*)")


def _clause(reader: KeyReader, clause: str) -> bool:
    match = _CLAUSE.fullmatch(clause)
    name, verb, word = match.groups() if match else (clause, "is", "")
    value = reader.value(name)
    if verb == "matches":
        return re.search(word, "" if value is None else str(value)) is not None
    words = ["" if each == "empty" else each for each in filled(reader, word).split("|")]
    if word in ("on", "off"):
        met = reader.on(name) is (word == "on")
    elif word == "given":
        met = reader.is_given(name)
    elif word == "decided":
        met = reader.decided(name)
    elif word == "set":
        met = name in reader.result.settings
    elif word.startswith("set to "):
        setting = reader.result.settings.get(name)
        met = setting is not None and str(setting.value) in word.removeprefix("set to ").split("|")
    elif word == "its default":
        met = value == reader.defaults.get(name)
    elif word == "blank":
        met = reader.given.get(name) in (None, "")
    elif word in _HERE:
        met = _HERE[word](Path(str(value)))
    elif word in _TYPES:
        met = isinstance(value, _TYPES[word])
    elif verb == "has only":
        met = isinstance(value, (dict, list)) and set(map(str, value)) <= set(words)
    else:
        met = reader.text(name) in words
    return met is not (verb == "is not")


def filled(reader: KeyReader, text: Json, key: str = "") -> str:
    """Return a text with the values of keys for ``$name``, and the inner name of ``key`` for ``$it``."""
    return _NAMED.sub(lambda match: _shown(reader, match[1] or match[2], key), str(text))


def _shown(reader: KeyReader, name: str, key: str) -> str:
    if name == "it":
        return key.partition(".")[2]
    if name in SENTENCES:
        return SENTENCES[name]
    value = reader.value(name)
    if name in reader.facts and isinstance(value, str):
        return value
    return ", ".join(value) if isinstance(value, dict) else reader.text(name)


def _words(value: Json) -> Json:
    return [part.strip() for part in value.split(",")] if isinstance(value, str) else value


def _linear(value: Json) -> Json:
    return "all-linear" if value in ("all", ["all"], ["all-linear"]) else value


def _whole(value: Json) -> Json:
    return int(value) if isinstance(value, float) and value == int(value) else value


def _count(value: Json) -> Json:
    return max(value, 0) if isinstance(value, int) else 0


def _scale(value: Json) -> Json:
    return ("group" if value else "none") if isinstance(value, bool) else value


#: Names of linear modules, by which axolotl knows what ``lora_target_linear`` holds already
_LINEAR = re.compile(r"(proj|fc\d?|dense|linear|gate|up|down|w\d|c_attn)$")
_KERNELS = ("CutCrossEntropyPlugin", "LigerPlugin", "KernelsPlugin", "CompilePlugin")
_OF_NO_EFFECT = (*_KERNELS, "ExpertParallelPlugin", "SwanLabPlugin")
CONVERTERS: dict[str, Callable[[Json], Json]] = {
    "texts": _words,
    "linear": _linear,
    "targets": lambda value: _linear(_words(value)),
    "scale": _scale,
    "sentence": lambda value: " ".join(map(str, value)) if isinstance(value, list) else value,
    "commas": lambda value: ", ".join(map(str, value)) if isinstance(value, list) else str(value),
    "whole": _whole,
    "count": _count,
    "first": lambda value: value[0] if isinstance(value, list) and value else value,
    "only": lambda value: value[0] if isinstance(value, list) and len(value) == 1 else value,
    "list": as_list,
    "text": str,
    "word": lambda value: str(value).strip().lower(),
    "first of two": lambda value: value[0] if isinstance(value, list) and len(value) == 2 else 1.0,
    "second of two": lambda value: value[1] if isinstance(value, list) and len(value) == 2 else 1.0,
    "before _": lambda value: str(value).lower().partition("_")[0],
    "before :": lambda value: value.partition(":")[0] if isinstance(value, str) else "",
    "after _": lambda value: str(value).lower().partition("_")[2],
    "twice": lambda value: value * 2 if isinstance(value, int) else None,
    "rest of 1": lambda value: round(1 - value, 6) if isinstance(value, float) else None,
    # what ms-swift puts modules of the built model for: all-embedding, all-router
    "all- words": lambda value: ", ".join(
        str(name)
        for name in (value if isinstance(value, list) else str(value).split())
        if str(name).startswith("all-")
    ),
    "beside linear": lambda value: ", ".join(
        str(name) for name in (value if isinstance(value, list) else [value]) if not _LINEAR.search(str(name))
    ),
    "beside kernels": lambda value: ", ".join(
        name
        for name in (str(name).rpartition(".")[2] for name in (value if isinstance(value, list) else []))
        if name not in _OF_NO_EFFECT
    ),
}


def _value(reader: KeyReader, key: str, row: JsonObject) -> Json:
    """Return the value to set for a key; None for a word that the row does not list."""
    if "value" in row:
        return _inserted(reader, row["value"])
    key = str(row.get("of", key))
    words = as_object(row.get("words"))
    if row.get("as") == "switch":
        on = reader.on(key)
        return words["on" if on else "off"] if words else on
    otherwise = _inserted(reader, row.get("otherwise"))
    if words:
        return words.get(reader.text(key), otherwise)
    value = reader.value(key)
    value = otherwise if value in (None, "") else value
    value = CONVERTERS[str(row["as"])](value) if "as" in row else value
    return {str(row["inside"]): value} if "inside" in row else value


def _inserted(reader: KeyReader, value: Json) -> Json:
    """Return a row's value with those of the keys that it names."""
    if isinstance(value, dict):
        return {key: _inserted(reader, inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [_inserted(reader, inner) for inner in value]
    if not isinstance(value, str) or "$" not in value:
        return value
    alone = _NAMED.fullmatch(value)
    return reader.value(alone[1] or alone[2]) if alone else filled(reader, value)


def _write(reader: KeyReader, key: str, row: Json) -> None:
    options = row if isinstance(row, dict) else {"to": row}
    value, to = _value(reader, key, options), filled(reader, options["to"])
    if value is None:
        return
    if "differs" in options:
        reader.differs(key, to, value, filled(reader, options["differs"]))
    else:
        reader.keep(key, to, value, filled(reader, options.get("note", "")))


def _keep(reader: KeyReader, key: str, row: Json) -> None:
    if reader.is_given(key):
        _write(reader, key, row)


def _set(reader: KeyReader, path: str, value: Json) -> None:
    row = as_object(value)
    key = str(row.get("key", ""))
    reader.set(
        filled(reader, path),
        _value(reader, key, row),
        key,
        filled(reader, row.get("note", "")),
    )


def _let(reader: KeyReader, name: str, row: Json) -> None:
    reader.facts[name] = _value(reader, name, row if isinstance(row, dict) else {"value": row})


def _older(reader: KeyReader, older: str, name: Json) -> None:
    if reader.is_given(older) and name not in reader.given:
        reader.older(older, str(name))


def _feature(reader: KeyReader, switch: str, value: Json) -> None:
    row = as_object(value) or {"keys": f"{switch}*", "lose": value}
    for key in _keys(reader, [switch, *_list(row.get("keys", []))]):
        if not reader.on(switch):
            reader.nothing(key, f"{switch} is off")
        elif "lose" in row:
            reader.lose(key, filled(reader, row["lose"]))
        elif "nothing" in row:
            reader.nothing(key, filled(reader, row["nothing"]))


def _enable(reader: KeyReader, key: str, row: Json) -> None:
    if reader.on(key):
        _write(reader, key, {"value": True, **(row if isinstance(row, dict) else {"to": row})})


def _part(reader: KeyReader, key: str, row: Json) -> None:
    options = row if isinstance(row, dict) else {"to": row}
    to = [filled(reader, path) for path in _list(options["to"])]
    reader.mapped(key, to, filled(reader, options.get("note", "")))


def _nothing(reader: KeyReader, key: str, says: Json) -> None:
    reader.nothing(key, filled(reader, says))


def _off(reader: KeyReader, key: str, says: Json) -> None:
    if not reader.on(key):
        _nothing(reader, key, says)


def _lose(reader: KeyReader, key: str, row: Json) -> None:
    options = row if isinstance(row, dict) else {"says": row}
    if reader.given.get(key) in _list(options.get("fine", [])):
        reader.nothing(key, _OFF)
    elif reader.is_given(key) or options.get("unset"):
        reader.lose(key, filled(reader, options["says"], key))


def _alter(reader: KeyReader, key: str, says: Json) -> None:
    if reader.on(key):
        reader.departs(key, filled(reader, says, key))
    else:
        reader.nothing(key, _OFF)


def _unsupported(reader: KeyReader, key: str, says: Json) -> None:
    if reader.on(key):
        _lose(reader, key, says)
    else:
        reader.nothing(key, _OFF)


VERBS: dict[str, Callable[[KeyReader, str, Json], None]] = {
    "keep": _keep,
    "write": _write,
    "enable": _enable,
    "part": _part,
    "nothing": _nothing,
    "off": _off,
    "alter": _alter,
    "lose": _lose,
    "unsupported": _unsupported,
}
#: Verbs whose rows are of names, not of open keys
OF_NAMES: dict[str, Callable[[KeyReader, str, Json], None]] = {
    "set": _set,
    "let": _let,
    "older": _older,
    "feature": _feature,
}
