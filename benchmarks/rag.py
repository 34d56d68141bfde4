"""Speed of the loop, compared with DRAGIN as released and with plain generation.

    python benchmarks/rag.py [--questions 8] [--exemplars 0 6] [--prober FOLDER]

Both sides have the same model, questions, retriever (bm25 on the testbed's corpus) and results; the run
checks this.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from peers import forwards
from results import Results, Section, by_turns, goal, options, positive, ratios, script, spread, verdict
from transformers import AutoModelForCausalLM

from probers import CausalLM
from probers.evaluation.answers import extract_answer
from probers.heads import HEADS
from probers.prober.prober import Prober
from probers.prompts import TESTBED_PROMPT, PromptTemplate
from probers.rag import RAG, Answer
from probers.rag.queries import QFS
from probers.rag.retrievers import BM25
from probers.rag.retrievers.lexical import tokenize
from probers.rag.triggers import Probing, Rind
from probers.store.spec import FeatureSpec
from probers.testbed.assets import load_corpus, load_questions, model_path
from probers.types import Generation, Question, Retriever
from probers.words.text import is_content

#: Published numbers of words of a query (25 to 40) for the lengths below; the testbed's answers have fewer.
TOP_N = 25
#: Least speed-up over the released procedure at batch 1 and 16, and most of plain generation's time.
_AIMS = {1: 4.0, 16: 12.0}
_SLOWER = 1.05
#: Full stop that the released code, but not our splitter, takes for the end of a sentence.
_ODD_BORDER = re.compile(r"\.\s+[^A-Z\s]")

#: Last tokens of the retriever that the released code keeps.
_QUERY_TOKENS = 64


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
    """Plain reimplementation of DRAGIN's released loop; its limits are those of :class:`probers.rag.RAG`.

    One question at a time. Every round generates from the whole prompt, always the full length, then runs an
    eager pass over the generated text for the attention of all layers, and another over question and text to
    build a query. After a retrieval it generates the full length again and keeps one sentence. Nothing is
    kept between rounds.

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
            hits = self._hits(written, entropies)
            before = (
                [] if hits is None else [t for s in self._sentences(written)[: hits[0]] for t in _tokens(s)]
            )
            accepted = self._text(written[: len(before)]).rstrip()
            if hits is None or len(queries) == self.most or used + len(before) >= self.length:
                partial += self._text(written)
                break
            queries.append(self._query(question.question, partial, written, *hits))
            passages = [p.text for p in self.retriever.search([queries[-1]], self.k)[0]]
            partial, used = partial + accepted, used + len(before)
            again, _ = self._write(self._prompt(question, partial, passages), self.length - used)
            first = [t for s in self._sentences(again)[:1] for t in _tokens(s)]
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
        words: list[list[int]] = []
        for i, piece in enumerate(self.tokenizer.convert_ids_to_tokens(list(ids))):
            if i == 0 or piece[0] in "ĠĊ":
                words.append([])
            words[-1].append(i)
        return [Word(self._text([ids[i] for i in w]).strip(), [first + i for i in w]) for w in words]

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
        words = [w for w in self._words(ids) if w.text]  # a superfluous space is no word
        first = len(words) - len(current)
        weights = np.zeros(len(ids))
        for hit in fired:
            tokens = words[first + hit].tokens
            for token in tokens:
                row = rows[token - 1, : tokens[0]]
                weights[: tokens[0]] += row / row.sum() / len(tokens) / len(fired)
        content = is_content(text, [w.text for w in words])
        candidates = [
            (-weights[w.tokens].sum(), place)
            for place, w in enumerate(words)
            if content[place] and place - first not in fired
        ]
        chosen = [
            words[place].text for place in sorted(place for _, place in sorted(candidates)[: self.top_n])
        ]
        while sum(len(tokenize(w)) for w in chosen) > _QUERY_TOKENS:
            chosen = chosen[1:]
        return " ".join(chosen) or question


def _tokens(sentence: Sequence[Word]) -> list[int]:
    """List the tokens of a sentence's words."""
    return [token for word in sentence for token in word.tokens]


class Recording(CausalLM):
    """Engine that keeps the texts it wrote."""

    seen: list[Generation]

    def generate(self, *args: Any, **options: Any) -> list[Generation]:
        made = super().generate(*args, **options)
        self.seen = [*getattr(self, "seen", []), *made]
        return made


def exemplars(count: int) -> PromptTemplate:
    """Make the testbed's prompt after ``count`` answered training questions."""
    shown = [q for q in load_questions() if q.split == "train"][:count]
    answered = [
        f"{TESTBED_PROMPT.question(q.question)} {TESTBED_PROMPT.answer(q.rationale, q.answers[0])}\n\n"
        for q in shown
    ]
    return replace(TESTBED_PROMPT, exemplars="".join(answered))


def engine(batch: int, kind: type[CausalLM] = CausalLM) -> Any:
    return kind.from_pretrained("testbed", device="cpu", batch_size=batch)


