"""Speed of the loop, compared with DRAGIN as released and with plain generation, and of a whole comparison.

    python benchmarks/rag.py                    # DRAGIN and the prober's cost, on the testbed
    python benchmarks/rag.py --compare --write  # also probers-compare with all its methods

Both sides have the same model, questions, retriever (bm25 on the testbed's corpus) and results; the run
checks this. Figures are ratios of variants that take turns in this process.
"""

from __future__ import annotations

import argparse
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from peers import forwards
from released import Plain, Released
from report import invocation, publish
from timing import Results, by_turns, ratios, spread, verdict
from transformers import AutoModelForCausalLM

from probers import CausalLM
from probers.prober.prober import Prober
from probers.prompts import TESTBED_PROMPT, PromptTemplate
from probers.rag import RAG, Answer
from probers.rag.queries import QFS
from probers.rag.retrievers import BM25
from probers.rag.triggers import Probing, Rind
from probers.testbed.assets import load_corpus, load_questions, model_path
from probers.types import Generation, Question, Retriever, RunError, UserError

TITLES = {
    "dragin": "The loop against DRAGIN as released",
    "probing": "Probing against plain generation",
    "compare": "A comparison of all methods",
}
HEADS = {
    "dragin": "exemplars | full length | way | s/question | times as fast | target | verdict",
    "probing": "way | s/question | of plain's time | target | verdict",
    "compare": "questions | methods | minutes | target | verdict",
}
#: Published numbers of words of a query (25 to 40) for the lengths below; the testbed's answers have fewer.
TOP_N = 25
_AIMS = {1: 4.0, 16: 12.0}
_SLOWER = 1.05
_MINUTES = 10.0
#: Full stop that the released code, but not our splitter, takes for the end of a sentence.
_ODD_BORDER = re.compile(r"\.\s+[^A-Z\s]")


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


def dragin(args: argparse.Namespace, questions: Sequence[Question], results: Results) -> None:
    """Compare released RIND and QFS in the loop with the released procedure."""
    lms, retriever = {batch: engine(batch) for batch in _AIMS}, BM25(load_corpus())
    one, eager = lms[1], eager_twin()
    for count in args.exemplars:
        prompt = exemplars(count)
        for length in args.lengths:
            settings = (retriever, args.threshold, prompt, length)
            ours = {batch: released_loop(lm, *settings) for batch, lm in lms.items()}
            slow = replace(ours[1], draft=0)
            plain = Released(
                one.model, eager, one.tokenizer, retriever, prompt, args.threshold, TOP_N, length
            )
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
            seconds, made = by_turns(work, warm=warm, least=2, exactly=args.repeats, device=one.device)
            where = f"{count} exemplars, {length} tokens"
            agree(where, made["released"], {w: made[w] for w in list(work)[1:5]}, results)
            for way in work:
                cells: list[str] = [spread([s / len(questions) for s in seconds[way]], 3)]
                if way != "released":
                    faster = ratios(seconds["released"], seconds[way])
                    cells.append(spread(faster))
                    aim = _AIMS.get(int(way.split()[1])) if way in ("batch 1", "batch 16") else None
                    if aim is not None:
                        cells += [f">= {aim:.0f}", verdict(statistics.median(faster) >= aim)]
                else:
                    cells.append("1")
                results.row("dragin", count, length, way, *cells)
            tokens = sum(n for _, n in calls) / len(calls)
            searches = sum(len(p.queries) for p in made["released"]) / len(questions)
            results.note(
                "dragin",
                f"{where}: {len(calls) / len(questions):.2f} passes and {searches:.2f} searches per "
                f"question, {tokens:.0f} tokens per pass in the loop and {length} in the released procedure.",
            )
    results.note(
        "dragin",
        f"{len(questions)} testbed test questions, theta {args.threshold}, 3 passages, up to 3 searches. "
        "64 and 100 are published lengths (2WikiMultihopQA; HotpotQA and StrategyQA). Released: one question "
        "at a time, one `generate` of the full length per round (the released code makes two after a "
        "retrieval), an eager pass over what was written and another over all for the query, nothing kept.",
    )
    results.note(
        "dragin",
        "Ended by EOS: the same, but `generate` stops where the testbed model ends its answer, as models "
        "that go on with another question do not. Model's own calls: the forward calls of the loop's texts "
        "token by token at batch 1, every prompt computed from its beginning, and no pass over the answer, "
        "recording, retrieval or text. The loop is faster by what it does not compute again and by the "
        "tokens it guesses (`draft=8`; nothing guessed: `draft=0`).",
    )


