"""Questions that need several passages: HotpotQA, 2WikiMultihopQA, MuSiQue, StrategyQA and IIRC."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

from ...options import Name, shown
from ...types import Passage, Question, UserError
from ..records import UnusableError, check_object, check_strings, line_rows, parse_json, what_is_wrong
from .base import Layout, QuestionSource, layout
from .values import Record, accepted, flag, identifier, optional, passage, records, strings, text


@dataclass(frozen=True, kw_only=True)
class HotpotQA(QuestionSource):
    """``hotpot_train_v1.1.json``, ``hotpot_dev_distractor_v1.json``, ``hotpot_dev_fullwiki_v1.json``.

    Passages are the paragraphs given with a question, gold where a supporting fact is in them.
    Both settings have the same layout; missing gold paragraphs reveal fullwiki.
    """

    hub: Name | None = "hotpotqa/hotpot_qa"
    config: str | None = "distractor"

    name: ClassVar[str] = "hotpotqa"
    layouts: ClassVar[tuple[Layout, ...]] = (
        layout("HotpotQA", "_id question context", lacks="evidences"),
        layout("HotpotQA on the Hub", "id question answer context supporting_facts", lacks="evidences"),
    )

    def question(self, record: Record) -> Question:
        id = identifier(record, "_id" if "_id" in record else "id")
        question, answers = text(record, "question"), accepted([optional(record, "answer")])
        return self.made(id, question, answers, passages=paragraphs(record))

    def layout_of(self, record: Record) -> str:
        titles = {title for title, _ in _context(record)}
        return "distractor" if supporting_titles(record) <= titles else "fullwiki"

    def layout_name(self, seen: Counter[str]) -> str:
        return "fullwiki" if seen["fullwiki"] else super().layout_name(seen)


def paragraphs(record: Record, *, spaced: bool = True) -> tuple[Passage, ...]:
    """Return the paragraphs of a record's context; those without text are left out.

    Sentences that are ``spaced`` begin with the space before them.
    """
    gold = supporting_titles(record)
    passages = []
    for i, (title, sentences) in enumerate(_context(record)):
        text = "".join(sentences) if spaced else " ".join(s.strip() for s in sentences)
        passages.append(Passage(str(i), title, text.strip(), is_gold=title in gold))
    return tuple(p for p in passages if p.text)


def supporting_titles(record: Record) -> frozenset[str]:
    """Return titles of the paragraphs that hold a supporting fact."""
    facts = record.get("supporting_facts")
    pairs = [] if facts is None else _pairs(facts, "supporting_facts", "sent_id")
    return frozenset(title for title, _ in pairs)


def _context(record: Record) -> list[tuple[str, list[str]]]:
    pairs = _pairs(record["context"], "context", "sentences")
    for _, sentences in pairs:
        check_strings("context must be a list of [title, sentences]: sentences", sentences)
    return pairs


def _pairs(value: Any, name: str, second: str) -> list[tuple[str, Any]]:
    """Pair titles with other values: official files have lists, copies on the Hub name the parts."""
    if isinstance(value, Mapping):  # one list per part
        titles, others = value["title"], value[second]
        if not isinstance(titles, list) or not isinstance(others, list) or len(titles) != len(others):
            raise ValueError(f"{name} must have as many titles as {second}")
        value = list(zip(titles, others, strict=True))
    if not isinstance(value, list):
        raise ValueError(f"{name} must be a list, found {shown(value)}")
    pairs = [(p["title"], p[second]) if isinstance(p, Mapping) else p for p in value]
    if not all(isinstance(p, list | tuple) and len(p) == 2 and isinstance(p[0], str) for p in pairs):
        raise ValueError(f"{name} must be a list of [title, {second}]")
    return [(title, other) for title, other in pairs]


@dataclass(frozen=True, kw_only=True)
class TwoWikiMultihopQA(QuestionSource):
    """``train.json`` and ``dev.json``, of the plain release or of the one with Wikidata ids.

    Questions are made from templates over pairs of articles, so that many share their gold
    articles: those are one group.

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
        question = text(record, "question")
        answers = accepted([optional(record, "answer"), *self._others(record)])
        passages, group = paragraphs(record, spaced=False), self.group_of(record) or id
        return self.made(id, question, answers, passages=passages, group=group)

    def group_of(self, record: Record) -> str:
        gold = supporting_titles(record)
        return f"2wiki:{' | '.join(sorted(gold))}" if gold else ""

    def _others(self, record: Record) -> tuple[str, ...]:
        if self.aliases is None or not optional(record, "answer"):
            return ()
        if "answer_id" not in record:
            message = f"{self.spec} has no answer_id for questions.aliases={self.aliases}"
            raise UserError(f"{message}: take the release with ids, or leave aliases out", "mismatch")
        return self._names.get(optional(record, "answer_id"), ())

    @cached_property
    def _names(self) -> dict[str, tuple[str, ...]]:
        """Wikidata id -> other names and demonyms."""
        assert self.aliases is not None
        names: dict[str, tuple[str, ...]] = {}
        for row in line_rows(Path(self.aliases)):
            try:
                if row.problem:
                    raise ValueError(row.problem)
                check_object(row.record)
                others = strings(row.record, "aliases") + strings(row.record, "demonyms")
                names[identifier(row.record, "Q_id")] = others
            except (ValueError, KeyError) as error:
                message = f"questions.aliases={self.aliases} {row.where}: {what_is_wrong(error)}"
                raise UserError(message, "bad-line") from error
        return names


