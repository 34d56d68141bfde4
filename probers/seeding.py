"""Seeded draws, independent of order, machine and the number of alternatives."""

from __future__ import annotations

import hashlib


def draw_key(purpose: str, seed: int, text: str) -> int:
    """A number below 2**64 that looks random and is the same wherever it is computed.

    Args:
        purpose: what is drawn, so that two draws from the same texts have nothing in common.
    """
    blob = f"{purpose}:{seed}:{text}".encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(blob, digest_size=8).digest(), "big")
