"""The assertions of all test files, rewritten once before the workers of xdist collect them.

Each worker imports every test file. In a fresh clone each would rewrite all of them, 12 CPU seconds, at the
same time as the others do; what is in pytest's cache is only read.
"""

from __future__ import annotations

import ast
import marshal
import os
from collections.abc import Iterable
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path

import pytest
from _pytest.assertion import rewrite

HASHED = b"\x03\x00\x00\x00"  # PEP 552: valid while the source's hash is this


def write_ahead(config: pytest.Config, files: Iterable[Path]) -> None:
    """Write what pytest's cache does not hold of these files, as pytest itself does."""
    for file in files:
        source = file.read_bytes()
        head = MAGIC_NUMBER + HASHED + source_hash(source)
        cached = rewrite.get_cache_dir(file) / f"{file.stem}{rewrite.PYC_TAIL}"
        if (cached.is_file() and cached.read_bytes().startswith(head)) or not rewrite.try_makedirs(
            cached.parent
        ):
            continue
        tree = ast.parse(source, filename=str(file))
        rewrite.rewrite_asserts(tree, source, str(file), config)
        code = compile(tree, str(file), "exec", dont_inherit=True)
        new = cached.with_name(f"{cached.name}.{os.getpid()}")
        new.write_bytes(head + marshal.dumps(code))
        new.replace(cached)


def collected_files(config: pytest.Config) -> set[Path]:
    """Return the files of tests and fixtures that the command line names."""
    asked = [Path(argument.partition("::")[0]).resolve() for argument in config.args]
    names = ("test_*.py", "conftest.py")
    return {path for path in asked if path.is_file()} | {
        file for path in asked for name in names for file in path.rglob(name)
    }
