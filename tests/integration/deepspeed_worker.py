"""One rank of DeepSpeed scenarios: ``python deepspeed_worker.py OUT_DIR WANTED.json``; writes
``OUT_DIR/<rank>.json``.

One engine's globals leak into the next, so a process tree is for one DeepSpeed feature; the reference is one
process with ``single``.
"""

from __future__ import annotations

import contextlib
import json
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from count_reads import count_reads
from engine_stub import engine_of
from safetensors.torch import load_file, save_file
from tiny_parts import MemoryReader, TinyObjective, make_batch

from paceline.models.factory import HFModelFactory
from paceline.models.lora.names import plain_name
from paceline.plan.mesh import Mesh, split_batch
from paceline.plan.plan import AdapterSpec, DdpOptions, OptimizerSpec, Precision
from paceline.plan.plan_json import from_json
from paceline.protocols.batch import Batch
from paceline.protocols.roles import Role
from paceline.protocols.shard import Shard
from paceline.runtime.process_group.world import RankEnv, World, environment
from paceline.runtime.random_seed import seed_for
from paceline.strategies.deepspeed.import_deepspeed import library
from paceline.strategies.model_handle import Handle
from paceline.strategies.registry import make_strategy
from paceline.strategies.strategy import Strategy
from paceline.strategies.window.runner import make_runner

FOLDER = Path(sys.argv[1]) / "model"
READ = count_reads()
SPEC = OptimizerSpec(learning_rate=1e-3, weight_decay=0.1)
ROWS, ACCUMULATION, LR, CLIP = 16, 2, 1e-3, 0.5


class Poisoned(TinyObjective):
    """A loss that is no number."""

    def losses(self, role: Role, outputs: Any, batch: Any) -> Any:
        return {"nll": outputs["nll"] * math.nan}


def model(**changes: Any) -> dict[str, Any]:
    """A Llama of 4 heads and 2 key heads, every sort of parameter among its names."""
    return {
        "model_type": "llama",
        "vocab_size": 32,
        "hidden_size": 32,
        "intermediate_size": 88,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "tie_word_embeddings": False,
        **changes,
    }


def factory(wanted: dict[str, Any], folder: Path | None = None, frozen: bool = False) -> HFModelFactory:
    """Of a seed, or of the ``folder`` that has the same values."""
    source = SimpleNamespace(
        name_or_path=None if folder is None else str(folder),
        revision=None,
        config=model(**wanted.get("model", {})) if folder is None else None,
        trust_remote_code=False,
        resize_embeddings="never",
        embedding_multiple=1,
    )
    compute = getattr(torch, wanted.get("compute", "float32"))
    adapter = from_json(AdapterSpec, wanted["adapter"]) if "adapter" in wanted else None
    return HFModelFactory(source, compute_dtype=compute, seed=5, adapter=adapter, frozen=frozen)


def plan(wanted: dict[str, Any], world: World) -> Any:
    mesh = Mesh(**wanted.get("mesh", {"dp_shard": world.world_size}))
    compute = wanted.get("compute", "float32")
    return SimpleNamespace(
        strategy=wanted["strategy"],
        strategy_options={},
        ddp_options=DdpOptions(),
        precision=Precision(compute, "float32", "float32", False, "a test"),
        num_nodes=1,
        mesh=mesh,
        batch=split_batch(
            ROWS // mesh.data_parallel_size // ACCUMULATION, ACCUMULATION, mesh.data_parallel_size
        ),
        engine=engine_of(wanted.get("engine", {}), wanted["strategy"]),
        world_size=world.world_size,
        run_dir=wanted.get("run_dir", ""),
        adapter=from_json(AdapterSpec, wanted["adapter"]) if "adapter" in wanted else None,
    )


def build(world: World, wanted: dict[str, Any]) -> tuple[Strategy, Handle]:
    strategy = make_strategy(wanted["strategy"], world, plan(wanted, world))
    make = factory(wanted, FOLDER if wanted.get("folder") else None)

    def frozen_embedding(*args: Any) -> Any:
        root = make(*args)
        if wanted.get("freeze"):
            for name, parameter in root.plain_named_parameters():
                parameter.requires_grad_(wanted["freeze"] not in name)
        return root

    return strategy, strategy.prepare(Role.POLICY, frozen_embedding, SPEC)


