"""Labels of others: the model reads existing texts, and their judged parts become examples.

The unit of an example is a marked span, a sentence, a claim or the whole answer, pooled over its tokens. With
pool "tokens" every token of the answer is stored with its own label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from probers.commands.settings import plain
from probers.data.texts import Text, TextSource
from probers.engine.language_model import ScoreRequest, Scoring
from probers.engine.model import CausalLM
from probers.engine.tokens import encode_answer
from probers.prompts import PromptTemplate
from probers.store.store import FeatureStore
from probers.types import Generation, Needs, Unit, UserError
from probers.words.thinking import Part, position_of

from ..settings import Datagen
from .base import TOO_LONG, Examples, LabelBuilder, Prepared
from .marks import MarkedRows, unit_for

#: Number of texts whose characters per token tell the size of a store of tokens.
_MEASURED = 100


def _name(one: Text) -> str:
    """Name a text among those of several files, which may have equal ids."""
    return f"{one.dataset}/{one.id}"


@dataclass
class TextsBuilder(LabelBuilder):
    """Builder that reads labelled texts in one pass each and pools features over the tokens of a unit.

    Attributes:
        unit: unit of an example; "token" stores every token of an answer.
        max_tokens: most tokens of an answer that are read; None reads all.
        part: part that is read and labelled of texts with thinking.
    """

    lm: CausalLM | None
    source: TextSource
    prompt: PromptTemplate
    needs: Needs
    unit: Unit = "answer"
    max_tokens: int | None = None
    part: Part = "both"

    item_name = unit_name = "text"
    wrong_name = "wrong"
    pools = ("mean", "last", "mind", "tokens")
    balance_by = ("split",)
    parts = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        self.position = position_of(self.part) if self.unit == "answer" else self.unit
        self._rows = MarkedRows(self.unit, self.needs, self.part)

    @classmethod
    def prepare(cls, settings: Datagen) -> Prepared:
        unit = unit_for(settings, "answer")
        if isinstance(settings.limit, Mapping):
            told = "give one number: whole groups are drawn before they are split"
            raise UserError(f"limit by split is for source=cot: {told}", "conflict")
        source = TextSource(
            **plain(settings.texts), on_bad_line=settings.on_bad_line,
            limit=settings.limit, seed=settings.seed,
        )  # fmt: skip
        source.survey(unit)

        def make(lm: CausalLM | None, needs: Needs, folder: Path) -> LabelBuilder:
            if lm is not None:
                lm.skip_too_long()
            return cls(lm, source, settings.prompt.make(), needs, unit, settings.max_tokens, settings.reads)

        return Prepared(make, (str(settings.texts.path),))

    @property
    def total(self) -> int:
        return self.source.survey(self.unit).texts

    def rows(self) -> int:
        survey = self.source.survey(self.unit)
        if self.unit != "token":
            return survey.units
        assert self.lm is not None
        first = [one.answer for one in islice(self.source.all(), _MEASURED)]
        tokens = sum(map(len, self.lm.tokenizer(first, verbose=False)["input_ids"]))
        return round(survey.characters * tokens / sum(map(len, first)))

    def units(self) -> Iterator[Text]:
        for one in self.source.labelled(self.unit):
            self._read += 1
            yield one

    def names(self, units: Sequence[Text]) -> list[str]:
        return [name for one in units for name, _ in self._rows.marks(one, _name(one))]

    def unit_of(self, name: str) -> str:
        return self._rows.text_of(name)

    def build(self, units: Sequence[Text], known: Mapping[str, int | None]) -> Iterator[Examples]:
        lm = self.lm
        assert lm is not None
        requests, readable, problems = [], [], Examples()
        for one in units:
            try:
                requests.append(self._request(lm, one))
                readable.append(one)
            except UserError as error:
                self._leave_out(one, f"unreadable: {error}", known, problems)
        if problems.left_out:
            yield problems
        done = {i for i, one in enumerate(readable) if all(name in known for name in self.names([one]))}
        for made in lm.score_each(requests, Scoring(self._rows.recording), known=done):
            examples = Examples(tokens=sum(len(g.token_ids) for g in made.values()))
            for place, generation in made.items():
                if generation.stop == "skipped":
                    self._leave_out(readable[place], TOO_LONG, known, examples)
                else:
                    self._add(readable[place], generation, examples)
            yield examples

    def _request(self, lm: CausalLM, one: Text) -> ScoreRequest:
        name = f"of {self.source.file} {one.where}"
        prompt = one.prompt_for(lm.tokenizer, self.source.file, self.prompt)
        tokens = encode_answer(lm.tokenizer, prompt, one.answer, name)
        return ScoreRequest(prompt, tokens[: self.max_tokens], name)

    def _leave_out(self, one: Text, why: str, known: Mapping[str, int | None], examples: Examples) -> None:
        for name in self.names([one]):
            if name not in known:
                examples.leave_out(name, why)

    def _add(self, one: Text, generation: Generation, examples: Examples) -> None:
        about = {"condition": "read", "writer": one.writer}
        self._rows.add(one, _name(one), generation, about, examples, whole=self.max_tokens is None)

    def summarise(self, store: FeatureStore) -> tuple[dict[str, Any], list[str]]:
        """Report figures of the labels, how splits were made, and the texts that could not be read."""
        survey = self.source.survey(self.unit)
        figures, line = self._rows.summarise(store, survey.texts)
        figures["lines_left_out"] = dict(self.source.left_out.counts)
        return figures, [line, *survey.notes, *self.source.left_out.lines()]
