"""One rank of strategy or alarm scenarios: ``python strategy_worker.py SCENARIO[+SCENARIO…] OUT_DIR``;
writes ``OUT_DIR/<rank>.json`` by scenario.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from tiny_parts import MemoryReader, TinyObjective, TinyRoot, make_batch, plan, window

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import ExitCode, PacelineError
from paceline.plan.plan import OptimizerSpec
from paceline.protocols.roles import Role
from paceline.protocols.shard import Shard
from paceline.runtime.failures.alarm import Alarm
from paceline.runtime.failures.root_cause import is_cascade
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.runtime.random_seed import seed_for
from paceline.runtime.time_limit import exit_now
from paceline.strategies.model_handle import Handle
from paceline.strategies.registry import make_strategy
from paceline.strategies.strategy import Strategy
from paceline.strategies.window.runner import make_runner

SPEC = OptimizerSpec(learning_rate=1e-2, weight_decay=0.1)


def build(world: World, root: TinyRoot, warm: bool = True, **options: Any) -> tuple[Strategy, Handle]:
    name = "single" if world.world_size == 1 else "ddp"
    strategy = make_strategy(name, world, plan(world_size=world.world_size, **options))
    handle = strategy.prepare(Role.POLICY, lambda: root, SPEC)
    if warm:
        strategy.warm_up(handle, make_batch([-1]), TinyObjective())
    return strategy, handle


def train(
    strategy: Strategy,
    handle: Handle,
    steps: range,
    clip: float = 0.5,
    seeded: bool = False,
    accumulation: int = 2,
) -> list[dict[str, Any]]:
    world, results = strategy.world, []
    for step in steps:
        result = make_runner(strategy).train_window(
            {Role.POLICY: handle},
            window(step, world.rank, world.world_size, accumulation=accumulation),
            TinyObjective(),
            lr=1e-2 * (1 - step / 40),
            max_grad_norm=clip,
            generator_seed=(
                (lambda j, step=step: seed_for(3, step, j, "policy", world.rank)) if seeded else None
            ),
        )
        results.append(
            {
                "losses": dict(result.losses),
                "norm": result.grad_norm,
                "tokens": result.tokens,
                "skipped": result.skipped,
            }
        )
    return results


def parameters(handle: Handle) -> dict[str, list[float]]:
    return {name: p.detach().double().flatten().tolist() for name, p in handle.root.plain_named_parameters()}  # type: ignore[operator]


def parity(world: World) -> dict[str, Any]:
    """Ten steps over the same global rows, then an uneven evaluation."""
    found: dict[str, Any] = {}
    for name, options in {
        "plain": {},
        "copies": {"gradient_as_bucket_view": False},
        "unused": {"ddp_find_unused_parameters": True},
        "static": {"ddp_static_graph": True},
        "single": {"accumulation": 1},
    }.items():
        strategy, handle = build(world, TinyRoot(), **options)
        steps = train(strategy, handle, range(10), accumulation=options.get("accumulation", 2))
        found[name] = {"steps": steps, "parameters": parameters(handle)}
    apart = TinyRoot()
    with torch.no_grad():
        for tensor in (*apart.parameters(), *apart.buffers()):
            tensor.add_(world.rank)  # as another processor may round initial values
    _, handle = build(world, apart, warm=False)
    found["apart"] = parameters(handle)
    strategy, handle = build(world, TinyRoot())
    rows = list(range(99))[world.rank :: world.world_size]
    micro = [make_batch(rows[i : i + 8]) for i in range(0, len(rows), 8)]
    if world.rank == world.world_size - 1:
        micro.append(make_batch([-1, -1]))
    sums = make_runner(strategy).eval_window({Role.POLICY: handle}, micro, TinyObjective())
    return {**found, "eval": {"sums": dict(sums.sums), "weights": dict(sums.weights), "rows": sums.rows}}


def gathered(world: World, shards: list[Shard]) -> MemoryReader:
    """All ranks' shares in one reader, as a checkpoint on disk would give them."""
    mine = [
        [
            s.role,
            s.name,
            s.kind,
            list(s.global_shape),
            str(s.tensor.dtype),
            s.tensor.double().flatten().tolist(),
        ]
        for s in shards
    ]
    everyone = [row for rows in world.all_gather_json(mine) for row in rows]
    assert len({tuple(row[:3]) for row in everyone}) == len(everyone), "a tensor was exported twice"
    return MemoryReader(
        [
            Shard(
                role,
                name,
                kind,
                tuple(shape),
                (0,) * len(shape),
                torch.tensor(values, dtype=torch.float64)
                .reshape(shape)
                .to(getattr(torch, dtype.removeprefix("torch."))),
            )
            for role, name, kind, shape, dtype, values in everyone
        ]
    )


