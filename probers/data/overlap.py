"""Questions that a prober or classifier was trained, validated and tested on, so that none is asked again.

Beside what was trained lies ``seen.json``: for each split the hashes of its groups, and of its questions'
texts, which are the same under other ids too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
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
    """Hashes of groups and questions, by split."""

    splits: Mapping[str, frozenset[str]]

    @classmethod
    def of(cls, splits: Mapping[str, Iterable[tuple[str, str, str]]]) -> Seen:
        """From data set, group and question of every text, by split; "" where a text has none."""
        return cls({s: frozenset(m for text in texts for m in _marks(*text)) for s, texts in splits.items()})

    @classmethod
    def read(cls, folder: Path) -> Seen | None:
        """Read the questions seen by whatever was trained in a folder; None if it has no record.

        Raises:
            UserError: the file is damaged.
        """
        try:
            found = unsealed(folder / FILE)["splits"]
            return cls({split: frozenset(map(str, found.get(split, ()))) for split in SPLITS})
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            raise UserError(f"{folder / FILE} is damaged ({error}): train again", "damaged") from error

    def save(self, folder: Path) -> None:
        """Write ``seen.json`` into the folder of a prober or classifier."""
        found = {split: sorted(marks) for split, marks in self.splits.items()}
        write_text(folder / FILE, sealed({"format": _FORMAT, "splits": found}))

    def __or__(self, other: Seen) -> Seen:
        """Join the questions seen by either."""
        none: frozenset[str] = frozenset()
        return Seen({s: self.splits.get(s, none) | other.splits.get(s, none) for s in SPLITS})

    def split_of(self, question: Question) -> str:
        """The first of train, validation and test that the question is in, "" where it is in none."""
        marks = {*_marks(question.dataset, question.group or question.id, question.question)}
        return next((split for split in SPLITS if marks & self.splits.get(split, frozenset())), "")


#: Completions are asked about the articles that the labels of ``--source wiki`` come from.
_SAME_GROUPS = {"completion": "wiki"}


def _marks(dataset: str, group: str, question: str) -> Iterable[str]:
    if group:
        yield digest(f"group\n{_SAME_GROUPS.get(dataset, dataset)}\n{group}")
    if text := normalize_answer(question):
        yield digest(f"question\n{text}")
