"""Rules for the device mesh: its sizes, and what they must divide."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence

from paceline.config.sections.training_scale import MESH_SIZES, Parallelism
from paceline.core.diagnostics import Diagnostic
from paceline.plan import codes as plan_codes
from paceline.plan.mesh import cp_heads, tp_heads, tp_inside_node
from paceline.plan.strategies.spec import strategy_specs
from paceline.rules import codes
from paceline.rules.rule import Context, Rule

_SIZES = "training.parallelism"
_STRATEGY = "training.distributed_strategy"


def _usable(c: Context) -> Parallelism | None:
    """Return the mesh sizes if they are given and all positive."""
    sizes = c.training.parallelism
    return sizes if sizes is not None and min(_by_name(sizes).values()) >= 1 else None


def _by_name(sizes: Parallelism) -> dict[str, int]:
    return {name: getattr(sizes, name) for name in type(sizes).model_fields if name in MESH_SIZES}


def _written(sizes: Parallelism) -> str:
    return (
        ", ".join(f"{name}: {size}" for name, size in _by_name(sizes).items() if size != 1)
        or "all sizes are 1"
    )


def sizes_positive(c: Context) -> Iterator[Diagnostic]:
    """par.sizes_ge1"""
    sizes = c.training.parallelism
    for name, size in _by_name(sizes).items() if sizes is not None else ():
        if size < 1:
            yield c.at(codes.PAR_SIZES_GE1(found=f"{name}: {size}", name=name), f"{_SIZES}.{name}")


def product(c: Context) -> Iterator[Diagnostic]:
    """par.product"""
    sizes, world = _usable(c), c.facts.world_size
    if sizes is None or world is None:
        return
    held = math.prod(_by_name(sizes).values())
    open_data_axes = sizes.dp_replicate_size == sizes.dp_shard_size == 1  # the plan assigns the other ranks
    hybrid = str(c.training.fsdp or "").startswith("hybrid") or sizes.dp_replicate_size > 1
    if held == world or (
        world % held == 0
        and (open_data_axes or (hybrid and ((sizes.dp_replicate_size == 1) != (sizes.dp_shard_size == 1))))
    ):
        return
    divisors = ", ".join(str(n) for n in range(1, world + 1) if world % n == 0)
    yield c.problem(
        plan_codes.PAR_PRODUCT,
        f"the mesh has {held} processes, but {world} are started",
        _SIZES,
        found=_written(sizes),
        hint=f"choose sizes whose product is {world} (its divisors: {divisors}); leave out"
        " dp_shard_size to derive it from the others",
    )


def replicas(c: Context) -> Iterator[Diagnostic]:
    """par.tp_pure_dp"""
    sizes, world = _usable(c), c.facts.world_size
    if sizes is None or not (sizes.tp_size > 1 or sizes.cp_size > 1) or sizes.dp_replicate_size == 1:
        return
    left = None if world is None else world // math.prod(_by_name(sizes).values())
    if sizes.dp_shard_size == 1 and left in (None, 1):
        yield c.at(codes.PAR_TP_PURE_DP(found=_written(sizes)), _SIZES)


def heads(c: Context) -> Iterator[Diagnostic]:
    """par.tp_heads, par.tp_kv_heads, par.cp_heads"""
    sizes, count, kv = _usable(c), c.facts.num_attention_heads, c.facts.num_key_value_heads
    if sizes is None or count is None:
        return
    if wrong := tp_heads(count, sizes.tp_size):
        yield c.at(wrong, f"{_SIZES}.tp_size")
        return
    if kv is not None and kv % sizes.tp_size:
        yield c.problem(
            plan_codes.PAR_TP_KV_HEADS,
            f"{kv} key-value heads are not divisible by {sizes.tp_size}",
            f"{_SIZES}.tp_size",
            hint=f"set tp_size: {math.gcd(kv, sizes.tp_size)}, and use the other ranks for dp_shard_size",
        )
    wrong = cp_heads(
        count // sizes.tp_size, sizes.cp_size, "set cp_method: allgather, or a cp_size that divides the heads"
    )
    if wrong and sizes.cp_method == "ulysses":
        yield c.at(wrong, f"{_SIZES}.cp_size")


def inside_nodes(c: Context) -> Iterator[Diagnostic]:
    """par.tp_node"""
    sizes, world, nodes = _usable(c), c.facts.world_size, c.facts.num_nodes
    if sizes is None or world is None or nodes is None or nodes < 2 or world % nodes:
        return
    remedy = "tp_size: {}, a divisor of the number of processes per node"
    if wrong := tp_inside_node(world // nodes, sizes.tp_size, remedy):
        yield c.at(wrong, f"{_SIZES}.tp_size")


def _strategy_with(axes: set[str]) -> str:
    """Return a strategy with these axes: one without a further package, with the most axes."""
    able = [spec for spec in strategy_specs() if spec.axes is None or axes <= spec.axes]
    return max(able, key=lambda spec: (not spec.requires, len(spec.axes or ()))).name


def axes_of_strategy(c: Context) -> Iterator[Diagnostic]:
    """par.strategy, par.pp_cp"""
    sizes, spec = _usable(c), c.named_strategy
    if sizes is None:
        return
    # Axes that the strategy does not have
    used = [axis for axis, size in _by_name(sizes).items() if size > 1]
    allowed = None if spec is None else spec.axes
    wrong = [axis for axis in used if allowed is not None and axis.removesuffix("_size") not in allowed]
    if wrong and spec is not None:
        yield c.at(
            codes.PAR_STRATEGY(
                found=_written(sizes),
                name=spec.name,
                wrong=", ".join(axis.removesuffix("_size") for axis in wrong),
                instead=_strategy_with({axis.removesuffix("_size") for axis in used}),
                ones=" and ".join(f"{axis}: 1" for axis in wrong),
            ),
            _SIZES,
            _STRATEGY,
        )
    if sizes.pp_size > 1 and sizes.cp_size > 1:
        yield c.at(codes.PAR_PP_CP(found=_written(sizes)), _SIZES)


PARALLEL_RULES: tuple[Rule, ...] = (sizes_positive, product, replicas, heads, inside_nodes, axes_of_strategy)


#: Strategies in which every rank has whole answers.
WHOLE = "ddp, zero1 to zero3, or fsdp"


def sharding_keys(c: Context, axes: Iterable[str]) -> list[str]:
    """Return the keys of this config that split a model or its rows over ranks.

    These are the sizes above 1 in ``training.parallelism`` for ``axes`` (pp, cp, tp), DeepSpeed's AutoTP and
    Ulysses, and strategies that always split.
    """
    sizes, file = c.training.parallelism, c.deepspeed
    keys = [
        f"training.parallelism.{axis}_size" for axis in axes if sizes and getattr(sizes, f"{axis}_size") > 1
    ]
    tensor = file.get("tensor_parallel")
    if isinstance(tensor, dict) and tensor.get("autotp_size") not in (None, 0, 1):
        keys.append("training.deepspeed: tensor_parallel.autotp_size")
    if file.get("sequence_parallel_size") not in (None, 0, 1):
        keys.append("training.deepspeed: sequence_parallel_size")
    if c.strategy is not None and not c.strategy.whole_rows:
        keys.append(f"training.distributed_strategy: {c.strategy.name}")
    return keys


def sharding_axes(c: Context, *, scores: bool) -> tuple[str, ...]:
    """Return the axes that an algorithm on whole answers cannot use.

    ``scores``: a scalar head scores the answers; no strategy supports splitting that model.
    """
    across = frozenset() if scores or c.strategy is None else c.strategy.score_axes
    return tuple(axis for axis in ("pp", "cp", "tp") if axis not in across)


def whole_again(wrong: Sequence[str], able: str, keeps: frozenset[str] = frozenset()) -> str:
    """Return the remedy after which ``wrong`` (from ``sharding_keys``) splits nothing.

    ``able``: strategies in whose name nothing is split; ``keeps``: axes that one of them may keep (``tp``).
    """
    keys = [key.rpartition(".")[2] for key in wrong if not key.startswith(_STRATEGY)]
    lines = " and ".join(f"{key.rpartition(' ')[2]}: 1" for key in keys)
    if len(keys) < len(wrong):
        return f"set {f'{lines} and ' if lines else ''}distributed_strategy: {able}"
    owner = next(
        (s.name for s in strategy_specs() if {k.removesuffix("_size") for k in keys} <= s.score_axes & keeps),
        "",
    )
    return f"set {lines}" + (f", or distributed_strategy: {owner}" if owner else "")


def in_words(keys: Iterable[str]) -> str:
    """Return ``pp_size and autotp_size``: the keys' last parts as a phrase."""
    return " and ".join(key.rpartition(".")[2] for key in keys)


def places(keys: Iterable[str]) -> tuple[str, ...]:
    """Return the keys' dotted paths in the YAML."""
    return tuple(key.partition(":")[0] for key in keys)


def whole_heads(c: Context) -> Iterator[Diagnostic]:
    """strategy.divergence"""
    if not c.algorithm.lends_head:
        return
    wrong = [key for key in sharding_keys(c, ("pp", "tp")) if "sequence_parallel" not in key]
    if c.strategy is not None and not c.strategy.stages:
        wrong = [key for key in wrong if not key.startswith("training.distributed_strategy")]
    if wrong:
        yield c.at(
            codes.STRATEGY_DIVERGENCE(
                name=c.algorithm.name,
                in_words=in_words(wrong),
                hint=whole_again(wrong, "ddp, fsdp, or zero1 to zero3"),
            ),
            "training.algorithm",
            *places(wrong),
        )
