"""``paceline migrate --prove``: what a peer and Paceline both train for three steps, and the verdict.

A table (``keys/proof.toml``) replaces model, data, precision and device in both alike; the other keys of the
person's files stay. Every step takes all rows, so that their order does not count.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from paceline.config.import_export.argument_tables import table
from paceline.config.yaml_text.read_file import names, read_table
from paceline.core.json_types import Json, JsonObject, as_object
from paceline.plan.model.shrink import shrunk

TOLERANCE = 1e-4
SYSTEMS = ("llamafactory", "axolotl", "trl")
_ROWS = 8
_MARKS = re.compile(r"<[^<>\s'\"]{1,40}>|\[/?[A-Z_]{2,30}\]")


@dataclass(frozen=True)
class PeerTask:
    """What both train: the keys, what the sibling is made of, files with rows, and the keys left out."""

    system: str
    trainer: str
    keys: JsonObject
    sibling: JsonObject
    files: Mapping[str, str]
    left_out: tuple[str, ...] = ()


@dataclass(frozen=True)
class PeerProof:
    """The losses of both. ``problem``: why there is nothing to compare; ``notes``: what was replaced."""

    job: str
    system: str
    theirs: tuple[float, ...] = ()
    ours: tuple[float, ...] = ()
    problem: str = ""
    notes: tuple[str, ...] = field(default=())

    @property
    def difference(self) -> float | None:
        """The largest difference of two losses of a step; None where they are not comparable."""
        if self.problem or not self.theirs or len(self.theirs) != len(self.ours):
            return None
        return max(abs(a - b) for a, b in zip(self.theirs, self.ours, strict=True))

    @property
    def agrees(self) -> bool:
        """Whether the losses are equal within the tolerance."""
        return self.difference is not None and self.difference <= TOLERANCE

    def text(self) -> str:
        """Return the proof as lines."""
        lines = [f"proof of job {self.job}, three steps of a small sibling:"]
        if self.difference is None:
            lines += [f"  not proven: {self.problem or 'the programs logged different numbers of steps'}"]
        else:
            verdict = "equal" if self.agrees else "they differ"
            lines += [f"  {self.system:<14} {' '.join(f'{loss:.6f}' for loss in self.theirs)}"]
            lines += [f"  {'Paceline':<14} {' '.join(f'{loss:.6f}' for loss in self.ours)}"]
            lines += [f"  largest difference {self.difference:.1e}: {verdict} (within {TOLERANCE:g})"]
        return "\n".join([*lines, *(f"  {note}" for note in self.notes)])

    def to_json(self) -> JsonObject:
        """Return the proof as plain JSON types."""
        return {
            "job": self.job,
            "theirs": list(self.theirs),
            "ours": list(self.ours),
            "difference": self.difference,
            "agrees": self.agrees,
            "problem": self.problem,
            "notes": list(self.notes),
        }


def cannot_be_proven(system: str, trainer: str) -> str:
    """Return why a job's losses cannot be compared this way; or an empty text."""
    if system not in SYSTEMS:
        return f"{system or 'this program'} is not asked yet: {', '.join(SYSTEMS)} are"
    drawn = names(_table(system).get("drawn"))
    return "answers, or a new head, are drawn anew in each program" if trainer in drawn else ""


def peer_task(
    system: str, given: JsonObject, trainer: str, config: Mapping[str, Json], folder: Path
) -> PeerTask:
    """Return what both programs train; model, adapter and rows are to lie in ``folder``."""
    row = _table(system)
    starts, dropped = names(row.get("starts")), names(row.get("dropped"))
    left_out = tuple(key for key in given if key in dropped or key.startswith(starts))
    keys: JsonObject = {
        key: value for key, value in given.items() if key not in left_out and value is not None
    }
    keys |= as_object(row["replaced"])
    keys |= {str(row["model"]): str(folder / "model"), "output_dir": str(folder / "theirs")}
    adapter = _adapter(system, given)
    files = _with_rows(system, trainer, keys, folder)
    if adapter and system == "llamafactory":
        keys["adapter_name_or_path"] = str(folder / "adapter")
    if system == "axolotl":
        # It weighs the micro-batches of a step alike, whatever tokens they hold: one is compared
        packed = bool(keys.get("sample_packing"))
        keys |= {"micro_batch_size": 1 if packed else _ROWS, "gradient_accumulation_steps": 1}
    if adapter and system == "axolotl":
        keys |= {"adapter": "lora", "lora_model_dir": str(folder / "adapter"), "lora_target_linear": True}
        keys |= dict.fromkeys(("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel"), False)
    templates = as_object(table("llamafactory_templates")).get(str(keys.get("template")))
    tokens: list[Json] = sorted({*_MARKS.findall(json.dumps(templates, ensure_ascii=False))})
    sibling: JsonObject = {
        "config": shrunk(config),
        "folder": str(folder),
        "tokens": tokens,
        "adapter": adapter or None,
    }
    return PeerTask(system, trainer, keys, sibling, files, left_out)


