"""Types of the codes for mypy and editors: ``python scripts/code_stubs.py`` writes ``codes.pyi`` next to each
``codes.toml``; ``tests/architecture/test_codes.py`` compares them.
"""

from __future__ import annotations

from pathlib import Path

from paceline.core.diagnostics import read_codes
from paceline.core.package import PACKAGE

HEAD = """# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.
from paceline.core.diagnostics import Code

"""


def stubs() -> dict[Path, str]:
    """Return the text of each stub."""
    return {file.with_suffix(".pyi"): stub(file) for file in sorted(PACKAGE.rglob("codes.toml"))}


def stub(file: Path) -> str:
    """Return the stub of one ``codes.toml``."""
    return HEAD + "".join(f"{constant}: Code\n" for constant in read_codes(file))


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")
