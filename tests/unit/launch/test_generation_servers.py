"""Generation servers that a run starts: commands by card, what keeps them from starting, and their end."""

from __future__ import annotations

import os
import sys
import textwrap
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from machines import GIB, H100, LLAMA

from paceline.config.schema import Config
from paceline.config.sections.model import ModelSection
from paceline.config.sections.rollout import StartOptions
from paceline.core.errors import ConfigError, PacelineError
from paceline.core.rundir import RunDir
from paceline.launch import processes
from paceline.launch.network import free_port
from paceline.launch.process_spec import LaunchSpec
from paceline.launch.supervision.generation_servers import check_start, server_specs, serving, start_of
from paceline.plan.plan import Plan
from paceline.plan.strategies.spec import Job
from paceline.rules.planning import make_plan

#: vLLM's module: a server with an engine in a process of its own, as vLLM has one.
VLLM = """
    import http.server, subprocess, sys

    class Handler(http.server.BaseHTTPRequestHandler):
        def answer(self):
            print(self.command, self.path, flush=True)
            self.send_response(200)
            self.end_headers()
        do_GET = do_POST = answer

    options = dict(zip(sys.argv[1::2], sys.argv[2::2]))
    if options["--model"] == "broken":
        raise SystemExit("ValueError: no such model")
    engine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    print("engine", engine.pid, flush=True)
    if options["--model"] != "silent":
        http.server.HTTPServer(("127.0.0.1", int(options["--port"])), Handler).serve_forever()
    engine.wait()
"""


def config(model: str = "folder", **start: Any) -> Config:
    rollout = {"rewards": "length", "max_completion_length": 64, "start": start}
    return Config.model_validate(
        {
            "model": {"name_or_path": model, "tokenizer": "none"},
            "data": {"train": "none.jsonl", "max_length": 512},
            "training": {
                "algorithm": "grpo",
                "mixed_precision": "bf16",
                "per_device_train_batch_size": 8,
                "rollout": rollout,
            },
        }
    )


def scratch(**start: Any) -> Config:
    """The same for a model whose files are not asked for."""
    model = ModelSection.model_validate({"config": LLAMA, "tokenizer": "none"})
    return config(**start).model_copy(update={"model": model})


def planned(ranks: int, **start: Any) -> Plan:
    return make_plan(Job(scratch(**start), H100, ranks, 1, "spawn", "out", needs_room=True))


def test_servers_take_the_cards_after_those_of_training() -> None:
    asked = {"count": 2, "tensor_parallel_size": 2, "port": 9000, "arguments": ["--seed", "1"]}
    plan = planned(4, **asked, gpu_memory_utilization=0.5, interpreter="/v/python")
    specs = server_specs(config(**asked, gpu_memory_utilization=0.5, interpreter="/v/python"), plan, {})
    assert [spec.env_additions["CUDA_VISIBLE_DEVICES"] for spec in specs] == ["4,5", "6,7"]
    assert all(spec.env_additions["VLLM_SERVER_DEV_MODE"] == "1" for spec in specs)
    for place, spec in enumerate(specs):
        assert spec.argv[:3] == ("/v/python", "-m", "vllm.entrypoints.openai.api_server")
        line = spec.shell_line()
        for part in (
            *("--model folder", "--host 127.0.0.1", "--dtype bfloat16", "--max-model-len 512", "--seed 1"),
            *("--tensor-parallel-size 2", "--gpu-memory-utilization 0.5", f"--port {9000 + place}"),
        ):
            assert part in line
        assert "sleep" not in line
    visible = server_specs(config(**asked), plan, {"CUDA_VISIBLE_DEVICES": "8,9,10,11,12,13,14,15"})
    assert visible[1].env_additions["CUDA_VISIBLE_DEVICES"] == "14,15"
    assert any("cards 4, 5 | 6, 7" in decision.choice for decision in plan.decisions)
    rollout = config(**asked).training.rollout
    assert rollout and [s.url for s in rollout.all_servers] == [
        "http://127.0.0.1:9000",
        "http://127.0.0.1:9001",
    ]


def test_sleeping_servers_share_the_cards_of_training() -> None:
    plan = planned(8, count=4, tensor_parallel_size=2, sleep=True)
    specs = server_specs(config(count=4, tensor_parallel_size=2, sleep=True), plan, {})
    assert [spec.env_additions["CUDA_VISIBLE_DEVICES"] for spec in specs] == ["0,1", "2,3", "4,5", "6,7"]
    assert all("--enable-sleep-mode" in spec.argv for spec in specs)


