"""Weights straight into generation servers: vLLM's four phases, with buckets of bytes broadcast by rank 0."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from importlib import import_module
from typing import Protocol, TypeVar
from urllib.parse import urlsplit

import torch
from torch import Tensor

from paceline.checkpoint.export.hf_tensor_names import hub_entries
from paceline.checkpoint.format.safetensors_file import TensorEntry
from paceline.core.errors import PacelineError
from paceline.core.json_types import JsonObject
from paceline.generation.remote import ServerEngine
from paceline.generation.server_pool import together
from paceline.generation.vllm_plugin import Gloo, Sent, address_towards, gloo_group
from paceline.protocols.model import RootModule
from paceline.runtime.process_group.world import World
from paceline.training.rollout.weight_entries import Lockstep, Sharing, model_entries
from paceline.training.rollout.weight_folder import forget_prefixes

BUCKET_BYTES = 64 * 2**20
MEETING_SECONDS = 60.0
_PAUSE_SECONDS = 0.001
T = TypeVar("T")


class BroadcastGroup(Protocol):
    """Rank 0 of a group with a server's workers. ``device``: where what is sent must be."""

    device: torch.device

    def broadcast(self, data: Tensor) -> Sent: ...

    def close(self) -> None: ...


@dataclass
class Bucket:
    """Tensors as bytes [n] (uint8), one after the other."""

    data: Tensor
    entries: Sequence[TensorEntry]

    @property
    def content(self) -> JsonObject:
        """What is told of it."""
        return {
            "names": [e.name for e in self.entries],
            "dtype_names": [str(e.dtype).removeprefix("torch.") for e in self.entries],
            "shapes": [list(e.shape) for e in self.entries],
        }

    def release(self) -> None:
        """Give up the memory: whoever still has the bucket must not keep it while the next is gathered."""
        self.data = self.data.new_empty(0)


def buckets(entries: Sequence[TensorEntry], size: int, device: torch.device) -> Iterator[Bucket]:
    """Yield the tensors in buckets of at most ``size`` bytes; a larger tensor is one of its own.

    The memory of a bucket is used again for the next.
    """
    room = torch.empty(min(size, sum(e.num_bytes for e in entries)), dtype=torch.uint8, device=device)
    held: list[TensorEntry] = []
    used = 0
    for entry in entries:
        # Bytes: tensors of several dtypes share a bucket.
        data = entry.load().to(device).contiguous().view(-1).view(torch.uint8)
        if used + len(data) > len(room) and held:
            yield Bucket(room[:used], held)
            held, used = [], 0
        if len(data) > len(room):
            alone = Bucket(data, [entry])
            yield alone
            alone.release()
        else:
            room[used : used + len(data)] = data
            held, used = [*held, entry], used + len(data)
        del data
    if held:
        yield Bucket(room[:used], held)


@dataclass
class TransferSender:
    """Sends to each of ``engines`` within ``seconds`` of it. ``num_bytes``: what was sent last, to each."""

    engines: Sequence[ServerEngine]
    seconds: Sequence[float]
    world: World
    sharing: Sharing
    dtype: torch.dtype
    backend: str
    num_bytes: int = 0
    groups: dict[int, BroadcastGroup] = field(default_factory=dict)
    broken: set[int] = field(default_factory=set)  # servers whose last update failed
    before: dict[int, str] = field(default_factory=dict)  # the version of each when its last update began

    def send(self, root: RootModule, places: Sequence[int], version: str) -> dict[int, PacelineError]:
        """Have the engines at ``places`` compute with the weights; return on rank 0 which failed.
        Collective.
        """
        failed: dict[int, PacelineError] = {}
        entries = Lockstep(
            hub_entries(root.hf, list(model_entries(root.hf, self.dtype, self.sharing.access.whole)))
        )
        if self.world.rank == 0 and places:
            failed = self._send(entries, places, version)
        if self.sharing.collective and places:
            entries.rest()
        return failed

    def _send(self, entries: Lockstep, places: Sequence[int], version: str) -> dict[int, PacelineError]:
        self.num_bytes = 0
        failed = together(self._begin, places)
        live = [place for place in places if place not in failed]
        for bucket in buckets(entries.entries, BUCKET_BYTES, self._device(live)) if live else ():
            # All servers have a bucket before its memory is used again.
            failed |= together(partial(self._pass, bucket), live)
            live = [place for place in live if place not in failed]
            self.num_bytes += len(bucket.data)
            if not live:
                break

        def finish(place: int) -> None:
            self._call(place, "/finish_weight_update", {})
            forget_prefixes(self.engines[place].server, self.seconds[place])
            self.engines[place].stamp(version)

        failed |= together(finish, live)
        for place in failed.keys() & self.groups.keys():
            in_background(self.groups.pop(place).close)  # gloo waits for what is under way
        self.broken = (self.broken - set(places)) | set(failed)
        return failed

    def _device(self, live: Sequence[int]) -> torch.device:
        return self.groups[live[0]].device

    def _call(self, place: int, path: str, body: JsonObject) -> None:
        self.engines[place].server.post_once(path, body, self.seconds[place])

    def _begin(self, place: int) -> None:
        """Meet the server's workers, unless they are here, and announce an update."""
        # It may still wait for the rest of the last update. A server that was started anew does not, and
        # vLLM would answer the next call with the error of this one.
        version = self.engines[place].current_version()
        if place in self.broken and version == self.before.get(place):
            with suppress(PacelineError):
                self._call(place, "/finish_weight_update", {})
        self.before[place] = version
        if place not in self.groups:
            self.groups[place] = self._meet(place)
        self._call(place, "/start_weight_update", {})

    def _meet(self, place: int) -> BroadcastGroup:
        server = self.engines[place].server
        size = server.request("GET", "/get_world_size").get("world_size")
        if not isinstance(size, int):
            raise server.wrong("/get_world_size", "no number of workers", "use vLLM 0.26 or later")
        join, parameters = nccl() if self.backend == "nccl" else gloo(server.url, self.seconds[place])
        # Rank 0 is this process; workers follow.
        body: JsonObject = {"init_info": {"rank_offset": 1, "world_size": size + 1, **parameters}}
        # The server answers once the group is complete, so both sides must join at the same time.
        answer = in_background(lambda: self._call(place, "/init_weight_transfer_engine", body))
        group = in_background(lambda: join(size + 1))
        while not group.done():
            if answer.done() and (error := answer.exception()) is not None:
                raise error
            time.sleep(_PAUSE_SECONDS)
        answer.result()
        try:
            return group.result()
        except RuntimeError as error:
            raise server.wrong("/init_weight_transfer_engine", f"no group: {error}") from error

    def _pass(self, bucket: Bucket, place: int) -> None:
        """Broadcast to one server while it is told what comes."""
        server, body = self.engines[place].server, bucket.content
        answer = in_background(lambda: self._call(place, "/update_weights", {"update_info": body}))
        try:
            sent = self.groups[place].broadcast(bucket.data)
            while not sent.is_completed():
                if answer.done():  # it ended before it had everything
                    answer.result()
                time.sleep(_PAUSE_SECONDS)
            sent.wait()
        except RuntimeError as error:
            raise server.wrong("/update_weights", f"the connection broke: {error}") from error
        answer.result()


