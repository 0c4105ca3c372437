"""The world: this process among the others. The only place that creates and destroys a process group."""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
import torch.distributed as dist

from paceline.core.diagnostics import Diagnostic
from paceline.core.errors import PacelineError
from paceline.core.json_types import NO_UTF8
from paceline.launch.environment.job_managers import OWN_DEVICES
from paceline.plan.hardware.device_kinds import CPU, CUDA, KINDS, is_accelerator, kind_of
from paceline.runtime import codes
from paceline.runtime.device.device import free_memory, pick_device, synchronize
from paceline.runtime.device.host import bind_to_card
from paceline.runtime.process_group.first_all_reduce import first_reduce
from paceline.runtime.process_group.rank_agreement import agree_on_devices, own_facts
from paceline.runtime.process_group.rendezvous import arrive, connect_store, refuse
from paceline.runtime.process_group.wait_clock import WaitClock
from paceline.runtime.rank_env import RankEnv
from paceline.runtime.time_limit import call_with_timeout

__all__ = ["RankEnv", "World", "environment"]

T = TypeVar("T")
JSON_LIMIT_BYTES = 16 * 1024 * 1024
AHEAD_SECONDS = 5.0  # the alarm names who is late before the backend's own time-out ends the processes
_LINGER_SECONDS = 5.0  # for how long the store's host waits for the others to disconnect


