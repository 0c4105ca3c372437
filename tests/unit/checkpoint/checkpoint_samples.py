"""A world of threads and a few shards to save."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from paceline.protocols.shard import Shard


class OneRank:
    """A world of one."""

    rank = 0
    world_size = 1

    def all_gather_json(self, obj: Any) -> list[Any]:
        return [json.loads(json.dumps(obj))]


class ThreadRank:
    """One rank of a world of threads; messages are real JSON."""

    def __init__(self, rank: int, slots: list[str], barrier: threading.Barrier) -> None:
        self.rank = rank
        self.world_size = len(slots)
        self._slots = slots
        self.meeting = barrier

    def all_gather_json(self, obj: Any) -> list[Any]:
        self._slots[self.rank] = json.dumps(obj)
        self.meeting.wait(240)
        answer = [json.loads(s) for s in self._slots]
        self.meeting.wait(240)
        return answer


def on_ranks(num: int, work: Callable[[ThreadRank], Any]) -> list[Any]:
    """``work`` on every rank at once; a result or the exception of each."""
    slots, barrier = [""] * num, threading.Barrier(num)

    def one(rank: int) -> Any:
        try:
            return work(ThreadRank(rank, slots, barrier))
        except Exception as exc:
            return exc

    with ThreadPoolExecutor(num) as pool:
        return list(pool.map(one, range(num)))


def whole(name: str, tensor: torch.Tensor, kind: str = "param", role: str = "policy") -> Shard:
    return Shard(role, name, kind, tuple(tensor.shape), (0,) * tensor.ndim, tensor)


def sample_shards(step: int) -> list[Shard]:
    weight = torch.arange(12, dtype=torch.float32).reshape(3, 4) + step
    return [
        whole("model.w.weight", weight),
        whole("model.w.weight", weight * 2, "exp_avg"),
        whole("model.w.weight", torch.tensor(float(step)), "step"),
        whole("model.b.bias", torch.ones(5, dtype=torch.bfloat16)),
    ]


FILES = {"config.json": b'{"model_type": "llama"}', "tokenizer.json": b"{}"}
