"""Answers whose support is known, sentence by sentence, made from questions and their passages.

    python tools/substitutions.py OUT.jsonl squad=xquad.en.json hotpotqa=hotpotqa.jsonl --texts 2700

Writes lines of labelled texts for ``probers-datagen --source texts unit=sentence``. Every question shows one
to five passages, each cut to a few sentences, and has three answers of one to four sentences:

    copy, paraphrase   a sentence that is shown, as it is or shortened, moved about and with other words
    invented           a sentence of the passage that was cut off
    changed            a name, date or number in a shown sentence is replaced by one that no passage has
    other              it is replaced by one that stands elsewhere in the passages
    negated            "not" is put in or taken out, or a word is replaced by its opposite

Unsupported sentences are shortened and reworded like supported ones, so that form does not tell them apart.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probers.data.questions import open_questions
from probers.types import Passage, Question
from probers.words.language import ENGLISH, LANGUAGES, Language, language_in
from probers.words.recogniser import Entity, find_entities, same_kind
from probers.words.text import split_sentences, tokenize

#: Kinds of sentences and how often each is tried; the first two are supported.
KINDS = {"copy": 12, "paraphrase": 40, "invented": 10, "changed": 16, "other": 20, "negated": 8}
SUPPORTED = ("copy", "paraphrase")
_WORDINGS = {
    "was founded": "was established", "located": "situated", "film": "movie", "began": "started",
    "died": "passed away", "is known as": "is called", "received": "got", "purchased": "bought",
    "approximately": "about", "large": "big", "almost": "nearly", "in order to": "to",
    "released": "brought out", "many": "a lot of", "created": "made", "several": "a number of",
    "consists of": "is made up of", "constructed": "built", "has won": "won", "because": "since",
    "although": "though", "primarily": "mainly", "often": "frequently", "such as": "like",
}  # fmt: skip
_OPPOSITES = {
    "increased": "decreased", "rose": "fell", "before": "after", "first": "last", "north": "south",
    "east": "west", "largest": "smallest", "more": "less", "most": "least", "won": "lost",
    "above": "below", "early": "late", "older": "younger", "higher": "lower", "began": "ended",
    "northern": "southern", "eastern": "western",
}  # fmt: skip
_CLAUSE = re.compile(r",? (?:which|who|where|and|but|while|although|with|including) ")
_TIME_FIRST = re.compile(r"(In|On|During|Since|After|By|At) ([^,]{3,30}), (.+)\.")
_TIME_LAST = re.compile(r"([A-Z][^,]+) (in|on|since|after) ((?:\w+ ){0,2}\d{4})\.")
_PRONOUN = re.compile(r"(?:He|She|It|The (?:film|band|song|album|company|city|book|series|novel|team)) ")
_VERB = r"\b(was|is|were|are|could|can|will|would)"
_NEGATIONS = [(rf"{_VERB} not ", r"\1 "), (rf"{_VERB} (?!not)", r"\1 not ")]


@dataclass(frozen=True)
class Shown:
    """The sentences of a passage that an answer's prompt shows, and those that were cut off."""

    title: str
    sentences: list[str]
    hidden: list[str]


