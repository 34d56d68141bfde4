"""Which questions a prober or classifier was trained, validated and tested on, so that none is asked again.

Beside what was trained lies ``seen.json``: for each split the hashes of its groups, and of its questions'
texts, which are the same under other ids too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..checksums import sealed, unsealed
from ..evaluation.answers import normalize_answer
from ..files import digest, write_text
from ..types import SPLITS, Question, UserError

FILE = "seen.json"
_FORMAT = "probers-seen"


@dataclass(frozen=True, slots=True)
class Seen:
    """Hashes of groups and questions by split, of one trained part or of several together."""

    splits: Mapping[str, frozenset[str]]

    def split_of(self, question: Question) -> str:
        """The first of train, validation and test that the question is in, "" where it is in none."""
        marks = {*_marks(question.dataset, question.group or question.id, question.question)}
        return next((split for split in SPLITS if marks & self.splits.get(split, frozenset())), "")


def write_seen(folder: Path, splits: Mapping[str, Iterable[tuple[str, str, str]]]) -> None:
    """Write ``seen.json``.

    Args:
        folder: of the prober or classifier.
        splits: data set, group and question's text of every text, by split; "" where there is none.
    """
    found = {split: sorted({m for text in texts for m in _marks(*text)}) for split, texts in splits.items()}
    write_text(folder / FILE, sealed({"format": _FORMAT, "splits": found}))


def read_seen(folders: Sequence[str | Path]) -> tuple[Seen, list[str]]:
    """What the trained parts in some folders have seen, and those that do not say.

    Raises:
        UserError: a file that is damaged.
    """
    together: dict[str, set[str]] = {split: set() for split in SPLITS}
    silent = []
    for folder in folders:
        file = Path(folder) / FILE
        try:
            found = unsealed(file)["splits"]
            for split in SPLITS:
                together[split].update(map(str, found.get(split, ())))
        except (FileNotFoundError, NotADirectoryError):
            silent.append(str(folder))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise UserError(f"{file} is damaged (it {error}): train again") from error
    return Seen({split: frozenset(marks) for split, marks in together.items()}), silent


def _marks(dataset: str, group: str, question: str) -> Iterable[str]:
    if group:
        yield digest(f"group\n{dataset}\n{group}")
    if text := normalize_answer(question):
        yield digest(f"question\n{text}")
