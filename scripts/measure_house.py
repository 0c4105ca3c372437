"""Measures of the house beside those of commit 3b6e39d: ``python scripts/measure_house.py [ROOT]``; ``-v``
lists what is counted.

None of them is a reason to write worse code. ``tests/architecture/test_names.py`` holds the first at 0.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path


def _table_names() -> set[str]:
    """The names of the tables of strategies and algorithms, read from ``core/plugins/tables.py``."""
    source = Path(__file__).resolve().parents[1] / "paceline" / "core" / "plugins" / "tables.py"
    tables = (
        node.args[-1]
        for node in ast.walk(ast.parse(source.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Table"
    )
    return {
        str(ast.literal_eval(key))
        for rows in tables
        if isinstance(rows, ast.Dict)
        for key in rows.keys
        if key
    }


NAMES = _table_names()
OPTIONS = {name.replace("_", "") + "options" for name in NAMES}  # the classes of their options, in lower case
CHOOSERS = {"auto", "fastest"}  # counted where the strategy is spoken of: other keys have an "auto", too
#: Where a name is at home: the tables, the specs, the classes that they name; and other systems' words, which
#: are translated there.
HOME = (
    "core/plugins/tables.py",
    "plan/strategies/",
    "plan/algorithms/",
    "config/import_export/",
    "config/backend_files/",
    "config/keys/aliases.py",
    "config/keys/suggest.py",
)
#: The classes that run: each may ask whether options are its own.
IMPLEMENTATIONS = ("strategies/", "algorithms/")
#: Not a strategy's or algorithm's name, though spelt like one: (file, what is compared) → what it is.
OTHER_WORDS: Mapping[tuple[str, str], str] = {
    ("algorithms/preference/pair_policy.py", "('pairs', 'sft')"): "a term of a loss",
    ("algorithms/on_policy/losses.py", "'grpo'"): "a normalisation of a loss, named by the paper that has it",
    ("algorithms/preference/cpo.py", "'simpo'"): "a loss, named by the paper that has it",
    ("config/sections/algorithms/preference.py", "'simpo'"): "a loss, named by the paper that has it",
    ("algorithms/rewards/scoring.py", "'completion'"): "a field of a diagnostic's evidence",
    ("config/layers/collect.py", "{'deepspeed'}"): "a group of keys",
    ("launch/launchers.py", ""): "a launcher",
    ("plan/planner.py", "role in"): "a role",
    ("plan/layout_search.py", "('parallelism', "): "keys of training",
    ("models/parallel/tensor_parallel.py", "'embedding'"): "a module",
    ("plan/model/shape.py", "'embedding'"): "a kind of parameter",
    ("verify/sides.py", "'distributed_strategy': against"): "keys of training",
    ("plan/hardware/probe.py", "'bitsandbytes'"): "packages",
    ("plan/cost/report.py", "'bubble'"): "parts of a step's time",
    ("runlog/lines.py", "'completion'"): "columns of a table",
    ("strategies/deepspeed/autotp.py", "__module__.startswith"): "a package",
    ("training/rollout/scored_rollout.py", "{'reward'"): "a field of an event",
    ("training/rollout/scored_rollout.py", "{'prompt'"): "a field of an event",
    ("watch/panels.py", "'reward' in names"): "a metric",
}
ROOMS = ("plan", "strategies", "training", "algorithms", "generation")
#: Files where JSON or YAML of others is read or written, so that keys are texts: what it is.
EDGES: Mapping[str, str] = {
    **dict.fromkeys(
        (
            "plan/model/parameter_list.py",
            "plan/model/family.py",
            "plan/model/read_config.py",
            "plan/model/shape.py",
            "plan/model/quantized_weights.py",
            "plan/model/shrink.py",
            "plan/model/supported.py",
            "plan/model/tower.py",
            "plan/model/files/unusual_config.py",
            "plan/model/read_config.py",
            "training/preflight/named_models.py",
        ),
        "a model's config.json",
    ),
    **dict.fromkeys(
        ("plan/model/files/folder_check.py", "plan/model/files/safetensors_headers.py"),
        "headers and indices of safetensors files",
    ),
    **dict.fromkeys(
        ("plan/images/layouts.py", "plan/images/settings.py", "plan/images/tiles.py"),
        "settings of a model's image processor",
    ),
    "plan/features/peft_settings.py": "peft's adapter_config.json",
    "plan/model/files/folder_check.py": "configs of a sentence-transformers folder",
    "training/preflight/generation_servers.py": "answers of generation servers",
    "plan/hardware/device_catalogue.py": "a user's hardware file",
    "plan/hardware/device_files.py": "properties of nodes that Linux writes, and a wheel's version file",
    "plan/hardware/vendor_smi.py": "columns of nvidia-smi and rocm-smi",
    **dict.fromkeys(
        (
            f"plan/strategies/deepspeed/{name}.py"
            for name in (
                "compile_config",
                "options",
                "spec",
                "zero_block",
            )
        ),
        "DeepSpeed's JSON",
    ),
    "strategies/deepspeed/start_engine.py": "DeepSpeed's JSON",
    "strategies/deepspeed/partition_views.py": "mappings that DeepSpeed leaves on its parameters",
    "plan/strategies/fsdp_options.py": "fsdp_config, by Transformers' and Accelerate's keys",
    **dict.fromkeys(
        (
            "strategies/optimizers/muon.py",
            "strategies/optimizers/schedule_free.py",
            "strategies/optimizers/stochastic_rounding_adamw.py",
            "strategies/replicated_state.py",
        ),
        "groups and state dictionaries of torch's optimizers, and of GradScaler",
    ),
    **dict.fromkeys(
        (
            "training/checkpointing/resume_compatibility.py",
            "training/preflight/inputs.py",
            "training/preflight/resume_checkpoint.py",
            "training/checkpointing/resume.py",
            "training/checkpointing/contents.py",
        ),
        "the JSON of a checkpoint, which any version may have written",
    ),
    "training/exact_match.py": "rows of a data set",
    "training/preflight/trial.py": "question and answer of a child process: JSON",
    "algorithms/rewards/code_test_formats.py": "tests in a row, in the forms of published data sets",
    **dict.fromkeys(
        (
            f"algorithms/rewards/sandbox/{name}.py"
            for name in ("client", "judge", "program", "server", "isolation")
        ),
        "the protocol between sandbox, server and program: JSON lines",
    ),
    "generation/remote.py": "requests to a server, and its answers",
}
#: What a ``Job`` has beside its config.
OF_JOB = {
    "hardware",
    "world_size",
    "num_nodes",
    "launcher",
    "run_dir",
    "shape",
    "others",
    "needs_room",
    "model_shape",
}


@dataclass
class Hit:
    """One place."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass
