#!/usr/bin/env python
"""How many files of other programs' users an import keeps, counted by file.

    python tests/peers/by_file.py [--list] [--write] [--program axolotl …] [SPEC]

SPEC holds ``peer_examples`` and ``wild_configs`` (default: ``shared/spec`` next to the repository). A file is
kept whole if each of its keys, and each default of its program, acts the same here or has no effect; it is
kept with a named difference if none is lost, and the difference is measured if ``sizes.py`` has the size of
each. ``--list`` prints every other file with its keys and reasons.
``--write`` writes the table in ``docs/how-to/import.md`` and its Chinese twin, and ``recorded/by_file.json``.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from paceline.config.import_export.commands.command_line import read_command
from paceline.config.import_export.import_config import import_command, import_config, read_foreign
from paceline.config.import_export.sizes import NOT_MEASURED, measured
from paceline.config.import_export.verdicts import Imported, KeyVerdict
from paceline.config.import_export.write_yaml import accepted
from paceline.core.errors import ConfigError
from paceline.rules import of_config

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).parent / "recorded" / "by_file.json"
WHOLE, MEASURED, DIFFERS, LOST, REFUSED = "whole", "measured", "differs", "lost", "refused"
#: kinds of files: those that count, and those that are counted apart
COUNTS, IMAGES, ENGINES, OTHER = "counts", "images", "engines", "other"
#: program → (title, folders of SPEC)
PROGRAMS = {
    "llamafactory": ("LLaMA-Factory", ("peer_examples/llamafactory", "wild_configs/llamafactory_yaml")),
    "axolotl": ("axolotl", ("peer_examples/axolotl", "wild_configs/axolotl_yaml")),
    "trl": ("TRL", ("wild_configs/trl_yaml_cli",)),
    "swift": ("ms-swift", ("peer_examples/swift_commands.jsonl",)),
}
#: Files that train nothing, or are of another program than their folder's
_OTHER = re.compile(
    r"^(accelerate__|deepspeed__|ktransformers__accelerate__|inference__|merge_lora__|cloud__)"
    r"|__(inference|merge_lora)__|_merge\.yaml|_eval\.yaml|nlg_eval|v1__.*(export|quantization)|LMFlow"
    r"|dataset_filtering|\.runpod__"
)
_IMAGES = re.compile(
    r"vl[-_/.]|[-_/.\d]vl\b|vision|omni|llava|pixtral|internvl|smolvlm|voxtral|audio|ocr|ovis|glm-?4\.[156]v\b"
    r"|glm46v|tts|mllm|multimodal|vlm|clevr|moss-?vl|orpheus"
)
_IMAGE_KEYS = {"image_max_pixels", "video_max_pixels", "processor_type", "image_size", "freeze_vision_tower"}
_MODELS = ("model_name_or_path", "base_model", "model", "template", "dataset")


#: Files of ms-swift's repository that its example commands name, which SPEC does not hold
BESIDE = {
    "examples/train/new_special_tokens/tokens.txt": "\n".join(f"<|{number}|>" for number in range(100)),
    "examples/yaml/deepspeed/sft.yaml": """
model: Qwen/Qwen2.5-7B-Instruct
torch_dtype: bfloat16
tuner_type: lora
lora_rank: 8
lora_alpha: 32
target_modules: all-linear
dataset:
- AI-ModelScope/alpaca-gpt4-data-zh#500
- AI-ModelScope/alpaca-gpt4-data-en#500
- swift/self-cognition#500
split_dataset_ratio: 0.0
max_length: 2048
system: You are a helpful assistant.
model_author: swift
model_name: swift-bot
num_train_epochs: 1
per_device_train_batch_size: 1
per_device_eval_batch_size: 1
learning_rate: 1e-4
gradient_accumulation_steps: 8
eval_steps: 50
save_steps: 50
save_total_limit: 2
logging_steps: 5
output_dir: output
warmup_ratio: 0.05
dataloader_num_workers: 4
dataset_num_proc: 4
deepspeed: zero2
""",
}


@dataclass
class Counted:
    """One file: its kind, what became of it, and why; ``keys``: top-level ones that are kept, of how many."""

    file: str
    kind: str
    outcome: str
    reasons: dict[str, str] = field(default_factory=dict)
    keys: tuple[int, int] = (0, 0)


def main() -> None:
    """Count, print, and write what is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("spec", nargs="?", type=Path, default=ROOT.parent / "shared/spec")
    parser.add_argument("--program", nargs="*", default=list(PROGRAMS), choices=list(PROGRAMS))
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    counted, spec = dict[str, list[Counted]](), options.spec.absolute()
    for program in options.program:
        with tempfile.TemporaryDirectory(prefix="paceline-beside-") as folder, contextlib.chdir(folder):
            for name, text in BESIDE.items():
                Path(name).parent.mkdir(parents=True, exist_ok=True)
                Path(name).write_text(text, encoding="utf-8")
            counted[program] = list(count(spec, program))
        if options.list:
            _print(program, counted[program])
    print(table(counted))
    if options.write:
        write(counted)