def agree(where: str, first: Sequence[Plain], others: dict[str, Sequence[Any]], results: Results) -> None:
    """Note how many questions have the same text, answer and queries in all ways.

    A difference is explained if a text has a full stop before a small letter: the released code ends a
    sentence there.
    """
    for way, found in others.items():
        different = [(a, b) for a, b in zip(map(outcome, first), map(outcome, found), strict=True) if a != b]
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


def probing(args: argparse.Namespace, questions: Sequence[Question], results: Results, prober: str) -> None:
    """Compare the loop with a prober at batch 1 with transformers' generation of the same tokens."""
    bank, retriever, lm = Prober.from_pretrained(prober), BM25(load_corpus()), engine(1)
    recorder = engine(1, Recording)
    loop, recorded = (RAG(each, retriever, Probing(bank)) for each in (lm, recorder))
    for question in questions:
        recorded(question)
    written, eos = recorder.seen, lm.tokenizer.eos_token_id

    def plain(**options: Any) -> list[tuple[int, ...]]:
        found = []
        for generation in written:
            ids = lm.tokenizer(generation.prompt, return_tensors="pt")
            count = len(generation.token_ids) + (generation.stop == "eos")
            with torch.inference_mode():
                made = lm.model.generate(
                    **ids, max_new_tokens=count, do_sample=False, pad_token_id=eos, **options
                )
                row = made[0]
            found.append(tuple(i for i in row[ids["input_ids"].shape[1] :].tolist() if i != eos))
            lm.tokenizer.decode(found[-1])
        return found

    slow = replace(loop, draft=0)
    work: dict[str, Callable[[], Any]] = {
        "plain": plain,
        "plain with prompt lookup": lambda: plain(prompt_lookup_num_tokens=8),
        "probing": lambda: [loop(q) for q in questions],
        "probing, nothing guessed": lambda: [slow(q) for q in questions],
    }
    seconds, made = by_turns(
        work, warm={"plain": plain}, least=3, exactly=args.repeats, device=lm.device
    )  # fmt: skip
    called = {
        "plain": "plain `generate` of the same tokens",
        "plain with prompt lookup": "the same with `prompt_lookup_num_tokens=8`",
        "probing": "`trigger=probing`, retrieval and all",
        "probing, nothing guessed": "the same with `draft=0`",
    }
    for way, taken in seconds.items():
        cells: list[str] = ["1"]
        if way != "plain":
            shares = ratios(taken, seconds["plain"])
            cells = [spread(shares, 3)]
        if way == "probing":
            cells += [f"<= {_SLOWER}", verdict(statistics.median(shares) <= _SLOWER)]
        results.row("probing", called[way], spread([s / len(questions) for s in taken], 3), *cells)
    different = sum(a != g.token_ids for a, g in zip(made["plain"], written, strict=True))
    if different:
        results.same = False
        results.note("probing", f"**{different} of {len(written)} texts are not those of plain generation.**")
    searches = sum(answer.retrievals for answer in made["probing"]) / len(questions)
    results.note(
        "probing",
        f"{len(questions)} questions one at a time, {len(written)} texts with {searches:.2f} searches per "
        f"question; heads on layers {', '.join(map(str, bank.spec.layers))}. Both write the same tokens; "
        "the run checks this.",
    )