@pytest.mark.parametrize(
    ("ranks", "start", "code", "said"),
    [
        (8, {"count": 2}, "rollout.start_cards", "launch.nproc: 6"),
        (4, {"count": 3, "tensor_parallel_size": 4}, "rollout.start_cards", "lower count"),
        (8, {"sleep": True, "tensor_parallel_size": 16}, "rollout.start_cards", "lower count"),
        (8, {"sleep": True, "gpu_memory_utilization": 1.0}, "rollout.start_room", "gpu_memory_utilization"),
    ],
)
def test_cards_and_memory_are_counted(ranks: int, start: dict[str, Any], code: str, said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(ranks, **start)
    (finding,) = [d for d in caught.value.diagnostics if d.code == code]
    assert said in finding.hint


def test_what_keeps_servers_from_starting_is_found_together(tmp_path: Path) -> None:
    port = free_port()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("paceline.launch.supervision.generation_servers.port_is_free", lambda p: p != port)
        unnamed = scratch(port=port, interpreter=sys.executable)
        found = [d.code for d in check_start(unnamed, met=False)]
        assert found == ["rollout.start_model", "rollout.start_port", "rollout.start_python"]
        launched = [d.code for d in check_start(config(interpreter=str(tmp_path / "none")), met=True)]
        assert launched == ["rollout.start_launcher", "rollout.start_python"]
        (tmp_path / "vllm").mkdir()
        (tmp_path / "vllm" / "__init__.py").touch()
        patched.setenv("PYTHONPATH", str(tmp_path))
        assert not list(check_start(config(interpreter=sys.executable), met=False))


def fake(
    folder: Path, model: str, **start: Any
) -> tuple[tuple[LaunchSpec, ...], StartOptions, dict[str, str]]:
    module = folder / "vllm" / "entrypoints" / "openai"
    module.mkdir(parents=True)
    (module / "api_server.py").write_text(textwrap.dedent(VLLM))
    start |= {"port": free_port(), "interpreter": sys.executable}
    settings = config(model, **start)
    cpu = replace(H100, device="cpu", num_devices=1, memory_bytes=64 * GIB)
    plan = make_plan(Job(scratch(**start), cpu, 1, 1, "single", "out", needs_room=False))
    options = start_of(settings)
    assert options is not None
    environ = {**os.environ, "PYTHONPATH": str(folder)}
    return server_specs(settings, plan, environ), options, environ


def alive(pid: int) -> bool:
    return processes.state_of(pid) not in ("", "Z", "X")


def test_servers_answer_before_the_ranks_start_and_end_with_them(tmp_path: Path) -> None:
    specs, start, environ = fake(tmp_path, "folder", count=2, sleep=True)
    assert specs[0].env_additions["VLLM_CPU_OMP_THREADS_BIND"] == "nobind" and len(specs) == 2
    run, said = RunDir.at(tmp_path / "run"), list[str]()
    with (
        pytest.raises(RuntimeError, match="the ranks fail"),
        serving(specs, start, run, environ, said.append),
    ):
        logs = [run.server_log(place).read_text() for place in range(2)]
        engines = [int(log.split()[1]) for log in logs]
        assert all("GET /health" in log and "POST /sleep?level=1" in log for log in logs)
        assert all(map(alive, engines)) and str(run.server_log(0)) in said[0]
        raise RuntimeError("the ranks fail")
    assert not any(map(alive, engines))


@pytest.mark.parametrize(
    ("model", "why", "found"),
    [
        ("broken", "exit code 1", "ValueError: no such model"),
        ("silent", "did not answer in time", "server-0.log"),
    ],
)
def test_a_server_that_does_not_start_is_named(tmp_path: Path, model: str, why: str, found: str) -> None:
    specs, start, environ = fake(tmp_path, model, timeout=20.0 if model == "broken" else 0.5)
    run, begun = RunDir.at(tmp_path / "run"), time.monotonic()
    with (
        pytest.raises(PacelineError, match=r"rollout\.start_failed") as caught,
        serving(specs, start, run, environ, lambda _: None),
    ):
        raise AssertionError("it does not answer")
    (finding,) = caught.value.diagnostics
    assert why in finding.what and found in finding.found, (finding, time.monotonic() - begun)
