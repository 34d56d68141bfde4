"""Small inputs and finished runs for every case, and the parts of a run's files that must be the same."""

from __future__ import annotations

import gzip
import hashlib
import json
import os
import re
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from . import sandbox

ROOT = Path(__file__).parents[2]
_WIKIPEDIA = (
    "articles=wikipedia", "wikipedia.titles=[Aldenburg,Brenne,Marl,Kelby]",
    "wikipedia.contact=me@example.org",
    "wikipedia.rate=1000", "wikipedia.retries=0", "wikipedia.timeout=2", "wikipedia.cache=wikicache",
)  # fmt: skip
_ANSWERING = (
    "questions=in/questions.jsonl", "corpus=in/corpus.jsonl", "limit=3", "max_new_tokens=24",
    "corpus_cache=caches"
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Job:
    """Command that takes about a second.

    Attributes:
        arguments: its options without ``out``.
        needs: folders of the grounds that it reads.
        out: folder that it writes, "" for none.
        before: function called in its child first.
    """

    command: str
    arguments: tuple[str, ...]
    needs: tuple[str, ...] = ("in",)
    out: str = "new"
    before: Callable[[], Any] | None = None

    @property
    def argv(self) -> list[str]:
        return [*self.arguments, *([f"out={self.out}"] if self.out else [])]


def stored_corpora() -> None:
    """Treat every corpus as a large one, which is kept on disk."""
    from probers.data.corpus import load_corpus

    assert load_corpus.__kwdefaults__ is not None
    load_corpus.__kwdefaults__["in_memory"] = 0


JOBS: dict[str, Job] = {
    "datagen": Job("datagen", ("source=cot", *_ANSWERING, "layers=[6]", "shard_size=1")),
    "wiki": Job(
        "datagen",
        ("source=wiki", "articles=in/articles.jsonl", "limit=3", "layers=[6]", "max_new_tokens=16",
        "shard_size=2",
         "corpus=in/corpus.jsonl", "matcher.aliases=in/aliases.jsonl", "matcher.vectors=in/vectors.txt"),
    ),
    "train": Job(
        "train", ("data=cot", "layer=[6]", "resamples=100", "learning_curve=false", "save_every=0"), ("cot",)
    ),
    "classifier": Job("train", ("data=cot", "head=adaptive", "resamples=100"), ("cot",)),
    "ask": Job(
        "rag", ("question=Who does Lena Zaser work for?", "trigger=entropy", *_ANSWERING), out=""
    ),
    "rag": Job("rag", ("trigger=entropy", *_ANSWERING, "split=test", "batch_size=1")),
    "compare": Job(
        "compare",
        ("triggers=[never,random,entropy,entropy_sentence]", "validation=3", "sweep=1", "resamples=100",
         "match=entropy", "batch_size=1", *_ANSWERING),
    ),
    "probing": Job("rag", ("trigger=probing", "prober=prober", *_ANSWERING), ("in", "prober")),
    "radio": Job("rag", ("trigger=radio", "query=cioqf", "prober=radio", *_ANSWERING), ("in", "radio")),
    "adaptive": Job(
        "rag", ("trigger=adaptive", "trigger.classifier=clf", "query=last_sentence", *_ANSWERING), ("in",
        "clf")
    ),
    "stored": Job(
        "rag", ("trigger=always", "query=question", *_ANSWERING, "retriever.cache=caches/bm25"), ("in",
        "caches"),
        before=stored_corpora,
    ),
    "dense": Job(
        "rag", ("trigger=always", "query=question", *_ANSWERING, "retriever=dense", "retriever.cache=dense"),
        ("in", "dense"),
    ),
    "wikipedia": Job(
        "datagen", ("source=wiki", *_WIKIPEDIA, "limit=4", "layers=[6]", "max_new_tokens=16",
        "corpus=in/corpus.jsonl"),
        ("in", "wikicache"),
    ),
    # Killed runs, which the same command resumes.
    "datagen again": Job("datagen", ("source=cot", *_ANSWERING, "layers=[6]", "shard_size=1"), ("in",
    "cot-cut"), "cot-cut"),
    "train again": Job(
        "train", ("data=cot", "layer=[6]", "resamples=100", "learning_curve=false", "save_every=0"),
        ("cot", "train-cut"), "train-cut",
    ),
    "compare again": Job(
        "compare",
        ("triggers=[never,random,entropy,entropy_sentence]", "validation=3", "sweep=1", "resamples=100",
         "match=entropy", "batch_size=1", *_ANSWERING),
        ("in", "compare-cut"), "compare-cut",
    ),
    "rag again": Job(
        "rag", ("trigger=entropy", *_ANSWERING, "split=test", "batch_size=1"), ("in", "rag-cut"), "rag-cut"
    ),
}  # fmt: skip

#: Published sets: choice of ``questions`` -> its file in the tests' data, and further options.
SETS = {
    "hotpotqa": ("hotpot_distractor.json", ()),
    "2wikimultihopqa": ("twowiki.json", ("questions.aliases=in/official/twowiki_id_aliases.json",)),
    "nq": ("dpr_nq.json", ()),
    "triviaqa": ("triviaqa.json", ()),
    "musique": ("musique_full.jsonl", ()),
    "strategyqa": ("strategyqa.json", ("questions.paragraphs=in/official/strategyqa_paragraphs.json",)),
    "iirc": ("iirc.json", ()),
}  # fmt: skip
for _name, (_file, _more) in SETS.items():
    JOBS[_name] = Job(
        "rag",
        ("trigger=never", f"questions={_name}", f"questions.path=in/official/{_file}", *_more, "split=null",
         "limit=null", "corpus=in/corpus.jsonl", "max_new_tokens=4", "answer_tokens=0"),
    )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Grounds:
    """Folder with everything prepared.

    Attributes:
        path: folder that holds a folder for each name in :attr:`Job.needs`.
        jobs: :data:`JOBS`, with the address of the encyclopedia that filled the cache.
        undisturbed: folder with the undisturbed run of each job that writes a folder.
        expected: digests of each job's result files in that run.
        seconds: duration of that run.
    """

    path: Path
    jobs: dict[str, Job]
    undisturbed: Path
    expected: dict[str, dict[str, str]]
    seconds: dict[str, float]

    @contextmanager
    def field(self, needs: Sequence[str]) -> Iterator[Path]:
        """Make a folder for one case with copies of its needs; it is removed with the case."""
        folder = self.path.parent / f"case-{os.getpid()}-{time.monotonic_ns()}" / "work"
        folder.mkdir(parents=True)
        try:
            for name in needs:
                shutil.copytree(self.path / name, folder / name, symlinks=True)
            yield folder
        finally:
            shutil.rmtree(folder.parent, ignore_errors=True)


def prepare(folder: Path) -> Grounds:
    """Write the inputs, make the runs, and run every job once; existing ones are used as they are."""
    from .servers import encyclopedia

    made, record, ends = folder / "grounds", folder / "undisturbed.json", folder / "undisturbed"
    if record.exists():
        kept = json.loads(record.read_text())
        return Grounds(made, _with_address(kept["address"]), ends, kept["expected"], kept["seconds"])
    made.mkdir(parents=True)
    _inputs(made / "in")
    with encyclopedia() as url:
        address, jobs = url, _with_address(url)
        _do(made, "datagen", (*JOBS["datagen"].arguments, "limit=60", "shard_size=64"), "cot")
        _do(made, "datagen", (*JOBS["wiki"].arguments, "limit=30", "pool=tokens", "shard_size=64"), "wiki")
        _do(made, "train", ("data=cot", "layer=[6]", "resamples=100", "learning_curve=false"), "prober")
        _do(
            made,
            "train",
            ("data=wiki", "layer=[6]", "head=radio", "resamples=100", "learning_curve=false"),
            "radio",
        )
        _do(made, "train", JOBS["classifier"].arguments, "clf")
        for name in ("stored", "dense", "wikipedia"):
            _do(made, jobs[name].command, jobs[name].arguments, "gone", jobs[name].before)
            shutil.rmtree(made / "gone")
    _cut(made, JOBS["datagen again"], "shards/00000.json")
    _cut(made, JOBS["train again"], "checkpoint*.safetensors")
    _cut(made, JOBS["compare again"], "traces/entropy.jsonl")
    _cut(made, JOBS["rag again"], "traces.jsonl")
    grounds = Grounds(made, jobs, ends, {}, {})
    for name, job in jobs.items():
        with grounds.field(job.needs) as field:
            ended = sandbox.run(job.command, job.argv, field, limit=120, before=job.before)
            if ended.code:
                raise RuntimeError(f"the undisturbed {name} failed ({ended.code}): {ended.err[-800:]}")
            grounds.expected[name] = results(field / job.out) if job.out else {"stdout": _spoken(ended.out)}
            grounds.seconds[name] = ended.seconds
            if job.out:
                shutil.copytree(field / job.out, ends / name)
    kept = {"address": address, "expected": grounds.expected, "seconds": grounds.seconds}
    record.write_text(json.dumps(kept, indent=1))
    return grounds


def _with_address(url: str) -> dict[str, Job]:
    """Return all jobs; the one that asks an encyclopedia gets the address of the cached answers."""
    job = JOBS["wikipedia"]
    return JOBS | {"wikipedia": replace(job, arguments=(*job.arguments, f"wikipedia.api_url={url}"))}


def _do(
    folder: Path, command: str, arguments: Sequence[str], out: str, before: Callable[[], Any] | None = None
) -> None:
    last = {part.partition("=")[0]: part for part in arguments}  # for a key given twice
    ended = sandbox.run(command, [*last.values(), f"out={out}"], folder, limit=60, before=before)
    if ended.code:
        raise RuntimeError(f"probers-{command} for the grounds failed ({ended.code}): {ended.err[-800:]}")


def _cut(folder: Path, job: Job, until: str) -> None:
    """Run a job and kill it as soon as a file exists."""
    for _ in range(20):
        running = sandbox.start(job.command, job.argv, folder, job.before)
        late = time.monotonic() + sandbox.LIMIT
        while not any((folder / job.out).glob(until)) and not running.ended_within(0.001):
            if time.monotonic() > late:
                raise RuntimeError(f"{job.command} for the grounds hangs: {running.wait(0).err}")
        running.send(signal.SIGKILL)
        running.wait()
        state = json.loads((folder / job.out / "run.json").read_text())
        if not state["complete"]:
            return
        shutil.rmtree(folder / job.out)
    raise RuntimeError(f"no kill hit {job.command} before its end")


def _inputs(folder: Path) -> None:
    """Write questions, passages and articles of the testbed, and examples of the published sets."""
    from probers.data import load_corpus
    from probers.testbed.assets import load_articles, load_questions

    folder.mkdir()
    passages = list(load_corpus("testbed"))
    titles = {p.title: p for p in passages}
    chosen, kept = [], {p.id: p for p in passages[::60]}
    for split, count in (("train", 40), ("validation", 20), ("test", 20)):
        for question in [q for q in load_questions() if q.split == split][: 8 * count : 8]:
            chosen.append(
                {"id": question.id, "question": question.question, "answers": list(question.answers),
                 "rationale": question.rationale, "group": question.group, "split": split}
            )  # fmt: skip
            named = [p for title, p in titles.items() if title in question.question]
            kept |= {p.id: p for p in named}
    records = [{"id": p.id, "title": p.title, "text": p.text} for p in kept.values()]
    _lines(folder / "questions.jsonl", chosen)
    _lines(folder / "corpus.jsonl", records)
    (folder / "corpus.jsonl.gz").write_bytes(gzip.compress((folder / "corpus.jsonl").read_bytes(), mtime=0))
    rows = ["id\ttext\ttitle", *(f"{r['id']}\t{r['text']}\t{r['title']}" for r in records)]
    (folder / "corpus.tsv").write_text("\n".join(rows) + "\n", encoding="utf-8")
    articles = list(load_articles())[:600:15]
    _lines(folder / "articles.jsonl", [{"title": a.title, "sentences": list(a.sentences)} for a in articles])
    _lines(folder / "aliases.jsonl", [["Lena Zaser", "L. Zaser"], ["Prisbu", "the town of Prisbu"]])
    words = sorted({word.lower() for r in records for word in re.findall(r"\w+", r["text"])})[:50]
    vectors = [f"{w} {' '.join(f'{(i * j) % 7 / 7:.3f}' for j in range(4))}" for i, w in enumerate(words, 1)]
    (folder / "vectors.txt").write_text(f"{len(words)} 4\n" + "\n".join(vectors) + "\n", encoding="utf-8")
    shutil.copytree(ROOT / "tests/data/questions", folder / "official")


def _lines(path: Path, records: Sequence[Any]) -> None:
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records), encoding="utf-8")