def count(spec: Path, program: str) -> Iterator[Counted]:
    """Yield each file of a program."""
    for place in PROGRAMS[program][1]:
        path = spec / place
        if path.is_file():
            for line in path.read_text(encoding="utf-8").splitlines():
                row = json.loads(line)
                yield _command(row["example"], row["arguments"])
        else:
            yield from (_file(file, program) for file in sorted(path.iterdir()))


def _file(file: Path, program: str) -> Counted:
    kind = kind_of_file(file)
    try:
        # the command of a file of version 1 names its stage, and so does the example's name
        named = "dpo" if re.search("v1__.*_dpo", file.name) else None
        return _counted(file.name, kind, import_config(str(file), program, named))
    except ConfigError as error:
        found = error.diagnostics[0]
        kind = OTHER if "does not train" in found.what else kind
        return Counted(file.name, kind, REFUSED, {found.code: found.what})


def kind_of_file(file: Path) -> str:
    """Return whether a file counts, has images, or is no training of its folder's program."""
    if _OTHER.search(file.name):
        return OTHER
    try:
        given, _ = read_foreign(str(file))
    except ConfigError:
        return COUNTS
    named = " ".join([file.name, *(str(given.get(key, "")) for key in _MODELS)])
    return IMAGES if _IMAGE_KEYS & set(given) or _IMAGES.search(named.lower()) else COUNTS


def kind_of_command(example: str, words: list[str]) -> str:
    """Return whether a command counts, has images, or starts an engine in the training process."""
    text = " ".join([example, *words])
    if "--use_vllm true" in text and "--vllm_mode server" not in text:
        return ENGINES
    return IMAGES if _IMAGES.search(text.lower()) else COUNTS


def _command(example: str, words: list[str]) -> Counted:
    kind = kind_of_command(example, words)
    try:
        return _counted(example, kind, import_command(read_command(_one_process(words))))
    except ConfigError as error:
        found = error.diagnostics[0]
        return Counted(example, kind, REFUSED, {found.code: found.what})


#: What a person is to fill in
_OPEN = {"<node1_ip>": "10.0.0.1", "<node2_ip>": "10.0.0.2", "<node1_port>": "8000", "<node2_port>": "8001"}


def _one_process(words: list[str]) -> list[str]:
    """Return the words with ``$(expr 16 / $nproc_per_node)`` worked out for one process, and addresses."""
    words = [_OPEN.get(word, word) for word in words]
    made = list[str]()
    for word in words:
        if made and made[-1].startswith("$(expr"):
            made[-1] = f"{made[-1]} {word}"
            if word.endswith(")"):
                made[-1] = made[-1].split()[1]
        else:
            made.append(word)
    return made


def _counted(name: str, kind: str, found: Imported) -> Counted:
    accepted(found, "counted", of_config)
    listed = [*found.of(KeyVerdict.LOST), *found.of(KeyVerdict.DIFFERS)]
    reasons = {
        finding.key
        if finding.line
        else f"{finding.key} (default)": f"{finding.verdict.value}: {finding.says}"
        + (f" [{size}]" if (size := measured(found.system, finding.key, finding.says)) else "")
        for finding in listed
    }
    sizes = [measured(found.system, one.key, one.says) for one in listed]
    known = all(size and NOT_MEASURED not in size for size in sizes)
    kept = (MEASURED if known else DIFFERS) if listed else WHOLE
    outcome = LOST if found.of(KeyVerdict.LOST) else kept
    mine = [finding.verdict for key, finding in found.findings.items() if finding.line and "." not in key]
    same = sum(verdict in (KeyVerdict.MAPPED, KeyVerdict.NO_EFFECT) for verdict in mine)
    return Counted(name, kind, outcome, reasons, (same, len(mine)))