def eager_twin() -> Any:
    """Load the testbed's model with attention that can be read."""
    twin = AutoModelForCausalLM.from_pretrained(
        model_path(), attn_implementation="eager", dtype=torch.float32
    )
    return twin.eval()


def released_loop(
    lm: CausalLM, retriever: Retriever, threshold: float, prompt: PromptTemplate, length: int
) -> RAG:
    """Make the loop with DRAGIN as released."""
    trigger, query = Rind(threshold, "released"), QFS("released", top_n=TOP_N)
    return RAG(lm, retriever, trigger, query, prompt=prompt, max_new_tokens=length)


def dragin(results: Results, args: argparse.Namespace) -> None:
    """Compare released RIND and QFS in the loop with the released procedure."""
    questions = asked(args)
    lms, retriever = {batch: engine(batch) for batch in _AIMS}, BM25(load_corpus())
    one, eager = lms[1], eager_twin()
    for count in args.exemplars:
        prompt = exemplars(count)
        settings = (retriever, args.threshold, prompt, args.length)
        ours = {batch: released_loop(lm, *settings) for batch, lm in lms.items()}
        slow = replace(ours[1], draft=0)
        plain = Released(
            one.model, eager, one.tokenizer, retriever, prompt, args.threshold, TOP_N, args.length
        )  # fmt: skip
        ended = replace(plain, ends=True)
        recorder = engine(1, Recording)
        recorded = released_loop(recorder, *settings)
        for each in questions:
            recorded(each)
        calls = [(g.prompt, len(g.token_ids) + (g.stop == "eos")) for g in recorder.seen]
        work: dict[str, Callable[[], Any]] = {
            "released": lambda plain=plain: [plain(q) for q in questions],
            "released, ended by EOS": lambda ended=ended: [ended(q) for q in questions],
            "batch 1": lambda ours=ours: [ours[1](q) for q in questions],
            "batch 1, nothing guessed": lambda slow=slow: [slow(q) for q in questions],
            "batch 16": lambda ours=ours: ours[16].answer(questions),
            "model's own calls, batch 1": lambda calls=calls: [forwards(one, [p], n) for p, n in calls],
        }
        warm: dict[str, Callable[[], Any]] = {
            "ours": lambda ours=ours: ours[16].answer(questions[:2]),
            "released": lambda ended=ended: ended(questions[0]),
        }
        seconds, made = by_turns(work, warm=warm, rounds=args.rounds, device=one.device)
        where = f"{count} exemplars"
        agree(where, made["released"], {w: made[w] for w in list(work)[1:5]}, results)
        searches = sum(len(p.queries) for p in made["released"])
        for way in work:
            triggered = spread([s / max(1, searches) for s in seconds[way]], 3)
            faster = ratios(seconds["released"], seconds[way])
            aim = _AIMS.get(int(way.split()[1])) if way in ("batch 1", "batch 16") else None
            each = spread([s / len(questions) for s in seconds[way]], 3)
            cells = goal(faster, aim) if aim is not None else ()
            results.row("dragin", count, way, each, triggered, spread(faster), *cells)
        tokens = sum(n for _, n in calls) / len(calls)
        results.note(
            "dragin",
            f"{where}: {len(calls) / len(questions):.2f} passes and {searches / len(questions):.2f} searches "
            f"per question, {tokens:.0f} tokens per pass in the loop and {args.length} in the released one.",
        )
    results.note(
        "dragin",
        f"{len(questions)} testbed test questions, theta {args.threshold}, 3 passages, up to 3 searches, "
        f"{args.length} tokens (published for 2WikiMultihopQA); {args.rounds} rounds.",
    )


def asked(args: argparse.Namespace) -> list[Question]:
    """Choose the questions."""
    return [q for q in load_questions() if q.split == "test"][: args.questions]


def agree(where: str, first: Sequence[Plain], others: dict[str, Sequence[Any]], results: Results) -> None:
    """Note how many questions have the same text, answer and queries in all ways.

    A difference is explained if a text has a full stop before a small letter: the released code ends a
    sentence there.
    """
    for way, asks in others.items():
        different = [(a, b) for a, b in zip(map(outcome, first), map(outcome, asks), strict=True) if a != b]
        odd = sum(bool(_ODD_BORDER.search(a[0]) or _ODD_BORDER.search(b[0])) for a, b in different)
        same = f"{len(first) - len(different)} of {len(first)} questions"
        text = f"{where}, {way}: {same} have the released procedure's text, answer and queries"
        if odd:
            text += f"; in {odd} only the released code ends a sentence, before a small letter"
        if odd < len(different):
            results.same = False
            text = f"**{text}; {len(different) - odd} differ without a reason**"
        results.note("dragin", f"{text}.")


def outcome(made: Plain | Answer) -> tuple[str, str, tuple[str, ...]]:
    if isinstance(made, Plain):
        return made.text, made.answer, made.queries
    return made.text, made.answer, tuple(r.query for r in made.rounds if r.query is not None)


