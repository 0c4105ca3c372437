"""Move modules of a room, and rewrite what names them: ``scripts/move_modules.py TABLE ROOM [--dry-run]``.

TABLE is a TSV of old path, new path, more columns (``house_moves.tsv``); rows whose paths differ are moved if
the old path lies in ROOM (``paceline/runtime``) and exists. All names are rewritten at once, since a new name
may be another module's old one: dotted names (``paceline.a.b``), paths (``paceline/a/b.py``, ``a/b.py``) in
every tracked text, and in python the names that ``from paceline.a import b`` binds. New packages get an
``__init__.py`` with the docstring TODO. A row whose reason begins with "merge" is appended to the module that
has its new path: its imports go to that module's imports, its body to the end (``ruff check --fix`` sorts).

Printed for a look by hand: what finds files by its own place (``__file__``), texts with a module's old name.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path

_TEXTS = {".py", ".md", ".toml", ".txt", ".sh", ".yml", ".yaml", ".json", ".tsv", ".cfg", ".in", ""}
_LEFT = (
    "CHANGELOG.md",
    "scripts/move_modules.py",
    "tests/unit/checkpoint/version_1/",
    ".git-blame-ignore-revs",
)
_IN_STRINGS = re.compile(r"from (paceline(?:\.\w+)*) import (\w+)(?![\w,. ])")
_PLACE = re.compile(r"__file__|importlib\.resources|with_name\(|\.parents\[")


def _moves(table: Path, room: str) -> tuple[dict[str, str], set[str]]:
    """Return old → new, and which old ones are appended to the module at their new path."""
    rows = [line.split("\t")[:3] for line in table.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if row[0].startswith(f"{room}/") and row[1].endswith(".py")]
    here = [row for row in rows if Path(row[0]).is_file() and row[0] != row[1]]
    merged = {old for old, _, reason in here if reason.startswith("merge")}
    counts = Counter(new for old, new, _ in here if old not in merged)
    if twice := [
        new
        for new, count in counts.items()
        if count > 1 or Path(new).is_file() and new not in {old for old, _, _ in here}
    ]:
        sys.exit(f"two modules with one new path, none of them marked merge: {twice}")
    moves = {old: new for old, new, _ in here}
    if alone := [old for old in merged if moves[old] not in counts and not Path(moves[old]).is_file()]:
        sys.exit(f"nothing to merge into: {alone}")
    return moves, merged


def _join(source: str, target: str) -> None:
    """Append the module ``source`` to ``target``: its imports to the imports, its body to the end."""
    text, into = Path(source).read_text(encoding="utf-8"), Path(target).read_text(encoding="utf-8")
    body = ast.parse(text).body
    lines, into_lines = text.splitlines(keepends=True), into.splitlines(keepends=True)
    rest = [node for node in body[1:] if not isinstance(node, ast.Import | ast.ImportFrom)]
    start = _first_line(rest[0]) if rest else len(lines) + 1
    while start > 1 and lines[start - 2].startswith("#"):
        start -= 1
    imports = [
        ast.unparse(node) + "\n"
        for node in body
        if isinstance(node, ast.Import | ast.ImportFrom) and getattr(node, "module", "") != "__future__"
    ]
    tree = ast.parse(into).body
    last = max(node.end_lineno or 1 for node in tree if isinstance(node, ast.Import | ast.ImportFrom))
    names = {node.name for node in tree if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    both = names & {node.name for node in rest if isinstance(node, ast.ClassDef | ast.FunctionDef)}
    new = [*into_lines[:last], *imports, *into_lines[last:], "\n\n", *lines[start - 1 :]]
    itself = _dotted(target)
    new = [line for line in new if not line.startswith(f"from {itself} import ") or "(" in line]
    Path(target).write_text("".join(new), encoding="utf-8")
    print(f"joined {source} to {target}" + (f": names in both {sorted(both)}" if both else ""))


def _first_line(node: ast.stmt) -> int:
    decorators = getattr(node, "decorator_list", [])
    return min([node.lineno, *(decorator.lineno for decorator in decorators)])


def _dotted(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _rewriter(moves: Mapping[str, str]) -> tuple[re.Pattern[str], dict[str, str]]:
    """Return a pattern of all old names, and old → new."""
    names = {_dotted(old): _dotted(new) for old, new in moves.items()}
    names |= dict(moves)
    names |= {old.removeprefix("paceline/"): new.removeprefix("paceline/") for old, new in moves.items()}
    texts = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.compile(rf"(?<![\w./\0])(?:{texts})(?![\w])"), names


def _from_imports(text: str, modules: Mapping[str, str]) -> str:
    """Rewrite ``from paceline.a import b`` of a moved module ``b``, and its name in the file."""
    tree = ast.parse(text)
    lines = text.splitlines(keepends=True)
    edits: list[tuple[int, int, int, int, str]] = []
    renamed: dict[str, str] = {}
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or not node.module or node.level:
            continue
        moved = {a.name: modules[full] for a in node.names if (full := f"{node.module}.{a.name}") in modules}
        if not moved:
            continue
        stay = [a for a in node.names if a.name not in moved]
        indent = " " * node.col_offset
        new = [f"from {node.module} import {', '.join(map(ast.unparse, stay))}"] if stay else []
        for alias in node.names:
            if alias.name in moved:
                package, _, name = moved[alias.name].rpartition(".")
                new.append(
                    f"from \0{package} import {name}" + (f" as {alias.asname}" if alias.asname else "")
                )
                if not alias.asname and name != alias.name:
                    renamed[alias.name] = name
        assert node.end_lineno is not None and node.end_col_offset is not None
        edits.append(
            (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset, f"\n{indent}".join(new))
        )
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.arg in renamed:
            print(f"a parameter has a moved module's name: {node.arg} in line {node.lineno}: {text[:60]!r}")
        if isinstance(node, ast.Name) and node.id in renamed:
            if isinstance(node.ctx, ast.Store):
                print(f"a variable has a moved module's name: {node.id} in line {node.lineno}: {text[:60]!r}")
                continue
            assert node.end_col_offset is not None
            edits.append((node.lineno, node.col_offset, node.lineno, node.end_col_offset, renamed[node.id]))
    for first, start, last, end, new_text in sorted(edits, reverse=True):
        head, tail = lines[first - 1].encode()[:start].decode(), lines[last - 1].encode()[end:].decode()
        lines[first - 1 : last] = [f"{head}{new_text}{tail}"]
    return "".join(lines)


def _import_line(match: re.Match[str], modules: Mapping[str, str]) -> str:
    """Return ``from paceline.a import b`` in a string, with the old name bound to the new module."""
    if not (new := modules.get(f"{match[1]}.{match[2]}")):
        return match[0]
    package, _, name = new.rpartition(".")
    return f"from \0{package} import {name}" + ("" if name == match[2] else f" as {match[2]}")


def _tracked() -> Iterator[Path]:
    listed = subprocess.run(["git", "ls-files"], check=True, capture_output=True, text=True).stdout
    for name in listed.splitlines():
        path = Path(name)
        if path.suffix in _TEXTS and not name.startswith(_LEFT) and path.is_file() and not path.is_symlink():
            yield path


def _rewrite(moves: Mapping[str, str]) -> int:
    pattern, names = _rewriter(moves)
    modules = {_dotted(old): _dotted(new) for old, new in moves.items()}
    changed = 0
    for path in _tracked():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        new = text
        if path.suffix == ".py" and "import" in text and any(m.rpartition(".")[0] in text for m in modules):
            new = _from_imports(text, modules)
        new = _IN_STRINGS.sub(lambda match: _import_line(match, modules), new)
        new = pattern.sub(lambda match: names[match[0]], new).replace("\0", "")
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed += 1
    return changed


def main() -> int:
    """Move, rewrite, and print what a person should look at."""
    table, room = Path(sys.argv[1]), sys.argv[2].rstrip("/")
    moves, merged = _moves(table, room)
    for old, new in moves.items():
        print(f"{old} -> {new}")
    if "--dry-run" in sys.argv:
        return 0
    changed = _rewrite(moves)
    for old in moves:
        if _PLACE.search(Path(old).read_text(encoding="utf-8")):
            print(f"finds files by its place: {old}")
    for old in moves:  # by way of another name: a module may take another's old path
        subprocess.run(["git", "mv", old, f"{old}.moved"], check=True)
    for old, new in moves.items():
        Path(new).parent.mkdir(parents=True, exist_ok=True)
        package = Path(new).parent / "__init__.py"
        if not package.exists() and str(package) not in moves.values():
            package.write_text('"""TODO."""\n', encoding="utf-8")
            print(f"new package: {package.parent}")
        if old not in merged:
            subprocess.run(["git", "mv", f"{old}.moved", new], check=True)
    for old in merged:
        _join(f"{old}.moved", moves[old])
        subprocess.run(["git", "rm", "-qf", f"{old}.moved"], check=True)
    subprocess.run(["git", "add", "-A", room], check=True)
    print(f"{len(moves)} modules moved, {changed} files rewritten")
    return 0


if __name__ == "__main__":
    sys.exit(main())
