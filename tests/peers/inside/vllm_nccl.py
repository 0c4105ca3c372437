"""Run in vLLM's environment: its own classes and consumer read what Paceline sends for its engine ``nccl``.

Standard input: JSON with ``init``, and ``buckets`` of ``content`` and ``data`` (hexadecimal). Standard
output: JSON with name, shape and values of each tensor. The card's streams and its group are stand-ins.
"""

from __future__ import annotations

import contextlib
import json
import sys
from types import SimpleNamespace

import torch
from vllm.distributed.weight_transfer import packed_tensor
from vllm.distributed.weight_transfer.nccl_common import NCCLWeightTransferInitInfo
from vllm.distributed.weight_transfer.nccl_engine import NCCLWeightTransferUpdateInfo


def main() -> None:
    """Read, and print what would have been loaded."""
    told = json.load(sys.stdin)
    init = NCCLWeightTransferInitInfo(**told["init"])
    assert init.packed and len(init.nccl_unique_id_bytes) == 128
    stream = SimpleNamespace(synchronize=lambda: None)
    packed_tensor._get_streams = lambda _, count: [stream] * count
    torch.cuda.stream = lambda _: contextlib.nullcontext()
    torch.accelerator.current_device_index = lambda: 0
    loaded = []
    for bucket in told["buckets"]:
        info = NCCLWeightTransferUpdateInfo(**bucket["content"])
        broadcasts = [bytes.fromhex(bucket["data"])]

        def broadcast(into: torch.Tensor, src: int, left: list[bytes] = broadcasts) -> None:
            data = left.pop(0)
            assert src == 0 and len(data) == into.numel(), (len(data), into.numel())
            into.copy_(torch.frombuffer(bytearray(data), dtype=torch.uint8))

        described = zip(info.names, info.shapes, info.dtype_names, strict=True)
        packed_tensor.packed_nccl_broadcast_consumer(
            ((name, (shape, getattr(torch, dtype))) for name, shape, dtype in described),
            SimpleNamespace(broadcast=broadcast),
            0,
            lambda tensors: loaded.extend((n, list(t.shape), t.flatten().tolist()) for n, t in tensors),
            init.packed_buffer_size_bytes,
            init.packed_num_buffers,
            "cpu",
        )
        assert not broadcasts, "vLLM waits for fewer broadcasts"
    print(json.dumps(loaded))


if __name__ == "__main__":
    main()