def resume(world: World, warm: bool = True) -> dict[str, Any]:
    """Five steps, export, five more; then import into a fresh model and the same five."""
    strategy, handle = build(world, TinyRoot(torch.float32, dropout=0.1), warm)
    train(strategy, handle, range(5), seeded=True)
    shares = list(strategy.export_state(handle))
    reader = gathered(world, shares)
    straight = {"steps": train(strategy, handle, range(5, 10), seeded=True), "parameters": parameters(handle)}
    torch.manual_seed(999)
    strategy, handle = build(world, TinyRoot(torch.float32, dropout=0.1), warm=False)
    strategy.import_state(handle, reader)
    if warm:
        strategy.warm_up(handle, make_batch([-1]), TinyObjective())
    again = {"steps": train(strategy, handle, range(5, 10), seeded=True), "parameters": parameters(handle)}
    return {"straight": straight, "again": again, "bytes": sum(s.tensor.nbytes for s in shares)}


def resume_cold(world: World) -> dict[str, Any]:
    """The same without the warm-up: shows that the warm-up is what makes resuming exact."""
    return resume(world, warm=False)


def mixed(world: World) -> dict[str, Any]:
    """fp16 with a scaler that starts far too high; a window without labels; one where a single rank has
    labels.
    """
    name = "single" if world.world_size == 1 else "ddp"
    strategy = make_strategy(name, world, plan(scaler=True, world_size=world.world_size))
    handle = strategy.prepare(Role.POLICY, lambda: TinyRoot(torch.float32, compute=torch.float16), SPEC)
    assert handle.scaler is not None
    handle.scaler.load_state_dict({**handle.scaler.state_dict(), "scale": 2.0**24})
    strategy.warm_up(handle, make_batch([-1]), TinyObjective())
    steps, unchanged = [], []
    for step in range(16):
        before = parameters(handle)
        result = make_runner(strategy).train_window(
            {Role.POLICY: handle},
            window(step, world.rank, world.world_size),
            TinyObjective(),
            lr=1e-2,
            max_grad_norm=1.0,
        )
        steps.append(
            {
                "skipped": result.skipped,
                "loss": result.losses["nll"],
                "norm": str(result.grad_norm),
                "scale": result.extras["loss_scale"],
            }
        )
        unchanged.append((parameters(handle) == before) == (result.skipped == "overflow"))
    handle.scaler.load_state_dict({**handle.scaler.state_dict(), "scale": 256.0})
    trained = parameters(handle)
    blank = [make_batch([1, 2], labelled=False), make_batch([-1])]
    empty = make_runner(strategy).train_window(
        {Role.POLICY: handle}, blank, TinyObjective(), lr=1e-2, max_grad_norm=1.0
    )
    untouched = parameters(handle) == trained
    lone = make_runner(strategy).train_window(
        {Role.POLICY: handle},
        [make_batch([-1]), make_batch([3]) if world.rank == 0 else make_batch([-1])],
        TinyObjective(),
        lr=1e-2,
        max_grad_norm=1.0,
    )
    scales = {s.kind: float(s.tensor) for s in strategy.export_state(handle) if s.name == "grad_scaler"}
    return {
        "steps": steps,
        "unchanged_by_overflow_only": all(unchanged),
        "empty": {
            "skipped": empty.skipped,
            "weights": dict(empty.weights),
            "norm": empty.grad_norm,
            "tokens": empty.tokens,
        },
        "untouched_by_empty": untouched,
        "lone": {"loss": lone.losses["nll"], "weights": dict(lone.weights), "skipped": lone.skipped},
        "parameters": parameters(handle),
        "scales": world.all_gather_json(scales),
    }


