"""Every fact that a rule may ask for is filled by the product from the real machine, folder or job, and
asked for by a rule.
"""

from __future__ import annotations

import ast
import json
import re
import resource
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from paceline import rules
from paceline.config.schema import Config
from paceline.launch.preflight import facts as facts_module
from paceline.launch.preflight.facts import facts, infiniband, memlock_unlimited
from paceline.launch.preflight.load_config import load
from paceline.launch.preflight.plan_job import OF_THIS_MACHINE, planned
from paceline.launch.process_spec import Cluster
from paceline.plan.hardware.probe import Hardware
from paceline.plan.model.read_config import pretrained_dtype, shape_of
from paceline.rules.planning import facts_of
from paceline.rules.rule import Facts

ROOT = Path(facts_module.__file__).parents[2]
RULES = Path(rules.__file__).parent
NAMES = {f.name for f in fields(Facts)}
GIB = 1 << 30
GPU = Hardware(
    "cuda", "NVIDIA A100", 2, 80 * GIB, 512 * GIB, 2, True, True, 64, None, ("nccl", "gloo"), capability=8.0
)
SHAPE = {
    "model_type": "llama",
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 320,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def given_in(path: Path) -> set[str]:
    """The facts that the calls in a file give a value: keywords of ``Facts(…)`` and ``replace(known, …)``
    that are not None.
    """
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("Facts", "replace"):
            found |= {
                k.arg or ""
                for k in node.keywords
                if not (isinstance(k.value, ast.Constant) and k.value.value is None)
            }
    return found


def test_every_fact_is_filled_by_the_product() -> None:
    files = ("launch/preflight/facts.py", "launch/preflight/plan_job.py", "rules/planning.py")
    assert {
        p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*.py") if re.search(r"\bFacts\(", p.read_text())
    } <= {
        *files,
        "rules/__init__.py",
    }
    assert NAMES - set().union(*(given_in(ROOT / file) for file in files)) == set(), "nobody fills these"


def test_every_fact_is_asked_for_by_a_rule() -> None:
    asked = {
        node.attr
        for path in RULES.glob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute)
    }
    assert NAMES - asked == set(), "no rule reads these"


def model_folder(folder: Path, **more: Any) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**SHAPE, **more}))
    return folder


def test_on_a_machine_that_has_it_all_no_fact_is_unknown(tmp_path: Path) -> None:
    config = Config.from_json(
        {"model": {"name_or_path": str(model_folder(tmp_path / "m", dtype="bfloat16"))}}
    )
    environ = {"NCCL_SOCKET_IFNAME": "eth0", "SLURM_NTASKS_PER_NODE": "4", "SLURM_JOB_ID": "1"}
    shape = shape_of(config.model, environ)
    known = facts(GPU, Cluster(2, 2), "torchrun", shape, environ, config)
    in_plan = facts_of(GPU, world_size=4, num_nodes=2, launcher="torchrun", shape=shape)
    filled = {
        name for name in NAMES if getattr(known, name) is not None or getattr(in_plan, name) is not None
    }
    # launch.before.planned asks the kernel for it, where a reward runs code
    asked_elsewhere = {"code_sandbox"}
    assert NAMES - filled == asked_elsewhere | {
        "config_fields",
        "config_words",
    }, "which a shape in the YAML fills"
    fresh = Config.from_json({"model": {"config": SHAPE}})
    known = facts(GPU, Cluster(2, 2), "torchrun", shape, environ, fresh)
    assert "hidden_size" in (known.config_fields or ()) and "rope_theta" in (known.config_words or ())


@pytest.mark.parametrize(
    ("config", "found"),
    [
        ({"dtype": "bfloat16"}, "bfloat16"),
        ({"torch_dtype": "float16"}, "float16"),
        ({}, None),
        ({"dtype": None, "text_config": {"dtype": "torch.bfloat16"}}, "bfloat16"),
    ],
)
def test_the_dtype_of_the_weights_is_read_from_their_config(
    tmp_path: Path, config: dict[str, Any], found: str | None
) -> None:
    model = Config.from_json({"model": {"name_or_path": str(model_folder(tmp_path / "m", **config))}}).model
    assert pretrained_dtype(model, {}) == found
    assert (
        pretrained_dtype(Config.from_json({"model": {"config": {**SHAPE, "dtype": "bfloat16"}}}).model, {})
        is None
    )
    assert pretrained_dtype(Config.from_json({"model": {"name_or_path": "org/not-here"}}).model, {}) is None


def test_a_bf16_model_under_fp16_is_warned_about_before_the_start(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "a"}\n')
    yaml = tmp_path / "c.yaml"
    for dtype, precision, warned in (
        ("bfloat16", "fp16", True),
        ("bfloat16", "no", False),
        ("float32", "fp16", False),
    ):
        folder = model_folder(tmp_path / dtype, dtype=dtype)
        header = json.dumps({"w": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
        (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
        (folder / "tokenizer.json").write_text("{}")
        yaml.write_text(
            f"model: {{name_or_path: {folder}}}\ndata: {{train: {rows}, max_length: 32}}\n"
            f"training: {{mixed_precision: '{precision}', use_cpu: true, output_dir: {tmp_path / 'run'}}}\n"
        )
        _, warnings = planned(load(yaml, [], {}))
        assert ("prec.bf16_pretrained_fp16" in {d.code for d in warnings}) is warned


def test_infiniband_and_locked_memory_are_those_of_this_node(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not infiniband({}, tmp_path)
    (tmp_path / "sys/class/infiniband/mlx5_0").mkdir(parents=True)
    assert infiniband({}, tmp_path) and not infiniband({"NCCL_IB_DISABLE": "1"}, tmp_path)
    (tmp_path / "proc/self").mkdir(parents=True)
    for capabilities, limit, unlimited in (
        ("0000000000000000", 65536, False),
        ("0000000000004000", 65536, True),
        ("0000000000000000", resource.RLIM_INFINITY, True),
    ):
        (tmp_path / "proc/self/status").write_text(f"Name:\tx\nCapEff:\t{capabilities}\n")
        monkeypatch.setattr(resource, "getrlimit", lambda which, limit=limit: (limit, limit))
        assert memlock_unlimited(tmp_path) is unlimited


def test_hardware_that_is_named_is_not_this_machine(tmp_path: Path) -> None:
    """Limits, network and disk of the machine that plans say nothing about the one that will train."""
    own = {
        "disk_free_bytes",
        "interfaces",
        "max_open_files",
        "nccl_socket_ifname",
        "infiniband",
        "memlock_unlimited",
    }
    assert own <= set(OF_THIS_MACHINE) and not any(OF_THIS_MACHINE.values())
    assert replace(Facts(), **dict.fromkeys(own)) == Facts()