class Writer:
    """Writer of answers to questions with passages.

    ``values`` has names, dates and numbers of other texts, by type.
    """

    def __init__(self, seed: int, values: dict[str, list[str]], language: Language) -> None:
        self.random, self.values, self.language = random.Random(seed), values, language

    def show(self, question: Question, others: Sequence[Passage]) -> list[Shown]:
        """Choose passages, a gold one first if there are any, and cut each to a few sentences."""
        gold = [passage for passage in question.passages if passage.is_gold] or list(question.passages)
        first = self.random.choice(gold)
        rest = [each for each in (*question.passages, *others) if each.text != first.text]
        self.random.shuffle(rest)
        shown = []
        for passage in [first, *rest][: self.random.choice([1, 2, 2, 3, 3, 3, 4, 5])]:
            parts = [passage.text[slice(*place)] for place in split_sentences(passage.text, self.language)]
            if parts:
                size = min(len(parts), self.random.choice([1, 1, 2, 2, 3, 4, 6]))
                start = self.random.choice([0, self.random.randrange(len(parts) - size + 1)])
                hidden = parts[:start] + parts[start + size :]
                shown.append(Shown(passage.title, parts[start : start + size], hidden))
        return shown

    def answer(self, shown: Sequence[Shown]) -> list[tuple[str, str]]:
        """Write sentences with their kinds; the passage that comes first is asked about."""
        sentences: list[tuple[str, str]] = []
        used: set[str] = set()
        count = self.random.choice([1, 2, 3, 3, 4])
        for _ in range(count):
            (kind,) = self.random.choices([*KINDS], [*KINDS.values()])
            for _ in range(8):
                passage = shown[0] if self.random.random() < 0.75 else self.random.choice(list(shown))
                source = passage.hidden if kind == "invented" else passage.sentences
                source = [each for each in source if each not in used and len(each.split()) <= 34]
                if not source:
                    continue
                original = self.random.choice(source)
                sentence = self.written(kind, original, passage, shown)
                stated = any(sentence in " ".join(each.sentences) for each in shown)
                if stated and kind not in SUPPORTED:
                    continue
                if sentence and list(split_sentences(sentence)) == [(0, len(sentence))] and usable(sentence):
                    used.add(original)
                    sentences.append((sentence, kind))
                    break
        return sentences

    def written(self, kind: str, original: str, passage: Shown, shown: Sequence[Shown]) -> str:
        """Write a sentence of a kind from an original one; "" where that cannot be done."""
        as_it_is = kind == "copy" or (kind != "paraphrase" and self.random.random() < 0.25)
        title = re.sub(r"\s*\(.*\)", "", passage.title)
        named = title if any(title in each for each in passage.sentences) else ""
        sentence = original if as_it_is else self.reworded(original, named)
        if kind == "paraphrase":
            return sentence if sentence != original else ""
        if kind == "negated":
            return self.negated(sentence)
        if kind == "invented":
            words = set(tokenize(sentence))
            seen = (set(tokenize(each)) for one in shown for each in one.sentences)
            return "" if any(len(words & each) > 0.8 * len(words) for each in seen) else sentence
        return sentence if kind == "copy" else self.replaced(kind, sentence, original, passage, shown)

    def reworded(self, sentence: str, title: str) -> str:
        """Drop brackets and clauses, name what a pronoun stands for, move a time and choose other words."""
        chance = self.random.random
        if chance() < 0.6:
            sentence = re.sub(r"\s*\([^()]*\)", "", sentence)
        if self.language is not ENGLISH:
            return sentence
        if title and chance() < 0.5 and (match := _PRONOUN.match(sentence)):
            sentence = f"{title} {sentence[match.end() :]}"
        clause = _CLAUSE.search(sentence)
        if clause and chance() < 0.7 and len(sentence[: clause.start()].split()) >= 6:
            sentence = sentence[: clause.start()].rstrip(",;") + "."
        if chance() < 0.4:
            if match := _TIME_FIRST.fullmatch(sentence):
                at, time, rest = match.groups()
                sentence = f"{rest[0].upper()}{rest[1:]} {at.lower()} {time}."
            elif match := _TIME_LAST.fullmatch(sentence):
                sentence = f"{match[2].capitalize()} {match[3]}, {match[1]}."
        if chance() < 0.6:
            for word, other in _WORDINGS.items():
                sentence = re.sub(rf"\b{word}\b", other, sentence, count=1)
        return sentence

    def replaced(
        self, kind: str, sentence: str, original: str, passage: Shown, shown: Sequence[Shown]
    ) -> str:
        """Replace an entity by another of its kind, from the passages ("other") or from none ("changed")."""
        lowered = " ".join(each for one in shown for each in one.sentences).lower()
        entities = [each for each in self.entities(sentence) if each.text.lower() in lowered]
        if not entities:
            return ""
        entity = self.random.choice(entities)
        if kind == "changed":
            pool = self.values.get(entity.type, [])
            near = self.near(entity.text)
            fits = [*near] or self.random.sample(pool, min(60, len(pool)))
            fits = [value for value in fits if value.lower() not in lowered]
        else:
            # A name of the same passage may be another name of the same thing.
            alike = same_kind(entity.type, "name")
            texts = [" ".join(one.sentences) for one in shown if one is not passage or not alike]
            fits = [
                each.text for text in texts for each in self.entities(text)
                if same_kind(each.type, entity.type) and each.text.lower() not in original.lower()
            ]  # fmt: skip
        words = set(tokenize(entity.text))
        fits = [v for v in fits if shape(v) == shape(entity.text) and not words & set(tokenize(v))]
        if not fits:
            return ""
        return sentence[: entity.start] + self.random.choice(fits) + sentence[entity.end :]

    def near(self, text: str) -> list[str]:
        """Change the number in a date or number by a little, three times out of five."""
        numbers = list(re.finditer(r"\d+", text))
        if not numbers or self.random.random() > 0.6:
            return []
        match = self.random.choice(numbers)
        step = self.random.choice([1, 2, 3, 5, 10, 20] if int(match[0]) > 20 else [1, 2, 3])
        value = int(match[0]) + self.random.choice([-step, step])
        return [text[: match.start()] + str(value) + text[match.end() :]] if value > 0 else []

    def negated(self, sentence: str) -> str:
        """Put a word's opposite in its place, or "not" in or out; "" in other languages than English."""
        if self.language is not ENGLISH:
            return ""
        pairs = [pair for a, b in _OPPOSITES.items() for pair in ((a, b), (b, a))]
        known = [(word, other) for word, other in pairs if re.search(rf"\b{word}\b", sentence)]
        if known and self.random.random() < 0.5:
            word, other = self.random.choice(known)
            return re.sub(rf"\b{word}\b", other, sentence, count=1)
        changed = (re.sub(pattern, to, sentence, count=1) for pattern, to in _NEGATIONS)
        return next((each for each in changed if each != sentence), "")

    def entities(self, text: str) -> list[Entity]:
        return find_entities(text, language=self.language)


