"""2WikiMultihopQA (Ho et al., COLING 2020)."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar

from ...options import Name
from ...types import Question, UserError
from ..records import check_object, read_lines, what_is_wrong
from .base import Layout, QuestionSource, layout
from .hotpotqa import paragraphs, supporting_titles
from .values import Record, accepted, identifier, optional, strings, text


@dataclass(frozen=True, kw_only=True)
class TwoWikiMultihopQA(QuestionSource):
    """``train.json`` and ``dev.json``, of the plain release or of the one with Wikidata ids.

    Questions are made from templates over pairs of articles, so that many share their gold
    articles: those are one group. The rationale consists of the evidence triples.

    Attributes:
        aliases: ``id_aliases.json`` of the release with ids: other names of the answer's
            entity and its demonyms are then accepted, as in the official evaluation.
    """

    hub: Name | None = "framolfese/2WikiMultihopQA"
    aliases: str | None = None

    name: ClassVar[str] = "2wikimultihopqa"
    layouts: ClassVar[tuple[Layout, ...]] = (
        layout("2WikiMultihopQA", "_id question context evidences"),
        layout("2WikiMultihopQA on the Hub", "id question answer context supporting_facts evidences"),
    )
    extra_files: ClassVar[tuple[str, ...]] = ("aliases",)

    def question(self, record: Record) -> Question:
        id = identifier(record, "_id" if "_id" in record else "id")
        asked = text(record, "question")
        answers = accepted([optional(record, "answer"), *self._others(record)])
        return self.made(
            id, asked, answers, rationale=_triples(record), passages=paragraphs(record, spaced=False),
            group=self.group_of(record) or id,
        )  # fmt: skip

    def group_of(self, record: Record) -> str:
        gold = supporting_titles(record)
        return f"2wiki:{' | '.join(sorted(gold))}" if gold else ""

    def _others(self, record: Record) -> tuple[str, ...]:
        if self.aliases is None or not optional(record, "answer"):
            return ()
        if "answer_id" not in record:
            raise UserError(
                f"{self.spec} has no answer_id, which questions.aliases={self.aliases} needs: "
                "take the files of the release with ids, or leave questions.aliases out",
                "mismatch",
            )
        return self._names.get(optional(record, "answer_id"), ())

    @cached_property
    def _names(self) -> dict[str, tuple[str, ...]]:
        """Wikidata id -> other names and demonyms."""
        assert self.aliases is not None
        names: dict[str, tuple[str, ...]] = {}
        path = Path(self.aliases)
        for number, line in read_lines(path):
            try:
                entry = json.loads(line)
                check_object(entry)
                names[identifier(entry, "Q_id")] = strings(entry, "aliases") + strings(entry, "demonyms")
            except (ValueError, KeyError, RecursionError) as error:
                reason = what_is_wrong(error)
                raise UserError(f"questions.aliases={path} line {number}: {reason}", "bad-line") from error
        return names


def _triples(record: Record) -> str:
    evidences = record.get("evidences")
    if isinstance(evidences, dict):  # one list per part
        evidences = [list(triple) for triple in zip(*evidences.values(), strict=True)]
    if not isinstance(evidences, list):
        return ""
    triples = [list(t.values()) if isinstance(t, dict) else t for t in evidences]
    if not all(isinstance(t, list) and all(isinstance(part, str) for part in t) for t in triples):
        raise ValueError("evidences must be a list of [subject, relation, object]")
    return " ".join(f"{', '.join(triple)}." for triple in triples)
