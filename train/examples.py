"""Labelled texts of a store that a prober is trained and measured on, and their splits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pandas as pd

from probers.checksums import draw_key
from probers.data.splits import Seen, deal
from probers.prober.figures import Split
from probers.store.joined import Stored
from probers.types import SPLITS, UserError

#: Label to learn: "wrong", or whether one retrieval turns an answer right.
Label = Literal["wrong", "helps"]
#: Answers that retrieving must turn right, and wrong, so that heads of "helps" are trained.
FEWEST = 20
#: Weight in the loss of an answer that a retrieval does not change; one that it changes has 1.
UNCHANGED = 0.3
#: Split of the texts on which a stack's weights are fitted.
WEIGHTS = "weights"

#: How a signal of a span's tokens becomes the span's; every other column is the same for all of them.
_OVER_TOKENS = {
    "mean_entropy": "mean", "max_entropy": "max", "min_prob": "min", "mean_logprob": "mean",
    "rind_max": "max",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Examples:
    """Labelled texts of a store, one row of ``table`` each, in its order; ``rows`` of each split.

    ``members`` are the rows in the store of each text's tokens, in order; None for pooled states. A stack's
    weights are fitted on a split of their own; ``known`` is what its probers have seen. With "helps" as
    ``label`` the texts are answers without passages, and those that one retrieval turns right count as wrong.
    """

    table: pd.DataFrame
    rows: dict[str, np.ndarray]
    members: tuple[np.ndarray, ...] | None = None
    known: Seen = Seen({})  # noqa: RUF009 (frozen)
    label: Label = "wrong"

    @property
    def inside(self) -> np.ndarray | None:
        """(N,) true for marked spans, false for what lies outside of them; None for other stores."""
        return self.table["inside"].to_numpy() == 1 if "inside" in self.table else None

    def loss_weights(self, weight: float, *, marked: bool = False) -> np.ndarray | None:
        """Weigh each text in the loss (N, 2): the loss of its tokens, and that of its highest token.

        Both weigh ``weight`` in marked spans and 1 elsewhere; with ``marked`` the latter is 1 in marked spans
        and 0 elsewhere. None for stores without marks. With the label "helps" both are 1 where a retrieval
        changes the answer, and :data:`UNCHANGED` where it does not.
        """
        if self.label == "helps":
            changed = np.nan_to_num(self.table["helps"].to_numpy(dtype=float)) != 0
            return np.repeat(np.where(changed, 1.0, UNCHANGED)[:, None], 2, axis=1)
        if self.inside is None:
            return None
        tokens = np.where(self.inside, weight, 1.0)
        return np.stack([tokens, self.inside.astype(float) if marked else tokens], axis=1)

    @property
    def lacking_spans(self) -> str:
        """Say which class no marked span of the training split has; "" where both occur."""
        if self.inside is None:
            return ""
        rows = self.rows["train"]
        marked = self.wrong[rows][self.inside[rows]]
        kinds = [kind for label, kind in enumerate(("right", "wrong")) if label not in marked]
        return f"no marked span of the training texts is {' or '.join(kinds)}" if kinds else ""

    @property
    def wrong(self) -> np.ndarray:
        """Labels (N,): 1 where the text is wrong or hallucinated."""
        return 1 - self.table["correct"].to_numpy()

    @property
    def surprise(self) -> np.ndarray | None:
        """Surprise (N,) of every text; None where the store has no such column, or lacks some."""
        if "surprise" not in self.table:
            return None
        values = self.table["surprise"].to_numpy(dtype=float)
        return values if np.isfinite(values).all() else None

    @property
    def read(self) -> bool:
        """True for texts of others, which the model has read and not written."""
        return "condition" in self.table and bool((self.table["condition"] == "read").all())

    @property
    def text_of(self) -> np.ndarray:
        """Number of the text of each row of the store."""
        if self.members is None:
            return np.arange(len(self.table))
        sizes = list(map(len, self.members))
        texts = np.empty(sum(sizes), dtype=np.int64)
        texts[np.concatenate(self.members)] = np.repeat(np.arange(len(sizes)), sizes)
        return texts

    def windows(self, before: int) -> list[np.ndarray]:
        """List each text's rows with up to ``before`` tokens ahead of it, where it lies in a longer one."""
        assert self.members is not None
        windows = list(self.members)
        if "mark" not in self.table:
            return windows
        for spans in self.table.groupby("text_id", sort=False).indices.values():
            rows = np.sort(np.concatenate([self.members[span] for span in spans]))
            for span in spans:
                first, last = np.searchsorted(rows, self.members[span][[0, -1]])
                windows[span] = rows[max(0, first - before) : last + 1]
        return windows

    def column(self, name: str, split: str) -> np.ndarray:
        return self.table[name].to_numpy()[self.rows[split]]

    def groups(self, split: str) -> np.ndarray:
        """Groups of a split, each once, in the order of the store."""
        return np.asarray(pd.unique(self.table["group"].iloc[self.rows[split]]))

    def training_part(self, texts: int, seed: int) -> Examples:
        """Limit the training texts to ``texts`` at most, and one group at least.

        Whole groups are drawn by ``seed``, and parts are nested. Groups alike in data set and in numbers of
        right and wrong texts are spread evenly over the draw: every part is as balanced as the whole.
        """
        group_of = self.column("group", "train").astype(str)
        dataset = self.column("dataset", "train") if "dataset" in self.table else ""
        correct = self.column("correct", "train")
        table = pd.DataFrame({"group": group_of, "dataset": dataset, "correct": correct})
        kinds = {"dataset": ("dataset", "first"), "right": ("correct", "sum"), "texts": ("correct", "size")}
        groups = table.groupby("group").agg(**kinds)
        places: dict[str, float] = {}
        for kind, alike in groups.groupby(list(groups)):
            # Where its first group comes is drawn too: else the rare kinds would all come at once.
            start = draw_key("kind", seed, str(tuple(map(str, kind)))) / 2**64
            names = sorted(map(str, alike.index), key=lambda name: draw_key("share", seed, name))
            places |= {name: (start + i) / len(names) for i, name in enumerate(names)}
        order = sorted(places, key=lambda name: (places[name], name))
        fitting = np.searchsorted(np.cumsum(groups["texts"][order]), texts, side="right")
        drawn = np.isin(group_of, order[: max(1, int(fitting))])
        return replace(self, rows={**self.rows, "train": self.rows["train"][drawn]})

    def seen(self) -> Seen:
        """Groups and questions of each split, for warnings about questions asked later."""
        questions = {split: self._questions(split) for split in self.rows}
        questions["train"] += questions.pop(WEIGHTS, [])
        return self.known | Seen.of(questions)

    def sides(self, seen: Seen, split: str) -> list[str]:
        """Find on which side of what something has seen each text of a split is, "" for none."""
        return [seen.side(*question) for question in self._questions(split)]

    def _questions(self, split: str) -> list[tuple[str, str, str]]:
        """List data set, group, and question or text of the texts of a split."""
        names = ["dataset", "group", "question", "text"]
        part = self.table.iloc[self.rows[split]].reindex(columns=names, fill_value="")
        rows = part.itertuples(index=False, name=None)
        return [(dataset, group, question or text) for dataset, group, question, text in rows]

    def sizes(self) -> dict[str, Split]:
        """Count examples, groups, the share of wrong texts and examples per dataset of each split."""
        sets = self.table.get("dataset", pd.Series([None] * len(self.table)))
        return {
            split: Split(
                n=len(rows), groups=len(self.groups(split)), wrong=float(self.wrong[rows].mean()),
                datasets={str(k): n for k, n in sets.iloc[rows].value_counts().sort_index().items()},
            )
            for split, rows in self.rows.items()
        }  # fmt: skip

    def split_record(self) -> dict[str, list[str]]:
        """Groups of each split, as ``splits.json`` has them."""
        return {split: sorted(map(str, self.groups(split))) for split in self.rows}


