"""Do the tests see a changed line? ``python scripts/mutants.py cover``, then ``… run --seed 1 --count 200``.

``cover`` runs the suite (fast and full tier) under Coverage and records which test executes which line, in
the test's process and in those that it starts. ``run`` draws executed lines with a fixed seed and changes
one operator, constant, comparison or branch of each. The tests of the fast tier that execute the line then
run until one fails; only a mutant that they let pass sees those of the full tier. It prints where each died.

A mutant runs in a clone of HEAD, in namespaces of its own (root only): it can end no process of this machine
and writes to its own folder alone. Coverage is no dependency: ``pip install --target DIR 'coverage>=7.10'``,
and ``PYTHONPATH=DIR``.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HERE = ROOT / "outputs" / "mutants"  # ignored by git
FAST, FULL = "not slow and not full", "full and not slow"
FAST_SECONDS = 240.0  # of recorded durations; the rest of the fast tier runs if the full one sees the mutant
SETTINGS = """[run]
source = paceline
relative_files = true
parallel = true
data_file = {data}
context = ${{PYTEST_CURRENT_TEST-}}
concurrency = thread
patch = _exit
disable_warnings = no-data-collected, module-not-imported, couldnt-parse, module-not-measured,
    already-imported, include-ignored, trace-changed, dynamic-conflict, no-sysmon
"""
SANDBOX = """
mount --bind "$1" /tmp
for folder in /work /opt /root /home /usr /etc /var; do
    mount --bind $folder $folder && mount -o remount,ro,bind $folder
done 2>/dev/null
cd /tmp/tree && shift
"$@" <&0 &
wait $!
"""

COMPARED = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
COMPUTED = {
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Add, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv, ast.Pow: ast.Mult, ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """``new`` in place of the text from ``start`` to ``end`` ((line, column) in UTF-8 bytes) of ``file``."""

    file: str
    start: tuple[int, int]
    end: tuple[int, int]
    old: str
    new: str

    def text(self, source: str) -> str:
        lines = source.encode().splitlines(keepends=True)
        before = b"".join(lines[: self.start[0] - 1]) + lines[self.start[0] - 1][: self.start[1]]
        after = lines[self.end[0] - 1][self.end[1] :] + b"".join(lines[self.end[0] :])
        return (before + self.new.encode() + after).decode()

    def __str__(self) -> str:
        return f"{self.file}:{self.start[0]}  {self.old}  ->  {self.new}"


def changed(node: ast.AST) -> Iterator[ast.expr]:
    """Yield what may stand in the place of ``node``, each with one change."""
    match node:
        case ast.Compare(ops=[op, *_]) if type(op) in COMPARED:
            yield ast.Compare(node.left, [COMPARED[type(op)](), *node.ops[1:]], node.comparators)
        case ast.BinOp(op=op, left=left) if type(op) in COMPUTED and not isinstance(
            left, ast.Constant | ast.JoinedStr
        ):
            yield ast.BinOp(node.left, COMPUTED[type(op)](), node.right)
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.UnaryOp(op=ast.Not() | ast.USub()):
            yield node.operand
        case ast.Constant(value=bool()):
            yield ast.Constant(not node.value)
        case ast.Constant(value=int() | float()):
            yield ast.Constant(node.value + 1)
        case ast.IfExp():
            yield ast.IfExp(ast.UnaryOp(ast.Not(), node.test), node.body, node.orelse)


def places(tree: ast.AST) -> Iterator[ast.AST]:
    """Yield the expressions that run: no annotation, no text, no type alias, nothing for type checkers."""
    for field, value in ast.iter_fields(tree):
        if field in ("annotation", "returns", "type_params"):
            continue
        for node in value if isinstance(value, list) else [value]:
            if isinstance(node, ast.JoinedStr) or not isinstance(node, ast.AST):
                continue
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
                continue
            yield node
            yield from places(node)


def mutants_of(file: str, source: str) -> dict[int, list[Mutant]]:
    """Return the mutants of each line, in the order of the tree."""
    found: dict[int, list[Mutant]] = defaultdict(list)

    def add(node: ast.expr, new: str) -> None:
        assert node.end_lineno is not None and node.end_col_offset is not None
        old = ast.get_source_segment(source, node) or ""
        mutant = Mutant(
            file, (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset), old, new
        )
        found[node.lineno].append(mutant)

    for node in places(ast.parse(source)):
        if isinstance(node, ast.expr):
            for new in changed(node):
                add(node, f"({ast.unparse(ast.fix_missing_locations(new))})")
        if isinstance(node, ast.If | ast.While):
            add(node.test, f"(not ({ast.unparse(node.test)}))")
    return found


@dataclass
class Seen:
    """What ``cover`` has recorded: the tests of each executed line, their seconds, which are ``full``.

    ``others``: by file, tests that were not recorded (cut short, or without ``--full``). They count as
    executing what the tests of their file execute.
    """

    lines: Mapping[tuple[str, int], frozenset[str]]
    seconds: Mapping[str, float]
    full: frozenset[str]
    others: Mapping[str, Sequence[str]]

    @classmethod
    def read(cls) -> Seen:
        from coverage import CoverageData

        data = CoverageData(str(HERE / "coverage"))
        data.read()
        recorded, lines = json.loads((HERE / "tests.json").read_text()), {}
        full, others = collected(FULL), defaultdict(list)
        passed = {}
        for test in (*collected(FAST), *full):
            if test in recorded["passed"]:
                passed[test] = recorded["passed"][test]
            else:
                others[file_of(test)].append(test)
        changed = git("diff", "--name-only", recorded["commit"], "HEAD", "--", "paceline").splitlines()
        for file in data.measured_files() - {*changed}:  # lines have moved there
            for line, contexts in data.contexts_by_lineno(file).items():
                tests = {test if test in passed else test.rpartition(" (")[0] for test in contexts}
                lines[file, line] = frozenset(tests & passed.keys())
        return cls(lines, passed, frozenset(full), others)

    def of(self, mutant: Mutant) -> list[str]:
        """Return the tests that execute the line, those first that execute little else and are short."""
        tests = self.lines.get((mutant.file, mutant.start[0]), frozenset())
        near = sorted(tests, key=lambda test: (self._width()[test], test))[:30]
        cheapest = sorted(tests, key=lambda test: self.seconds[test])
        by_file = {file_of(test): test for test in reversed(cheapest)}
        others = (test for file in by_file for test in self.others.get(file, ()))
        return [*dict.fromkeys([*near, *by_file.values(), *cheapest, *others])]

    def sum(self, tests: Iterable[str]) -> float:
        return sum(self.seconds.get(test, 5.0) for test in tests)

    def _width(self) -> dict[str, int]:
        if not hasattr(self, "_widths"):
            self._widths: dict[str, int] = defaultdict(int)
            for tests in self.lines.values():
                for test in tests:
                    self._widths[test] += 1
        return self._widths


def file_of(test: str) -> str:
    return test.partition("::")[0]


def collected(select: str) -> list[str]:
    argv = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", select, "-p", "no:cacheprovider"]
    out = subprocess.run(argv, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False).stdout
    return [line for line in out.splitlines() if "::" in line]


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def clone(folder: Path) -> Path:
    """Make a clone of HEAD with this environment; return it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["git", "clone", "-q", "--shared", str(ROOT), str(folder)], check=True)
    (folder / ".venv").symlink_to(Path(os.environ.get("PACELINE_VENV", ROOT / ".venv")).resolve())
    return folder


