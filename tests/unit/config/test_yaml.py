"""Bad YAML: each trap has a name and a line."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.config.load import load_config
from paceline.config.yaml_text.read_file import MAX_BYTES
from paceline.config.yaml_text.scalars import resolve_plain
from paceline.config.yaml_text.tree import parse_yaml
from paceline.core.errors import ConfigError, ExitCode

BOMB = "a: &a [1,2,3,4,5,6,7,8,9]\n" + "".join(
    f"{name}: &{name} [{', '.join(f'*{before}' for _ in range(9))}]\n"
    for before, name in zip("abcdef", "bcdefg", strict=True)
)

TRAPS = [
    ("training:\n\tseed: 1\n", "config.yaml_tab", 2),
    ("training:\n  seed: 1\n  seed: 2\n", "config.duplicate_key", 3),
    (BOMB, "config.yaml_bomb", 4),
    ("seed: " + "[" * 40 + "]" * 40, "config.yaml_depth", 1),
    ("seed: " + "[" * 500, "config.yaml_depth", 1),
    ("seed: !!python/object/apply:os.system ['true']\n", "config.yaml_tag", 1),
    ("seed: !include x\n", "config.yaml_tag", 1),
    ("a: &a [*a]\n", "config.yaml_recursion", 1),
    ("\na: *missing\n", "config.yaml_alias", 2),
    ("seed: 1\n---\nseed: 2\n", "config.several_documents", 2),
    ("seed: 1\nx: y: z\n", "config.yaml_syntax", 2),
    ("seed: 'open\n", "config.yaml_syntax", 1),
    ("a: 1\nseed:1\n", "config.yaml_syntax", 2),
    ("lora: {r:8}\n", "config.yaml_syntax", 1),
    ("a: 1\nseed = 1\n", "config.yaml_syntax", 2),
    ("a:\n  seed:1\n  b: 2\n", "config.yaml_syntax", 2),
    ("a: 1\nseed:1\nb: 2\n", "config.yaml_syntax", 2),
    ("? [1]\n: 2\n", "config.yaml_key", 1),
    ("a:\n  <<: 3\n", "config.yaml_merge", 2),
    ("- seed: 1\n", "config.not_a_mapping", 1),
    ("just words\n", "config.not_a_mapping", 1),
    ("seed: 1\nname: \x00\n", "config.yaml_syntax", 2),
]


@pytest.mark.parametrize(("text", "code", "line"), TRAPS, ids=[f"{t[1]}-{i}" for i, t in enumerate(TRAPS)])
def test_a_trap_has_a_name_and_a_line(refuse, text, code, line):
    error = refuse(text)
    assert error.exit_code == ExitCode.CONFIG
    found = error.diagnostics[0]
    assert found.code == code
    assert found.where.endswith(f"config.yaml:{line}")
    assert found.hint


@pytest.mark.parametrize("text", ["", "\n\n", "# only a comment\n", "---\n"])
def test_an_empty_file_is_refused(refuse, text):
    assert [d.code for d in refuse(text).diagnostics] == ["config.empty_file"]


def test_files_that_are_no_config(tmp_path: Path):
    cases = {"config.missing_file": tmp_path / "none.yaml", "config.is_directory": tmp_path}
    (tmp_path / "latin.yaml").write_bytes(b"seed: 1\nrun_name: caf\xe9\n")
    cases["config.not_utf8"] = tmp_path / "latin.yaml"
    (tmp_path / "big.yaml").write_bytes(b"# " + b"x" * MAX_BYTES)
    cases["config.too_large"] = tmp_path / "big.yaml"
    for code, path in cases.items():
        with pytest.raises(ConfigError) as caught:
            load_config(str(path))
        assert [d.code for d in caught.value.diagnostics] == [code]
    assert "latin.yaml:2" in _where(tmp_path / "latin.yaml")
    with pytest.raises(ConfigError, match="latin.yaml"):
        load_config(str(tmp_path / "none.yaml"))


def _where(path: Path) -> str:
    with pytest.raises(ConfigError) as caught:
        load_config(str(path))
    return caught.value.diagnostics[0].where


def test_every_duplicate_is_named_at_once(refuse):
    error = refuse("seed: 1\nseed: 2\nbf16: true\nbf16: true\n")
    assert [d.where.rpartition(":")[2] for d in error.diagnostics] == ["2", "4"]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5e-5", 5e-5),
        ("1e-4", 1e-4),
        ("2E8", 2e8),
        ("1.", 1.0),
        (".5", 0.5),
        ("-3", -3),
        ("1_000", 1000),
        ("0x10", 16),
        ("0o17", 15),
        ("true", True),
        ("False", False),
        ("yes", "yes"),
        ("no", "no"),
        ("null", None),
        ("~", None),
        ("", None),
        ("007", "007"),
        ("1:30", "1:30"),
        ("2024-01-01", "2024-01-01"),
        ("1e", "1e"),
        ("9" * 5000, "9" * 5000),
    ],
)
def test_plain_scalars(text, value):
    found = resolve_plain(text)
    assert found == value
    assert type(found) is type(value)


def test_lines_merges_and_quotes():
    tree = parse_yaml("base: &b {x: 1}\nt:\n  <<: *b\n  y: '5'\n  z:\n  - a\n  - b: 2\n", "f")
    assert tree is not None
    assert tree.data() == {"base": {"x": 1}, "t": {"y": "5", "z": ["a", {"b": 2}], "x": 1}}
    lines = tree.lines()
    assert (lines["t.y"], lines["t.z"], lines["t.z.1.b"]) == (4, 5, 7)


def test_a_byte_order_mark_is_no_trouble(tmp_path: Path):
    path = tmp_path / "c.yaml"
    path.write_bytes(b"\xef\xbb\xbfseed: 7\n")
    assert load_config(str(path)).config.training.seed == 7