def _table(system: str) -> JsonObject:
    return as_object(read_table("proof", "import_export")[system])


def for_ours(task: PeerTask) -> JsonObject:
    """Return the keys that Paceline imports: all but those of the device."""
    device = ("attn_implementation",) if task.system == "axolotl" else ()
    return {key: value for key, value in task.keys.items() if key not in device}


def _adapter(system: str, given: JsonObject) -> JsonObject:
    """Return the options of the job's LoRA, for which one adapter is written; empty for none, or for TRL."""
    lora = system == "llamafactory" and given.get("finetuning_type", "lora") == "lora"
    lora = lora or (system == "axolotl" and given.get("adapter") in ("lora", "qlora"))
    if not lora:
        return {}
    rank = given.get("lora_rank") or given.get("lora_r") or 8
    target = str(given.get("lora_target") or "all") if system == "llamafactory" else "all"
    modules: Json = "all-linear" if target == "all" else [name.strip() for name in target.split(",")]
    alpha = given.get("lora_alpha") or 2 * int(str(rank))
    rslora = bool(given.get("use_rslora") or given.get("peft_use_rslora"))
    return {"r": rank, "lora_alpha": alpha, "target_modules": modules, "use_rslora": rslora}


def _with_rows(system: str, trainer: str, keys: JsonObject, folder: Path) -> dict[str, str]:
    """Let the keys name rows of the trainer's kind; return the files to write."""
    talks = [(f"What is {n} plus {n * n}?", f"It is {n + n * n}." + " Yes." * (n % 3)) for n in range(_ROWS)]
    pairs = [(question, answer, answer.replace("is", "was")) for question, answer in talks]
    if system == "llamafactory":
        return _of_llamafactory(trainer, keys, talks, pairs, folder)
    paired = trainer in names(_table(system).get("pairs"))
    if system == "axolotl":
        entry: JsonObject = {"path": str(folder / "rows.jsonl"), "ds_type": "json", "split": "train"}
        entry |= {"type": "chat_template.default" if paired else "chat_template"}
        entry |= {"field_messages": "conversation"} if paired else {}
        keys["datasets"] = [entry]
    else:
        keys["dataset_name"] = str(folder / "rows.jsonl")
    rows: list[JsonObject] = [{"messages": [_turn("user", q), _turn("assistant", a)]} for q, a in talks]
    if paired and system == "axolotl":
        rows = [
            {
                "conversation": [_turn("user", q)],
                "chosen": _turn("assistant", a),
                "rejected": _turn("assistant", b),
            }
            for q, a, b in pairs
        ]
    elif paired:
        rows = [
            {
                "chosen": [_turn("user", q), _turn("assistant", a)],
                "rejected": [_turn("user", q), _turn("assistant", b)],
            }
            for q, a, b in pairs
        ]
    return {"rows.jsonl": "".join(f"{json.dumps(row)}\n" for row in rows)}


def _of_llamafactory(
    stage: str,
    keys: JsonObject,
    talks: list[tuple[str, str]],
    pairs: list[tuple[str, str, str]],
    folder: Path,
) -> dict[str, str]:
    kind = str(as_object(_table("llamafactory")["kinds"]).get(stage) or "rows")
    rows: dict[str, list[JsonObject]] = {
        "rows": [{"instruction": q, "input": "", "output": a} for q, a in talks],
        "pairs": [{"instruction": q, "chosen": a, "rejected": b} for q, a, b in pairs],
        "votes": [{"instruction": q, "output": a, "vote": n % 2 == 0} for n, (q, a) in enumerate(talks)],
        "text": [{"text": f"{q} {a}"} for q, a in talks],
    }
    columns: dict[str, JsonObject] = {
        "rows": {"prompt": "instruction", "query": "input", "response": "output"},
        "pairs": {"prompt": "instruction", "chosen": "chosen", "rejected": "rejected"},
        "votes": {"prompt": "instruction", "query": "", "response": "output", "kto_tag": "vote"},
        "text": {"prompt": "text"},
    }
    entry: JsonObject = {"file_name": f"{kind}.json", "columns": columns[kind]}
    entry |= {"ranking": True} if kind == "pairs" else {}
    keys |= {"dataset": kind, "dataset_dir": str(folder)}
    return {f"{kind}.json": json.dumps(rows[kind]), "dataset_info.json": json.dumps({kind: entry})}


def _turn(role: str, content: str) -> JsonObject:
    return {"role": role, "content": content}
