"""Weight transfer to vLLM over gloo, for servers on CPUs. vLLM loads this module in its own environment.

The entry point ``vllm.general_plugins`` calls ``register``; ``--weight-transfer-config '{"backend":
"paceline"}'`` then chooses the engine. Paceline is imported only where it needs neither torch nor packages.
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from datetime import timedelta
from importlib import import_module
from math import prod
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Store

    from paceline.core.json_types import Json

BACKEND = "paceline"


class Sent(Protocol):
    """A broadcast that is under way."""

    def is_completed(self) -> bool: ...

    def wait(self) -> bool: ...


class Gloo(Protocol):
    """A rank of torch's ``ProcessGroupGloo``, whose types lack its calls."""

    def broadcast(self, tensor: Tensor, root: int) -> Sent: ...

    def abort(self) -> None: ...


def register() -> None:
    """Make the engine known to vLLM; each of its processes calls this."""
    from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory

    # A process may load plugins more than once.
    if BACKEND not in WeightTransferEngineFactory._registry:
        WeightTransferEngineFactory.register_engine(BACKEND, _engine())


def address_towards(host: str, port: int) -> str:
    """Return the address of this machine from which ``host`` is reached. Raises OSError."""
    family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind) as probe:
        probe.connect(address)  # sends nothing
        return str(probe.getsockname()[0])


def gloo_group(store: Store, rank: int, size: int, address: str, seconds: float) -> Gloo:
    """Return a group apart from torch's default one, once all ``size`` ranks are there.

    ``address``: this rank's, for the others; ``seconds``: for each of its calls.
    """
    kind = vars(import_module("torch.distributed"))["ProcessGroupGloo"]
    options = kind._Options()
    options._timeout = timedelta(seconds=seconds)
    # Gloo's own choice is the host name's address, which may be the loopback.
    options._devices = [kind.create_device(hostname=address)]
    group: Gloo = kind(store, rank, size, options)
    return group


@dataclass
class Rendezvous:
    """Where a worker meets the sender, which is rank 0; ``rank_offset``: of the server's first worker."""

    master_address: str
    master_port: int
    rank_offset: int
    world_size: int
    seconds: float


@dataclass
class BucketContent:
    """The tensors that lie one after the other in the next broadcast."""

    names: list[str]
    dtype_names: list[str]
    shapes: list[list[int]]


def _engine() -> type:
    """Return the engine's class, derived from vLLM's."""
    import torch
    from torch.distributed import TCPStore
    from vllm.distributed.weight_transfer.base import WeightTransferEngine

    class GlooEngine(WeightTransferEngine):
        """Receives buckets of bytes; vLLM's own loader puts their tensors into the model."""

        init_info_cls, update_info_cls = Rendezvous, BucketContent
        group: Gloo | None = None

        def init_transfer_engine(self, init_info: Rendezvous) -> None:
            self.shutdown()
            host, port, seconds = init_info.master_address, init_info.master_port, init_info.seconds
            store = TCPStore(host, port, is_master=False, timeout=timedelta(seconds=seconds))
            parallel = self.parallel_config
            # ``world_size`` of vLLM's config is that of one replica (tensor times pipeline).
            rank = parallel.data_parallel_index * parallel.world_size + parallel.rank
            rank += init_info.rank_offset
            address = address_towards(host, port)
            self.group = gloo_group(store, rank, init_info.world_size, address, seconds)

        def start_weight_update(self) -> None:
            from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

            initialize_layerwise_reload(self.model)

        def update_weights(self, update_info: dict[str, Json]) -> None:
            self.receive_weights(self.parse_update_info(update_info))

        def receive_weights(self, update_info: BucketContent) -> None:
            if self.group is None:
                raise RuntimeError("the sender's group was not joined")
            dtypes = [getattr(torch, name) for name in update_info.dtype_names]
            shapes = update_info.shapes
            sizes = [prod(shape) * dtype.itemsize for shape, dtype in zip(shapes, dtypes, strict=True)]
            # a buffer of its own: vLLM may keep tensors until a layer is complete
            data = torch.empty(sum(sizes), dtype=torch.uint8)
            self.group.broadcast(data, 0).wait()
            pieces = zip(update_info.names, torch.split(data, sizes), dtypes, shapes, strict=True)
            # Views of the buffer, not copies.
            tensors = ((name, piece.view(dtype).view(shape)) for name, piece, dtype, shape in pieces)
            self.model.load_weights((name, tensor.to(self.device)) for name, tensor in tensors)

        def finish_weight_update(self) -> None:
            from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

            finalize_layerwise_reload(self.model, self.model_config)

        def shutdown(self) -> None:
            self.group = None

    return GlooEngine
