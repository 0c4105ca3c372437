"""``python scripts/hardware_tables.py``: the planner's tables of ``docs/how-to/hardware.md`` and its twin
writes them anew between their markers; ``tests/unit/docs/test_hardware_tables.py`` holds them there.

Every number is a prediction of ``paceline plan``'s search, of Llama 3 8B from a folder in bfloat16 where no
other model is named.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from paceline.cli.planning import ALL_LINEAR
from paceline.plan.cost.from_plan import adapter_work
from paceline.plan.cost.report import TIME
from paceline.plan.cost.search import (
    Candidate,
    SearchSpec,
    best_of_each,
    fastest,
    host_bytes,
    layout_candidates,
    layouts,
    search,
    start_bytes,
)
from paceline.plan.hardware.device_catalogue import AcceleratorCluster, cluster_of
from paceline.plan.model.model_catalogue import model_shape
from paceline.plan.plan import AdapterSpec, Quantization

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"en": "docs/how-to/hardware.md", "zh": "docs/how-to/hardware.zh-CN.md"}
GIB = 2**30
MODEL, CARD, ROWS = "llama-3-8b", "A100", 128
MODELS = ("qwen2.5-0.5b", "llama-3-8b", "qwen2.5-14b", "llama-3-70b")
CARD_NAMES = ("4090", "L40S", "A100", "H100")
COUNTS = (1, 2, 4, 8, 16, 32)
#: Gigabits a second of a whole node, as networks are sold.
NETWORKS = (10, 25, 100, 400, 1600)
#: What a step waits for, beside its arithmetic.
WAITS = ("tensor_parallel", "context_parallel", "data_parallel", "pipeline", "bubble", "offload")


@dataclass(frozen=True)
class Words:
    """A table's words in one language."""

    strategies: tuple[str, ...]
    fewest: tuple[str, ...]
    network: tuple[str, ...]
    none: str
    yes: str
    no: str
    methods: Mapping[str, str]
    one_node: str


WORDS = {
    "en": Words(
        (
            "strategy",
            "mesh",
            "states, bytes a parameter and card",
            "GiB a card",
            "fits",
            "tokens/s a card",
            "waiting",
            "host at the start, GiB",
            "offloaded, GiB a node",
        ),
        ("model", "trained", *CARD_NAMES),
        ("network", "nodes", "zero2", "zero3", "fsdp", "best layout", "its tokens/s", "efficiency"),
        "more than 32",
        "yes",
        "no",
        {"full": "all weights", "lora": "LoRA, rank 16", "qlora": "QLoRA, rank 16"},
        "one node",
    ),
    "zh": Words(
        (
            "策略",
            "网格",
            "状态，每参数每卡字节",
            "每卡 GiB",
            "放得下",
            "每卡 token/s",
            "等待",
            "启动时主机 GiB",
            "每节点 offload GiB",
        ),
        ("模型", "训练", *CARD_NAMES),
        ("网络", "节点", "zero2", "zero3", "fsdp", "最佳布局", "其 token/s", "效率"),
        "超过 32",
        "是",
        "否",
        {"full": "全部权重", "lora": "LoRA，秩 16", "qlora": "QLoRA，秩 16"},
        "单节点",
    ),
}


def _spec(model: str, cluster: AcceleratorCluster, method: str = "full") -> SearchSpec:
    shape = replace(model_shape(model, {}), stored="bfloat16", in_files=True)
    adapter = None
    if method != "full":
        quantization = Quantization(4) if method == "qlora" else None
        adapter = adapter_work(
            shape, AdapterSpec(16, 32, target_modules=ALL_LINEAR, quantization=quantization)
        )
    return SearchSpec(shape, cluster, 4096, ROWS, adapter)


@cache
def candidates(nodes: int, gigabits: int) -> tuple[Candidate, ...]:
    """All layouts on ``nodes`` of 8 cards; the network carries ``gigabits`` a second from a node."""
    cluster = cluster_of(f"{nodes * 8}x{CARD}")
    each = gigabits * 1e9 / 8 / cluster.machine.node
    return tuple(search(_spec(MODEL, replace(cluster, machine=replace(cluster.machine, outside=each)))))