def usable(sentence: str) -> bool:
    """Tell whether a sentence is whole and of a length that answers have."""
    even = not sentence.count('"') % 2 and sentence.count("(") == sentence.count(")")
    return even and 4 <= len(sentence.split()) <= 24 and sentence[0].isupper() and sentence[-1] in ".!"


def shape(value: str) -> tuple[int, int]:
    """Count digits and words: a year is replaced by a year, a full name by a full name."""
    return len(re.sub(r"\D", "", value)), len(value.split())


def texts(questions: Sequence[Question], seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield labelled texts, three for each question whose passages allow any, without an end if some do.

    Questions without passages of other subjects take those of their group. No question in a language that is
    written without spaces allows any.
    """
    by_group: dict[str, list[Passage]] = defaultdict(list)
    values: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    languages = [LANGUAGES.get(language_in(each.question), ENGLISH) for each in questions]
    for question, language in zip(questions, languages, strict=True):
        by_group[question.group] += question.passages
        for passage in question.passages[:3]:
            for entity in find_entities(passage.text, language=language):
                values[language.code][entity.type].append(entity.text)
    written = -1
    for turn in range(sys.maxsize):
        if not written:
            return
        written = 0
        for question, language in zip(questions, languages, strict=True):
            writer = Writer(hash_of(seed, turn, question.id), values[language.code], language)
            few = len(question.passages) == 1 and question.group
            shown = writer.show(question, by_group[question.group] if few else ())
            passages = [" ".join(each.sentences) for each in shown]
            if not shown or len(set(passages)) < len(passages):
                continue
            order = sorted(passages, key=lambda text: hash_of(seed, turn, text))
            for number in range(3):
                sentences = writer.answer(shown)
                if sentences:
                    written += 1
                    yield {
                        "id": f"{question.dataset}/{question.id}/{turn}/{number}",
                        "prompt": question.question, "passages": order,
                        "answer": " ".join(sentence for sentence, _ in sentences),
                        "sentences": [
                            {"text": sentence, "wrong": kind not in SUPPORTED, "type": kind}
                            for sentence, kind in sentences
                        ],
                        "group": question.group or question.id, "dataset": "substitutions",
                    }  # fmt: skip


def hash_of(*parts: object) -> int:
    """Make a seed of parts that is the same in every process."""
    return random.Random("/".join(map(str, parts))).getrandbits(64)


def main(arguments: Sequence[str] | None = None) -> None:
    """Read question sets and write the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path, help="file to write")
    parser.add_argument("questions", nargs="+", help="NAME=FILE of question sets with passages")
    parser.add_argument("--texts", type=int, default=2700, help="number of answers")
    parser.add_argument("--words", type=int, default=110, help="most words of all passages of a prompt")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    questions: list[Question] = []
    for given in options.questions:
        name, _, path = given.partition("=")
        questions += open_questions(name, path=path).questions
    questions = [each for each in questions if each.passages]
    random.Random(options.seed).shuffle(questions)
    kinds: Counter[str] = Counter()
    written = 0
    with options.out.open("w", encoding="utf-8") as file:
        for text in texts(questions, options.seed):
            if written >= options.texts:
                break
            if sum(len(passage.split()) for passage in text["passages"]) <= options.words:
                file.write(json.dumps(text, ensure_ascii=False) + "\n")
                kinds.update(sentence["type"] for sentence in text["sentences"])
                written += 1
    print(f"{written:,} answers: " + ", ".join(f"{kinds[kind]:,} {kind}" for kind in KINDS))


if __name__ == "__main__":
    main()
