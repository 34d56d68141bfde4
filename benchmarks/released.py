"""Plain reimplementation of DRAGIN's released loop, the baseline of ``benchmarks/rag.py``.

One question at a time. Every round generates from the whole prompt, always the full length, then runs an
eager pass over the generated text for the attention of all layers, and another over question and text to
build a query. After a retrieval it generates the full length again and keeps one sentence. Nothing is kept
between rounds.

The limits are those of :class:`probers.rag.loop.RAG`, so that answers can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from probers.evaluation.answers import extract_answer
from probers.prompts import PromptTemplate
from probers.rag.retrievers.lexical import tokenize
from probers.types import Question, Retriever
from probers.words.text import is_content

_QUERY_TOKENS = 64  # last tokens of the retriever that are kept


@dataclass(frozen=True, slots=True)
class Plain:
    """Result of a question: the accepted text, the final answer, and the queries."""

    text: str
    answer: str
    queries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Word:
    """White-space separated word and its tokens."""

    text: str
    tokens: list[int]


@dataclass
class Released:
    """Released procedure.

    Attributes:
        model: transformers' model on its usual kernel, which generates.
        eager: the same model with eager attention, for the passes that read it.
        ends: stop at the end-of-text token; False writes the full length, as a model that
            goes on with another question after its answer does.
        threshold, top_n, length, most, more: theta, words of a query, tokens, searches, and tokens of a final
            answer that must be asked for.
    """

    model: Any
    eager: Any
    tokenizer: Any
    retriever: Retriever
    prompt: PromptTemplate
    threshold: float
    top_n: int
    length: int
    ends: bool = False
    most: int = 3
    more: int = 16
    k: int = 3

    @torch.inference_mode()
    def __call__(self, question: Question) -> Plain:
        """Answer one question."""
        partial, used = "", 0
        queries: list[str] = []
        while True:
            written, entropies = self._write(self._prompt(question, partial), self.length - used)
            found = self._hits(written, entropies)
            before = (
                [] if found is None else [t for s in self._sentences(written)[: found[0]] for t in _all(s)]
            )
            kept = self._text(written[: len(before)]).rstrip()
            if found is None or len(queries) == self.most or used + len(before) >= self.length:
                partial += self._text(written)
                break
            queries.append(self._query(question.question, partial, written, *found))
            passages = [p.text for p in self.retriever.search([queries[-1]], self.k)[0]]
            partial, used = partial + kept, used + len(before)
            again, _ = self._write(self._prompt(question, partial, passages), self.length - used)
            first = [t for s in self._sentences(again)[:1] for t in _all(s)]
            partial, used = partial + self._text(again[: len(first)]).rstrip(), used + len(first)
            if not first or self.prompt.answer_cue.lower() in partial.lower() or used >= self.length:
                break
        if self.prompt.answer_cue.lower() not in partial.lower():
            partial += ("" if partial[-1:].isspace() else " ") + self.prompt.answer_cue
            partial += self._text(self._write(self._prompt(question, partial), self.more, full=self.more)[0])
        return Plain(partial.strip(), extract_answer(partial, self.prompt.answer_cue), tuple(queries))

    def _prompt(self, question: Question, partial: str, passages: Sequence[str] = ()) -> str:
        return self.prompt.question(question.question, list(passages), partial=partial)

    def _write(self, prompt: str, budget: int, full: int | None = None) -> tuple[list[int], np.ndarray]:
        """Write up to ``budget`` tokens until the answer ends; return them with their entropies."""
        encoded = self.tokenizer(prompt, return_tensors="pt").to(self.model.device)
        eos = self.tokenizer.eos_token_id
        made = self.model.generate(
            **encoded,
            max_new_tokens=full or self.length,
            do_sample=False,
            eos_token_id=eos if self.ends else None,
            pad_token_id=eos,
            output_scores=True,
            return_dict_in_generate=True,
        )
        ids = made.sequences[0, encoded["input_ids"].shape[1] :].tolist()[:budget]
        count = ids.index(eos) if eos in ids else len(ids)
        text = self._text(ids[:count])
        ends = [place for stop in self.prompt.stop if (place := text.find(stop)) >= 0]
        if ends:
            count = sum(len(self._text(ids[: i + 1])) <= min(ends) for i in range(count))
        logprobs = torch.cat(made.scores[: max(count, 1)]).float().log_softmax(dim=-1)
        entropies = -(logprobs.exp() * logprobs).nansum(dim=-1)
        return ids[:count], entropies[:count].double().cpu().numpy()

    def _attention(self, ids: Sequence[int]) -> torch.Tensor:
        """Return (heads, n, n) of the last layer, from a pass that returns every layer's."""
        tokens = torch.tensor([list(ids)], device=self.eager.device)
        return self.eager(tokens, output_attentions=True).attentions[-1][0]

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True)) if ids else ""

    def _words(self, ids: Sequence[int], first: int = 0) -> list[Word]:
        """Split into words by the tokenizer's space marker; the first token is at place ``first``."""
        found: list[list[int]] = []
        for i, piece in enumerate(self.tokenizer.convert_ids_to_tokens(list(ids))):
            if i == 0 or piece[0] in "ĠĊ":
                found.append([])
            found[-1].append(i)
        return [Word(self._text([ids[i] for i in w]).strip(), [first + i for i in w]) for w in found]

    def _sentences(self, written: list[int]) -> list[list[Word]]:
        """Split words into sentences, which end with a full stop."""
        sentences: list[list[Word]] = [[]]
        for word in self._words(written):
            sentences[-1].append(word)
            if word.text.endswith("."):
                sentences.append([])
        return [sentence for sentence in sentences if sentence]

    def _hits(self, written: list[int], entropies: np.ndarray) -> tuple[int, list[int]] | None:
        """Find the first sentence with words that fire, by number, and the numbers of these words in it."""
        if not written:
            return None
        most = self._attention(written).amax(dim=1).mean(dim=0).cpu().numpy()
        for number, sentence in enumerate(self._sentences(written)):
            sums = np.array([most[w.tokens].sum(dtype=np.float64) for w in sentence])
            scores = sums / sums.sum() * len(sums)
            scores *= [entropies[w.tokens].mean() for w in sentence]
            content = is_content(" ".join(w.text for w in sentence), [w.text for w in sentence])
            fired = [i for i, score in enumerate(scores) if content[i] and score > self.threshold]
            if fired:
                return number, fired
        return None

    def _query(
        self, question: str, partial: str, written: list[int], number: int, fired: Sequence[int]
    ) -> str:
        """Choose the ``top_n`` content words most attended where the words that fired were predicted."""
        sentences = self._sentences(written)
        current = [w.text for w in sentences[number]]
        before = " ".join(w.text for s in sentences[:number] for w in s)
        text = f"{question} {partial.strip()} {before} {' '.join(current)}"
        ids = self.tokenizer(text)["input_ids"]
        rows = self._attention(ids).mean(dim=0).double().cpu().numpy()
        found = [w for w in self._words(ids) if w.text]  # a superfluous space is no word
        first = len(found) - len(current)
        weights = np.zeros(len(ids))
        for hit in fired:
            tokens = found[first + hit].tokens
            for token in tokens:
                row = rows[token - 1, : tokens[0]]
                weights[: tokens[0]] += row / row.sum() / len(tokens) / len(fired)
        content = is_content(text, [w.text for w in found])
        candidates = [
            (-weights[w.tokens].sum(), place)
            for place, w in enumerate(found)
            if content[place] and place - first not in fired
        ]
        chosen = [
            found[place].text for place in sorted(place for _, place in sorted(candidates)[: self.top_n])
        ]
        while sum(len(tokenize(w)) for w in chosen) > _QUERY_TOKENS:
            chosen = chosen[1:]
        return " ".join(chosen) or question


def _all(sentence: Sequence[Word]) -> list[int]:
    """List the tokens of a sentence's words."""
    return [token for word in sentence for token in word.tokens]
