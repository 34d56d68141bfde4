"""Groups of answers with the same meaning, by the matcher that makes labels or by an entailment model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations

from ..evaluation.answers import normalize_answer, unmarked
from ..types import UserError, first_line
from ..words import EntityMatcher

#: Tells whether two answers mean the same; None if undecided.
Same = Callable[[str, str], bool | None]

_VERDICTS = {"equivalent": True, "different": False}


def by_matcher(matcher: EntityMatcher) -> Same:
    """Compare answers by :class:`~probers.words.EntityMatcher`, in both directions.

    Answers that are equal after SQuAD's normalisation mean the same; an empty answer means the same only as
    another empty one.
    """

    def same(a: str, b: str) -> bool | None:
        x, y = unmarked(a), unmarked(b)
        if normalize_answer(x) == normalize_answer(y):
            return True
        if not x.strip() or not y.strip():
            return False
        verdicts = [_VERDICTS.get(matcher.match(*pair).verdict) for pair in ((x, y), (y, x))]
        if False in verdicts:
            return False
        return None if None in verdicts else True

    return same


class Entailment:
    """Equivalence by an entailment (NLI) model: two answers that entail each other (Kuhn et al. 2023).

    Args:
        name: hub id or folder of a sequence classifier of transformers with a label "entailment", such as
            microsoft/deberta-large-mnli.

    Raises:
        UserError: the model cannot be loaded, or has no such label.
    """

    def __init__(self, name: str) -> None:
        from transformers import AutoModelForSequenceClassification, AutoTokenizer

        from ..model.loading import whole

        self.name = name
        try:
            self._tokenizer = AutoTokenizer.from_pretrained(name)
            self._model = whole(AutoModelForSequenceClassification, name, f"nli={name}").eval()
        except (OSError, ValueError) as error:
            problem = f"nli={name} cannot be loaded: {first_line(error)}"
            raise UserError(f"{problem}; give a folder or hub id of an entailment model", "model") from error
        labels = {str(label).lower(): int(i) for i, label in self._model.config.id2label.items()}
        if "entailment" not in labels:
            problem = f"nli={name} has the labels {', '.join(labels)} but none named entailment"
            raise UserError(f"{problem}: give an entailment model", "model")
        self._entails = labels["entailment"]
        self._entailed = cache(self._read)

    def __call__(self, a: str, b: str) -> bool:
        if normalize_answer(a) == normalize_answer(b):
            return True
        return self._entailed(a, b) and self._entailed(b, a)

    def _read(self, premise: str, hypothesis: str) -> bool:
        import torch

        pair = self._tokenizer(premise, hypothesis, return_tensors="pt", truncation=True)
        with torch.inference_mode():
            return int(self._model(**pair).logits[0].argmax()) == self._entails


@dataclass(frozen=True, slots=True)
class Clusters:
    """The cluster of each of n answers, numbered from 0 by first appearance.

    ``undecided`` counts pairs of answers in different clusters that could not be compared.
    """

    of: tuple[int, ...]
    undecided: int = 0

    def __len__(self) -> int:
        return len(set(self.of))


def clusters(answers: Sequence[str], same: Same) -> Clusters:
    """Group answers by the transitive closure of ``same``; an undecided pair alone joins nothing."""
    from scipy.cluster.hierarchy import DisjointSet

    groups = DisjointSet(dict.fromkeys(answers))  # equal answers are compared once
    undecided = []
    for a, b in combinations(list(groups), 2):
        if groups.connected(a, b):
            continue
        if verdict := same(a, b):
            groups.merge(a, b)
        elif verdict is None:
            undecided.append((a, b))
    numbers: dict[str, int] = {}
    of = tuple(numbers.setdefault(groups[answer], len(numbers)) for answer in answers)
    return Clusters(of, sum(not groups.connected(a, b) for a, b in undecided))
