"""A step of decoding captured as one graph of its kernels, which the host starts by a single call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from paceline.plan.hardware.device_kinds import kind_of

# operations whose result the host reads, or whose result's size depends on values
_READS = frozenset(
    (
        "_local_scalar_dense",
        "bincount",
        "equal",
        "is_nonzero",
        "masked_select",
        "nonzero",
        "repeat_interleave",
        "unique_consecutive",
        "unique_dim",
        "_unique2",
    )
)
_BY_INDEX = ("index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_")


class HostReads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records operations in which the host reads a value from the device: a captured graph would not repeat
    the read.

    ``found``: names of such operations.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name.partition("::")[2]
        # Run first: whether the result left the device is seen by its result.
        out = func(*args, **kwargs)
        indices = [x for x in tree_leaves(args[1]) if isinstance(x, Tensor)] if name in _BY_INDEX else []
        by_mask = any(index.dtype in (torch.bool, torch.uint8) for index in indices)
        if name in _READS or by_mask or _crosses(name, args, out):
            self.found.append(name)
        return out


def _crosses(name: str, args: Any, out: Any) -> bool:
    """Whether an operation copies between the host and the device."""
    if name not in ("_to_copy", "copy_"):
        return False
    return len({x.device.type for x in (*tree_leaves(args), out) if isinstance(x, Tensor)}) > 1


class StepGraphs:
    """Steps by key: each is first run eagerly, then captured, then replayed.

    ``obstacle``: why nothing is captured (steps then run eagerly), or None.
    """

    def __init__(self, device: torch.device, obstacle: str | None) -> None:
        self.obstacle = obstacle
        self.captured = 0
        self._driver: Any = torch.get_device_module(device.type)
        if obstacle is None and not kind_of(device.type).graphs:
            self.obstacle = f"torch has no graphs for {device.type}"
        self._replays: dict[tuple[int, int], Callable[[], None]] = {}
        self._pool: Any = None
        self._stream: Any = None
        self._tried = False

    def run(self, key: tuple[int, int], step: Callable[[], None], again: bool) -> None:
        """Replay the key's graph, or run the step, and capture it if the key comes ``again``.

        Errors of the step pass through; the reason of a failed capture is kept in ``obstacle``.
        """
        replay = self._replays.get(key)
        if replay is not None:
            replay()
        elif self.obstacle is not None:
            step()
        else:
            self._first(step)
            if again and self.obstacle is None:
                self._capture(key, step)

    def _first(self, step: Callable[[], None]) -> None:
        """Run the step on the capture's stream, so that libraries make their one-time allocations."""
        if self._stream is None:
            self._stream = self._driver.Stream()
            self._pool = self._driver.graph_pool_handle()
        current = self._driver.current_stream()
        self._stream.wait_stream(current)
        reads = HostReads()
        with self._driver.stream(self._stream):
            if self._tried:
                step()
            else:
                with reads:
                    step()
        self._tried = True
        # Both ways: the step reads what the current stream wrote, and the reverse.
        current.wait_stream(self._stream)
        if reads.found:
            self.obstacle = f"the host takes part in its forward ({reads.found[0]})"

    def _capture(self, key: tuple[int, int], step: Callable[[], None]) -> None:
        graph = self._driver.CUDAGraph()
        # other threads of ours (heartbeat, NCCL's watchdog) may call the driver meanwhile
        how = {"pool": self._pool, "stream": self._stream, "capture_error_mode": "thread_local"}
        try:
            with self._driver.graph(graph, **how):
                step()
        # No reason against graphs as such: the caller decides.
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:
            self.obstacle = f"its capture failed: {str(error).splitlines()[0]}"
            return
        self.captured += 1
        self._replays[key] = graph.replay