def _print(program: str, counted: list[Counted]) -> None:
    for one in counted:
        if one.outcome != WHOLE and one.kind != OTHER:
            print(f"{program}\t{one.kind}\t{one.outcome}\t{one.file}")
            lost = [r for r in one.reasons.items() if one.outcome != LOST or r[1].startswith(LOST_WORD)]
            print("\n".join(f"    {key}: {' '.join(says.split())[:160]}" for key, says in lost))
    print(f"--- {program}: keys that are lost in most files, images and engines apart")
    for key, number in most_common(counted, 20):
        print(f"    {number:3} {key}")


LOST_WORD = KeyVerdict.LOST.value


def most_common(counted: list[Counted], count: int) -> list[tuple[str, int]]:
    """Return the keys that most files lose, in an order that does not change."""
    return sorted(lost_keys(counted).items(), key=lambda item: (-item[1], item[0]))[:count]


def lost_keys(counted: list[Counted]) -> Counter[str]:
    """Return how many files that count lose each top-level key."""
    return Counter(
        key
        for one in counted
        if one.kind == COUNTS
        for key in {
            name.split(".")[0]
            for name, says in one.reasons.items()
            if one.outcome == REFUSED or says.startswith(LOST_WORD)
        }
    )


_HEADS = (
    "| program | files | whole | measured difference | named difference | not | whole or measured | keys kept"
    " | lost in most files |",
    "| 程序 | 文件 | 完整 | 有测量值的差别 | 有说明的差别 | 未保留 | 完整或有测量值 | 保留的键 | 最常丢失 |",
)
_APART = {
    COUNTS: ("", ""),
    IMAGES: (", images", "，图像"),
    ENGINES: (", engines in the process", "，进程内引擎"),
}


def table(counted: dict[str, list[Counted]], chinese: bool = False) -> str:
    """Return the table of the page: a line a program, and one for each kind that is counted apart."""
    lines = [_HEADS[chinese], "| --- | --- | --- | --- | --- | --- | --- | --- | --- |"]
    for program, ones in counted.items():
        for kind, title in _APART.items():
            mine = [one for one in ones if one.kind == kind]
            if mine:
                lines.append(_line(f"{PROGRAMS[program][0]}{title[chinese]}", mine))
    return "\n".join(lines)


def _line(title: str, mine: list[Counted]) -> str:
    of = Counter(one.outcome for one in mine)
    kept = of[WHOLE] + of[MEASURED]
    lost = len(mine) - kept - of[DIFFERS]
    same, keys = (sum(one.keys[which] for one in mine) for which in (0, 1))
    shown = ", ".join(f"`{key}` {number}" for key, number in most_common(mine, 4))
    cells = [title, len(mine), of[WHOLE], of[MEASURED], of[DIFFERS], lost, f"{kept / len(mine):.0%}"]
    cells += [f"{same / max(1, keys):.1%}", shown if mine[0].kind == COUNTS else ""]
    return f"| {' | '.join(map(str, cells))} |"


def write(counted: dict[str, list[Counted]]) -> None:
    """Write the pages' table and the record of every file."""
    for name in ("import.md", "import.zh-CN.md"):
        page = ROOT / "docs/how-to" / name
        before, _, rest = page.read_text(encoding="utf-8").partition("<!-- by-file -->\n")
        after = rest.partition("<!-- /by-file -->")[2]
        made = table(counted, chinese="zh" in name)
        page.write_text(f"{before}<!-- by-file -->\n\n{made}\n\n<!-- /by-file -->{after}", encoding="utf-8")
    RECORDED.parent.mkdir(exist_ok=True)
    rows = [
        {"program": program, "file": one.file, "kind": one.kind, "outcome": one.outcome}
        | ({"reasons": sorted(one.reasons)} if one.reasons else {})
        for program, ones in counted.items()
        for one in ones
    ]
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    RECORDED.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
