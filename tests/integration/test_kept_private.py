"""A run that meets secrets everywhere: none of them is in its folder or on the console, and nothing that
it leaves is open to others.
"""

from __future__ import annotations

import base64
import json
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support import Run, write_yaml

from paceline.core.errors import ConfigError

pytestmark = [pytest.mark.integration]
CANARIES = {
    "HF_TOKEN": "canary/hf+4k2m9x7q",
    "WANDB_API_KEY": "canarywandb5t8r1w",
    "AWS_SECRET_ACCESS_KEY": "canary+aws/3e6y9u",
    "OPENAI_API_KEY": "canary-openai-2z4c6b",
    "DB_PASSWORD": "canary db 8n0m2l",
    "MY_KEY": "canarymykey7h5g3f",
}
SHAPED = [
    "hf_" + "cAnArY" * 6,
    "sk-proj-canary0123456789abcdefXYZ",
    "ghp_" + "canary" * 6,
    "AKIA" + "CANARY0123456789",
]
PROXY = "http://someone:canaryproxy1@127.0.0.1:9"
REWARD = """
import logging, os, sys, warnings
calls = 0
def leaky(completions, note, **columns):
    global calls
    calls += 1
    said = " | ".join([*(os.environ[name] for name in os.environ["NAMES"].split(",")), os.environ["SHAPED"], "https://bob:canaryurlpw@h/x", note[0]])
    print("printed", said)
    print("printed", said, file=sys.stderr)
    sys.stderr.write("written " + said + chr(10))
    logging.getLogger("mine").error("logged %s", said)
    warnings.warn("warned " + said)
    if calls > 2:
        raise ValueError("boom " + said)
    return [float(len(c)) for c in completions]
"""  # noqa: E501


@pytest.fixture
def leaky(tiny: Callable[..., dict[str, Any]], tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A config in whose data, comments and reward function secrets are, and the environment that has them."""
    (tmp_path / "leaky_rewards.py").write_text(REWARD)
    rows = [
        {
            "question": f"say red {i} {CANARIES['HF_TOKEN']}",
            "answer": "red",
            "note": SHAPED[2],
            "tests": "assert f(1) == 1",
        }
        for i in range(8)
    ]
    (tmp_path / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    rollout: dict[str, Any] = {
        "rewards": ["leaky_rewards:leaky"],
        "num_generations": 2,
        "max_completion_length": 6,
    }
    if isolated():
        rollout |= {"rewards": ["code", *rollout["rewards"]], "allow_code_execution": True}
    config = tiny(
        algorithm="grpo",
        max_steps=6,
        per_device_train_batch_size=4,
        rollout=rollout,
        save_strategy="steps",
        save_steps=1,
        report_to="tensorboard",
    )
    config["data"] |= {"train": str(tmp_path / "prompts.jsonl"), "max_length": 96}
    file = write_yaml(tmp_path / "leaky.yaml", config)
    file.write_text(f"# my token: {SHAPED[0]} and {CANARIES['OPENAI_API_KEY']}\n{file.read_text()}")
    environ = {**CANARIES, "HTTPS_PROXY": PROXY, "NAMES": ",".join(CANARIES), "SHAPED": " ".join(SHAPED)}
    return file, environ


def isolated() -> bool:
    from paceline.algorithms.rewards.code_reward import check_isolation

    try:
        check_isolation()
    except ConfigError:
        return False
    return True


def forms() -> Iterator[bytes]:
    for secret in (*CANARIES.values(), *SHAPED, "canaryproxy1", "canaryurlpw"):
        yield secret.encode()
        yield json.dumps(secret)[1:-1].encode()
        yield base64.b64encode(secret.encode()).rstrip(b"=")


def test_no_secret_gets_out_and_nothing_is_open_to_others(
    leaky: tuple[Path, dict[str, str]], paceline: Callable[..., Run], tmp_path: Path
) -> None:
    file, environ = leaky
    before = os.umask(0o022)
    try:
        done = paceline(
            "train", str(file), env={**environ, "PYTHONPATH": f"{tmp_path}:{Path(__file__).parents[2]}"}
        )
        exported = paceline("export", str(tmp_path / "run"), "--to", str(tmp_path / "model"), env=environ)
    finally:
        os.umask(before)
    assert done.code == 1 and "rewards.failed" in done.err and "boom ***" in done.err, done.err
    assert exported.code == 0, exported.err
    run, model = tmp_path / "run", tmp_path / "model"
    written = {
        path: path.read_bytes() for folder in (run, model) for path in folder.rglob("*") if path.is_file()
    }
    assert {"result.json", "training.log", "config.yaml", "plan.json", "manifest.json"} <= {
        p.name for p in written
    }
    said = {
        "stdout": done.out.encode(),
        "stderr": done.err.encode(),
        "export": (exported.out + exported.err).encode(),
    }
    leaks = [
        (str(place), form) for place, data in (written | said).items() for form in forms() if form in data
    ]
    assert not leaks
    assert "boom ***" in (run / "result.json").read_text() and "printed ***" in done.out
    assert not isolated() or "reward/code 0.0000" in done.out
    private = [
        p for folder in (run, tmp_path / "cache") for p in (folder, *folder.rglob("*")) if mode(p) & 0o077
    ]
    assert not private, f"open to others: {private}"
    assert {mode(path) for path in model.rglob("*")} == {0o644}, "an export is as open as the umask says"


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)