@contextlib.contextmanager
def counted(world: World) -> Iterator[list[int]]:
    """The numbers of parameters that DeepSpeed gathers inside the context, call by call."""
    Init, calls = library(world).zero.Init, list[int]()
    gather = Init._all_gather

    def recorded(self: Any, parameters: Any, *args: Any, **named: Any) -> Any:
        calls.append(len(parameters))
        return gather(self, parameters, *args, **named)

    Init._all_gather = recorded
    try:
        yield calls
    finally:
        Init._all_gather = gather


def window(step: int, strategy: Strategy) -> list[Batch]:
    """The same global rows whatever the number of ranks; of very different lengths."""
    size, rank = strategy.data_parallel_size, strategy.data_parallel_rank
    micro = ROWS // (size * ACCUMULATION)
    starts = [step % 3 * ROWS + (j * size + rank) * micro for j in range(ACCUMULATION)]
    return [make_batch(list(range(s, s + micro))) for s in starts]


def train(strategy: Strategy, handle: Handle, steps: range, clip: float) -> list[dict[str, Any]]:
    results = []
    for step in steps:
        result = make_runner(strategy).train_window(
            {Role.POLICY: handle},
            window(step, strategy),
            TinyObjective(),
            lr=LR * (1 - step / 40),
            max_grad_norm=clip,
            generator_seed=lambda j, step=step: seed_for(3, step, j, "policy", strategy.data_parallel_rank),  # type: ignore[misc]
        )
        results.append({"loss": result.losses["nll"], "norm": result.grad_norm, "skipped": result.skipped})
    return results


def gathered(world: World, shards: list[Shard], out: Path) -> MemoryReader:
    """All ranks' blocks put together, as a checkpoint on disk would give them; a hole or an overlap fails."""
    places = [[s.role, s.name, s.kind, list(s.global_shape), list(s.offsets)] for s in shards]
    save_file({str(i): s.tensor.detach().clone() for i, s in enumerate(shards)}, out / f"blocks.{world.rank}")
    everyone = world.all_gather_json(places)
    whole: dict[tuple[str, str, str], Shard] = {}
    seen: dict[tuple[str, str, str], torch.Tensor] = {}
    for rank, rows in enumerate(everyone):
        blocks = load_file(out / f"blocks.{rank}")
        for i, (role, name, kind, shape, offsets) in enumerate(rows):
            key, block = (role, name, kind), blocks[str(i)]
            if key not in whole:
                whole[key] = Shard(
                    role, name, kind, tuple(shape), (0,) * len(shape), torch.zeros(shape, dtype=block.dtype)
                )
                seen[key] = torch.zeros(shape, dtype=torch.int64)
            place = tuple(slice(o, o + n) for o, n in zip(offsets, block.shape, strict=True))
            whole[key].tensor[place] = block
            seen[key][place] += 1
    world.barrier()
    for key, count in seen.items():
        assert bool((count == 1).all()), f"{key} is not stored exactly once"
    return MemoryReader(list(whole.values()))


def store(reader: MemoryReader, path: Path) -> None:
    """Every parameter and moment by ``kind|name``."""
    save_file({f"{kind}|{name}": t for (_, name, kind), t in reader.tensors.items()}, path)


def evaluate(strategy: Strategy, handle: Handle) -> dict[str, Any]:
    """33 rows, one rank with a micro-batch more."""
    rows = list(range(33))[strategy.data_parallel_rank :: strategy.data_parallel_size]
    micro = [make_batch(rows[i : i + 8]) for i in range(0, len(rows), 8)]
    if strategy.data_parallel_rank == strategy.data_parallel_size - 1:
        micro += [make_batch([-1])] * 2
    sums = make_runner(strategy).eval_window({Role.POLICY: handle}, micro, TinyObjective())
    return {"sums": dict(sums.sums), "weights": dict(sums.weights), "rows": sums.rows}