def _axes(c: Candidate) -> str:
    return " ".join(f"{axis} {n}" for axis, n in c.mesh.to_json().items() if isinstance(n, int) and n > 1)


def _speed(c: Candidate) -> float:
    return c.work.step_tokens / c.step / c.work.world


def _waits(c: Candidate) -> float:
    assert set(WAITS) <= set(TIME)
    return sum(getattr(c.speed, name) for name in WAITS) / c.speed.step


def strategies(words: Words) -> Iterator[tuple[str, ...]]:
    """Every strategy's best layout on one node."""
    yield words.strategies
    count = model_shape(MODEL, {}).num_parameters
    for c in best_of_each([*candidates(1, NETWORKS[-1])]):
        states = c.peak.parameters + c.peak.gradients + c.peak.optimizer
        offloaded = host_bytes(c.work)
        yield (
            c.strategy,
            _axes(c),
            f"{states / count:.1f}",
            f"{c.bytes / GIB:.0f}",
            words.yes if c.fits else words.no,
            f"{_speed(c):,.0f}",
            f"{_waits(c):.0%}",
            f"{start_bytes(c.work)[1] / GIB:.0f}",
            f"{offloaded / GIB:.0f}" if offloaded else "",
        )


@cache
def _fits(model: str, card: str, count: int, method: str) -> bool:
    spec = _spec(model, cluster_of(f"{count}x{card}"), method)
    every = (c for layout in layouts() for c in layout_candidates(layout, spec))
    return any(c.safe for c in every if c.work.offload == "none")


def fewest(words: Words) -> Iterator[tuple[str, ...]]:
    """The smallest number of cards on which any layout without offload fits."""
    yield words.fewest
    for model in MODELS:
        for method, name in words.methods.items():
            found = [
                next((str(n) for n in COUNTS if _fits(model, card, n, method)), words.none)
                for card in CARD_NAMES
            ]
            yield (model, name, *found)


def network(words: Words) -> Iterator[tuple[str, ...]]:
    """Tokens a second and card, by what connects the nodes."""
    yield words.network
    alone = fastest([*candidates(1, NETWORKS[-1])])
    for nodes, gigabits in ((1, NETWORKS[-1]), *((n, g) for n in (2, 4) for g in NETWORKS)):
        found = [*candidates(nodes, gigabits)]
        best, rows = fastest(found), {c.strategy: c for c in best_of_each(found)}
        assert best is not None and alone is not None
        yield (
            f"{gigabits} Gb/s" if nodes > 1 else words.one_node,
            str(nodes),
            *(f"{_speed(rows[name]):,.0f}" for name in ("zero2", "zero3", "fsdp")),
            f"{best.strategy}: {_axes(best)}",
            f"{_speed(best):,.0f}",
            f"{_speed(best) / _speed(alone):.0%}",
        )


TABLES: Mapping[str, Callable[[Words], Iterator[tuple[str, ...]]]] = {
    "strategies": strategies,
    "fewest": fewest,
    "network": network,
}


@cache
def table(name: str, language: str) -> str:
    """The table as markdown."""
    head, *rows = TABLES[name](WORDS[language])
    lines = [head, tuple("---" for _ in head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def written(page: str, language: str) -> str:
    """``page`` with its tables as the planner has them now."""
    for name in TABLES:
        before, rest = page.split(f"<!-- planner: {name} -->\n")
        page = (
            f"{before}<!-- planner: {name} -->\n\n{table(name, language)}\n<!-- end -->"
            + rest.split("<!-- end -->", 1)[1]
        )
    return page


if __name__ == "__main__":
    for language, name in PAGES.items():
        path = ROOT / name
        path.write_text(written(path.read_text(encoding="utf-8"), language), encoding="utf-8")
        sys.stdout.write(f"{name}\n")