@dataclass(frozen=True, slots=True)
class SplitRequest:
    """Choice of the training, validation and test texts, as of the settings of the same names.

    ``split`` is "store" for the store's own, or three shares, by which its groups are dealt anew. ``label``
    "helps" takes the answers whose column ``helps`` is known.
    """

    split: str | Sequence[float] = "store"
    train_on: Sequence[str] = ()
    test_on: Sequence[str] = ()
    seed: int = 0
    label: Label = "wrong"

    def __post_init__(self) -> None:
        shares = () if isinstance(self.split, str) else self.split
        if self.split == "store" or (len(shares) == 3 and min(shares) > 0 and abs(sum(shares) - 1) <= 1e-6):
            return
        raise UserError(f"split={self.split}: give store, or 3 shares that sum to 1, like [0.6,0.2,0.2]")

    def assign(self, texts: pd.DataFrame, what: str) -> np.ndarray:
        """Name the split (N,) of each text; "" for one that is left out."""
        split, groups = texts["split"].to_numpy(dtype=object), texts["group"]
        if not isinstance(self.split, str):
            ordered = sorted(set(groups), key=lambda group: draw_key("split", self.seed, str(group)))
            split_of = deal(ordered, shares := list(map(float, self.split)))
            if len(set(split_of.values())) < len(SPLITS):
                few = f"the {len(ordered)} groups of {what} are too few for three splits"
                raise UserError(f"split={shares}: {few}: take texts of more groups", code="labels")
            split = groups.map(split_of).to_numpy(dtype=object)
        if not self.train_on and not self.test_on:
            return split
        if "dataset" not in texts:
            raise UserError(f"{what} has no column dataset: leave out train_on and test_on", "unsupported")
        sets, known = texts["dataset"], sorted(set(texts["dataset"]))
        for key, names in (("train_on", self.train_on), ("test_on", self.test_on)):
            if odd := [name for name in names if name not in known]:
                raise UserError(f"{key} names {odd[0]!r}, and {what} has {', '.join(map(repr, known))}")
        train_on = self.train_on or [name for name in known if name not in self.test_on]
        chosen = np.where(split == "test", sets.isin(self.test_on or train_on), sets.isin(train_on))
        return np.where(chosen, split, "")


