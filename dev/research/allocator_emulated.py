"""torch's caching allocator, emulated over steps whose rows vary in length: reserved over allocated bytes.

    python dev/research/allocator_emulated.py

After c10/cuda/CUDACachingAllocator.cpp: requests of more than 1 MiB come from segments of 20 MiB, those of
more than 10 MiB from segments of their own; the best fitting free block is split, neighbours are merged, and
no segment is returned. A step is a recomputed block of a Llama in 16 bits with logits in fp32. What it prints
is where ``planner_rows._outgrown`` is from; no measured row is read.
"""

from __future__ import annotations

import bisect
import math
import random
from dataclasses import dataclass

MIB = 2**20
MEAN, DEVIATION = 3234, 2547  # tokens a row, lognormal
STEPS = 400
CASES = (  # layers, hidden, intermediate, vocabulary, longest row
    (32, 4096, 11008, 151936, 2048),
    (32, 4096, 11008, 151936, 4096),
    (32, 4096, 11008, 151936, 8192),
    (32, 4096, 11008, 64000, 4096),
    (32, 4096, 11008, 64000, 8192),
    (32, 4096, 14336, 32000, 8192),
)


@dataclass(eq=False)
class Block:
    """A piece of a segment, with its neighbours."""

    size: int
    number: int
    before: Block | None = None
    after: Block | None = None
    free: bool = True


class Allocator:
    """The large pool."""

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int, Block]] = []
        self.made = self.reserved = self.allocated = self.peak = 0

    def _block(self, size: int) -> Block:
        self.made += 1
        return Block(size, self.made)

    def take(self, count: int) -> Block:
        """Return a block of at least ``count`` bytes."""
        size = -(-count // 512) * 512
        found = bisect.bisect_left(self.blocks, (size, -1))
        if found < len(self.blocks):
            block = self.blocks.pop(found)[2]
        else:
            block = self._block(20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB)
            self.reserved += block.size
        if block.size - size > MIB:
            rest = self._block(block.size - size)
            rest.before, rest.after, block.size = block, block.after, size
            if block.after is not None:
                block.after.before = rest
            block.after = rest
            bisect.insort(self.blocks, (rest.size, rest.number, rest))
        block.free = False
        self.allocated += block.size
        self.peak = max(self.peak, self.allocated)
        return block

    def give(self, block: Block) -> None:
        """Free ``block``, merged with its free neighbours."""
        self.allocated -= block.size
        if block.after is not None and block.after.free:
            self._merge(block, block.after)
        if block.before is not None and block.before.free:
            block = self._merge(block.before, block)
        block.free = True
        bisect.insort(self.blocks, (block.size, block.number, block))

    def _merge(self, first: Block, second: Block) -> Block:
        for block in (first, second):
            if block.free:
                self.blocks.pop(bisect.bisect_left(self.blocks, (block.size, block.number)))
        first.size += second.size
        first.after = second.after
        if second.after is not None:
            second.after.before = first
        first.free = False
        return first


def _passing(memory: Allocator, sizes: list[int], alive: int) -> None:
    """Take ``sizes`` one after the other, ``alive`` at a time."""
    held: list[Block] = []
    for size in sizes:
        held.append(memory.take(size))
        if len(held) > alive:
            memory.give(held.pop(0))
    for block in held:
        memory.give(block)


def step(memory: Allocator, n: int, layers: int, h: int, f: int, vocabulary: int) -> None:
    """One forward and backward over ``n`` tokens."""
    block = [4 * n * h, *[2 * n * h] * 9, 4 * n * h, *[2 * n * h] * 2, *[2 * n * f] * 4, 2 * n * h]
    inputs = [memory.take(2 * n * h)]
    for _ in range(layers):
        _passing(memory, block, 5)
        inputs.append(memory.take(2 * n * h))
    head = [memory.take(size * n * vocabulary) for size in (2, 4, 4, 4, 4)]
    gradient = memory.take(2 * n * h)
    for tensor in head:
        memory.give(tensor)
    for _ in range(layers):
        held = [memory.take(size) for size in block]
        while held:
            size = held[-1].size
            flowing = memory.take(size)
            memory.give(held.pop())
            memory.give(flowing)
        memory.give(inputs.pop())
    memory.give(inputs.pop())
    memory.give(gradient)


def main() -> None:
    """Print reserved over allocated by the share of rows that reach the limit."""
    variance = math.log(1 + (DEVIATION / MEAN) ** 2)
    middle = math.log(MEAN) - variance / 2
    for layers, h, f, vocabulary, longest in CASES:
        draw, memory = random.Random(0), Allocator()
        for _ in range(STEPS):
            n = min(longest, int(draw.lognormvariate(middle, math.sqrt(variance))))
            step(memory, n, layers, h, f, vocabulary)
        reach = 0.5 * math.erfc((math.log(longest) - middle) / math.sqrt(2 * variance))
        print(
            f"vocabulary {vocabulary}, at most {longest} tokens, reached by {reach:.0%}:"
            f" {memory.reserved / memory.peak:.2f}"
        )


if __name__ == "__main__":
    main()