def cover(arguments: argparse.Namespace) -> None:
    """Run the suite in a clone under Coverage."""
    import coverage

    tree, commit = clone(HERE / "cover" / "tree"), git("rev-parse", "HEAD").strip()
    shutil.rmtree(HERE / "data", ignore_errors=True)
    (HERE / "data").mkdir()
    # On the path of every process that a test starts (worker_environment gives them the tree).
    (tree / "coverage").symlink_to(Path(coverage.__file__).parent)
    (tree / "sitecustomize.py").write_text("import coverage\n\ncoverage.process_startup()\n")
    (tree / "mutants_plugin.py").write_text((ROOT / "scripts" / "mutants_plugin.py").read_text())
    settings = tree / "mutants.ini"
    settings.write_text(SETTINGS.format(data=HERE / "data" / "coverage"))
    environ = {
        **os.environ,
        "COVERAGE_PROCESS_START": str(settings),
        "PYTHONPATH": os.pathsep.join([str(tree), os.environ.get("PYTHONPATH", "")]),
        "MUTANTS_RECORD": str(HERE / "tests.json"),
    }
    argv = ["scripts/test", "-q", "-p", "mutants_plugin", "-p", "no:cacheprovider", "--timeout=900"]
    argv += [*(arguments.pytest or ["--full"])]
    subprocess.run(argv, cwd=tree, env=environ, check=False)
    record = json.loads((HERE / "tests.json").read_text())
    (HERE / "tests.json").write_text(json.dumps({"commit": commit, **record}, indent=0))
    environ = {k: v for k, v in environ.items() if k != "COVERAGE_PROCESS_START"}
    combine = [sys.executable, "-m", "coverage", "combine", "-q", f"--data-file={HERE / 'coverage'}"]
    subprocess.run([*combine, f"--rcfile={settings}", str(HERE / "data")], cwd=tree, env=environ, check=True)


def draw(seen: Seen, seed: int, count: int) -> list[Mutant]:
    """Return ``count`` mutants, each of another executed line."""
    of: dict[str, dict[int, list[Mutant]]] = {}
    lines = sorted(line for line, tests in seen.lines.items() if tests)
    drawn, mutants = random.Random(seed), []
    for file, line in drawn.sample(lines, len(lines)):
        if file not in of:
            of[file] = mutants_of(file, (ROOT / file).read_text("utf-8"))
        if of[file].get(line):
            mutants.append(drawn.choice(of[file][line]))
        if len(mutants) == count:
            break
    return mutants


