"""DRAGIN as its authors released it, written plainly: what ``benchmarks/rag.py`` compares the loop with.

One question at a time; every round writes anew from the whole prompt, always the full length, then runs
an eager pass over what it wrote for the attention of all layers, and another over prompt and text when it
asks. Nothing is kept from one round to the next. In its favour, a round is one ``generate`` where the
released code makes two after a retrieval (one for the sentence that it keeps, one to go on from there).

The rules of the loop are those of :class:`probers.rag.loop.RAG`, so that answers can be compared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from probers.rag.retrievers.lexical import tokenize

from probers.evaluation.answers import extract_answer
from probers.prompts import PromptTemplate
from probers.text import is_content
from probers.types import Question, Retriever

_QUERY_TOKENS = 64  # of the retriever's, the last ones


@dataclass(frozen=True, slots=True)
class Plain:
    """What came of a question: the accepted text, the final answer, and the queries asked."""

    text: str
    answer: str
    queries: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Word:
    """A white-space separated word and its tokens."""

    text: str
    tokens: list[int]


@dataclass
class Released:
    """The procedure.

    Attributes:
        model: transformers' model on its usual kernel, which generates.
        eager: the same model with eager attention, for the passes that read it.
        ends: stop at the end-of-text token; False writes the full length, as a model that
            goes on with another question after its answer does.
        threshold, top_n, length, most, more: theta, words of a query, tokens, searches, and
            tokens of a final answer that has to be asked for.
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
        partial, used, fresh = "", 0, False
        passages: list[str] = []
        queries: list[str] = []
        while True:
            prompt = self.prompt.question(question.question, passages, partial=partial)
            written, entropies = self._write(prompt, self.length - used)
            text = self._text(written)
            hits = self._hits(written, entropies, fresh)
            if not hits or len(queries) == self.most:
                break
            start, fired = hits
            kept = self._text(written[:start]).rstrip()
            starts = [len(self._text(written[:i])) for i in range(len(written))]
            going = used + sum(a < len(kept) for a in starts)
            if going >= self.length:
                break
            queries.append(self._query(prompt, question.question, partial, written, fired))
            passages = [p.text for p in self.retriever.search([queries[-1]], self.k)[0]]
            if self.prompt.question(question.question, passages, partial=partial + kept) == prompt:
                break
            partial, used, fresh = partial + kept, going, True
        text = partial + text
        if self.prompt.answer_cue.lower() not in text.lower():
            text += ("" if text[-1:].isspace() else " ") + self.prompt.answer_cue
            prompt = self.prompt.question(question.question, passages, partial=text)
            text += self._text(self._write(prompt, self.more, full=self.more)[0])
        return Plain(text.strip(), extract_answer(text, self.prompt.answer_cue), tuple(queries))

    def _write(self, prompt: str, budget: int, full: int | None = None) -> tuple[list[int], np.ndarray]:
        """At most ``budget`` tokens up to the end of the answer, and the entropy each was drawn from."""
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
        """(heads, n, n) of the last layer, from a pass that returns every layer's."""
        tokens = torch.tensor([list(ids)], device=self.eager.device)
        return self.eager(tokens, output_attentions=True).attentions[-1][0]

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=True)) if ids else ""

    def _words(self, ids: Sequence[int], first: int = 0) -> list[Word]:
        """Words by the tokenizer's space marker; the first token is at place ``first``."""
        found: list[list[int]] = []
        for i, piece in enumerate(self.tokenizer.convert_ids_to_tokens(list(ids))):
            if i == 0 or piece[0] in "ĠĊ":
                found.append([])
            found[-1].append(i)
        return [Word(self._text([ids[i] for i in w]).strip(), [first + i for i in w]) for w in found]

    def _hits(
        self, written: list[int], entropies: np.ndarray, fresh: bool
    ) -> tuple[int, list[list[int]]] | None:
        """Of the first sentence with words that fire: its first token, and those words' tokens.

        Args:
            fresh: the first sentence was written from new passages and is taken as it is.
        """
        if not written:
            return None
        most = self._attention(written).amax(dim=1).mean(dim=0).cpu().numpy()
        sentences: list[list[Word]] = [[]]
        for word in self._words(written):
            sentences[-1].append(word)
            if word.text.endswith("."):
                sentences.append([])
        for number, sentence in enumerate(s for s in sentences if s):
            sums = np.array([most[w.tokens].sum(dtype=np.float64) for w in sentence])
            scores = sums / sums.sum() * len(sums)
            scores *= [entropies[w.tokens].mean() for w in sentence]
            content = is_content(" ".join(w.text for w in sentence), [w.text for w in sentence])
            fired = [
                w.tokens
                for w, s, c in zip(sentence, scores, content, strict=True)
                if c and s > self.threshold and not (fresh and number == 0)
            ]
            if fired:
                return sentence[0].tokens[0], fired
        return None

    def _query(
        self, prompt: str, question: str, partial: str, written: list[int], fired: list[list[int]]
    ) -> str:
        """The ``top_n`` content words most attended to where the words that fired were predicted."""
        encoded = self.tokenizer(prompt, return_offsets_mapping=True)
        before = encoded["input_ids"]
        rows = self._attention([*before, *written]).mean(dim=0).double().cpu().numpy()
        asked, end = self.prompt.question_span(prompt, question, partial)
        found: list[tuple[Word, bool]] = []
        for start, stop, more in ((asked, end, []), (len(prompt) - len(partial), len(prompt), written)):
            inside = [i for i, (a, b) in enumerate(encoded["offset_mapping"]) if b > start and a < stop]
            places = inside + [len(before) + i for i in range(len(more))]
            ids = [before[i] for i in inside] + more
            words = [Word(w.text, [places[i] for i in w.tokens]) for w in self._words(ids)]
            content = is_content(" ".join(w.text for w in words), [w.text for w in words])
            found += zip(words, content, strict=True)
        hits = [[len(before) + i for i in tokens] for tokens in fired]
        seen = np.zeros(len(rows), dtype=bool)
        seen[[i for w, _ in found for i in w.tokens]] = True
        weights = np.zeros(len(rows))
        for tokens in hits:
            row = np.where(seen, rows[tokens[0] - 1], 0.0)
            weights += row / row.sum() / len(hits)
        last = hits[-1][0]
        candidates = [
            (-weights[w.tokens].sum(), place, w.text.strip(".,!?;:'\"()"))
            for place, (w, content) in enumerate(found)
            if content and w.tokens[-1] < last and w.tokens not in hits
        ]
        chosen = [w for _, w in sorted((place, w) for _, place, w in sorted(candidates)[: self.top_n])]
        while sum(len(tokenize(w)) for w in chosen) > _QUERY_TOKENS:
            chosen = chosen[1:]
        return " ".join(chosen) or question
