#!/usr/bin/env python
"""Thirty rows under every chat template that another program shares with us: token ids and labels.

    PACELINE_PEERS=/opt/envs python tests/peers/templates.py llamafactory|axolotl|swift [NAME …] [--write]

A template counts where the import keeps it without a word; ``--write`` writes ``recorded/templates_*.json``:
a digest of the program's ids and labels, row by row, which ``test_recorded.py`` compares with ours.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import of_llamafactory
import ours
from ask import ask
from small import template_tokens, turn, write_lines, write_model

from paceline.config.import_export.argument_tables import table
from paceline.core.errors import ConfigError
from paceline.core.json_types import as_object

RECORDED = Path(__file__).parent / "recorded"
_TEXTS = (
    "Say hello.",
    "Wie geht's? Ça va, 你好吗",
    "two\nlines, and a tab\there",
    "  spaces around  ",
    "code: `x = {'a': 1}` <b>bold</b>",
    "1 + 1 = 2 & 3 < 4",
    "Ends in a newline\n",
)
Document = tuple[list[int], list[int]]


def talks() -> list[list[dict[str, str]]]:
    """Return thirty conversations: with and without a system turn, of one to three answers."""
    made = []
    for number in range(30):
        turns = [turn("system", f"You are helper {number}.")] if number % 3 == 0 else []
        for which in range(1 + number % 3):
            asked, said = (_TEXTS[(number * step + which) % len(_TEXTS)] for step in (1, 3))
            turns += [turn("user", f"{number}: {asked}"), turn("assistant", f"{said} ({which})")]
        made.append(turns)
    return made


def names(program: str) -> list[str]:
    """Return the names of a program's templates."""
    if program == "llamafactory":
        return sorted(as_object(table("llamafactory_templates")["templates"]))
    if program == "axolotl":
        return ["chatml", "llama3", "alpaca"]
    return ["chatml", "qwen2_5", "qwen3", "llama3", "default"]


def given(program: str, folder: Path) -> Any:
    """Write model and rows; return a file's keys without its template (a command's words without it)."""
    model = write_model(folder, template_tokens())
    rows = [{"messages": turns} for turns in talks()]
    path = write_lines(folder / "rows.jsonl", rows)
    if program == "axolotl":
        entry = {"path": str(path), "ds_type": "json", "split": "train", "type": "chat_template"}
        sizes = {"sequence_len": 2048, "micro_batch_size": 1, "gradient_accumulation_steps": 1}
        more = {"num_epochs": 1, "dataset_num_proc": 1, "learning_rate": 1e-3, "val_set_size": 0}
        return {"base_model": str(model), "datasets": [entry], **sizes, **more}
    if program == "swift":
        words = ["sft", "--model", str(model), "--model_type", "llama", "--dataset", str(path)]
        return [*words, "--max_length", "2048", "--split_dataset_ratio", "0", "--dataset_num_proc", "1"]
    tags = {"role_tag": "role", "content_tag": "content", "user_tag": "user"}
    tags |= {"assistant_tag": "assistant", "system_tag": "system"}
    columns = {"messages": "messages"}
    info = {"rows": {"file_name": path.name, "formatting": "sharegpt", "columns": columns, "tags": tags}}
    (folder / "dataset_info.json").write_text(json.dumps(info))
    keys = {"stage": "sft", "do_train": True, "finetuning_type": "full", "dataset": "rows"}
    keys |= {"dataset_dir": str(folder), "model_name_or_path": str(model), "cutoff_len": 2048}
    return {**of_llamafactory.REPLACED, **keys, "max_samples": 100, "cutoff_len": 2048, "max_steps": -1}


def with_template(program: str, keys: Any, name: str) -> Any:
    """Return the keys with a template's name."""
    if program == "swift":
        return [*keys, "--template", name]
    return {**keys, {"axolotl": "chat_template"}.get(program, "template"): name}


def documents(rows: Iterable[dict[str, Any]]) -> list[Document]:
    """Return the program's rows as ids and labels, -100 where a token has no loss."""
    return [(list(row["input_ids"]), list(row["labels"])) for row in rows]


def digests(made: Iterable[Document]) -> list[str]:
    """Return a short digest of each row's ids and labels; the first token is never predicted."""
    return [
        hashlib.sha256(json.dumps([ids, [-100, *labels[1:]]]).encode()).hexdigest()[:12]
        for ids, labels in made
    ]


def ours_of(program: str, keys: Any, folder: Path) -> tuple[dict[str, str], list[Document]]:
    """Return what the import says of the template's keys, and our documents."""
    made = ours.imported(program, keys)
    said = {key: says for key, says in made.said.items() if key.partition(" ")[0] in _OF_TEMPLATES}
    return said, ours.tokens(made, folder)


#: keys whose verdict is about a template
_OF_TEMPLATES = ("template", "chat_template", "enable_thinking", "preserve_thinking", "default_system")


def compare(program: str, chosen: list[str], folder: Path) -> dict[str, dict[str, Any]]:
    """Return for each template: the program's digests, how many of ours are equal, and what was said."""
    keys = given(program, folder)
    questions = [with_template(program, keys, name) for name in chosen]
    answers = ask(program, "every", [questions], folder, timeout=3600)[0]
    found: dict[str, dict[str, Any]] = {}
    for name, question, answer in zip(chosen, questions, answers, strict=True):
        if isinstance(answer, dict):
            found[name] = {"error": answer["error"][-200:]}
            continue
        theirs = documents(answer)
        row: dict[str, Any] = {"digests": digests(theirs)}
        try:
            said, mine = ours_of(program, question, folder)
            row |= {"said": said} if said else {}
            row["equal"] = sum(a == b for a, b in zip(row["digests"], digests(mine), strict=False))
            row["first"] = first_difference(theirs, mine, folder) if row["equal"] < len(theirs) else ""
        except (ConfigError, ValueError) as exc:
            row["refused"] = str(exc)[:300]
        found[name] = row
        print(
            f"{name}: {row.get('equal')} of {len(theirs)} {row.get('said', '')} {row.get('first', '')}"
            f"{row.get('refused', '')}",
            flush=True,
        )
    return found


def first_difference(theirs: list[Document], mine: list[Document], folder: Path) -> str:
    """Return the first row in which two programs differ, as texts; the model's folder is in ``folder``."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    if len(theirs) != len(mine):
        return f"{len(theirs)} rows there, {len(mine)} here"
    for a, b in zip(theirs, mine, strict=True):
        if digests([a]) != digests([b]):
            if a[0] != b[0]:
                return f"\n   {tokenizer.decode(a[0])!r}\n   {tokenizer.decode(b[0])!r}"
            labels = [
                tokenizer.decode([i for i, label in zip(*x, strict=True) if label != -100]) for x in (a, b)
            ]
            return f"\n   labels {labels[0]!r}\n   labels {labels[1]!r}"
    return ""


def main() -> None:
    """Compare, print, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("program", choices=["llamafactory", "axolotl", "swift"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-templates-") as folder:
        found = compare(options.program, options.names or names(options.program), Path(folder))
    kept = {name: row for name, row in found.items() if "equal" in row and "said" not in row}
    equal = [name for name, row in kept.items() if row["equal"] == len(row["digests"])]
    print(f"{len(found)} templates, {len(kept)} kept without a word, {len(equal)} of these equal")
    if options.write:
        lines = ",\n".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in found.items())
        (RECORDED / f"templates_{options.program}.json").write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