#: Figures of time in results, names of inputs, which an attack alters, and checksums over both.
_TIMES = re.compile(r"seconds|_per_second|s_per_question|s/question")
_NAMES = {"inputs", "fingerprint", "identity", "config", "replaced", "asked", "sha256"}
#: Files of a comparison with the scores of single texts.
#: Files with timings in running text, or drawn from files that are compared themselves.
_NOT_COMPARED = re.compile(
    r"report\.html|README\.md|\.lock|\.writer\.json|\.?config\.yaml.*|.*\.png|sample\.html"
)


def results(folder: Path) -> dict[str, str]:
    """Digest every result file of a run, without its timings and the names of its inputs."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(_plain(path)).hexdigest()[:12]
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and not _NOT_COMPARED.fullmatch(path.name)
    }


def differing(folder: Path, undisturbed: Path) -> list[str]:
    """List the result files that differ from those of an undisturbed run."""
    found, expected = results(folder), results(undisturbed)
    return sorted(name for name in {*found, *expected} if found.get(name) != expected.get(name))


def _plain(path: Path) -> bytes:
    values = _values(path)
    return path.read_bytes() if values is None else json.dumps(values, sort_keys=True).encode()


def _values(path: Path) -> Any:
    """Read a JSON file without times and names; None for any other file."""
    blob = path.read_bytes()
    try:
        if path.suffix == ".json":
            return _timeless(json.loads(blob))
        if path.suffix == ".jsonl":
            return [_timeless(json.loads(line)) for line in blob.splitlines()]
    except ValueError:
        pass
    return None


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _timeless(v) for k, v in value.items() if k not in _NAMES and not _TIMES.search(k)}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


def _spoken(text: str) -> str:
    """Remove times from printed text."""
    return re.sub(r"\d+\.\d+ s\b", "", text)


def outcome(field: Path, job: Job, ended: sandbox.Ended) -> dict[str, str]:
    """Collect the results of a finished job, for comparison with :attr:`Grounds.expected`."""
    return results(field / job.out) if job.out else {"stdout": _spoken(ended.out)}


def held(folder: Path, leave_out: Sequence[str] = ()) -> dict[str, str]:
    """Digest every regular file below a folder, by its path, without the files below some names."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = str(path.relative_to(folder))
        if path.is_symlink() or not path.is_file() or name.startswith(tuple(leave_out)):
            continue
        found[name] = hashlib.sha256(path.read_bytes()).hexdigest()[:12]
    return found


def lost(before: dict[str, str], after: dict[str, str]) -> list[str]:
    """List files whose content exists nowhere any more."""
    kept = set(after.values())
    return [name for name, digest in before.items() if digest not in kept]