@dataclass
class World:
    """This process among ``world_size``, with the few collectives that Paceline's own code uses.

    Every method that takes or returns values is a collective: all ranks call it, in the same order. Nothing
    is pickled: JSON bytes travel in uint8 tensors with a size limit. In a world of one nothing is sent and
    there is no process group.

    - ``timeout_seconds``: how long ranks wait for another, until ``device_mesh.limit_groups`` changes it
    after the start
    - ``notes``: warnings about the ranks and their links
    - ``links``: the links' speed
    - ``free_bytes``: free memory of the accelerator when the world opened
    - ``bound``: the processors to which this rank is bound
    """

    rank: int
    local_rank: int
    world_size: int
    num_nodes: int
    device: torch.device
    backend: str
    store: dist.Store | None
    env: RankEnv = field(default_factory=RankEnv)
    timeout_seconds: float = 1800.0
    secret: bytes = field(default=b"", repr=False)
    closed: bool = False
    notes: list[Diagnostic] = field(default_factory=list)
    links: list[str] = field(default_factory=list)
    free_bytes: int | None = None
    bound: str = ""
    waits: WaitClock = field(default_factory=WaitClock)

    @staticmethod
    def single(device: torch.device | str = "cpu") -> World:
        """Return a world of one process, without a process group."""
        chosen = pick_device(device, 0) if isinstance(device, str) else device
        return World(0, 0, 1, 1, chosen, "none", None)

    @staticmethod
    def pretend(world_size: int) -> World:
        """Return rank 0 of a fake world for simulation: collectives return at once and move nothing."""
        from torch.testing._internal.distributed.fake_pg import FakeStore

        world = World(0, 0, world_size, 1, torch.device("cpu"), "none" if world_size == 1 else "fake", None)
        if world_size > 1:
            world._open_group("fake", FakeStore())
        return world

    @staticmethod
    def open(
        env: RankEnv,
        *,
        device: str,
        device_indices: Sequence[int] = (),
        backend: str = "auto",
        timeout_seconds: float = 1800.0,
        meet_seconds: float | None = None,
        secret: bytes = b"",
        hosted: dist.Store | None = None,
        met: Callable[[World], None] = lambda world: None,
    ) -> World:
        """Rendezvous with the other ranks and create the process group. Collective.

        ``device``: ``cpu`` or an accelerator's type; ``device_indices``: those that train, by local rank;
        ``backend``: its own, ``gloo`` or ``auto``; ``meet_seconds``: how long to wait until all have arrived
        (``timeout_seconds`` by default). ``secret``: the run's (``launch/run_secret.py``); ``hosted``: the
        store, if this process hosts it already (``data_preparation.py``). ``met`` is called
        when all ranks have arrived, before the process group exists: a watchdog can start there.

        Raises PacelineError: ``runtime.port_in_use``,
        ``runtime.rendezvous``, ``runtime.ranks_missing``, ``runtime.store_secret``, ``runtime.device``,
        ``runtime.ranks_differ``, ``runtime.device_shared``, ``runtime.first_reduce``.
        """
        try:
            chosen = pick_device(
                device, env.local_rank, indices=device_indices, alone=env.launcher in OWN_DEVICES
            )
        except PacelineError as exc:
            refuse(env, secret, exc, hosted=hosted)
            raise
        if is_accelerator(chosen.type):
            # NCCL, and libraries that take "the current device", would use device 0 on every rank.
            torch.accelerator.set_device_index(chosen.index or 0)
        free_bytes, bound = free_memory(chosen), bind_to_card(chosen)
        if env.world_size == 1:
            alone = World(0, env.local_rank, 1, 1, chosen, "none", None, env, timeout_seconds)
            alone.free_bytes, alone.bound = free_bytes, bound
            met(alone)
            return alone
        name = _backend(backend, chosen)
        meet_seconds = timeout_seconds if meet_seconds is None else meet_seconds
        store = hosted or connect_store(env, meet_seconds)
        arrive(store, env, meet_seconds, secret)
        store.set_timeout(datetime.timedelta(seconds=timeout_seconds))
        world = World(
            env.rank,
            env.local_rank,
            env.world_size,
            env.num_nodes,
            chosen,
            name,
            store,
            env,
            timeout_seconds,
            secret,
        )
        world.free_bytes, world.bound = free_bytes, bound
        # From here on the alarm watches: comparing devices and opening the group can hang already.
        met(world)
        world.notes += agree_on_devices(store, env, secret, own_facts(chosen), timeout_seconds)
        try:
            # A prefix of its own keeps torch's keys apart from ours in the same store.
            world._open_group(name, dist.PrefixStore("group", store))
        except RuntimeError as exc:
            raise _group_error(exc, env, name) from exc
        world.try_links("all ranks", None)
        return world

    def try_links(self, axis: str, group: dist.ProcessGroup | None) -> None:
        """Time the first all-reduce over a group of this rank and the others like it. Collective.

        Raises PacelineError ``runtime.first_reduce``.
        """
        lines, warnings = first_reduce(self, axis, group)
        self.links += lines
        self.notes += warnings

    def wait_for(self, seconds: float) -> None:
        """Set how long this rank waits outside of existing groups from now on."""
        self.timeout_seconds = seconds

    def require_group(self) -> None:
        """Create a process group in a world of one, for engines that need one (DeepSpeed).

        ``close`` destroys it.
        """
        if self.world_size == 1 and not dist.is_initialized():
            self._open_group(_backend("auto", self.device), dist.HashStore())

    def _open_group(self, name: str, store: dist.Store) -> None:
        kind = kind_of(self.device.type)
        native = name == kind.backend and is_accelerator(kind.name)
        # beside a backend without float64 gloo carries what Paceline itself sends
        beside = native and not kind.wire_float64
        dist.init_process_group(
            f"{CPU.name}:{CPU.backend},{kind.name}:{name}" if beside else name,
            store=store,
            rank=self.rank,
            world_size=self.world_size,
            timeout=group_timeout(self.timeout_seconds),
            # With it NCCL connects eagerly, so that a broken link shows here; mixed backends do not take
            # it.
            device_id=self.device if native and not beside else None,
        )

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def all_reduce_sum(self, values: Sequence[int]) -> list[int]:
        """Return int64 sums over all ranks; every rank passes the same number of values."""
        return [int(v) for v in self._reduce(values, torch.int64, dist.ReduceOp.SUM)]

    def all_reduce_sum_float(self, values: Sequence[float]) -> list[float]:
        """Return float64 sums over all ranks; every rank passes the same number of values."""
        return [float(v) for v in self._reduce(values, torch.float64, dist.ReduceOp.SUM)]

    def all_reduce_tensor(self, values: torch.Tensor) -> torch.Tensor:
        """Return the sums of ``values`` over all ranks, of the same shape and dtype, on their device. The
        host does not wait, unless the backend moves host tensors only.
        """
        if self.world_size == 1:
            return values
        # ``all_reduce`` works in place; the caller keeps its own numbers.
        total = values.to(self._wire, copy=True)
        dist.all_reduce(total)
        return total.to(values.device)

    def all_reduce_max_float(self, values: Sequence[float]) -> list[float]:
        """Return float64 maxima over all ranks."""
        return [float(v) for v in self._reduce(values, torch.float64, dist.ReduceOp.MAX)]

    def any(self, flag: bool) -> bool:
        """Whether ``flag`` is True on any rank."""
        return bool(self._reduce([int(flag)], torch.int64, dist.ReduceOp.MAX)[0])

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        self._reduce([1], torch.int64, dist.ReduceOp.SUM)

    def broadcast_json(self, value: T | None, src: int = 0, limit_bytes: int = JSON_LIMIT_BYTES) -> T:
        """Return rank ``src``'s value on every rank. JSON types only; tuples arrive as lists.

        Raises ``runtime.json_limit`` on all ranks if it is too big.
        """
        if self.world_size == 1:
            return json.loads(_encode(value))
        data = _encode(value) if self.rank == src else b""
        size = torch.tensor([len(data)], dtype=torch.int64, device=self._wire)
        dist.broadcast(size, src)
        _check_size(int(size), limit_bytes, src)
        # the size went first, since the other ranks must allocate what they receive
        payload = _bytes_tensor(data, int(size)).to(self._wire)
        dist.broadcast(payload, src)
        return json.loads(bytes(payload.cpu().numpy()))

    def send_tensor(
        self, tensor: torch.Tensor, src: int, group: dist.ProcessGroup | None = None
    ) -> torch.Tensor:
        """Return rank ``src``'s tensor on the CPU of every rank (of ``group``); the others pass one of its
        shape and dtype, which is overwritten.
        """
        if self.world_size == 1 or not tensor.numel():
            return tensor
        # As bytes, so that every dtype travels, also those that a backend cannot reduce (fp8, bool).
        sent = tensor.reshape(-1).view(torch.uint8).to(self._wire)
        dist.broadcast(sent, src, group=group)
        return sent.cpu().view(tensor.dtype).reshape(tensor.shape)

    def all_gather_json(self, value: T, limit_bytes: int = JSON_LIMIT_BYTES) -> list[T]:
        """Return every rank's value, in rank order, on every rank. JSON types only; tuples arrive as lists.

        The limit applies to each value.
        """
        if self.world_size == 1:
            return [json.loads(_encode(value))]
        data = _encode(value)
        sizes = [torch.zeros(1, dtype=torch.int64, device=self._wire) for _ in range(self.world_size)]
        dist.all_gather(sizes, torch.tensor([len(data)], dtype=torch.int64, device=self._wire))
        lengths = [int(s) for s in sizes]
        for rank, length in enumerate(lengths):
            _check_size(length, limit_bytes, rank)
        # ``all_gather`` needs equal sizes: padded to the longest, cut again below.
        padded = _bytes_tensor(data, max(lengths)).to(self._wire)
        gathered = [torch.empty_like(padded) for _ in range(self.world_size)]
        dist.all_gather(gathered, padded)
        return [json.loads(bytes(t[:n].cpu().numpy())) for t, n in zip(gathered, lengths, strict=True)]

    def all_gather_rows(self, values: torch.Tensor) -> list[torch.Tensor]:
        """Return every rank's ``values`` [n, …], in rank order, on every rank; n may differ."""
        if self.world_size == 1:
            return [values]
        counts = self.all_gather_json(len(values))
        # The counts are exchanged first; rows of padding are dropped again.
        padded = values.new_zeros(max(counts), *values.shape[1:])
        padded[: len(values)] = values
        gathered = [torch.empty_like(padded, device=self._wire) for _ in counts]
        dist.all_gather(gathered, padded.to(self._wire))
        return [part[:count].to(values.device) for part, count in zip(gathered, counts, strict=True)]

    def close(self, ok: bool) -> bool:
        """Destroy the process group; return whether all ranks left in order.

        Contract 10: engines first, then this, then flush and exit. ``ok=True``: a barrier, then all ranks
        leave, the store's host last. Returns False if a rank died while leaving (``ExitCode.CLOSING``; the
        result is still durable). ``ok=False``: other ranks may be gone or stuck. Then this does not wait, and
        leaves the group, as destructors of a broken group can hang; the caller ends the process.
        """
        # A world of one has a group only if an engine asked for it (``require_group``).
        if self.closed or self.world_size == 1:
            if not self.closed and dist.is_initialized():
                dist.destroy_process_group()
            self.closed = True
            return True
        self.closed = True
        if not ok:
            return True
        try:
            # Everybody is past its last collective: no rank destroys a group that another still uses.
            self.barrier()
            synchronize(self.device)
            dist.destroy_process_group()
        except RuntimeError:
            return False
        self._leave_store()
        return True

    def _leave_store(self) -> None:
        """Keep the store's host until the others have disconnected, or for a few seconds."""
        store = self.store
        if store is None or self.env.agent_store:
            return

        def linger() -> None:
            deadline = time.monotonic() + _LINGER_SECONDS
            while store.add("left", 0) < self.world_size - 1 and time.monotonic() < deadline:
                time.sleep(0.01)

        with contextlib.suppress(
            RuntimeError, TimeoutError
        ):  # the host is gone or hangs: nothing depends on it any more
            call_with_timeout(
                _LINGER_SECONDS + 1,
                linger if self.is_main else lambda: store.add("left", 1),
                "leaving the store",
            )

    @property
    def _wire(self) -> torch.device:
        """The device of tensors that are sent."""
        kind = kind_of(self.device.type)
        return self.device if self.backend == kind.backend and kind.wire_float64 else torch.device(CPU.name)

    def _reduce(
        self, values: Sequence[int] | Sequence[float], dtype: torch.dtype, op: dist.ReduceOp.RedOpType
    ) -> list[int] | list[float]:
        if self.world_size == 1:
            return list(values)
        if not values:
            return []
        tensor = torch.tensor(list(values), dtype=dtype).to(self._wire, non_blocking=True)
        dist.all_reduce(tensor, op)
        return tensor.tolist()


