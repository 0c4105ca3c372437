"""Records what a program does to a folder, call by call, and tells how a crash may leave the folder: with any
of what was not yet synced dropped, torn, or there before what came earlier.

The model is what POSIX promises, less than any file system gives: the bytes of a file are durable after an
fsync of it, a name after an fsync of the folder that holds it; a rename is whole or not at all.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Tree = dict[str, bytes | None]  # path below the folder → content; None: a folder
CALLS = ("open", "close", "write", "fsync", "rename", "replace", "mkdir", "unlink", "remove", "rmdir", "link")
ROOT = 0


@dataclass(frozen=True)
class Named:
    """Names change together: (folder, name) → what it names, None: nothing."""

    changes: tuple[tuple[int, str, int | None], ...]


@dataclass(frozen=True)
class Written:
    """Bytes at the end of a file."""

    node: int
    data: bytes


@dataclass(frozen=True)
class Synced:
    """A file or a folder."""

    node: int


@dataclass(frozen=True)
class Told:
    """The program says that something is durable."""

    what: Any


Operation = Named | Written | Synced | Told


class Recorder:
    """A context in which the functions of ``os`` note what they do below ``folder``, which must be empty, or
    hold ``first`` folders alone, whose names are durable.
    """

    def __init__(self, folder: Path, *first: str) -> None:
        self.operations: list[Operation] = []
        self.folders = {ROOT}
        self._folder = str(folder)
        self._names: dict[tuple[int, str], int] = {}
        self._nodes: dict[int, int] = {}  # of open files
        self._lock = threading.RLock()
        self._own = {name: getattr(os, name) for name in CALLS}
        for path in first:
            place = self._place(folder / path)
            assert place is not None
            self.folders.add(self._make(place))
            self.operations.append(Synced(place[0]))

    def __enter__(self) -> Recorder:
        for name in CALLS:
            setattr(os, name, getattr(self, name))
        return self

    def __exit__(self, *_: object) -> None:
        for name, own in self._own.items():
            setattr(os, name, own)

    def told(self, what: Any) -> None:
        self.operations.append(Told(what))

    def open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        with self._lock:
            fd: int = self._own["open"](path, flags, mode, dir_fd=dir_fd)
            if (place := self._place(path, dir_fd)) is not None:
                if place not in self._names and place != (ROOT, ""):
                    self._make(place)
                self._nodes[fd] = ROOT if place == (ROOT, "") else self._names[place]
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._nodes.pop(fd, None)
            self._own["close"](fd)

    def write(self, fd: int, data: Any) -> int:
        with self._lock:
            count: int = self._own["write"](fd, data)
            if fd in self._nodes:
                self.operations.append(Written(self._nodes[fd], bytes(memoryview(data)[:count])))
            return count

    def fsync(self, fd: int) -> None:
        """Noted alone: nothing crashes here, and a disk is slow."""
        with self._lock:
            if fd in self._nodes:
                self.operations.append(Synced(self._nodes[fd]))
            else:
                self._own["fsync"](fd)

    def mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        with self._lock:
            self._own["mkdir"](path, mode, dir_fd=dir_fd)
            if (place := self._place(path, dir_fd)) is not None:
                self.folders.add(self._make(place))

    def rename(
        self, source: Any, to: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
    ) -> None:
        with self._lock:
            self._own["rename"](source, to, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
            old, new = self._place(source, src_dir_fd), self._place(to, dst_dir_fd)
            assert (old is None) == (new is None), "a rename out of the folder is not modelled"
            if old is not None and new is not None:
                self._change((*new, self._names[old]), (*old, None))

    replace = rename

    def link(self, source: Any, to: Any, **more: Any) -> None:
        with self._lock:
            self._own["link"](source, to, **more)
            old, new = self._place(source), self._place(to)
            if old is not None and new is not None:
                self._change((*new, self._names[old]))

    def unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._lock:
            self._own["unlink"](path, dir_fd=dir_fd)
            self._gone(path, dir_fd)

    remove = unlink

    def rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        with self._lock:
            self._own["rmdir"](path, dir_fd=dir_fd)
            self._gone(path, dir_fd)

    def _place(self, path: Any, dir_fd: int | None = None) -> tuple[int, str] | None:
        """(the folder, the name in it); None: elsewhere."""
        if dir_fd is not None:
            return (self._nodes[dir_fd], os.fspath(path)) if dir_fd in self._nodes else None
        whole = os.path.abspath(os.fspath(path))
        if whole == self._folder:
            return ROOT, ""
        if not whole.startswith(self._folder + os.sep):
            return None
        *above, name = whole[len(self._folder) + 1 :].split(os.sep)
        at = ROOT
        for folder in above:
            at = self._names[at, folder]
        return at, name

    def _make(self, place: tuple[int, str]) -> int:
        node = 1 + sum(isinstance(o, Named) for o in self.operations)
        self._change((*place, node))
        return node

    def _gone(self, path: Any, dir_fd: int | None) -> None:
        if (place := self._place(path, dir_fd)) is not None:
            self._change((*place, None))

    def _change(self, *changes: tuple[int, str, int | None]) -> None:
        for folder, name, node in changes:
            if node is None:
                self._names.pop((folder, name))
            else:
                self._names[folder, name] = node
        self.operations.append(Named(changes))


@dataclass(frozen=True)
class Crash:
    """What a crash after ``after`` operations left, and what had been told by then."""

    after: int
    how: str
    tree: Tree
    told: tuple[Any, ...]


def crashes(operations: Sequence[Operation], folders: set[int], seed: int = 0) -> Iterator[Crash]:
    """Every different folder that a crash after any of ``operations`` may leave."""
    seen, draw = set(), random.Random(seed)
    for after in range(len(operations) + 1):
        before = operations[:after]
        told = tuple(o.what for o in before if isinstance(o, Told))
        for how, tree in _after(before, folders, draw):
            key = hash((told[-1:], tuple(sorted(tree.items(), key=lambda item: item[0]))))
            if key not in seen:
                seen.add(key)
                yield Crash(after, how, tree, told)


def _after(before: Sequence[Operation], folders: set[int], draw: random.Random) -> Iterator[tuple[str, Tree]]:
    names, files = _unsynced(before)
    yield "a process is killed: all is there", _tree(before, folders)
    yield "nothing but what was synced", _tree(before, folders, set(names), dict.fromkeys(files, "gone"))
    for node in files:
        for fate in ("gone", "half", "zeros"):
            yield f"file {node}: {fate}", _tree(before, folders, lost=set(), fates={node: fate})
            yield (
                f"names alone, file {node}: {fate}",
                _tree(before, folders, lost=set(), fates={**dict.fromkeys(files, "gone"), node: fate}),
            )
    for one in names:
        yield f"operation {one} dropped", _tree(before, folders, {one})
        yield f"operation {one} alone", _tree(before, folders, set(names) - {one})
    for _ in range(3):
        lost = {one for one in names if draw.random() < 0.5}
        fates = {node: draw.choice(("gone", "half", "zeros", "whole")) for node in files}
        yield f"without {sorted(lost)}, {fates}", _tree(before, folders, lost, fates)


def _unsynced(before: Sequence[Operation]) -> tuple[list[int], list[int]]:
    """Operations on names that are not durable, and files whose bytes are not."""
    names: dict[int, set[int]] = {}  # operation → folders that must still be synced
    files: dict[int, None] = {}
    for at, one in enumerate(before):
        if isinstance(one, Named):
            names[at] = {folder for folder, _, _ in one.changes}
        elif isinstance(one, Written):
            files[one.node] = None
        elif isinstance(one, Synced):
            files.pop(one.node, None)
            for waiting in names.values():
                waiting.discard(one.node)
    return [at for at, waiting in names.items() if waiting], list(files)


def _tree(
    before: Sequence[Operation],
    folders: set[int],
    lost: Iterable[int] = (),
    fates: dict[int, str] | None = None,
) -> Tree:
    """The folder after the operations but those that are ``lost``, with files torn as ``fates`` says."""
    within: dict[int, dict[str, int]] = {}
    data: dict[int, bytes] = {}
    durable: dict[int, int] = {}
    gone = set(lost)
    for at, one in enumerate(before):
        if isinstance(one, Named) and at not in gone:
            for folder, name, node in one.changes:
                if node is None:
                    within.setdefault(folder, {}).pop(name, None)
                else:
                    within.setdefault(folder, {})[name] = node
        elif isinstance(one, Written):
            data[one.node] = data.get(one.node, b"") + one.data
        elif isinstance(one, Synced):
            durable[one.node] = len(data.get(one.node, b""))
    for node, fate in (fates or {}).items():
        data[node] = _torn(data[node], durable.get(node, 0), fate)
    tree: Tree = {}

    def walk(node: int, path: str) -> None:
        for name, inner in within.get(node, {}).items():
            tree[path + name] = None if inner in folders else data.get(inner, b"")
            if inner in folders:
                walk(inner, f"{path}{name}/")

    walk(ROOT, "")
    return tree


def _torn(data: bytes, durable: int, fate: str) -> bytes:
    middle = durable + (len(data) - durable) // 2
    return {
        "whole": data,
        "gone": data[:durable],
        "half": data[:middle],
        "zeros": data[:middle] + bytes(len(data) - middle),
    }[fate]


def write_tree(tree: Tree, folder: Path) -> None:
    """Make the folder anew."""
    folder.mkdir()
    for path, content in tree.items():
        if content is None:
            (folder / path).mkdir()
        else:
            (folder / path).write_bytes(content)


def read_tree(folder: Path) -> Tree:
    """What is there."""
    return {
        str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None
        for path in sorted(folder.rglob("*"))
    }