@dataclass(frozen=True, kw_only=True)
class MuSiQue(QuestionSource):
    """``musique_ans_v1.0_{train,dev}.jsonl`` and ``musique_full_v1.0_{train,dev}.jsonl``.

    Attributes:
        unanswerable: treatment of the full set's questions that their paragraphs do not answer.
            "exclude" leaves them out; "noanswer" makes that word the gold answer, which only matches itself.
            Such a question shares the id of its answerable twin: it gets a suffix, and both are one group.
    """

    hub: Name | None = "dgslibisey/MuSiQue"
    unanswerable: Literal["exclude", "noanswer"] = "exclude"

    name: ClassVar[str] = "musique"
    layouts: ClassVar[tuple[Layout, ...]] = (layout("MuSiQue", "id question paragraphs"),)

    def question(self, record: Record) -> Question:
        id = identifier(record, "id")
        answerable = flag(record, "answerable") is not False
        if not answerable and self.unanswerable == "exclude":
            raise UnusableError(f"unanswerable: {id}")
        given = (optional(record, "answer"), *strings(record, "answer_aliases"))
        passages = (
            passage(p, str(p.get("idx", i)), "paragraph_text", is_gold=flag(p, "is_supporting"))
            for i, p in enumerate(records(record, "paragraphs"))
        )
        question, answers = text(record, "question"), accepted(given) if answerable else ("noanswer",)
        more = {"passages": tuple(filter(None, passages)), "group": self._groups.get(id, id)}
        return self.made(id if answerable else f"{id}-unanswerable", question, answers, **more)

    @cached_property
    def _groups(self) -> dict[str, str]:
        """Id of each question -> its group: questions that share a single question, even indirectly, are one.

        An id lists its single questions: 2hop__482757_12019.
        """
        from scipy.cluster.hierarchy import DisjointSet

        rows = (row.record for row in self.rows() if isinstance(row.record, Mapping))
        ids = [id for record in rows if "__" in (id := str(record.get("id")))]
        parts = {id: id.partition("__")[2].split("_") for id in ids}
        joined = DisjointSet(sorted({part for steps in parts.values() for part in steps}))
        for first, *others in parts.values():
            for other in others:
                joined.merge(first, other)
        # Names a group the same in any order of the file.
        least = {joined[part]: part for part in reversed(list(joined))}
        return {id: f"musique:{least[joined[steps[0]]]}" for id, steps in parts.items()}


#: Values in the evidence that replace a paragraph's id.
_NO_PARAGRAPH = ("operation", "no_evidence")