def generate(strategy: Strategy, handle: Handle) -> list[int]:
    """One token for rank 0, one more for each further rank: ranks need not decode alike; what all have in
    common is answered.
    """
    with strategy.generating(handle) as root:
        count = 1 + strategy.data_parallel_rank
        ids: Any = root.hf.generate(
            torch.arange(6)[None], min_new_tokens=count, max_new_tokens=count, pad_token_id=0
        )
    return ids[0, :7].tolist()


def started(world: World, wanted: dict[str, Any], strategy: Strategy, policy: Handle) -> dict[str, Any]:
    """What this rank has read of the folder for the policy, and a frozen reference beside it, and whether
    both are the folder's.
    """
    from deepspeed.runtime.zero import GatheredParameters

    models, plain = [policy], {key: value for key, value in wanted.items() if key != "adapter"}
    if strategy.collective_forward:
        models.append(strategy.prepare(Role.REFERENCE, factory(plain, FOLDER, frozen=True), None))
    (file,) = FOLDER.glob("*.safetensors")
    stored, equal = load_file(file), True
    for handle in models if strategy.collective_forward else ():
        mine = {plain_name(n): p for n, p in handle.root.hf.named_parameters() if ".lora_" not in n}
        with GatheredParameters(list(mine.values())):
            equal = equal and all(torch.equal(p, stored[name].to(p.dtype)) for name, p in mine.items())
    for handle in models[1:]:
        strategy.release(handle)
    size = len(models) * sum(tensor.nbytes for tensor in stored.values())
    return {"share": sum(READ) / size, "equal": equal, "note": policy.root.notes()["start"]}


def run(world: World, wanted: dict[str, Any], out: Path) -> dict[str, Any]:
    """Ten steps with clipping, an evaluation and an answer after the fifth; export there, import into a
    fresh engine, the last five again.
    """
    if wanted.get("folder") and world.is_main:
        plain = {key: value for key, value in wanted.items() if key != "adapter"}
        factory(plain)().hf.save_pretrained(FOLDER)
    world.barrier()
    with counted(world) if wanted.get("folder") else contextlib.nullcontext([]) as gathers:
        strategy, handle = build(world, wanted)
    start = started(world, wanted, strategy, handle) | {"gathers": gathers} if wanted.get("folder") else {}
    clip = wanted.get("clip", CLIP)
    steps = train(strategy, handle, range(5), clip)
    reader = gathered(world, list(strategy.export_state(handle)), out)
    found: dict[str, Any] = {"eval": evaluate(strategy, handle), "generated": generate(strategy, handle)}
    found |= {"bytes": handle.state_bytes(), "start": start}
    steps += train(strategy, handle, range(5, 10), clip)
    final = gathered(world, list(strategy.export_state(handle)), out)
    found |= {
        "steps": steps,
        "counters": sorted({float(t) for (_, _, k), t in final.tensors.items() if k == "step"}),
    }
    if world.rank == 0:
        store(final, out / "final.safetensors")
    if wanted.get("resume", True):
        strategy, handle = build(world, wanted)
        strategy.import_state(handle, reader)
        found["again"] = train(strategy, handle, range(5, 10), clip)
        again = gathered(world, list(strategy.export_state(handle)), out)
        found["state_again"] = all(torch.equal(again.tensors[k], t) for k, t in final.tensors.items())
        result = make_runner(strategy).train_window(
            {Role.POLICY: handle}, window(0, strategy), Poisoned(), lr=LR, max_grad_norm=clip
        )
        after = gathered(world, list(strategy.export_state(handle)), out)
        untouched = all(torch.equal(after.tensors[k], t) for k, t in again.tensors.items())
        found["poisoned"] = [math.isfinite(result.grad_norm or math.nan), untouched]
    strategy.close()
    return found


def main() -> None:
    torch.set_num_threads(1)
    out, wanted = Path(sys.argv[1]), json.loads(Path(sys.argv[2]).read_text())
    world = World.open(RankEnv.from_environ(environment()), device="cpu", timeout_seconds=60)
    (out / f"{world.rank}.json").write_text(json.dumps(run(world, wanted, out)))
    world.close(ok=True)


if __name__ == "__main__":
    main()
