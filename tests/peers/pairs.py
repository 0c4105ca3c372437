#!/usr/bin/env python
"""A hundred random (file, key) pairs with the verdict "mapped" or "no effect", put to the other program.

    PACELINE_PEERS=/opt/envs python tests/peers/pairs.py [--program NAME] [--count 100] [--write]

The program parses the file with the key and without it, on the small model and rows (``of_*.py``).
"mapped" holds where our setting has the value that the program resolves. "no effect" holds where only fields
that no training reads (``IDLE``) differ. What neither can tell is printed as open, with both answers.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import of_axolotl
import of_llamafactory
import of_swift
import of_trl
import ours
from ask import ask
from losses import ROOT, TOLERANCE, Case, commands, examples, of_file
from small import conversations, pairs, write_lines, write_model

sys.path.insert(0, str(Path(__file__).parents[1] / "unit" / "config"))

import axolotl_cases  # noqa: E402
import llamafactory_cases  # noqa: E402
import swift_cases  # noqa: E402
import trl_cases  # noqa: E402
from swift_cases import SKIPPED  # noqa: E402

from paceline.config.import_export.programs.trl import trl_defaults  # noqa: E402
from paceline.config.import_export.verdicts import KeyVerdict  # noqa: E402
from paceline.config.load import load_config  # noqa: E402
from paceline.core.errors import ConfigError  # noqa: E402

RECORDED = Path(__file__).parent / "recorded" / "pairs.json"
SEED = 39
SHARES = {"llamafactory": 35, "axolotl": 40, "trl": 25, "swift": 35}
TABLES: Mapping[str, Mapping[str, tuple[tuple[str, ...], Callable[[Any], object]]]] = {
    "llamafactory": llamafactory_cases.TABLE,
    "axolotl": axolotl_cases.TABLE,
    "trl": trl_cases.TABLE,
    "swift": swift_cases.TABLE,
}
#: Fields of the programs' arguments that no loss reads: where things are written, shown, and kept for later
IDLE = frozenset(
    (
        "output_dir", "logging_dir", "run_name", "report_to", "logging_steps", "logging_first_step",
        "log_level", "save_steps", "save_total_limit", "save_only_model", "overwrite_output_dir",
        "overwrite_cache", "plot_loss", "ddp_timeout", "preprocessing_num_workers",
        "dataloader_num_workers", "dataset_num_proc", "do_train", "do_eval", "eval_steps",
        "eval_strategy", "per_device_eval_batch_size", "eval_batch_size", "wandb_project",
        "wandb_entity", "wandb_watch", "wandb_name", "wandb_log_model", "wandb_run_id", "use_wandb",
        "project", "evals_per_epoch", "saves_per_epoch", "strict", "local_rank", "debug", "tf32",
        "profiler_steps", "dataset_processes", "eval_table_size", "save_strategy", "eval_delay",
        "hub_model_id", "hub_strategy", "push_to_hub", "hub_private_repo", "disable_tqdm",
        "logging_strategy", "include_num_input_tokens_seen", "trust_remote_code",
        "dataset_prepared_path", "dataloader_prefetch_factor",
    )
)  # fmt: skip


@dataclass
class Pair:
    """A pair, the import's verdict, and the program's answer: which of its fields the key changes.

    ``holds``: "value" (ours is what it resolves), "idle" (nothing else changes), "tokens" or "losses" (of the
    recorded ones), "open" (none of these tells), or "refused" (a program has no answer).
    """

    program: str
    file: str
    key: str
    value: Any
    verdict: str
    to: list[str]
    says: str = ""
    ours: dict[str, Any] = field(default_factory=dict)
    theirs: dict[str, Any] = field(default_factory=dict)
    changed: dict[str, list[Any]] = field(default_factory=dict)
    holds: str = ""


def main() -> None:
    """Draw, ask, judge, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--program", nargs="*", default=list(SHARES), choices=list(SHARES))
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    found: list[Pair] = []
    for program in options.program:
        with tempfile.TemporaryDirectory(prefix="paceline-pairs-") as folder:
            for pair in judged(program, options.count * SHARES[program] // 100, Path(folder)):
                found.append(pair)
                line = (
                    f"{pair.holds}\t{program} {pair.file} {pair.key}: {pair.value!r} {pair.verdict} {pair.to}"
                )
                print(
                    f"{line}\n    {pair.says[:150]} ours {pair.ours} theirs {pair.theirs} {pair.changed}",
                    flush=True,
                )
    counts = {holds: sum(pair.holds == holds for pair in found) for holds in sorted({p.holds for p in found})}
    print(f"{len(found)} pairs: {counts}")
    if options.write:
        rows = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else []
        rows = [row for row in rows if row["program"] not in options.program] + [
            asdict(pair) for pair in found
        ]
        lines = ",\n".join(json.dumps(row, ensure_ascii=False, default=str) for row in rows)
        RECORDED.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


def drawn(program: str, count: int) -> list[tuple[Pair, Any]]:
    """Return ``count`` random pairs with what the program is given of the file."""
    every = []
    for name, given in _cases(program):
        try:
            made = ours.imported(program, given)
        except (ConfigError, ValueError):
            continue
        top = given[1] if program == "trl" else of_swift.keys_of(given) if program == "swift" else given
        for key in top:
            finding = made.found.findings.get(key)
            if finding and finding.verdict in (KeyVerdict.MAPPED, KeyVerdict.NO_EFFECT):
                pair = Pair(
                    program, name, key, top[key], finding.verdict.value, list(finding.to), finding.says
                )
                every.append((pair, given))
    return random.Random(SEED).sample(every, min(count, len(every)))


def _cases(program: str) -> Iterator[Case]:
    if program == "swift":
        yield from commands(ROOT.parent / "shared/spec")
        return
    for file in examples(program):
        yield from of_file(program, file)


def judged(program: str, count: int, folder: Path) -> Iterator[Pair]:
    """Yield the pairs with the program's answers."""
    model = write_model(folder)
    of_llamafactory.write_rows(folder)
    write_lines(folder / "talks.jsonl", conversations())
    write_lines(folder / "pairs.jsonl", pairs())
    asked, questions = [], []
    for pair, given in drawn(program, count + count // 2):  # some files are refused
        whole = at_home(program, given, folder, model, pair.key)
        asked.append((pair, whole))
        questions += [whole, without(program, whole, pair.key)]
    answers = ask(program, "arguments", questions, folder, timeout=3600)
    left = count
    for (pair, whole), theirs, bare in zip(asked, answers[::2], answers[1::2], strict=True):
        judge(pair, whole, theirs, bare, folder)
        left -= pair.holds != "refused"
        if left >= 0:
            yield pair


def at_home(program: str, given: Any, folder: Path, model: Path, key: str) -> Any:
    """Return a file with the small model and rows in place of what cannot be fetched; other keys stay."""
    if program == "trl":
        trainer, keys = given
        more = {"model_name_or_path": str(model), "dataset_name": str(folder / "talks.jsonl")}
        known = {*trl_defaults(trainer)} - {*_TRL_GONE}  # one unknown argument, and it refuses the file
        return trainer, {k: v for k, v in keys.items() if k == key or k in known} | more
    if program == "axolotl":
        entry = {"path": str(folder / "talks.jsonl"), "ds_type": "json", "type": "chat_template"}
        more = {"base_model": str(model), "datasets": [entry]}
        gone = {
            "deepspeed",
            "plugins",
            "test_datasets",
            "model_type",
            "tokenizer_type",
            "pretraining_dataset",
        }
        return {k: v for k, v in given.items() if k == key or k not in gone} | more
    if program == "swift":
        return _command_at_home(given, folder, model, key)
    stage = str(given.get("stage", "sft"))
    name = {"pt": "text", "rm": "pairs", "dpo": "pairs", "kto": "votes"}.get(stage, "rows")
    more = {"model_name_or_path": str(model), "dataset": name, "dataset_dir": str(folder)}
    gone = {"deepspeed", "adapter_name_or_path", "reward_model", "fsdp", "fsdp_config", "eval_dataset"}
    return {k: v for k, v in given.items() if k == key or k not in gone} | more


def _command_at_home(words: list[str], folder: Path, model: Path, key: str) -> list[str]:
    keys = of_swift.keys_of(words)
    kind = keys.get("rlhf_type", keys.get("task_type", words[:1]))[0]
    rows = write_lines(folder / f"swift-{kind}.jsonl", of_swift.rows(kind))
    more = {"model": [str(model)], "dataset": [str(rows)]}
    more |= {"model_type": ["llama"], "template": ["chatml"]} if key not in ("model_type", "template") else {}
    kept = {k: v for k, v in keys.items() if k == key or k not in _SWIFT_GONE} | more
    return [words[0], *(word for name, values in kept.items() for word in (f"--{name}", *values))]


_SWIFT_GONE = (
    *("val_dataset", "cached_dataset", "cached_val_dataset", "deepspeed", "attn_impl", "adapters", "packing"),
    *("padding_free", "use_liger_kernel", "new_special_tokens", "sequence_parallel_size"),
)
_TRL_GONE = ("dataset_config", "dataset_mixture", "datasets", "eos_token", "chat_template", "deepspeed")


def without(program: str, given: Any, key: str) -> Any:
    """Return the file without a key."""
    if program == "trl":
        return given[0], {k: v for k, v in given[1].items() if k != key}
    if program == "swift":
        kept = {k: v for k, v in of_swift.keys_of(given).items() if k != key}
        return [given[0], *(word for name, values in kept.items() for word in (f"--{name}", *values))]
    return {k: v for k, v in given.items() if k != key}


def judge(pair: Pair, whole: Any, theirs: Any, bare: Any, folder: Path) -> None:
    """Fill in what the program's answers say of a pair."""
    if "error" in theirs:
        pair.holds, pair.theirs = "refused", {"error": theirs["error"][-300:]}
        return
    with_key, without_key = _flat(theirs), {} if "error" in bare else _flat(bare)
    pair.changed = {
        name: [with_key.get(name), without_key.get(name)]
        for name in sorted({*with_key, *without_key})
        if without_key and with_key.get(name) != without_key.get(name) and not _is_place(with_key.get(name))
    }
    pair.theirs = {pair.key: theirs.get(pair.key)}
    try:
        made = ours.imported(pair.program, whole)
        (folder / "ours.yaml").write_text(made.text, encoding="utf-8")
        config = load_config(str(folder / "ours.yaml")).config.to_json()
    except (ConfigError, ValueError) as exc:
        pair.holds, pair.ours = "refused", {"error": str(exc)[-300:]}
        return
    pair.ours = {path: _at(config, path) for path in pair.to}
    pair.holds = _verdict(pair, theirs, config)


def _is_place(value: Any) -> bool:
    return "/tmp" in str(value)  # a folder that is new in each answer


def _verdict(pair: Pair, theirs: Any, config: Any) -> str:
    if pair.verdict == KeyVerdict.NO_EFFECT.value:
        acting = {name.rpartition(".")[2] for name in pair.changed} - IDLE
        if not acting:
            return "idle"
    elif any(_equal(pair, path, theirs, config) for path in pair.to):
        return "value"
    return _by_rows(pair)


def _equal(pair: Pair, path: str, theirs: Any, config: Any) -> bool:
    mine, table = _at(config, path), TABLES[pair.program]
    if pair.key == "output_dir":  # the program is given a folder of ours
        return bool(_alike(mine, pair.value))
    if path == "lora":
        return isinstance(mine, Mapping) and theirs.get(pair.key) == "lora"
    if path in table and (expected := table[path][1](theirs)) is not SKIPPED:
        pair.theirs["expected"] = expected
        return expected == mine or (isinstance(mine, list) and list(mine) == expected)
    entries = (
        [mine, *(value for item in mine if isinstance(item, dict) for value in item.values())]
        if (isinstance(mine, list))
        else [mine]
    )
    return any(_alike(one, theirs.get(pair.key)) for one in entries)


def _by_rows(pair: Pair) -> str:
    """What only tokens or losses tell: see the records of ``templates.py`` and ``losses.py``."""
    if pair.key in ("template", "chat_template"):
        name = RECORDED.with_name(f"templates_{pair.program}.json")
        row = json.loads(name.read_text("utf-8")).get(str(pair.value), {}) if name.exists() else {}
        if row.get("digests") and row.get("equal") == len(row["digests"]):
            return "tokens"
    modules = {"llamafactory": of_llamafactory, "axolotl": of_axolotl, "trl": of_trl, "swift": of_swift}
    table = modules[pair.program]
    rows = json.loads(RECORDED.with_name("losses.json").read_text("utf-8"))
    mine = [row for row in rows if (row["program"], row["file"]) == (pair.program, pair.file)]
    taken = pair.key not in table.REPLACED and pair.key not in table.DROPPED  # type: ignore[attr-defined]
    equal = any(row["difference"] is not None and row["difference"] <= TOLERANCE for row in mine)
    return "losses" if taken and equal else "open"


def _alike(ours_: Any, theirs: Any) -> bool:
    theirs = theirs[0] if isinstance(theirs, list) and len(theirs) == 1 else theirs
    if isinstance(ours_, (int, float)) and isinstance(theirs, (int, float)):
        return float(ours_) == float(theirs)
    return ours_ is not None and str(ours_) == str(theirs)


def _at(config: Any, path: str) -> Any:
    value = config
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _flat(answer: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in answer.items():
        if isinstance(value, Mapping):
            found |= _flat(value, f"{prefix}{key}.")
        else:
            found[f"{prefix}{key}"] = value
    return found


if __name__ == "__main__":
    main()
