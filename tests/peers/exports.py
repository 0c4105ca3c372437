#!/usr/bin/env python
"""Export every config of ours and let each program read, and three steps train, what was written.

    PACELINE_PEERS=/opt/envs python tests/peers/exports.py FOLDER [--train] [--program trl …]

``PACELINE_PEERS`` names the folder of the environments (``NAME/bin/python``). FOLDER keeps rows and first
weights between runs. The answers go to ``recorded/exports.json``, which the fast suite replays.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.config.import_export.targets.export_config import ROWS_WANTED, Exported, export_config
from paceline.config.import_export.targets.given import Given, form_of
from paceline.config.import_export.targets.names import NAMES
from paceline.config.load import load_config
from paceline.config.sections.data import Dataset
from paceline.core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]
RECORDED = Path(__file__).parent / "recorded" / "exports.json"
VARIABLES = {"OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "ACCELERATE_USE_CPU": "true"}
VARIABLES |= {"DISABLE_VERSION_CHECK": "1", "AXOLOTL_DO_NOT_TRACK": "1"}


def configs() -> list[str]:
    """Return our example configs, from the repository's folder."""
    listed = sorted(ROOT.glob("config*.yaml")) + sorted((ROOT / "configs").glob("*.yaml"))
    return [str(file.relative_to(ROOT)) for file in listed]


def exported(config: str, program: str, folder: str, form: str) -> Exported:
    """Export one config as ``--output`` does in ``folder``, with rows of ``form`` and weights there.

    Raises ConfigError where the program cannot do it.
    """
    loaded = load_config(str(ROOT / config))
    wanted = program in ROWS_WANTED and ROWS_WANTED[program](loaded.config)
    rows = f"{folder}/{program}_rows" if wanted else ""
    model = f"{folder}/{program}_model" if loaded.config.model.config else ""
    return export_config(loaded, program, Given("no", folder, program, rows, form, model))


def written(program: str, place: Path) -> Iterator[dict[str, Any]]:
    """Yield what becomes of each config: its keys, or why it is refused; the files lie in ``place``."""
    for config in configs():
        folder = place / program / Path(config).stem
        file = folder / f"{program}.yaml"
        row: dict[str, Any] = {"program": program, "config": config}
        try:
            exported(config, program, str(folder), "")
        except ConfigError as error:
            yield {**row, "refused": error.diagnostics[0].what}
            continue
        if not (folder / f"{program}_model").exists():
            folder.mkdir(parents=True, exist_ok=True)
            file.unlink(missing_ok=True)
            command = [sys.executable, "-m", "paceline.cli.main", "config", "export", config]
            subprocess.run([*command, "--to", program, "--output", str(file)], check=True, cwd=ROOT)
        rows = folder / f"{program}_rows" / "train.jsonl"
        form = form_of(Dataset(path=str(rows))) if rows.exists() else ""
        made = exported(config, program, str(folder), form)
        for name, text in {file.name: made.text(), **made.files}.items():
            (folder / name).write_text(text, encoding="utf-8")
        keys = json.loads(json.dumps(made.keys).replace(str(folder), "/FOLDER"))
        trainer = load_config(str(ROOT / config)).config.training.algorithm
        yield {
            **row,
            "form": form,
            "keys": keys,
            "lost": list(made.lost),
            "file": str(file),
            "trainer": trainer,
        }


def ask(program: str, verb: str, rows: list[dict[str, Any]], place: Path) -> list[dict[str, Any]]:
    """Return the program's answer to each file."""
    question, answer = place / f"{program}-{verb}.json", place / f"{program}-{verb}-answer.json"
    files = [[row["trainer"], row["file"]] for row in rows]
    question.write_text(json.dumps({"program": program, "verb": verb, "files": files}), encoding="utf-8")
    python = Path(os.environ["PACELINE_PEERS"]) / program / "bin/python"
    script = Path(__file__).parent / "inside" / "starts.py"
    command = [str(python), str(script), str(question), str(answer)]
    subprocess.run(command, check=True, cwd=ROOT, env={**os.environ, **VARIABLES})
    found: list[dict[str, Any]] = json.loads(answer.read_text(encoding="utf-8"))
    return found


def main() -> None:
    """Write, ask and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--train", action="store_true")
    parser.add_argument("--program", nargs="*", default=list(NAMES), choices=list(NAMES))
    options = parser.parse_args()
    os.chdir(ROOT)
    before = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.exists() else []
    kept = [row for row in before if row["program"] not in options.program]
    for program in options.program:
        rows = list(written(program, options.folder.resolve()))
        asked = [row for row in rows if "keys" in row]
        answers = ask(program, "train" if options.train else "parse", asked, options.folder)
        for row, answer in zip(asked, answers, strict=True):
            row |= answer
            del row["file"], row["trainer"]
        kept += rows
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in kept)
    RECORDED.write_text(f"[\n{lines}\n]\n", encoding="utf-8")


if __name__ == "__main__":
    main()
