"""Move modules of a room, and rewrite what names them: ``scripts/move_modules.py TABLE ROOM [--dry-run]``.

TABLE is a TSV of old path, new path, more columns (``house_moves.tsv``); rows whose paths differ are moved if
the old path lies in ROOM (``paceline/runtime``) and exists. All names are rewritten at once, since a new name
may be another module's old one: dotted names (``paceline.a.b``), paths (``paceline/a/b.py``, ``a/b.py``) in
every tracked text, and in python the names that ``from paceline.a import b`` binds. New packages get an
``__init__.py`` with the docstring TODO. Two old modules with one new path are left to be joined by hand.

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
_PLACE = re.compile(r"__file__|importlib\.resources|with_name\(|\.parents\[")


def _moves(table: Path, room: str) -> dict[str, str]:
    rows = [line.split("\t")[:2] for line in table.read_text(encoding="utf-8").splitlines()]
    found = {
        old: new
        for old, new in rows
        if old.startswith(f"{room}/") and new.endswith(".py") and old != new and Path(old).is_file()
    }
    counts = Counter(found.values())
    stays = {old for old, new in rows if old == new}
    return {old: new for old, new in found.items() if counts[new] == 1 and new not in stays}


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
        if isinstance(node, ast.Name) and node.id in renamed:
            assert node.end_col_offset is not None
            edits.append((node.lineno, node.col_offset, node.lineno, node.end_col_offset, renamed[node.id]))
    for first, start, last, end, new_text in sorted(edits, reverse=True):
        head, tail = lines[first - 1].encode()[:start].decode(), lines[last - 1].encode()[end:].decode()
        lines[first - 1 : last] = [f"{head}{new_text}{tail}"]
    return "".join(lines)


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
        new = pattern.sub(lambda match: names[match[0]], new).replace("\0", "")
        if new != text:
            path.write_text(new, encoding="utf-8")
            changed += 1
    return changed


def main() -> int:
    """Move, rewrite, and print what a person should look at."""
    table, room = Path(sys.argv[1]), sys.argv[2].rstrip("/")
    moves = _moves(table, room)
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
        if not (package := Path(new).parent / "__init__.py").exists():
            package.write_text('"""TODO."""\n', encoding="utf-8")
            print(f"new package: {package.parent}")
        subprocess.run(["git", "mv", f"{old}.moved", new], check=True)
    subprocess.run(["git", "add", "-A", room], check=True)
    print(f"{len(moves)} modules moved, {changed} files rewritten")
    return 0


if __name__ == "__main__":
    sys.exit(main())
