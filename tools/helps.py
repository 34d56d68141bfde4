"""Retrieving when it helps: comparisons in worlds in which the choice matters.

    python tools/helps.py testbed                        # 30% of the questions are misled
    python tools/helps.py completion ARTICLES.jsonl 4200 # half of the completions are known to SmolLM2
    python tools/helps.py multihop FILE.csv.gz ..        # questions of AdaRAGUE's files, papers' triggers
    python tools/helps.py adarague FILE.csv.gz ..        # does one retrieval turn an 8B's answer right?

The first three label answers without and with passages, train heads of "wrong" and of "helps" on the same
states, and compare their triggers, which retrieve once, at half of the validation questions, with the
question; methods of papers ask with their own queries in the third. They write below ``runs/helps``, and an
interrupted run goes on.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import probers
from probers.data.questions import open_questions
from probers.rag.retrievers import BM25
from probers.signals.rarity import lowest_frequencies, retriever_ranks
from probers.types import Passage, Question
from probers.words import Recogniser

#: Options that the probers of a world share.
TRAIN = ("layer=all", "head=linear", "epochs=10", "combine=best", "learning_curve=false", "resamples=1000")
#: Prober -> the option of probers-compare that names it, and what it is trained on.
PROBERS = {
    "wrong": ("prober", "pool=mean"),
    "wrong-before": ("prompt_prober", "pool=prompt"),
    "helps": ("helps_prober", "pool=mean label=helps"),
    "helps-before": ("helps_prompt_prober", "pool=prompt label=helps"),
}
TRIGGERS = (
    "never,always,random,oracle,entropy,flare,rind_released,probing_before,probing,helps_before,"
    "helps_before_known,helps,helps_known"
)
#: Methods of papers with queries of their own; FLARE's, RIND's and ETC's decide within the answer.
PAPERS = "etc,seakr_reranked,dtr,rarity"
#: Drawn answers of SeaKR, whose code draws 20.
DRAWN = "{samples: 5, top_k: 50, top_p: 0.9}"
#: Short answers, as SmolLM2 writes whole sentences if it sees none.
EXEMPLARS = """\
Question: Which was built first, the Eiffel Tower or the Golden Gate Bridge?
Answer: So the answer is the Eiffel Tower.

Question: In which country was the author of The Little Prince born?
Answer: So the answer is France.

Question: Could a penguin meet a polar bear in the wild?
Answer: So the answer is no.

Question: Who was the first person to win two Nobel Prizes?
Answer: So the answer is Marie Curie.

