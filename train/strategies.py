"""Labels of questions for adaptive retrieval: the cheapest strategy that answers each right.

As a store of ``probers-datagen --source cot`` says (Adaptive-RAG, Jeong et al. 2024): "no" where
the closed-book answer is right, else "single" where the answer with passages is, else "multi".
"""

from __future__ import annotations

from typing import Any, NamedTuple

from probers.store import FeatureStore
from probers.types import UserError


class Labelled(NamedTuple):
    """Questions (n) with the cheapest strategy that answers each right, and the groups they are of."""

    questions: list[str]
    strategies: list[str]
    groups: list[str]


def strategies_of(store: FeatureStore) -> dict[str, Labelled]:
    """Questions and the cheapest strategy that answers each right, by split.

    Args:
        store: of ``probers-datagen --source cot``, with both conditions.

    Returns:
        The questions of each split; those without both conditions are left out.

    Raises:
        UserError: no question has both conditions.
    """
    right: dict[tuple[str, str], dict[str, Any]] = {}
    columns = ["id", "group", "split", "question", "condition", "correct"]
    for table in store.tables(columns) if store.spec.position == "generated" else ():
        for id, group, split, question, condition, correct in table.itertuples(index=False):
            entry = right.setdefault((id.rpartition("/")[0], split), {"text": question, "group": group})
            entry[condition] = bool(correct)
    found: dict[str, Labelled] = {}
    for (_, split), entry in right.items():
        if not {"closed_book", "with_passages"} <= set(entry):
            continue
        labelled = found.setdefault(split, Labelled([], [], []))
        labelled.questions.append(str(entry["text"]))
        labelled.strategies.append(
            "no" if entry["closed_book"] else "single" if entry["with_passages"] else "multi"
        )
        labelled.groups.append(str(entry["group"]))
    if not found:
        raise UserError(
            f"the store {store.path} has no question that was answered both without and with passages: "
            "make one with 'probers-datagen --source cot'"
        )
    return found