class Failing(TinyObjective):
    """Fails on one rank in the middle of a step, by ``how``."""

    def __init__(self, rank: int, how: str) -> None:
        self.rank, self.how, self.calls = rank, how, 0

    def losses(self, role: Role, outputs: Any, batch: Any) -> Any:
        self.calls += 1
        if self.calls == 4 and self.how == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.calls == 4 and self.how == "raise":
            raise PacelineError(
                Diagnostic(
                    "test.broken_row",
                    f"row 17 broke rank {self.rank}",
                    where="train.jsonl:18",
                    evidence={"big": "x" * 100_000},
                )
            )
        if self.calls == 4 and self.how == "bug":
            raise ZeroDivisionError("a bug of rank " + str(self.rank))
        return super().losses(role, outputs, batch)


def fails(world: World, out: Path, how: str, rank: int) -> dict[str, Any]:
    """Train with one failing rank, reporting as the worker does."""
    heard = out / f"{world.rank}.heard.json"
    alarm = Alarm(
        world,
        lambda r, d, code: heard.write_text(
            json.dumps({"rank": r, "diagnostic": d.to_json(), "time": time.time()})
        ),
    ).start()
    strategy, handle = build(world, TinyRoot())
    objective = Failing(rank, how) if world.rank == rank else TinyObjective()
    try:
        for step in range(200):
            make_runner(strategy).train_window(
                {Role.POLICY: handle},
                window(step, world.rank, world.world_size),
                objective,
                lr=1e-2,
                max_grad_norm=1.0,
            )
            if step == 0:
                (out / f"{world.rank}.failing_at.json").write_text(json.dumps(time.time()))
    except BaseException as exc:  # noqa: BLE001
        if is_cascade(exc):
            alarm.await_root_cause(5.0)
            finding = Diagnostic("test.peer_lost", str(exc)[:200], evidence={"silent": alarm.silent_ranks})
        else:
            finding = (
                exc.diagnostics[0]
                if isinstance(exc, PacelineError)
                else Diagnostic("test.bug", f"{type(exc).__name__}: {exc}")
            )
        alarm.raise_error(finding)
        (out / f"{world.rank}.own.json").write_text(
            json.dumps({"diagnostic": finding.to_json(), "time": time.time()})
        )
        world.close(ok=False)
        exit_now(ExitCode.FAILED)
    alarm.stop()
    return {}


def collectives(world: World) -> dict[str, Any]:
    """Every collective of the world once, limits included."""
    sums = world.all_reduce_sum([world.rank, 2**60])
    found: dict[str, Any] = {
        "sums": sums,
        "floats": world.all_reduce_sum_float([0.5, 1e-300 * (world.rank + 1)]),
        "max": world.all_reduce_max_float([float(world.rank)]),
        "any": [world.any(world.rank == 1), world.any(False)],
        "broadcast": world.broadcast_json({"text": "é", "from": world.rank}, src=world.world_size - 1),
        "gather": world.all_gather_json(["x" * (10 * world.rank), world.rank]),
        "nothing": world.all_reduce_sum([]),
    }
    for name, call in {
        "broadcast_limit": lambda: world.broadcast_json(
            "x" * 100 if world.rank == 0 else None, limit_bytes=50
        ),
        "gather_limit": lambda: world.all_gather_json("x" * (200 * world.rank), limit_bytes=50),
    }.items():
        try:
            call()
        except PacelineError as exc:
            found[name] = exc.diagnostics[0].code
    alarm = Alarm(world).start()
    world.barrier()
    alarm.stop()
    return found


def main() -> None:
    torch.set_num_threads(1)
    scenario, out = sys.argv[1], Path(sys.argv[2])
    env = RankEnv.from_environ(environment())
    world = World.open(env, device="cpu", timeout_seconds=60)
    scenarios = {
        "parity": parity,
        "resume": resume,
        "resume_cold": resume_cold,
        "mixed": mixed,
        "collectives": collectives,
    }
    found: dict[str, Any] = {}
    for name in scenario.split("+"):
        if name.startswith("fails:"):
            how, rank = name.removeprefix("fails:").split(",")
            fails(world, out, how, int(rank))
        else:
            found[name] = scenarios[name](world)
    (out / f"{world.rank}.json").write_text(json.dumps(found))
    world.close(ok=True)


if __name__ == "__main__":
    main()
