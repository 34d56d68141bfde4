"""Labels of others: the model reads existing texts, and their judged parts become examples.

The unit of an example is a marked span, a sentence, a claim or the whole answer, pooled over its tokens. With
pool "tokens" every token of the answer is stored with its own label.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from probers.data.texts import Text, TextSource
from probers.data.texts.source import Survey
from probers.model.causal_lm import CausalLM
from probers.model.language_model import Scoring
from probers.model.passages import request
from probers.prompts import AUTO
from probers.store.store import FeatureStore
from probers.types import Needs, Outside, Unit, UserError
from probers.words.thinking import position_of

from ..settings import OfTexts
from .base import TOO_LONG, Inputs, Source, state, unit_for
from .rows import Examples, MarkedRows

#: Number of texts whose characters per token tell the size of a store of tokens.
_MEASURED = 100


@dataclass(frozen=True)
class Texts(OfTexts, Source):
    """Texts with labels, read in one pass each; features are pooled over the tokens of a unit.

    Attributes:
        texts: file, ``hf:ID[:config][:split]``, or rows (:func:`probers.data.rows.records_of`).
        columns: name of the column of each field that has another, as ``{"answer": "output"}``.
    """

    texts: Any = None
    _: KW_ONLY
    columns: Mapping[str, str] | None = None
    format: str = "auto"
    outside: Literal["auto"] | Outside = "auto"
    source: TextSource = state()
    survey: Survey = state()
    example_unit: Unit = state()
    marked: MarkedRows = state()

    __repr__ = Source.__repr__
    name = "texts"
    item_name = "text"
    wrong_name = "wrong"
    pools = ("mean", "last", "mind", "tokens")

    def inputs(self) -> Inputs:
        options = self.options
        unit = unit_for(options, self.unit, "answer")
        source = TextSource(
            self.texts, self.columns, self.format, self.outside, on_bad_line=options.on_bad_line,
            limit=self.one_limit(), seed=options.seed,
        )  # fmt: skip
        position = position_of(self.reads) if unit == "answer" else unit
        self.keep(source=source, survey=source.survey(unit), example_unit=unit, position=position)
        unused = options.prompt.name != AUTO and self.survey.form != "passages"
        form = f"prompt={options.prompt.name} is not used: it shows passages, and these texts have none"
        self.keep(notices=[*[form] * unused, *self.survey.notes, *source.lines()])
        return Inputs(record={"texts_read": source.inputs})

    def begin(self, lm: CausalLM | None, needs: Needs, folder: Path) -> None:
        super().begin(lm, needs, folder)
        if lm is not None:
            lm.skip_too_long()
        self.keep(marked=MarkedRows(self.example_unit, needs, self.reads))

    @property
    def total(self) -> int:
        return self.survey.texts

    @property
    def rendered(self) -> str:
        """The template's fingerprint if it shows passages; prompts and messages are read as they stand."""
        return super().rendered if self.survey.form == "passages" else self.survey.form

    def rows(self) -> int:
        if self.example_unit != "token":
            return self.survey.units
        assert self.lm is not None
        first = [one.answer for one in islice(self.source.all(), _MEASURED)]
        read = self.lm.tokenizer(first, add_special_tokens=False, verbose=False)
        tokens = sum(map(len, read["input_ids"]))
        return round(self.survey.characters * tokens / sum(map(len, first)))

    def units(self) -> Iterator[Text]:
        for one in self.source.labelled(self.example_unit):
            # Texts of several files may have equal ids.
            yield replace(one, id=f"{one.dataset}/{one.id}")

    def place(self, span: str) -> tuple[int, str]:
        return 0, self.marked.text_of(span)

    def examples(self, lm: CausalLM, units: Sequence[Text]) -> Iterator[Examples]:
        requests, readable, problems = [], [], Examples()
        for one in units:
            try:
                file, needs = self.source.file, self.marked.recording
                requests.append(request(lm, one, self.prompt, file, needs, self.max_tokens))
                readable.append(one)
            except UserError as error:
                self._leave_out(one, f"unreadable: {error}", problems)
        if problems.left_out:
            yield problems
        whole = self.max_tokens is None
        for batch in lm.score_each(requests, Scoring(self.marked.recording)):
            examples = Examples(tokens=sum(len(g.token_ids) for g in batch.values()))
            for place, generation in batch.items():
                one = readable[place]
                if generation.stop == "skipped":
                    self._leave_out(one, TOO_LONG, examples)
                else:
                    about: dict[str, Any] = {"condition": "read", "writer": one.writer}
                    about |= {name: one.record.get(name) for name in self.survey.columns}
                    self.marked.add(one, one.id, generation, about, examples, whole=whole)
            yield examples

    def _leave_out(self, one: Text, why: str, examples: Examples) -> None:
        for name, _ in self.marked.marks(one, one.id):
            examples.leave_out(name, why)

    def summarise(self, store: FeatureStore) -> tuple[dict[str, Any], list[str]]:
        """Report figures of the labels, how splits were made, and the texts that could not be read."""
        figures, line = self.marked.summarise(store, self.survey.texts)
        figures["lines_left_out"] = dict(self.source.left_out.counts)
        return figures, [line, *self.notices]