def in_background(work: Callable[[], T]) -> Future[T]:
    """Begin ``work`` in a thread that nobody waits for at the end of the process."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised by ``result``
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


Meeting = tuple[
    Callable[[int], BroadcastGroup], JsonObject
]  # joins as rank 0 of so many; what workers must know


@dataclass
class GlooGroup:
    """Over gloo, on the host."""

    group: Gloo
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def broadcast(self, data: Tensor) -> Sent:
        """Send to the workers."""
        return self.group.broadcast(data, 0)

    def close(self) -> None:
        """Give up what is under way."""
        self.group.abort()


def gloo(url: str, seconds: float) -> Meeting:
    """Open a meeting place that only the machine of ``url``, or its network, reaches."""
    from torch.distributed import TCPStore

    parts = urlsplit(url)
    address = address_towards(parts.hostname or "", parts.port or 80)
    # Bound to this address alone; torch's store would listen on all of them.
    listening = socket.create_server(
        (address, 0), family=socket.AF_INET6 if ":" in address else socket.AF_INET
    )
    port, limit = listening.getsockname()[1], min(seconds, MEETING_SECONDS)
    store = TCPStore(
        address,
        port,
        is_master=True,
        wait_for_workers=False,
        timeout=timedelta(seconds=limit),
        master_listen_fd=listening.detach(),
    )
    parameters: JsonObject = {"master_address": address, "master_port": port, "seconds": seconds}
    return lambda size: GlooGroup(gloo_group(store, 0, size, address, limit)), parameters


class Nccl(Protocol):
    """``torch.cuda.nccl``, whose types are missing."""

    def unique_id(self) -> bytes: ...

    def init_rank(self, num_ranks: int, uid: bytes, rank: int) -> Communicator: ...

    def all_reduce(self, inputs: Sequence[Tensor], *, comms: Sequence[Communicator]) -> None: ...

    def broadcast(self, inputs: Sequence[Tensor], root: int, *, comms: Sequence[Communicator]) -> None: ...


class Communicator(Protocol):
    """NCCL's own handle."""


@dataclass
class NcclGroup:
    """Over NCCL, from this process's card: vLLM's own engine ``nccl`` with buckets as its packed chunks."""

    comm: Communicator
    device: torch.device

    def broadcast(self, data: Tensor) -> Sent:
        """Send to the workers."""
        bindings().broadcast([data], 0, comms=[self.comm])
        return Recorded(torch.accelerator.current_stream().record_event())

    def close(self) -> None:
        """The communicator ends with its last reference."""


@dataclass
class Recorded:
    """What was queued on a stream before ``event``."""

    event: torch.Event

    def is_completed(self) -> bool:
        """Whether the device is past it."""
        return self.event.query()

    def wait(self) -> bool:
        """Wait for the device."""
        self.event.synchronize()
        return True


def bindings() -> Nccl:
    """Return torch's own calls of NCCL."""
    module: Nccl = import_module("torch.cuda.nccl")
    return module


def nccl() -> Meeting:
    """Meet by an id that is told to the workers."""
    secret, index = bindings().unique_id(), torch.accelerator.current_device_index()
    kind = torch.accelerator.current_accelerator()
    assert kind is not None, "there is no card"
    device = torch.device(kind.type, index)

    def join(size: int) -> BroadcastGroup:
        with torch.accelerator.device_index(index):
            comm = bindings().init_rank(size, secret, 0)
            # the workers begin with this sum
            bindings().all_reduce([torch.zeros(1, device=device)], comms=[comm])
        return NcclGroup(comm, device)

    parameters: JsonObject = {
        "nccl_unique_id_b64": base64.b64encode(secret).decode(),
        "packed": True,
        "packed_buffer_size_bytes": BUCKET_BYTES,
        "packed_num_buffers": 1,
    }
    return join, parameters