class Package:
    """The parsed sources below ``paceline/``."""

    root: Path
    texts: dict[str, str] = field(default_factory=dict)
    trees: dict[str, ast.Module] = field(default_factory=dict)
    _walked: dict[str, list[ast.AST]] = field(default_factory=dict)

    def nodes(self, path: str) -> list[ast.AST]:
        """Every node of a file's tree, as ``ast.walk`` gives them; walked once."""
        if path not in self._walked:
            self._walked[path] = list(ast.walk(self.trees[path]))
        return self._walked[path]

    @cached_property
    def spelt_alike(self) -> list[Hit]:
        """``comparisons``, with what is no name though spelt like one (``OTHER_WORDS``)."""
        return [hit for path in self.trees if not path.startswith(HOME) for hit in _of_file(self, path)]

    @staticmethod
    def read(root: Path) -> Package:
        """Raises OSError where there is no such folder."""
        found = Package(root)
        for path in sorted((root / "paceline").rglob("*.py")):
            name = path.relative_to(root / "paceline").as_posix()
            found.texts[name] = path.read_text(encoding="utf-8")
            found.trees[name] = ast.parse(found.texts[name])
        return found


def _words(node: ast.AST) -> set[str]:
    """The texts that stand in a node itself, or in a collection that it writes out."""
    if isinstance(node, ast.Constant):
        return {node.value} if isinstance(node.value, str) else set()
    if isinstance(node, (ast.Tuple, ast.List, ast.Set)):
        return set().union(*map(_words, node.elts)) if node.elts else set()
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("frozenset", "set", "tuple")
    ):
        return set().union(*map(_words, node.args)) if node.args else set()
    return set()


