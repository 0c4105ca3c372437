"""Other systems' files cut off at every byte, with every kind of value at every key: named with file and
line, never a crash.
"""

from __future__ import annotations

import copy
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from paceline.config.backend_files.json_text import Places, parse_json
from paceline.config.load import load_config
from paceline.core.errors import ConfigError

DEEPSPEED = """{
  // a comment, as Hjson has them
  "train_micro_batch_size_per_gpu": "auto", "gradient_clipping": 1.0,
  "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 3e-5, "betas": [0.9, 0.95]}},
  "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 10}},
  "zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "reduce_bucket_size": 5e8}
}
"""
ACCELERATE = """compute_environment: LOCAL_MACHINE
distributed_type: FSDP
mixed_precision: bf16
fsdp_config:
  fsdp_sharding_strategy: FULL_SHARD
  fsdp_transformer_layer_cls_to_wrap: "A,B"
num_processes: 4
"""
FSDP = (
    '{"fsdp_version": 2, "min_num_params": 100, "backward_prefetch": "backward_pre", "cpu_offload": false}\n'
)
FILES = {
    "deepspeed": ("f.json", DEEPSPEED),
    "accelerate_config": ("f.yaml", ACCELERATE),
    "fsdp_config": ("f.json", FSDP),
}
WRONG = (
    None,
    True,
    0,
    -1,
    1.5,
    10**400,
    "",
    "auto",
    "x",
    "\x00",
    [],
    [1, "a"],
    {},
    {"enabled": "auto"},
    {"a": [[]]},
)

Attempt = Callable[[str, bytes], str]


@pytest.fixture
def attempt(tmp_path: Path) -> Attempt:
    """Reads a file of other systems; each finding about it must name its line. Returns the codes."""

    def run(key: str, content: bytes, name: str | None = None) -> str:
        file = tmp_path / (name or FILES[key][0])
        file.write_bytes(content)
        try:
            load_config(None, flags={f"training.{key}": str(file)})
        except ConfigError as exc:
            for finding in exc.diagnostics:
                place = finding.where.split(" and ")[0]
                assert not place.startswith(str(file)) or place.rpartition(":")[2].isdigit(), finding.render()
            return ", ".join(finding.code for finding in exc.diagnostics)
        return ""

    return run


@pytest.mark.parametrize("key", FILES)
@pytest.mark.parametrize("end", [b"", b"\n"])
def test_cut_off_at_every_byte(attempt: Attempt, key: str, end: bytes) -> None:
    text = FILES[key][1].encode()
    found = {attempt(key, text[:cut] + end) for cut in range(len(text))}
    assert "" in found and found & {"config.json_syntax", "config.yaml_syntax"}


def paths_of(data: Any, before: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    if isinstance(data, dict):
        for key, value in data.items():
            yield (*before, key)
            yield from paths_of(value, (*before, key))


def with_value(data: Any, path: tuple[str, ...], value: Any) -> Any:
    changed = copy.deepcopy(data)
    inner = changed
    for part in path[:-1]:
        inner = inner[part]
    inner[path[-1]] = value
    return changed


@pytest.mark.parametrize("key", FILES)
def test_every_kind_of_value_at_every_key(attempt: Attempt, key: str) -> None:
    from paceline.config.yaml_text.tree import parse_yaml

    name, text = FILES[key]
    tree = parse_yaml(text, name) if name.endswith("yaml") else None
    data = tree.data() if tree else parse_json(text, name, "file", lenient=True)[0]
    refused = 0
    for path in paths_of(data):
        for value in WRONG:
            written = json.dumps(with_value(data, path, value), indent=1).encode()
            refused += bool(attempt(key, written, "f.json"))
    assert refused > 20


HOSTILE: dict[str, tuple[bytes, str]] = {
    "byte order mark": (b'\xef\xbb\xbf{"gradient_clipping": 1}', ""),
    "CRLF": (DEEPSPEED.replace("\n", "\r\n").encode(), ""),
    "CR alone": (b'{"gradient_clipping": 1,\r"gradient_clipping": 2}', "config.duplicate_key"),
    "UTF-16": ('{"gradient_clipping": 1}'.encode("utf-16"), "config.not_utf8"),
    "zero byte": (b'{"gradient_clipping": 1\x00}', "config.json_syntax"),
    "NaN": (b'{\n"gradient_clipping": NaN}', "config.json_syntax"),
    "-Infinity": (b'{"bf16": {},\n"gradient_clipping": -Infinity}', "config.json_syntax"),
    "1e999": (b'{"gradient_clipping": 1e999}', "config.json_syntax"),
    "5,000 digits": (b'{"gradient_clipping": ' + b"1" * 5000 + b"}", "config.json_syntax"),
    "lists 5,000 deep": (b'{"optimizer": ' + b"[" * 5000 + b"]" * 5000 + b"}", "config.yaml_depth"),
    "mappings 100 deep": (b'{"optimizer": ' * 100 + b"1" + b"}" * 100, "config.yaml_depth"),
    "only a newline": (b"\n", "config.json_syntax"),
    "a list": (b"[1, 2]\n", "config.not_a_mapping"),
    "a duplicate in a block": (b'{"bf16": {"enabled": true,\n"enabled": false}}', "config.duplicate_key"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_json(attempt: Attempt, name: str) -> None:
    content, code = HOSTILE[name]
    assert attempt("deepspeed", content) == code


def test_the_line_of_the_finding_is_the_line_of_the_slip(tmp_path: Path) -> None:
    places = {
        '{\n "train_batch_size": 8,\n': 2,
        '{"a": 1,\n\n\n"b": NaN}': 4,
        '{"b": {"c": 1},\n"a": {"c": 1,\n"c": 2}}': 3,
        '{"a": "NaN",\n"b": NaN}': 2,
    }
    for text, line in places.items():
        with pytest.raises(ConfigError) as caught:
            parse_json(text, "f.json", "file", lenient=True)
        assert caught.value.diagnostics[0].where == f"f.json:{line}"


def test_places_of_any_json_are_those_of_its_values() -> None:
    """Random documents, one token a line: the line of a path is the line where its key or item stands."""
    rng = random.Random(5)

    def document(depth: int) -> Any:
        kind = rng.randrange(3 if depth else 1)
        if kind == 0:
            return rng.choice([1, -2.5e-3, 'a\n"b:{,\\', True, None, ""])
        if kind == 1:
            return [document(depth - 1) for _ in range(rng.randrange(4))]
        return {f"k{index}": document(depth - 1) for index in range(rng.randrange(4))}

    for _ in range(200):
        data = {"top": document(4), "end": 1}
        text = json.dumps(data, indent=1)
        lines = text.split("\n")
        found = Places(text)
        assert not found.duplicates and not found.deep
        for path, line in found.lines.items():
            last = path.rpartition(".")[2]
            assert last.isdigit() or f'"{last}"' in lines[line - 1], (path, line)
        assert found.lines["end"] == len(lines) - 1
