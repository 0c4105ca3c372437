"""Counter-based randomness (contract 6): a seed depends only on where it is used, not on earlier draws."""

from __future__ import annotations

import hashlib


def seed_for(
    run_seed: int, step: int = 0, micro_step: int = 0, role: str = "", dp_rank: int = 0, piece: int = 0
) -> int:
    """Return a 63-bit seed for one use: blake2b of the run's seed and the coordinates.

    ``piece``: the rank's part of the sequence under context parallelism. Equal on all ranks that pass the
    same coordinates; a resumed run draws the same numbers as an uninterrupted one.
    """
    text = f"{run_seed}|{step}|{micro_step}|{role}|{dp_rank}|{piece}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1