def _compared(node: ast.AST) -> bool:
    """Whether a node asks what something is called."""
    if isinstance(node, ast.Compare):
        operands = [node.left, *node.comparators]
        words = set().union(*map(_words, operands))
        if words & NAMES:
            return True
        named = {n.id for operand in operands for n in ast.walk(operand) if isinstance(n, ast.Name)}
        return "strategy" in ast.unparse(node) and bool(
            words & CHOOSERS or named & {"AUTO", "FASTEST", "CHOSEN"}
        )
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        named = node.func.id in ("strategy_spec", "algorithm_spec")
        return _by_type(node) or (named and any(_words(a) & NAMES for a in node.args))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        asks = node.func.attr in ("startswith", "endswith", "removeprefix", "removesuffix")
        return asks and any(_words(argument) & NAMES for argument in node.args)
    if isinstance(node, ast.MatchValue):
        return bool(_words(node.value) & NAMES)
    if isinstance(node, ast.Dict):
        return any(key is not None and _words(key) & NAMES for key in node.keys)
    collection = isinstance(node, (ast.Tuple, ast.List, ast.Set)) and isinstance(
        getattr(node, "ctx", ast.Load()), ast.Load
    )
    return collection and bool(_words(node) & NAMES)


def _by_type(node: ast.AST) -> bool:
    """Whether a node asks for the type of one strategy's or algorithm's options."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and len(node.args) == 2):
        return False
    if node.func.id not in ("isinstance", "issubclass"):
        return False
    types = {n.id.lower() for n in ast.walk(node.args[1]) if isinstance(n, ast.Name)}
    return bool(types & OPTIONS)


def _own_name(path: str, node: ast.AST) -> bool:
    """Whether a class's own file writes nothing but its own name as a key: a loss term may be called so."""
    keys = set().union(*(_words(key) for key in node.keys if key)) if isinstance(node, ast.Dict) else set()
    return path.startswith(IMPLEMENTATIONS) and keys & NAMES == {Path(path).stem}


def comparisons(package: Package, *, everywhere: bool = False) -> list[Hit]:
    """Where a strategy or an algorithm is known by its name, outside its spec and table; ``everywhere``:
    also what is spelt alike (``OTHER_WORDS``).
    """
    return [
        hit
        for hit in package.spelt_alike
        if everywhere or not any(hit.path == path and part in hit.text for path, part in OTHER_WORDS)
    ]


def _of_file(package: Package, path: str) -> Iterator[Hit]:
    """The comparisons of one file, the outermost of each."""
    nodes = package.nodes(path)
    inside = {
        id(c)
        for n in nodes
        if isinstance(n, ast.Compare)
        for o in [n.left, *n.comparators]
        for c in ast.walk(o)
    }
    inside |= {
        id(a)
        for n in nodes
        if isinstance(n, (ast.Tuple, ast.List, ast.Set))
        for e in n.elts
        for a in ast.walk(e)
    }
    for node in nodes:
        if (
            _compared(node)
            and not (path.startswith(IMPLEMENTATIONS) and _by_type(node))
            and not _own_name(path, node)
            and (isinstance(node, ast.Compare) or id(node) not in inside)
        ):
            yield Hit(path, getattr(node, "lineno", 0), ast.unparse(node)[:90])


