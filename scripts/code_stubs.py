"""Types of the codes for mypy and editors: ``python scripts/code_stubs.py`` writes ``codes.pyi`` next to each
``codes.toml``; ``tests/architecture/test_codes.py`` compares them.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from string import Formatter

from paceline.core.diagnostics import TemplateCode, read_codes
from paceline.core.package import PACKAGE

HEAD = "# Made from codes.toml by `python scripts/code_stubs.py`. Do not edit.\n"


def stubs() -> dict[Path, str]:
    """Return the text of each stub."""
    return {file.with_suffix(".pyi"): stub(file) for file in sorted(PACKAGE.rglob("codes.toml"))}


def stub(file: Path) -> str:
    """Return the stub of one ``codes.toml``: a class for each code that has sentences, with their values."""
    codes = read_codes(file)
    templates = {constant: code for constant, code in codes.items() if isinstance(code, TemplateCode)}
    classes = "".join(_class(constant, code) for constant, code in templates.items())
    constants = "".join(f"{c}: {f'_{c}' if c in templates else 'Code'}\n" for c in codes)
    return HEAD + _imports(codes.keys() != templates.keys(), bool(templates)) + f"\n{classes}{constants}"


def _imports(free: bool, templates: bool) -> str:
    names = [*(["Code"] if free else []), *(["CodeName", "Diagnostic", "Severity"] if templates else [])]
    mapping = "from collections.abc import Mapping\n\n" if templates else ""
    return f"{mapping}from paceline.core.diagnostics import {', '.join(names)}\n"


def _class(constant: str, code: TemplateCode) -> str:
    parameters = [
        "self",
        'where: str = ""',
        'found: str = ""',
        "*",
        *(f"{name}: object" for name in dict.fromkeys(_values(code.what + (code.hint or "")))),
        *(['hint: str = ""'] if code.hint is None else []),
        "severity: Severity = ...",
        "evidence: Mapping[str, object] | None = None",
    ]
    lines = "".join(f"        {parameter},\n" for parameter in parameters)
    return f"class _{constant}(CodeName):\n    def __call__(\n{lines}    ) -> Diagnostic: ...\n\n"


def _values(template: str) -> Iterator[str]:
    return (name for _, name, _, _ in Formatter().parse(template) if name is not None)


if __name__ == "__main__":
    for path, text in stubs().items():
        path.write_text(text, encoding="utf-8")