def group_timeout(seconds: float) -> datetime.timedelta:
    """Return the timeout of a process group whose ranks wait ``seconds`` for another."""
    return datetime.timedelta(seconds=seconds + AHEAD_SECONDS)


def _backend(requested: str, device: torch.device) -> str:
    """Return the process group's backend. Raises ``runtime.backend`` for a backend that the device does not
    support."""
    kind = kind_of(device.type)
    name = (kind.backend or CPU.backend) if requested == "auto" else requested
    others = {other.backend: other.label for other in KINDS.values() if is_accelerator(other.name)}
    if name != kind.backend and name in others:
        raise PacelineError(
            codes.RUNTIME_BACKEND(
                found=f"device {device}",
                name=name,
                others=others[name],
                hint=f"set ddp_backend: {kind.backend or CPU.backend}",
            )
        )
    return name


def environment() -> Mapping[str, str]:
    """Return a copy of the process's environment; modules that import torch read it only here."""
    return dict(os.environ)


def _group_error(exc: Exception, env: RankEnv, backend: str) -> PacelineError:
    of_host = backend == CPU.backend
    return PacelineError(
        codes.RUNTIME_GROUP(
            found=str(exc).splitlines()[0][:300],
            master_addr=env.master_addr,
            master_port=env.master_port,
            rank=env.rank,
            backend=backend,
            variable=f"{CPU.backend if of_host else CUDA.backend}_SOCKET_IFNAME".upper(),
        )
    )


def _encode(value: object) -> bytes:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", NO_UTF8)


def _bytes_tensor(data: bytes, size: int) -> torch.Tensor:
    """Return uint8 [size] on the CPU: ``data``, then zeros.

    At least one element, as empty messages are not portable.
    """
    return torch.frombuffer(bytearray(data.ljust(size, b"\0") or b"\0"), dtype=torch.uint8)[: max(size, 1)]


def _check_size(size: int, limit_bytes: int, rank: int) -> None:
    """Raise if a value is too big.

    All ranks know the sizes before the bytes are sent, so all raise together.
    """
    if size > limit_bytes:
        raise PacelineError(codes.RUNTIME_JSON_LIMIT(found=f"limit {limit_bytes}", rank=rank, size=size))
