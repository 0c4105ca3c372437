#!/usr/bin/env python
"""Examples of TRL's and Transformers' documentation beside ours: statements, and the losses of three steps.

    pip download --no-deps -d W trl==1.16.0 && unzip -q W/trl-*.whl -d SITE
    TRL_SITE=SITE DOCS=FOLDER python dev/research/documented_examples.py [NAME ...]

FOLDER holds their pages as Markdown: trl/docs/source and transformers/docs/source/en, as checked out. Their
code is read from the pages and run with our small models, rows and table (``documented.py``) in place of hub
names. Writes docs/reference/library-examples.json and the table of docs/reference/library.md and its twin.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from documented import ROOT, TABLE, names, prepare, run_ours, statements

#: Name → the page, and the blocks of Python in it, that make the original (up to ``trainer.train()``)
PAGES: dict[str, tuple[str, tuple[int, ...]]] = {
    "sft": ("trl/docs/source/sft_trainer.md", (0,)),
    "sft_completions": ("trl/docs/source/sft_trainer.md", (7,)),
    "sft_adapter": ("trl/docs/source/sft_trainer.md", (9,)),
    "dpo": ("trl/docs/source/dpo_trainer.md", (0,)),
    "dpo_adapter": ("trl/docs/source/dpo_trainer.md", (7,)),
    "reward": ("trl/docs/source/reward_trainer.md", (0,)),
    "cpo": ("trl/docs/source/cpo_trainer.md", (0,)),
    "kto": ("trl/docs/source/kto_trainer.md", (0,)),
    "fine_tuning": ("transformers/docs/source/en/training.md", (1, 3, 4, 5)),
    "text_classification": (
        "transformers/docs/source/en/tasks/sequence_classification.md",
        (1, 3, 4, 5, 6, 8, 9, 10, 11, 12),
    ),
}
_BLOCK = re.compile(r"```(?:py|python)\n(.*?)```", re.DOTALL)
_BEGIN, _END = "<!-- library-examples -->", "<!-- /library-examples -->"


def original(name: str, docs: Path) -> str:
    """Return the code of a page's blocks, without prompts and what they print, up to the training."""
    page, blocks = PAGES[name]
    found = _BLOCK.findall((docs / page).read_text(encoding="utf-8"))
    code = "\n".join(_plain(found[at]) for at in blocks)
    return code[: code.index("trainer.train()") + len("trainer.train()")] + "\n"


def _plain(block: str) -> str:
    if ">>>" not in block:
        return block
    kept = [line[4:] for line in block.splitlines() if line.startswith((">>> ", "... "))]
    return "\n".join(kept) + "\n"


def run_theirs(code: str, folder: Path) -> list[float]:
    """Run the original in a process of its own and return its logged losses."""
    (folder / "original.py").write_text(code, encoding="utf-8")
    command = [sys.executable, str(ROOT / "dev" / "research" / "documented_original.py"), str(folder)]
    path = f"{os.environ.get('TRL_SITE', '')}:{ROOT}"
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, cwd=folder)
    if done.returncode:
        raise RuntimeError(done.stderr[-3000:])
    return [float(loss) for loss in json.loads(done.stdout.strip().splitlines()[-1])]


def main() -> None:
    """Compare every example, or those named; all of them write the table."""
    docs, chosen, found = Path(os.environ["DOCS"]), sys.argv[1:] or names(), dict[str, dict[str, Any]]()
    os.environ |= {"OMP_NUM_THREADS": "1", "PACELINE_LEDGER": "off"}
    with tempfile.TemporaryDirectory(prefix="paceline-documented-") as place:
        folder = Path(place)
        os.environ["PACELINE_CACHE"] = str(folder / "cache")
        prepare(folder)
        for name in chosen:
            code = original(name, docs)
            own = (ROOT / "examples" / "library" / f"{name}.py").read_text(encoding="utf-8")
            try:
                theirs, ours = run_theirs(code, folder), run_ours(name, folder)
            except Exception as error:
                print(f"{name}: {type(error).__name__}: {error}", flush=True)
                continue
            gap = max(abs(a - b) for a, b in zip(theirs, ours, strict=True))
            found[name] = {
                "page": PAGES[name][0],
                "their_statements": statements(code),
                "our_statements": statements(own),
                "losses": ours,
                "gap": gap,
            }
            print(f"{name}: {statements(code)} {statements(own)} {theirs} {ours} {gap:.1e}", flush=True)
    if not sys.argv[1:]:
        TABLE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
        for page in ("library.md", "library.zh-CN.md"):
            write_table(ROOT / "docs/reference" / page, found)


def write_table(page: Path, found: dict[str, dict[str, Any]]) -> None:
    """Write the rows between the marks of a page; the head of the table is the page's own."""
    text = page.read_text(encoding="utf-8")
    before, rest = text.split(_BEGIN)
    inside, after = rest.split(_END)
    head = inside.strip().splitlines()[:2]
    page.write_text("".join([before, _BEGIN, "\n", "\n".join([*head, *table(found)]), "\n", _END, after]))


def table(found: dict[str, dict[str, Any]]) -> list[str]:
    """Return a row of Markdown for each example."""
    return [
        f"| [{name}](../../examples/library/{name}.py) | `{one['page']}` | {one['their_statements']} |"
        f" {one['our_statements']} | {one['gap']:.0e} |"
        for name, one in found.items()
    ]


if __name__ == "__main__":
    main()