def compare(args: argparse.Namespace, results: Results, prober: str, folder: str) -> None:
    """Time the command with all methods that it compares by default."""
    begun = time.perf_counter()
    _command(
        "probers-compare", f"limit={args.compare_questions}", f"prober={prober}", f"out={folder}/compare"
    )
    minutes = (time.perf_counter() - begun) / 60
    methods = len(list(Path(folder, "compare", "traces").glob("*.jsonl")))
    goal = (f"< {_MINUTES:.0f}", verdict(minutes < _MINUTES))
    results.row("compare", args.compare_questions, methods, f"{minutes:.1f}", *goal)
    results.note("compare", "The whole command, thresholds chosen on 600 validation questions included.")


def train_prober(folder: str) -> str:
    """Train a prober on all layers, from a small store."""
    _command("probers-datagen", "source=cot", "limit=300", f"out={folder}/cot")
    few = ("learning_curve=false", "resamples=100")
    _command("probers-train", f"data={folder}/cot", "layer=all", f"out={folder}/prober", *few)
    return f"{folder}/prober"


def _command(name: str, *options: str) -> None:
    try:
        subprocess.run(
            [str(Path(sys.executable).with_name(name)), *options], check=True, stdout=subprocess.DEVNULL
        )
    except subprocess.CalledProcessError as error:
        raise RunError(f"{name} {' '.join(options)} ended with {error.returncode}") from error


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 1 if the compared ways did not give the same."""
    argv = list(sys.argv[1:] if arguments is None else arguments)
    args = _parse(argv)
    questions = [q for q in load_questions() if q.split == "test"][: args.questions]
    results, load, code = Results(HEADS), os.getloadavg(), 0
    with tempfile.TemporaryDirectory() as folder:
        try:
            if "dragin" in args.only:
                dragin(args, questions, results)
            if "probing" in args.only or args.compare:
                prober = args.prober or train_prober(folder)
            if "probing" in args.only:
                probing(args, questions, results, prober)
            if args.compare:
                compare(args, results, prober, folder)
        except (UserError, RunError) as error:
            print(f"error: {error}", file=sys.stderr)
            code = 2 if isinstance(error, UserError) else 1
    for section in results.rows:
        loads = f"load {load[0]:.1f} before and {os.getloadavg()[0]:.1f} after"
        results.note(section, f"On CPU, float32, {torch.get_num_threads()} threads, {loads}.")
        body = results.body(section)
        publish({TITLES[section]: body}, invocation("rag.py", argv), write=args.write and not code)
    if not results.same:
        print("error: the ways compared did not give the same; see the notes", file=sys.stderr)
    return code or int(not results.same)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    def numbers(least: int) -> Callable[[str], tuple[int, ...]]:
        def parse(text: str) -> tuple[int, ...]:
            found = tuple(int(word) if word.isdecimal() else -1 for word in text.split(","))
            if min(found) < least:
                raise argparse.ArgumentTypeError(f"{text!r} must be whole numbers of at least {least}")
            return found

        return parse

    def number(text: str) -> int:
        return numbers(1)(text)[0]

    def listed(text: str) -> tuple[str, ...]:
        words = tuple(text.split(","))
        if not set(words) <= {"dragin", "probing", "none"}:
            raise argparse.ArgumentTypeError(f"{text!r} is unknown; choose among dragin, probing, none")
        return words

    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    add = parser.add_argument
    add("--questions", type=number, default=32, help="testbed test questions; default 32")
    add("--lengths", type=numbers(1), default=(64, 100), help="full lengths of an answer; default 64,100")
    add("--exemplars", type=numbers(0), default=(0, 6), help="answered questions before each; default 0,6")
    add("--threshold", type=float, default=0.6, help="theta; default 0.6 (Llama-2-13b on 2WikiMultihopQA)")
    add("--repeats", type=number, help="rounds per comparison; default: at least 2")
    add("--prober", help="prober folder for the testbed; by default a small one is trained")
    add("--only", type=listed, default=("dragin", "probing"), help="among dragin, probing, none")
    add("--compare", action="store_true", help="time probers-compare as well (minutes)")
    add("--compare-questions", type=number, default=200, help="its questions; default 200")
    add("--write", action="store_true", help="replace the tables in benchmarks/RESULTS.md")
    return parser.parse_args(argv)


if __name__ == "__main__":
    sys.exit(main())