def probing(results: Results, args: argparse.Namespace) -> None:
    """Compare the loop with a prober at batch 1 with transformers' generation of the same tokens."""
    questions, lm = asked(args), engine(1)
    bank, retriever = (
        Prober.from_pretrained(args.prober) if args.prober else untrained(lm),
        BM25(load_corpus()),
    )
    recorder = engine(1, Recording)
    loop, recorded = (RAG(each, retriever, Probing(bank)) for each in (lm, recorder))
    for question in questions:
        recorded(question)
    written, eos = recorder.seen, lm.tokenizer.eos_token_id

    def plain(**more: Any) -> list[tuple[int, ...]]:
        texts = []
        for generation in written:
            ids = lm.tokenizer(generation.prompt, return_tensors="pt")
            count = len(generation.token_ids) + (generation.stop == "eos")
            with torch.inference_mode():
                made = lm.model.generate(
                    **ids, max_new_tokens=count, do_sample=False, pad_token_id=eos, **more
                )[0]
            texts.append(tuple(i for i in made[ids["input_ids"].shape[1] :].tolist() if i != eos))
            lm.tokenizer.decode(texts[-1])
        return texts

    slow = replace(loop, draft=0)
    work: dict[str, Callable[[], Any]] = {
        "plain `generate` of the same tokens": plain,
        "the same with `prompt_lookup_num_tokens=8`": lambda: plain(prompt_lookup_num_tokens=8),
        "`trigger=probing`, retrieval and all": lambda: [loop(q) for q in questions],
        "the same with `draft=0`": lambda: [slow(q) for q in questions],
    }
    first, _, ours, _ = work
    seconds, made = by_turns(work, warm={"plain": plain}, rounds=args.rounds, device=lm.device)
    for way, taken in seconds.items():
        shares = ratios(taken, seconds[first])
        reached = sorted(shares)[len(shares) // 2] <= _SLOWER
        cells = (f"<= {_SLOWER}", verdict(reached)) if way == ours else ()
        results.row("probing", way, spread([s / len(questions) for s in taken], 3), spread(shares, 3), *cells)
    different = sum(a != g.token_ids for a, g in zip(made[first], written, strict=True))
    if different:
        results.same = False
        results.note("probing", f"**{different} of {len(written)} texts are not those of plain generation.**")
    searches = sum(answer.retrievals for answer in made[ours]) / len(questions)
    results.note(
        "probing",
        f"{len(questions)} questions one at a time, {len(written)} texts with {searches:.2f} searches per "
        f"question; heads on layers {', '.join(map(str, bank.spec.layers))}, "
        f"{'trained' if args.prober else 'untrained: what they cost does not depend on what they say'}.",
    )


def untrained(lm: CausalLM) -> Prober:
    """Make heads on all layers that search in some places."""
    layers = tuple(range(1, lm.num_layers + 1))
    spec = FeatureSpec(lm.spec, layers, lm.width, prompt=TESTBED_PROMPT.fingerprint)
    torch.manual_seed(0)
    return Prober(spec, HEADS["linear"]([f"layer{k}" for k in layers], lm.width), 0.0)


SECTIONS = {
    "dragin": Section(
        "The loop against DRAGIN as released",
        "exemplars | way | s/question | s/trigger | times as fast | target | verdict", dragin, 300,
        "Released: one question at a time, one `generate` of the full length per round (the released code "
        "makes "
        "two after a retrieval), an eager pass over what was written and another over all for the query, "
        "nothing "
        "kept. Ended by EOS: the same, but `generate` stops where the model ends its answer. Model's own "
        "calls: "
        "the forward calls of the loop's texts token by token, every prompt from its beginning, without "
        "passes "
        "over the answer, recording, retrieval or text. The loop is faster by what it does not compute "
        "again and "
        "by the tokens it guesses (`draft=8`; nothing guessed: `draft=0`). Seconds per trigger count all "
        "time for "
        "the retrievals made.",
    ),
    "probing": Section(
        "Probing against plain "
        "generation", "way | s/question | of plain's time | target | verdict", probing, 150,
        "All ways write the same tokens; the run checks this.",
    ),
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command."""
    parser = options(__doc__, rounds=2)
    add = parser.add_argument
    add("--questions", type=positive, default=8, help="of the testbed's test questions; default 8")
    add("--length", type=positive, default=64, help="full length of an answer; default 64")
    add(
        "--exemplars", nargs="+", type=int, default=[0, 6], help="answered questions before each; default 0 6"
    )
    add("--threshold", type=float, default=0.6, help="theta; default 0.6 (Llama-2-13b on 2WikiMultihopQA)")
    add("--prober", help="prober folder for the testbed; default: untrained heads")
    return script(SECTIONS, parser, argv)


if __name__ == "__main__":
    sys.exit(main())
