"""Generation servers that a run starts on its machine: what is started, and that it ends with the run."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from paceline.config.schema import Config
from paceline.config.sections.rollout import SERVED, StartOptions
from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.core.rundir import RunDir
from paceline.launch import codes, processes
from paceline.launch.network import port_is_free
from paceline.launch.process_spec import LaunchSpec
from paceline.plan.algorithms.rollout import server_cards
from paceline.plan.hardware.device_kinds import is_accelerator, kind_of
from paceline.plan.plan import Plan

MODULE = "vllm.entrypoints.openai.api_server"
_KEY = "training.rollout.start"
_POLL_SECONDS = 0.5
_REPLY_SECONDS = 60.0  # for an interpreter that looks for vLLM, and for a server's reply
#: On CPUs vLLM's wheel does not always know its device, and binds every server to the first core.
_ON_CPU = {
    "VLLM_TARGET_DEVICE": "cpu",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "OMP_NUM_THREADS": "1",
}


def start_of(config: Config) -> StartOptions | None:
    """Return what is to be started, if anything is."""
    rollout = config.training.rollout
    return None if rollout is None else rollout.start


def server_specs(config: Config, plan: Plan, environ: Mapping[str, str]) -> tuple[LaunchSpec, ...]:
    """Return the servers' commands. A variable of ``environ`` takes the place of ours."""
    start = start_of(config)
    if start is None:
        return ()
    model = config.model
    argv = [start.interpreter or sys.executable, "-m", MODULE, "--model", str(model.name_or_path)]
    argv += ["--served-model-name", SERVED, "--host", "127.0.0.1", "--dtype", plan.precision.compute]
    # ``processed``: log-probabilities after temperature, top-k and top-p, by which the answers were drawn.
    argv += ["--max-model-len", str(config.data.max_length), "--logprobs-mode", "processed_logprobs"]
    argv += ["--tensor-parallel-size", str(start.tensor_parallel_size)]
    argv += ["--tokenizer", model.tokenizer] if model.tokenizer else []
    argv += ["--revision", model.revision] if model.revision else []
    argv += ["--trust-remote-code"] if model.trust_remote_code else []
    accelerated = is_accelerator(plan.device)
    if accelerated:
        argv += ["--gpu-memory-utilization", f"{start.gpu_memory_utilization:g}"]
        argv += ["--enable-sleep-mode"] if start.sleep else []
    ours = {"VLLM_SERVER_DEV_MODE": "1", "VLLM_NO_USAGE_STATS": "1", **({} if accelerated else _ON_CPU)}
    # A variable that the user has set wins.
    ours = {name: value for name, value in ours.items() if name not in environ}
    visible = next(iter(kind_of(plan.device).visible), "") if accelerated else ""
    shown = [card.strip() for card in environ.get(visible, "").split(",") if card.strip()]
    specs = []
    for place, cards in enumerate(server_cards(plan)):
        # Positions among the visible cards, not numbers of the machine's.
        own = {visible: ",".join(shown[card] if shown else str(card) for card in cards)} if cards else {}
        command = (*argv, "--port", str(start.port + place), *start.arguments)
        specs.append(LaunchSpec(command, {**ours, **own}, rank=None))
    return tuple(specs)


def check_start(config: Config, *, met: bool) -> Iterator[Diagnostic]:
    """Yield what keeps this machine from starting the servers. ``met``: the ranks are another launcher's."""
    start = start_of(config)
    if start is None:
        return
    if met:
        yield codes.ROLLOUT_START_LAUNCHER(_KEY)
    if config.model.config is not None or not config.model.name_or_path:
        yield codes.ROLLOUT_START_MODEL(_KEY, "model.config")
    taken = [p for p in range(start.port, start.port + start.count) if not met and not port_is_free(p)]
    if taken:
        yield codes.ROLLOUT_START_PORT(f"{_KEY}.port", ", ".join(map(str, taken)))
    python = start.interpreter or sys.executable
    program = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    try:
        has = subprocess.run(
            [python, "-c", program], capture_output=True, timeout=_REPLY_SECONDS, check=False
        )
        reason = "" if has.returncode == 0 else "it has no vllm"
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = f"{type(error).__name__}: {error}"
    if reason:
        yield codes.ROLLOUT_START_PYTHON(f"{_KEY}.interpreter", f"{python}: {reason}"[:300])


@contextmanager
def serving(
    specs: Sequence[LaunchSpec],
    start: StartOptions | None,
    run: RunDir,
    environ: Mapping[str, str],
    report: Callable[[str], None],
) -> Iterator[None]:
    """Inside, the servers run and answer; whatever the end, they end with the block.

    Raises PacelineError ``rollout.start_failed``.
    """
    if start is None:
        yield
        return
    # By this variable in their environment the servers' own children are found at the end.
    mark = secrets.token_hex(16)
    started: list[subprocess.Popen[bytes]] = []
    try:
        for place, spec in enumerate(specs):
            started.append(_started(spec, run.server_log(place), {**environ, processes.MARK: mark}))
        report(f"waiting for generation servers ({len(specs)}); the first one writes {run.server_log(0)}")
        deadline = time.monotonic() + start.timeout
        for place, server in enumerate(started):
            _await(server, start.port + place, run.server_log(place), deadline)
            if start.sleep:
                _post(start.port + place, "/sleep?level=1")
        yield
    finally:
        # By the mark, too: a server's own workers may have left its process group.
        processes.end_all([server.pid for server in started if server.poll() is None], mark)
        for server in started:
            server.wait()


def _started(spec: LaunchSpec, log: Path, environ: Mapping[str, str]) -> subprocess.Popen[bytes]:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output:
        try:
            return subprocess.Popen(
                spec.argv,
                env={**environ, **spec.env_additions},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                preexec_fn=processes.die_with_parent(),  # noqa: PLW1509 - one prctl call
            )
        except OSError as error:
            raise _failed(f"{spec.argv[0]}: {error.strerror}", log) from error


def _await(server: subprocess.Popen[bytes], port: int, log: Path, deadline: float) -> None:
    """Wait until a server answers."""
    while not _post(port, "/health", "GET"):
        if server.poll() is not None:
            raise _failed(f"it ended with exit code {server.returncode}", log)
        if time.monotonic() > deadline:
            raise _failed("it did not answer in time", log)
        time.sleep(_POLL_SECONDS)


def _post(port: int, path: str, method: str = "POST") -> bool:
    """Return whether a server answers 200."""
    import httpx

    try:
        # Without the environment's proxies, which do not reach 127.0.0.1.
        with httpx.Client(trust_env=False, timeout=_REPLY_SECONDS) as client:
            return client.request(method, f"http://127.0.0.1:{port}{path}").status_code == httpx.codes.OK
    except httpx.TransportError:
        return False


def _failed(why: str, log: Path) -> PacelineError:
    lines = log.read_text("utf-8", "replace").strip().splitlines() if os.path.exists(log) else []
    last = next((line for line in reversed(lines) if "Error" in line), lines[-1] if lines else "")
    return PacelineError(codes.ROLLOUT_START_FAILED(_KEY, f"{log}: {last[-300:]}", why=why))