def look_ups(package: Package) -> Mapping[str, Mapping[str, int]]:
    """Room → file → look-ups by a key that is written out: subscripts, ``get``, ``pop``, ``setdefault``."""
    found: dict[str, dict[str, int]] = {room: {} for room in ROOMS}
    for path in package.trees:
        room = path.split("/")[0]
        if room not in ROOMS:
            continue
        count = 0
        for node in package.nodes(path):
            key: ast.AST | None = node.slice if isinstance(node, ast.Subscript) else None
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in ("get", "pop", "setdefault")
            ):
                key = node.args[0] if node.args else None
            count += isinstance(key, ast.Constant) and isinstance(key.value, str)
        if count:
            found[room][path] = count
    return found


def loose_types(package: Package) -> int:
    """``Any``, ``object``, ``cast`` and ``type: ignore`` together."""
    count = sum(text.count("type: ignore") for text in package.texts.values())
    for path in package.trees:
        for node in package.nodes(path):
            count += isinstance(node, ast.Name) and node.id in ("Any", "object")
            count += isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast"
    return count


def statements(package: Package) -> int:
    """By ``ast``."""
    return sum(isinstance(node, ast.stmt) for path in package.trees for node in package.nodes(path))


def strategy_methods(package: Package) -> list[str]:
    """Public methods of the base class of all strategies."""
    classes = {n.name: n for n in package.trees["strategies/strategy.py"].body if isinstance(n, ast.ClassDef)}
    return [
        m.name
        for m in classes["Strategy"].body
        if isinstance(m, ast.FunctionDef) and not m.name.startswith("_")
    ]


class Follower:
    """Follows ``config``, what is taken from it, and a ``Job`` made of it, through the calls of
    ``make_plan``.
    """

    def __init__(self, package: Package) -> None:
        self._package = package
        self.reached: dict[tuple[str, str], set[str]] = {}

    def follow(self, path: str, name: str) -> list[str]:
        """The functions that it is handed to, ``make_plan`` included."""
        function = self._defined(path, name)
        assert function is not None
        self._visit(function[0], function[1], {"config", "job"})
        return sorted(f"{where}:{called}" for where, called in self.reached)

    def _defined(self, path: str, name: str) -> tuple[str, ast.FunctionDef] | None:
        for _ in range(5):
            tree = self._package.trees.get(path) or self._package.trees.get(
                path.replace(".py", "/__init__.py")
            )
            if tree is None:
                return None
            for node in tree.body:
                if isinstance(node, ast.FunctionDef) and node.name == name:
                    return path, node
            source = self._imported(tree, name)
            if source is None:
                return None
            path, name = source
        return None

    @staticmethod
    def _imported(tree: ast.Module, name: str) -> tuple[str, str] | None:
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("paceline."):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return (
                            str(node.module).removeprefix("paceline.").replace(".", "/") + ".py",
                            alias.name,
                        )
        return None

    def _visit(self, path: str, function: ast.FunctionDef, given: set[str]) -> None:
        known = self.reached.get((path, function.name))
        if known is not None and given <= known:
            return
        given = given | (known or set())
        self.reached[path, function.name] = given
        held, bound = set(given), dict[str, str]()
        for _ in range(3):
            held |= {t for n in ast.walk(function) if isinstance(n, ast.Assign) for t in _taken(n, held)}
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                bound.update((node.targets[0].id, n) for n in _partial(node.value))
        for node in ast.walk(function):
            if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Name)):
                continue
            called = self._defined(path, bound.get(node.func.id, node.func.id))
            if called is None:
                continue
            names = [a.arg for a in called[1].args.args]
            handed = {n for n, argument in zip(names, node.args, strict=False) if _comes_from(argument, held)}
            handed |= {k.arg for k in node.keywords if k.arg and _comes_from(k.value, held)}
            if handed:
                self._visit(*called, handed)


def _partial(node: ast.expr) -> Iterator[str]:
    """The function that ``partial`` binds arguments of."""
    if (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == "partial"
        and isinstance(node.args[0], ast.Name)
    ):
        yield node.args[0].id


def _taken(node: ast.Assign, held: set[str]) -> Iterator[str]:
    target = node.targets[0]
    pairs = [(target, node.value)]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        pairs = list(zip(target.elts, node.value.elts, strict=False))
    for name, value in pairs:
        if isinstance(name, ast.Name) and _comes_from(value, held):
            yield name.id


