"""The vectors of a corpus as one file of raw float32, encoded piece by piece."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import numpy as np
from tqdm import tqdm

from probers.corpus import passages_from
from probers.files import write_text
from probers.types import Passage, RunError

from .encoder import Encoder

#: Passages that are encoded, checked and written at a time: what a killed process loses at most.
PIECE = 2048

_VECTORS, _ABOUT = "vectors.f32", "vectors.json"


def passage_text(passage: Passage) -> str:
    """What of a passage is encoded."""
    return f"{passage.title} {passage.text}".strip()


def encode_corpus(
    passages: Sequence[Passage], encoder: Encoder, folder: Path, *, piece: int = PIECE
) -> tuple[int, int]:
    """Write the vectors of all passages, going on after those that an interrupted call wrote.

    Returns:
        Passages and width, the shape of the file.

    Raises:
        RunError: a vector that is not finite (names the passage); the encoder is out of memory.
    """
    done, width = _written(folder)
    rest = passages_from(passages, done)
    with (
        (folder / _VECTORS).open("r+b" if done else "wb") as file,
        tqdm(
            total=len(passages),
            initial=done,
            desc="encode",
            unit="passage",
            disable=len(passages) < 1000,
        ) as bar,
    ):
        # Bytes beyond what is noted are a piece that was cut off.
        file.seek(done * width * 4)
        file.truncate()
        while batch := list(islice(rest, piece)):
            vectors = encoder.encode([passage_text(p) for p in batch], "passage")
            check_finite(vectors, encoder, [f"passage {p.id!r}, {p.title!r:.60}" for p in batch])
            file.write(vectors.tobytes())
            file.flush()
            os.fsync(file.fileno())
            done, width = done + len(batch), vectors.shape[1]
            write_text(folder / _ABOUT, json.dumps({"rows": done, "width": width}))
            bar.update(len(batch))
    return done, width


def open_vectors(folder: Path) -> np.ndarray:
    """(N, d) float32, memory-mapped."""
    return np.asarray(np.memmap(folder / _VECTORS, np.float32, "r", shape=_written(folder)))


def check_finite(vectors: np.ndarray, encoder: Encoder, names: Sequence[str]) -> None:
    """Refuse vectors with NaN or infinity.

    Raises:
        RunError: names the first text that has one.
    """
    bad = np.flatnonzero(~np.isfinite(vectors).all(axis=1))
    if len(bad):
        raise RunError(
            f"{encoder.name} gave {len(bad)} of {len(names)} texts a vector that is not finite, first "
            f"{names[bad[0]]}: try retriever.device=cpu, which computes in float32, or another model"
        )


def _written(folder: Path) -> tuple[int, int]:
    """Rows and width of what was written whole so far."""
    try:
        about = json.loads((folder / _ABOUT).read_bytes())
        rows, width = int(about["rows"]), int(about["width"])
        return (rows, width) if (folder / _VECTORS).stat().st_size >= rows * width * 4 else (0, 0)
    except (OSError, ValueError, KeyError):
        return 0, 0