class Sandbox:
    """A clone of HEAD, and a process in namespaces of its own that runs tests on it."""

    def __init__(self, folder: Path) -> None:
        self.tree = clone(folder / "tree")
        (folder / "home").mkdir(exist_ok=True)
        (self.tree / "tests" / "seconds.json").write_text(
            "{}"
        )  # tests keep the order in which they are named
        server = ROOT / "scripts" / "mutants_server.py"
        (self.tree / server.name).write_text(server.read_text())
        unshare = ["unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"]
        environ = {**os.environ, "PYTHONPATH": "/tmp/tree", "HOME": "/tmp/home", "OMP_NUM_THREADS": "1"}  # noqa: S108
        environ |= {"TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1", "MPLBACKEND": "Agg"}
        self.process = subprocess.Popen(
            [*unshare, "bash", "-c", SANDBOX, "sandbox", str(folder), ".venv/bin/python", server.name],
            env=environ,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._answer() == "ready"

    def _answer(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def killer(self, tests: Sequence[str], select: str, seconds: float) -> str | None:
        """Return the first of ``tests`` that fails on the tree, None if none does."""
        if not tests:
            return None
        (self.tree / "chosen.txt").write_text("\n".join(tests))
        argv = ["-x", "-q", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning"]
        argv += ["-m", select, "--timeout=120", "@chosen.txt"]
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"arguments": argv, "seconds": 5 * seconds + 240}) + "\n")
        self.process.stdin.flush()
        found = self._answer()
        if found["code"] in (0, 5):
            return None
        if found["code"] in (3, 4):
            raise RuntimeError(found["out"])  # pytest itself
        lines = found["out"].splitlines()
        failed = [line.split(" ")[1] for line in lines if line.startswith(("FAILED", "ERROR"))]
        return (failed or [f"exit {found['code']}: {found['out'][-200:]!r}"])[0]


def judged(sandbox: Sandbox, mutant: Mutant, seen: Seen, lives: bool) -> dict[str, object]:
    """Run the tests of one mutant; return where it died. ``lives``: the recorded tests of the fast tier
    have let it pass before.
    """
    began, path = time.monotonic(), sandbox.tree / mutant.file
    source = path.read_text("utf-8")
    path.write_text(mutant.text(source), encoding="utf-8")
    try:
        tests = seen.of(mutant)
        fast = [test for test in tests if test not in seen.full]
        first, spent = [], 0.0
        for test in fast:
            spent += seen.sum([test])
            if spent > FAST_SECONDS and first:
                break
            first.append(test)
        rest, tier = fast[len(first) :], "fast"
        first = [test for test in first if test not in seen.seconds] if lives else first
        dead = sandbox.killer(first, FAST, FAST_SECONDS)
        if dead is None:
            full = [test for test in tests if test in seen.full]
            dead, tier = sandbox.killer(full, FULL, seen.sum(full)), "full"
            if dead is not None and (by := sandbox.killer(rest, FAST, seen.sum(rest))):
                dead, tier = by, "fast"
    finally:
        path.write_text(source, encoding="utf-8")
    where = tier if dead else "lives"
    facts = {"mutant": str(mutant), "where": where, "by": dead, "fast": len(fast), "not_run": len(rest)}
    return {**facts, "seconds": round(time.monotonic() - began)}


def run(arguments: argparse.Namespace) -> None:
    """Judge the mutants, ``--workers`` at a time; print a line each and the sums."""
    seen = Seen.read()
    mutants = draw(seen, arguments.seed, arguments.count)
    lines = arguments.known.read_text().splitlines() if arguments.known else []
    known = {result["mutant"]: result for result in map(json.loads, lines) if "mutant" in result}
    free = [Sandbox(HERE / f"worker{number}") for number in range(arguments.workers)]
    results = []

    def one(mutant: Mutant) -> dict[str, object]:
        before = known.get(str(mutant))
        if before is not None and before["where"] != "lives":
            return before
        sandbox = free.pop()
        try:
            return judged(sandbox, mutant, seen, lives=before is not None)
        finally:
            free.append(sandbox)

    with ThreadPoolExecutor(arguments.workers) as pool:
        for result in pool.map(one, mutants):
            results.append(result)
            print(json.dumps(result), flush=True)
    sums = {where: sum(r["where"] == where for r in results) for where in ("fast", "full", "lives")}
    print(json.dumps({"seed": arguments.seed, "mutants": len(results), **sums}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    covers = verbs.add_parser("cover", help="record which test executes which line")
    covers.add_argument("pytest", nargs="*", help="arguments of scripts/test after --; otherwise: --full")
    covers.set_defaults(act=cover)
    runs = verbs.add_parser("run", help="judge mutants")
    runs.add_argument("--seed", type=int, default=1)
    runs.add_argument("--count", type=int, default=200)
    runs.add_argument("--known", type=Path, help="the lines of a run before: what died there is dead")
    runs.add_argument("--workers", type=int, default=2)
    runs.set_defaults(act=run)
    arguments = parser.parse_args()
    arguments.act(arguments)


if __name__ == "__main__":
    main()
