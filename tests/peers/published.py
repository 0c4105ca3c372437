"""Rows in the columns of published data sets that ms-swift prepares by code of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from small import Row, conversations, write_lines

from paceline.config.import_export.argument_tables import table
from paceline.core.json_types import as_object

TOOL = {"name": "find", "description": "Find it.", "parameters": {"type": "object", "properties": {}}}
_TOOL_TEXT = '{"name": "find", "description": "Find it.", "parameters": {"type": "object", "properties": {}}}'
#: data set → a row of its columns, of a question and an answer; ``odd``: with what ms-swift changes
PUBLISHED: Mapping[str, Callable[[str, str, int], Row]] = {
    "AI-ModelScope/alpaca-gpt4-data-zh": lambda question, answer, odd: (
        {"instruction": question, "input": f"{'输入：' * odd}{question}", "output": answer}
    ),
    "AI-ModelScope/LongAlpaca-12k": lambda question, answer, odd: (
        {"instruction": question, "input": "", "file": "", "output": f"{'Answer: ' * odd}{answer}"}
    ),
    "AI-ModelScope/function-calling-chatml": lambda question, answer, odd: (
        {"system_message": "", "function_description": _TOOL_TEXT * odd}
        | {"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}
    ),
    "swift/self-cognition": lambda question, answer, odd: (
        {"query": question, "response": f"{answer} {{{{NAME}}}} {{{{AUTHOR}}}}", "tag": ("en", "zh")[odd]}
    ),
    "hjh0119/shareAI-Llama3-DPO-zh-en-emoji": lambda question, answer, odd: (
        {"question": question, "answer_zh": f"{answer}{chr(0xFE0F) * odd}", "answer_en": f"no, {answer}"}
    ),
    "MTEB/scidocs-reranking": lambda question, answer, odd: (
        {"query": question, "positive": [answer], "negative": [f"no {answer}", f"{question} is wrong"]}
    ),
}
#: a plugin of ms-swift's: local rows are prepared as those of the data set
_REGISTERED = """
from swift.dataset import dataset_syntax
from swift.dataset.dataset_meta import DATASET_MAPPING
[known] = [meta for meta in DATASET_MAPPING.values() if meta.ms_dataset_id == {name!r}]
known.ms_dataset_id, known.hf_dataset_id, known.dataset_path = None, None, {path!r}
known.split = ["train"]
parts = {{part.name: part.preprocess_func for part in known.subsets}}  # which a local file has none of
known.subsets, known.preprocess_func = ["default"], parts.get({subset!r}) or known.preprocess_func
dataset_syntax._dataset_meta_mapping = None
"""


def registered(name: str) -> tuple[Row, Row, Row]:
    """Return the keys with which ms-swift prepares local rows as those of a data set, those that the import
    gets instead, and what the name in its YAML stands for.
    """
    known = as_object(as_object(table("swift_templates")["data"])[name])
    theirs = {"dataset": "FOLDER/published.jsonl", "external_plugins": "FOLDER/registered.py"}
    here = {str(known.get("hf") or name): "FOLDER/published.jsonl"}
    return theirs, {"dataset": name, "external_plugins": None}, here


def as_published(name: str, subset: str = "default") -> Callable[[Path], None]:
    """Return what writes a data set's rows, every second one with what ms-swift changes, and the plugin."""

    def written(folder: Path) -> None:
        talks = [[turn["content"] for turn in row["messages"]] for row in conversations()]
        rows = [PUBLISHED[name](*pair, number % 2) for number, pair in enumerate(talks)]
        path = write_lines(folder / "published.jsonl", rows)
        text = _REGISTERED.format(name=name, path=str(path), subset=subset)
        (folder / "registered.py").write_text(text, encoding="utf-8")

    return written