"""
#: Controls of the last comparison.
CONTROLS = (
    "bag of words, question", "question rarity", "retriever score", "retriever margin", "question words",
    "known of the question", "min probability", "perplexity", "bag of words, answer", "length",
)  # fmt: skip


def command(name: str, *options: str) -> None:
    """Run a command of the package, as typed."""
    subprocess.run([str(Path(sys.executable).with_name(f"probers-{name}")), *options], check=True)


def compare(
    out: Path, common: list[str], datagen: list[str], compared: list[str], triggers: str = TRIGGERS,
) -> None:  # fmt: skip
    """Make labels, train the probers, and compare their triggers."""
    command("datagen", "--source", "cot", *common, *datagen, "pool=[prompt,mean]", f"out={out}/states")
    given = []
    for name, (option, trained) in PROBERS.items():
        try:
            command("train", f"data={out}/states", *trained.split(), *TRAIN, f"out={out}/{name}")
        except subprocess.CalledProcessError:
            if "label=helps" not in trained:
                raise
            print(f"{name} is left out, as its training was refused")  # too few are helped or harmed
        else:
            given.append(f"{option}={out}/{name}")
    command(
        "compare", f"triggers=[{triggers}]", "max_retrievals=1", "threshold=budget=0.5", *common, *compared,
        *given, f"out={out}/compare",
    )  # fmt: skip


def testbed() -> None:
    """Compare triggers on the testbed, with 30% of the questions misled."""
    compare(
        Path("runs/helps/testbed"), ["corpus=testbed:misleading=0.3"],
        ["limit={train: 1000, validation: 400, test: 400}", "layers=stride"],
        ["limit=600", "validation=400", "queries=[question]"],
    )  # fmt: skip


def completion(articles: str, most: str = "1200") -> None:
    """Ask the completions of so many articles of which SmolLM2 knows half; it reads one passage."""
    out = Path("runs/helps/completion")
    questions = [
        "questions=completion", f"questions.articles={articles}", f"questions.max_articles={most}",
        "questions.words=40", "questions.known=0.5", f"questions.corpus_to={out}/passages.jsonl",
        f"corpus={out}/passages.jsonl", "model=smollm2", "prompt=completion", "max_new_tokens=16", "k=1",
    ]  # fmt: skip
    compare(
        out, questions, ["limit=null", "layers=[10,15,20,25,30]"],
        ["limit=null", "validation=null", "answer_tokens=0", "queries=[question]"],
    )  # fmt: skip


def multihop(*files: str) -> None:
    """Ask the questions of AdaRAGUE's files; their paragraphs are the corpus, of which SmolLM2 reads two.

    The probers learn from the training part of the questions, and the test part is asked.
    """
    out = Path("runs/helps/multihop")
    questions = questions_of(files)
    texts = dict.fromkeys((p.title, p.text) for question in questions for p in question.passages)
    rows = [{"id": q.id, "question": q.question, "answers": q.answers} for q in questions]
    passages = [{"id": str(n), "title": title, "text": text} for n, (title, text) in enumerate(texts)]
    out.mkdir(parents=True, exist_ok=True)
    for name, records in (("questions", rows), ("passages", passages)):
        lines = "".join(f"{json.dumps(record)}\n" for record in records)
        (out / f"{name}.jsonl").write_text(lines, encoding="utf-8")
    (out / "exemplars.txt").write_text(EXEMPLARS, encoding="utf-8")
    common = [
        f"questions={out}/questions.jsonl", f"corpus={out}/passages.jsonl", "passage_words=60", "k=2",
        "model=smollm2", "prompt=plain", f"prompt.exemplars_file={out}/exemplars.txt", "max_new_tokens=24",
    ]  # fmt: skip
    options = [f"methods.{name}.query=question" for name in ("random", "oracle", "entropy", "probing")]
    drawn = [f"methods.seakr_reranked.{part}_options={DRAWN}" for part in ("trigger", "query")]
    drawn[0] = drawn[0].replace("{", "{variant: seakr, ")
    compare(
        out, common, ["limit=null", "layers=[10,15,20,25,30]"],
        ["limit=null", "validation=null", "answer_tokens=0", *options, *drawn], f"{TRIGGERS},{PAPERS}",
    )  # fmt: skip


def questions_of(files: Sequence[str]) -> list[Question]:
    """Read the questions of AdaRAGUE's files, named after their file."""
    questions: list[Question] = []
    for file in files:
        read = open_questions("adarague", path=file, on_bad_line="skip").questions
        questions += [replace(each, id=f"{Path(file).name}/{each.id}") for each in read]
    return questions


def rows_of(questions: list[Question]) -> list[dict[str, Any]]:
    """Make labelled rows of AdaRAGUE's questions, with what the paragraphs of all of them say of each."""
    texts = dict.fromkeys((p.title, p.text) for question in questions for p in question.passages)
    index = BM25([Passage(str(n), *text) for n, text in enumerate(texts)])
    names = [question.question for question in questions]
    ranks = [retriever_ranks(hits) for hits in index.search(names, 2)]
    rare = lowest_frequencies(names, index, Recogniser("rules", quiet=True))
    return [
        {
            "id": question.id, "prompt": f"Question: {question.question}\nAnswer:",
            "answer": f" {question.truth['without']}", "wrong": question.truth["wrong"],
            "helps": question.truth["helps"], "question_frequency": frequency, **rank,
        }
        for question, rank, frequency in zip(questions, ranks, rare, strict=True)
        if question.truth["without"]
    ]  # fmt: skip


def adarague(*files: str) -> None:
    """Print AUROC of "one retrieval turns it right", and paired differences of the head to each control."""
    prober = probers.fit(
        probers.CausalLM.from_pretrained("smollm2"), rows_of(questions_of(files)), label="helps",
        head="linear", layers=[10, 14, 18, 22, 26], epochs=8, combine="best", split=[0.5, 0.2, 0.3],
        learning_curve=False,
    )  # fmt: skip
    print(prober.report, "\n")
    figures = prober.metrics
    rows = {"head": figures["ensemble"], "head and known": figures["with_entropy"]}
    rows |= {name: figures["controls"][name] for name in CONTROLS if name in figures["controls"]}
    print("detector,auroc,low,high,head minus it,low,high")
    for name, entry in rows.items():
        pair = figures["pairs"].get(f"all layers vs {name}", {}).get("auroc")
        cells = [entry["auroc"], *(entry["auroc_ci"] or (None, None))]
        cells += [] if pair is None else [pair["diff"], *(pair["ci95"] or (None, None))]
        print(",".join([f'"{name}"', *("" if cell is None else f"{cell:.3f}" for cell in cells)]))


if __name__ == "__main__":
    worlds = {"testbed": testbed, "completion": completion, "multihop": multihop, "adarague": adarague}
    worlds[sys.argv[1]](*sys.argv[2:])