def load_examples(stores: Sequence[Stored], request: SplitRequest | None = None) -> Examples:
    """Load the texts of finished stores, one per site; without a request, in the splits of the store.

    UserError for stores of other texts, a group in two splits, or a split that is empty or of one class.
    """
    (first, *others), request, same = stores, request or SplitRequest(), ["id", "correct", "text"]
    table, members = as_texts(first)
    for other in others:
        texts, of = as_texts(other)
        if not table[same].equals(texts[same]) or (members is None) != (of is None):
            fix = "make both by the same command but for site"
            raise UserError(f"data={other.path} holds other texts than {first.path}: {fix}", code="mismatch")
    what = first.called
    split = request.assign(table, what)
    if request.label == "helps":
        split = np.where(_known_to_help(table, split, what), split, "")
        table = table.assign(correct=(table["helps"].fillna(0) <= 0).astype(int))
    if "token_wrong" in table:  # undecided ones are of no use; what nobody judged is trained on as right
        unknown = (table["token_wrong"] < 0) | ((table["inside"] < 0) & (split != "train"))
        split = np.where(unknown, "", split)
    table = table.assign(split=split)
    _check_splits(table[split != ""], what)
    rows = {name: np.flatnonzero(split == name) for name in SPLITS}
    return Examples(table, rows, members, label=request.label)


def _known_to_help(table: pd.DataFrame, split: np.ndarray, what: str) -> np.ndarray:
    """Tell of which texts (N,) it is known whether a retrieval helps; UserError where of too few."""
    if "helps" not in table:
        fix = "make it with probers-datagen --source cot, or of texts that have one"
        raise UserError(f"label=helps: {what} has no column helps: {fix}", code="labels")
    helps = table["helps"].to_numpy(dtype=float)
    if not (known := np.isfinite(helps)).any():
        why = "has no question answered both without and with passages"
        raise UserError(f"label=helps: {what} {why}: give a corpus in which questions find some", "labels")
    used = helps[known & (split != "")]
    helped, harmed = int((used > 0).sum()), int((used < 0).sum())
    if min(helped, harmed) < FEWEST:
        fix = "take more questions (limit)"
        if harmed < FEWEST <= helped:
            fix = "where it hardly harms, label=wrong gives the order: train with that"
        elif helped < FEWEST <= harmed:
            fix = "where it hardly helps, trigger=never is the best: no head is needed"
        counts = f"retrieving turns {helped} of {len(used)} answers of {what} right and {harmed} wrong"
        raise UserError(f"label=helps needs {FEWEST} of either to learn from, and {counts}; {fix}", "labels")
    return known


def as_texts(store: Stored) -> tuple[pd.DataFrame, tuple[np.ndarray, ...] | None]:
    """Tabulate a store with one row per text, and its ``members``; with pool "tokens" a span is a text."""
    table = store.table()
    if store.spec.pool != "tokens":
        return table, None
    if "mark" in table:  # labelled tokens: a span is a mark, or a run of tokens outside of all marks
        spans = table["span"] + "#" + table["mark"].astype(str)
        table = table.assign(text_id=table["span"], span=spans, correct=1 - table["token_wrong"].abs())
    number = pd.factorize(table["span"])[0]
    order = np.lexsort((table["token"].to_numpy(), number))
    members = tuple(np.split(order, np.flatnonzero(np.diff(number[order])) + 1))
    whole = table.groupby(number, sort=False).agg({k: _OVER_TOKENS.get(str(k), "first") for k in table})
    return whole.assign(id=whole["span"]).drop(columns="token").reset_index(drop=True), members


_ANEW = "deal the groups anew with split=[0.6,0.2,0.2]"


def _check_splits(table: pd.DataFrame, what: str) -> None:
    """Refuse groups in two splits, and splits without both classes."""
    sides = table.groupby("group")["split"].unique()
    if len(leaks := sides[sides.map(len) > 1]):
        more = f" (and {len(leaks) - 1} more groups are)" if len(leaks) > 1 else ""
        where = f"the group {leaks.index[0]!r} is in {' and '.join(sorted(leaks.iloc[0]))}{more}"
        raise UserError(f"{what} leaks: {where}; {_ANEW}", code="overlap")
    for split in SPLITS:
        labels = table["correct"].to_numpy()[table["split"] == split]
        if not len(labels):
            anew = f"{_ANEW}, or " if len({*deal([*sides.index]).values()}) == len(SPLITS) else ""
            raise UserError(f"{what} has no {split} examples: {anew}take more texts (limit)", "labels")
        if labels.min() == labels.max():
            few = f"only {'right' if labels[0] else 'wrong'} texts among its {len(labels)} {split} examples"
            raise UserError(f"{what} has {few}: take more texts (limit), or another label", code="labels")
