"""docs/reference/commands.md is what the parsers say now, of every verb."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from support import load_script

from paceline.cli.main import VERBS

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/reference/commands.md"


def test_the_page_is_what_the_parsers_say() -> None:
    written = load_script("command_page").page()
    assert PAGE.read_text(encoding="utf-8") == written, "python scripts/command_page.py writes it"
    assert all(f"\n## `paceline {verb}`\n" in written for verb in VERBS)
    assert "| `--steps <int range>` | `5`, `x>=1` | Optimizer steps of each run. |" in written
    assert "| `--size str` | `medium` | " in written, "of argparse"
    assert "local-rank" not in written.split("## The programs of the guide")[0], "hidden, as in --help"


def test_it_needs_no_torch() -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'scripts')!r}); import command_page;"
        " command_page.page(); sys.exit('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