@dataclass(frozen=True, kw_only=True)
class StrategyQA(QuestionSource):
    """``strategyqa_train.json`` or ``strategyqa_train_filtered.json``; the test file has no answers.

    Questions about one term share facts and are one group.

    Attributes:
        paragraphs: ``strategyqa_train_paragraphs.json``; the paragraphs that any annotator gave
            as evidence are then the gold passages. Without it there are none.
    """

    hub: Name | None = "ChilleD/StrategyQA"
    hub_split: str = "test"
    paragraphs: str | None = None

    name: ClassVar[str] = "strategyqa"
    group_field: ClassVar[str] = "term"
    layouts: ClassVar[tuple[Layout, ...]] = (layout("StrategyQA", "qid question"),)
    extra_files: ClassVar[tuple[str, ...]] = ("paragraphs",)

    def question(self, record: Record) -> Question:
        id = identifier(record, "qid")
        answer = flag(record, "answer")
        if answer is None:
            raise UnusableError("no gold answer")
        question, answers = text(record, "question"), ("yes" if answer else "no",)
        passages, group = self._evidence(record), self.group_of(record) or id
        return self.made(id, question, answers, passages=passages, group=group)

    def _evidence(self, record: Record) -> tuple[Passage, ...]:
        if self.paragraphs is None:
            return ()
        ids = list(dict.fromkeys(_ids(record.get("evidence"))))
        if absent := [id for id in ids if id not in self._texts]:
            raise ValueError(f"the paragraph {absent[0]!r} is not in questions.paragraphs={self.paragraphs}")
        return tuple(filter(None, (passage(self._texts[id], id, "content", is_gold=True) for id in ids)))

    @cached_property
    def _texts(self) -> dict[str, Mapping[str, Any]]:
        assert self.paragraphs is not None
        given = f"questions.paragraphs={self.paragraphs}"
        try:
            texts = parse_json(Path(self.paragraphs).read_text(encoding="utf-8-sig"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{given} is not JSON in UTF-8: {what_is_wrong(error)}", "bad-file") from error
        if not isinstance(texts, dict) or not all(isinstance(t, dict) for t in texts.values()):
            raise UserError(f"{given} must be an object of paragraphs, by id", "bad-file")
        return texts


def _ids(evidence: Any) -> Iterator[str]:
    """List paragraph ids in the nested lists: annotators, steps, and the evidence of each step."""
    if isinstance(evidence, str):
        if evidence not in _NO_PARAGRAPH:
            yield evidence
    elif isinstance(evidence, list):
        for part in evidence:
            yield from _ids(part)
    elif evidence is not None:
        raise ValueError(f"evidence must be nested lists of strings, found {evidence!r}")


#: Name of the question's own passage in its context.
_MAIN = "main"


@dataclass(frozen=True, kw_only=True)
class IIRC(QuestionSource):
    """``train.json``, ``dev.json`` or ``iirc_test.json``.

    Answers are of type span, value (a number with or without its unit is right), binary (yes
    or no) or none; questions of type none, without an answer, are left out. Passages are
    the question's own, gold where the annotators needed it, and the snippets of
    linked articles they needed. Questions on one passage are one group.

    Attributes:
        spans: for an answer of several spans, "all" wants them together ("A, B" or "A and B"),
            "any" accepts each alone, like DRAGIN's released evaluation.
    """

    spans: Literal["all", "any"] = "all"

    name: ClassVar[str] = "iirc"
    layouts: ClassVar[tuple[Layout, ...]] = (layout("IIRC", "questions text title"),)

    def unfold(self, record: Record) -> Sequence[Record]:
        main = passage(record, _MAIN, is_gold=None)
        if main is None:
            raise ValueError("text must be a non-empty string")
        name = identifier(record, "pid") if record.get("pid") is not None else main.title
        # The context may name articles in lower case; the links have their titles.
        titles = {t.lower(): t for link in records(record, "links") if (t := optional(link, "target"))}
        shared = {"on": main, "of": name, "titles": titles}
        return [{**shared, "number": i, "asked": q} for i, q in enumerate(records(record, "questions"))]

    def question(self, record: Record) -> Question:
        entry, name = record["asked"], record["of"]
        id = identifier(entry, "qid") if entry.get("qid") is not None else f"{name}-{record['number']}"
        question, answers = text(entry, "question"), accepted(self._answers(entry.get("answer"), id))
        passages = _passages(record["on"], records(entry, "context"), record["titles"])
        return self.made(id, question, answers, passages=passages, group=f"iirc:{name}")

    def layout_of(self, record: Record) -> str:
        return self.layouts[0].name

    def _answers(self, answer: Any, id: str) -> Sequence[str]:
        if answer is None:
            return ()
        if not isinstance(answer, dict):
            raise ValueError(f"answer must be an object, found {shown(answer)}")
        kind = text(answer, "type")
        if kind in ("none", "bad"):
            raise UnusableError(f"answer type {kind}: {id}")
        if kind == "span":
            spans = [s for part in records(answer, "answer_spans") if (s := optional(part, "text"))]
            if len(spans) < 2 or self.spans == "any":
                return spans
            return (", ".join(spans), f"{', '.join(spans[:-1])} and {spans[-1]}")
        if kind == "value":
            value = answer["answer_value"]
            if isinstance(value, bool) or not isinstance(value, (str, int, float)):
                raise ValueError(f"answer_value must be a number or a string, found {value!r}")
            value = str(value).strip()
            return (f"{value} {optional(answer, 'answer_unit')}".strip(), value)
        if kind == "binary":
            verdict = text(answer, "answer_value").lower()
            if verdict not in ("yes", "no"):
                raise ValueError(f"answer_value must be yes or no, found {verdict!r}")
            return (verdict,)
        raise ValueError(f"the answer's type must be span, value, binary or none, found {kind!r}")


def _passages(main: Passage, needed: Sequence[Record], titles: Mapping[str, str]) -> tuple[Passage, ...]:
    """List the main passage, then the snippets of other articles, each once."""
    named = [(optional(part, "passage"), optional(part, "text")) for part in needed]
    first = Passage(_MAIN, main.title, main.text, is_gold=any(title == _MAIN for title, _ in named))
    others = dict.fromkeys((titles.get(t.lower(), t), body) for t, body in named if t != _MAIN and body)
    return first, *(Passage(str(i), title, body, is_gold=True) for i, (title, body) in enumerate(others, 1))
