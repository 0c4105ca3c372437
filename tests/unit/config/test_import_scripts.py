"""A script's command means what bash makes of it: the program gets the same arguments."""

from __future__ import annotations

import random
import subprocess
from pathlib import Path

import pytest

from paceline.config.exchange.command_line import read_command
from paceline.core.errors import ConfigError

STUB = '#!/bin/sh\nfor a in "$@"; do printf "%s\\0" "$a"; done >> "$ARGUMENTS"\n'
VALUES = [
    "1",
    "1e-4",
    "'two words'",
    '"a $SIZE b"',
    "${SIZE}",
    "$SIZE",
    "a\\ b",
    "'#no'",
    "x#y",
    '"# kept"',
    "''",
    "'$SIZE'",
    '"it\'s"',
    "a'b'c",
    "alpaca#500",
    "$(echo 5)",
    "x;y",
    "'[1, 2]'",
]
ENDS = ["", "", "  # a comment", " > log.txt", " 2>&1 | tee log", " && echo done", " &"]
BETWEEN = [" \\\n", " \\\n    ", " ", "  \\\n", ' \\\n"" \\\n']
BREAKS = [" \\\n# --lr 5 \\\n", " \\\n  #--x \\\n ", " \\\n\n"]


def script(draw: random.Random, broken: bool) -> str:
    flags = [
        f"--{name} {draw.choice(VALUES)}" if draw.random() < 0.8 else f"--{name}"
        for name in draw.sample(["learning_rate", "max_length", "output_dir", "seed", "model", "dataset"], 5)
    ]
    text = "swift sft " + flags[0]
    at = draw.randrange(1, len(flags)) if broken else 0
    for number, flag in enumerate(flags[1:], 1):
        text += draw.choice(BREAKS if number == at else BETWEEN[:4]) + flag
    before = draw.choice(["", "# --seed 3 \\\n", "set -e\n\n", "export OTHER='a\nb'\n"])
    text = draw.choice(["", "", "", "cd . && ", "true; "]) + text + draw.choice(["", "", " $MORE"])
    return f"#!/bin/bash\nSIZE=13B\nMORE='--lora_rank 4 --lora_alpha 8'\n{before}{text}{draw.choice(ENDS)}\n"


@pytest.mark.parametrize("seed", range(60))
def test_a_script_gives_the_program_what_bash_gives_it(seed: int, tmp_path: Path) -> None:
    draw = random.Random(seed)
    (tmp_path / "bin").mkdir()
    stub = tmp_path / "bin" / "swift"
    stub.write_text(STUB)
    stub.chmod(0o755)
    file, arguments = tmp_path / "run.sh", tmp_path / "arguments"
    file.write_text(script(draw, broken=seed % 3 == 0))
    environ = {"PATH": f"{stub.parent}:/usr/bin:/bin", "ARGUMENTS": str(arguments)}
    subprocess.run(["bash", str(file)], cwd=tmp_path, env=environ, capture_output=True, timeout=30)
    for _ in range(100):  # "&" leaves it behind
        if arguments.is_file() and arguments.read_bytes().endswith(b"\0"):
            break
    got = arguments.read_text().split("\0")[:-1]
    expected = read_command(["swift", *got])
    try:
        found = read_command([str(file)])
    except ConfigError as error:
        broken = seed % 3 == 0 and "never gets them" in str(error)
        assert broken or ("another command" in str(error) and "$(" in file.read_text()), file.read_text()
        return
    assert seed % 3 or len(got) < 11, file.read_text()
    assert found.data == expected.data, file.read_text()
