"""Folders as people publish them, made by seed: names, splits, README's ``configs:``, types, compression."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import json
import lzma
import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

Rows = Sequence[Mapping[str, str]]


def _lines(rows: Rows) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def _table(mark: str) -> Callable[[Rows], bytes]:
    def write(rows: Rows) -> bytes:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, list(rows[0]), delimiter=mark)
        writer.writeheader()
        writer.writerows(rows)
        return text.getvalue().encode()

    return write


def _parquet(rows: Rows) -> bytes:
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), sink := pa.BufferOutputStream())
    return bytes(sink.getvalue())


def _arrow(rows: Rows) -> bytes:
    table, sink = pa.Table.from_pylist([dict(row) for row in rows]), pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _zstd(data: bytes) -> bytes:
    with pa.CompressedOutputStream(sink := pa.BufferOutputStream(), "zstd") as stream:
        stream.write(data)
    return bytes(sink.getvalue())


TYPES: dict[str, Callable[[Rows], bytes]] = {
    ".jsonl": _lines,
    ".json": lambda rows: json.dumps(rows).encode(),
    ".ndjson": _lines,
    ".csv": _table(","),
    ".tsv": _table("\t"),
    ".parquet": _parquet,
    ".arrow": _arrow,
    ".txt": lambda rows: "".join(row["prompt"] + "\n" for row in rows).encode(),
}
PACKS: dict[str, Callable[[bytes], bytes]] = {
    ".gz": gzip.compress,
    ".xz": lzma.compress,
    ".bz2": bz2.compress,
    ".zst": _zstd,
}
_SPLIT_NAMES = (
    "train",
    "test",
    "validation",
    "training",
    "dev",
    "eval",
    "val",
    "valid",
    "evaluation",
    "testing",
)
_OTHER_NAMES = ("part", "data", "rows", "contest", "trainer", "Test", "TRAIN", "latest", "dev2dev", "gsm8k")


class Maker:
    """Write folders; every row says in which file it stands."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)

    def folder(self, root: Path) -> list[str | None]:
        """Write one folder; return the names of configurations to ask for (None: without a name)."""
        type_ = self.draw.choice(list(TYPES))
        pack = self.draw.choice(["", "", *PACKS]) if type_ not in (".parquet", ".arrow") else ""
        layout = self.draw.choice(
            (self._flat, self._folders, self._shards, self._card, self._card, self._dirs)
        )
        names = layout(root, type_ + pack)
        if self.draw.random() < 0.3:
            other = self.draw.choice(
                ("LICENSE.txt", "NOTES.md", ".hidden.jsonl", "__pycache__/a.jsonl", "b.csv")
            )
            self.write(root / other)
        if self.draw.random() < 0.2:
            self.write(root / self._name(self.draw.choice((*_SPLIT_NAMES, *_OTHER_NAMES)), type_))
        if not (root / "README.md").exists() and self.draw.random() < 0.4:
            (root / "README.md").write_text(
                self.draw.choice(("# about\n", "---\nlicense: mit\n---\n# about\n"))
            )
        return names

    def write(self, path: Path) -> None:
        """Write a file of one to three rows, in the type that its name says."""
        path.parent.mkdir(parents=True, exist_ok=True)
        about = "/".join(path.parts[-3:])
        rows = [
            {"prompt": f"{about} number {i}, é", "completion": f'said "{i}"'}
            for i in range(self.draw.randint(1, 3))
        ]
        suffixes = [s for s in path.suffixes if s in TYPES]
        data = TYPES[suffixes[-1] if suffixes else ".txt"](rows)
        path.write_bytes(PACKS[path.suffix](data) if path.suffix in PACKS else data)

    def _name(self, word: str, suffix: str) -> str:
        sep = self.draw.choice("-_. ")
        before = self.draw.choice(("", "", "", f"gsm{sep}", f"{self.draw.choice(_OTHER_NAMES)}{sep}"))
        after = self.draw.choice(
            ("", "", f"{sep}{self.draw.randint(0, 12)}", str(self.draw.randint(0, 3)), f"{sep}sft")
        )
        return f"{before}{word}{after}{suffix}"

    def _some(self) -> list[str]:
        words = [
            self.draw.choice(_SPLIT_NAMES if self.draw.random() < 0.75 else _OTHER_NAMES) for _ in range(3)
        ]
        return words[: self.draw.randint(1, 3)]

    def _flat(self, root: Path, suffix: str) -> list[str | None]:
        for word in self._some():
            self.write(root / self._name(word, suffix))
        return [None]

    def _folders(self, root: Path, suffix: str) -> list[str | None]:
        for word in self._some():
            inner = self.draw.choice(("part-0", "a", self.draw.choice(_SPLIT_NAMES)))
            self.write(
                root / self.draw.choice((".", "data", "x/y")) / self._name(word, "") / f"{inner}{suffix}"
            )
        return [None]

    def _shards(self, root: Path, suffix: str) -> list[str | None]:
        words = self.draw.sample(
            ("train", "test", "train_sft", "test_sft", "train_gen", "heldout", "validation"), 3
        )
        for word in words:
            count = self.draw.randint(1, 2)
            for number in range(count):
                self.write(root / "data" / f"{word}-{number:05}-of-{count:05}{suffix}")
        return [None]

    def _dirs(self, root: Path, suffix: str) -> list[str | None]:
        names = self.draw.sample(("main", "socratic", "default"), self.draw.randint(1, 2))
        for name in names:
            for word in self._some():
                self.write(root / name / self._name(word, suffix))
        lines = [f"- config_name: {name}\n  data_dir: {name}" for name in names]
        (root / "README.md").write_text("---\nconfigs:\n" + "\n".join(lines) + "\n---\n")
        return [None, *names]

    def _card(self, root: Path, suffix: str) -> list[str | None]:
        names = self.draw.sample(("main", "socratic", "en", "default"), self.draw.randint(1, 3))
        lines = ["---", "license: mit", "configs:"]
        for number, name in enumerate(names):
            splits = self.draw.sample(
                ("train", "test", "validation", "train_sft", "held.out"), self.draw.randint(1, 3)
            )
            paths = []
            for split in splits:
                below, count = self.draw.choice((name, "data", f"{name}/{split}")), self.draw.randint(1, 2)
                stem = (
                    self.draw.choice((split, f"{name}_{split}", "rows"))
                    if below.count("/")
                    else f"{name}-{split}"
                )
                for part in range(count):
                    self.write(root / below / f"{stem}-{part}{suffix}")
                paths.append(
                    self.draw.choice(
                        (f"{below}/{stem}-*", f"{below}/{stem}-[0-9]{suffix}", f"**/{below}/{stem}*")
                    )
                )
            lines.append(f"- config_name: {name}")
            if number == 0 and self.draw.random() < 0.3:
                lines.append("  default: true")
            form = self.draw.randint(0, 3)
            if form == 0:
                lines.append(f'  data_files: "{paths[0]}"')
            elif form == 1:
                lines += ["  data_files:", *(f'  - "{path}"' for path in paths)]
            else:
                lines.append("  data_files:")
                for split, path in zip(splits, paths, strict=True):
                    shown = f'"{path}"' if form == 2 else f'["{path}"]'
                    lines += [f"  - split: {split}", f"    path: {shown}"]
        (root / "README.md").write_text("\n".join([*lines, "---", "# about"]))
        return [None, *names, "absent"]
