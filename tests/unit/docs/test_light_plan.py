"""What docs/tutorials/install.md lists for a laptop is all that ``paceline plan`` imports."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
# What the listed packages bring themselves.
BROUGHT = (
    "pydantic_core annotated_doc annotated_types typing_extensions typing_inspection click shellingham"
    " markdown_it mdurl pygments markupsafe"
)
_BLOCKED = """
import importlib.machinery, sys
ALLOWED = set({allowed!r})

class Listed(importlib.machinery.PathFinder):
    # What stands in site-packages is found only where it is listed.

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        found = super().find_spec(name, path, target)
        known = name.partition(".")[0] in ALLOWED
        return found if found is None or known or "site-packages" not in (found.origin or "site-packages") else None

sys.meta_path = [Listed if one is importlib.machinery.PathFinder else one for one in sys.meta_path]
from paceline.cli.main import main
sys.argv = ["paceline", *{arguments!r}]
main()
"""  # noqa: E501


def _listed() -> list[str]:
    found = re.search(
        r"`pip install (pydantic [\w. ]+)`", (ROOT / "docs/tutorials/install.md").read_text(encoding="utf-8")
    )
    assert found
    return found[1].split()


def plan(*arguments: str, without: str = "") -> subprocess.CompletedProcess[str]:
    allowed = {"paceline", *(name.partition(".")[0] for name in _listed()), *BROUGHT.split()} - {without}
    program = _BLOCKED.format(allowed=sorted(allowed), arguments=["plan", *arguments])
    return subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, cwd=ROOT, timeout=120
    )


def test_a_model_by_name_needs_what_is_listed() -> None:
    done = plan("--model", "llama-3-70b", "--hardware", "1024xH100")
    assert done.returncode == 0 and "fsdp" in done.stdout, done.stderr


def test_a_yaml_needs_what_is_listed(tmp_path: Path) -> None:
    (tmp_path / "t.yaml").write_text(
        "model: {config: {model_type: llama, hidden_size: 64, num_hidden_layers: 2, num_attention_heads:"
        f" 4, vocab_size: 768}}, tokenizer: {ROOT}/examples/tokenizer}}\ndata: {{train:"
        f" {ROOT}/examples/data/train.json, max_length: 128}}\ntraining: {{output_dir: {tmp_path}/out}}\n"
    )
    done = plan(str(tmp_path / "t.yaml"))
    assert done.returncode == 0 and "run directory" in done.stdout, done.stdout + done.stderr
    assert plan(str(tmp_path / "t.yaml"), without="filelock").returncode != 0, "what is not listed is missed"