def _comes_from(node: ast.expr, held: set[str]) -> bool:
    while True:
        if isinstance(node, ast.Name):
            return node.id in held
        if isinstance(node, ast.Attribute) and node.attr in OF_JOB:
            return False
        if isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        elif isinstance(node, ast.BoolOp):
            node = node.values[0]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            node = node.func.value
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Job":
            return any(_comes_from(a, held) for a in [*node.args, *(k.value for k in node.keywords)])
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("dict", "replace")
            and node.args
        ):
            node = node.args[0]
        else:
            return False


def planner(package: Package) -> list[str]:
    """Functions that ``config`` is handed to from ``make_plan``."""
    home = next(
        p
        for p, t in package.trees.items()
        if p.startswith(("plan/", "rules/"))
        for n in t.body
        if isinstance(n, ast.FunctionDef) and n.name == "make_plan"
    )
    return Follower(package).follow(home, "make_plan")


Row = tuple[str, int | None, int | None, int]


def measures(package: Package) -> list[Row]:
    """Return of each measure: its name, the value at 3b6e39d, the most asked for, the value here."""
    found, lines = look_ups(package), [line for text in package.texts.values() for line in text.splitlines()]
    keys = {room: _without_edges(files) for room, files in found.items()}
    in_keys = sum(sum(files.values()) for files in keys.values())
    handed = "functions that config is handed to from make_plan (66 by this count)"
    named = "comparisons with a strategy's or an algorithm's name outside its spec and table"
    return [
        (named, 82, 0, len(comparisons(package))),
        ("look-ups by literal key in " + ", ".join(ROOMS), 739, 150, in_keys),
        *((f"    {room}", None, None, sum(files.values())) for room, files in keys.items()),
        ("    and in files that are an edge, listed by -v", None, None, sum(_edges(found).values())),
        ("Any, object, cast and type: ignore", 1130, 550, loose_types(package)),
        ("statements", 25546, 25545, statements(package)),
        ("lines over 110 columns", 2696, 0, sum(len(line) > 110 for line in lines)),
        ("fmt: skip", 131, 10, sum(line.count("fmt: skip") for line in lines)),
        ("public methods of Strategy", 31, 14, len(strategy_methods(package))),
        (handed, 68, 25, len(planner(package))),
    ]


def _without_edges(files: Mapping[str, int]) -> dict[str, int]:
    return {path: n for path, n in files.items() if path not in EDGES}


def _edges(found: Mapping[str, Mapping[str, int]]) -> dict[str, int]:
    return {path: n for files in found.values() for path, n in files.items() if path in EDGES}


def places(package: Package) -> list[str]:
    """Return where comparisons, look-ups by key, edges and functions with ``config`` are."""
    found = look_ups(package)
    per_file = [file for files in found.values() for file in _most_first(_without_edges(files))]
    out = ["", *map(str, comparisons(package)), "", *(f"{n:>4} {path}" for path, n in per_file), ""]
    out += [f"{n:>4} {path}: {EDGES[path]}" for path, n in _most_first(_edges(found))]
    return [*out, "", *planner(package)]


def _most_first(files: Mapping[str, int]) -> list[tuple[str, int]]:
    return sorted(files.items(), key=lambda file: -file[1])


def main(argv: list[str]) -> int:
    """Prints the measures; returns 0."""
    folders = [a for a in argv if not a.startswith("-")]
    package = Package.read(Path(folders[0]) if folders else Path(__file__).resolve().parents[1])
    out = [f"{'':<84} {'3b6e39d':>8} {'at most':>8} {'here':>8}"]
    out += [
        f"{what:<84} {_cell(was)} {_cell(most)} {_cell(now)}" for what, was, most, now in measures(package)
    ]
    out += places(package) if "-v" in argv else []
    sys.stdout.write("\n".join(out) + "\n")
    return 0


def _cell(value: int | None) -> str:
    return f"{'' if value is None else f'{value:,}':>8}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
