"""Damaged artefacts are named in one sentence, hostile ones too; folders that are not ours are untouched."""

import copy
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from helpers.artefacts import contents, harm, write_lines
from helpers.refusals import claimed, exits, fails
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probers import CausalLM, FeatureStore, Prober
from probers.adaptive import AdaptiveClassifier
from probers.cli.inputs import newest_prober, newest_run
from probers.cli.runs import RunFolder, read_state, taking_back
from probers.data import load_corpus
from probers.data.articles import open_articles
from probers.data.cache import build_once
from probers.data.questions import load_questions, open_questions
from probers.data.questions.multihop import StrategyQA, TwoWikiMultihopQA
from probers.data.splits import Seen
from probers.rag.traces import TraceFile
from probers.types import Question, RunError, UserError
from probers.words.spelling import load_aliases

FIXTURES = [HealthCheck.function_scoped_fixture]
often = settings(derandomize=True, max_examples=120, suppress_health_check=FIXTURES)
#: Python's messages about its own objects, which are no sentence for a user.
INTERNALS = re.compile(
    r"object is not (subscriptable|iterable|callable)|NoneType|has no attribute|object cannot be interpreted"
    r"|list indices must be|unhashable type|unexpected keyword|positional argument|could not convert"
    r"|not supported between|unsupported operand|invalid literal for|cannot unpack|not enough values"
    r"|too many values to unpack|must be str, not|expected str instance|bytes-like object|index out of range"
    r"|object of type '|<class '|\bat 0x[0-9a-f]{6,}|surrogates not allowed|embedded null byte"
    r"|maximum recursion depth|\bKeyError\b|\bTypeError\b|\bAttributeError\b|\bIndexError\b"
)
#: JSON values that may stand where another is expected.
WRONG: tuple[Any, ...] = (
    None, True, 0, 2, -1, -0.0, 1e308, 10**30, float("nan"), float("-inf"), "", "x", "1", "\0", "\ud800",
    "../../x", "/etc/passwd", "\n", "\x1b[31m", "x" * 100_000, [], [[]], {}, {"": None}, {"a": {"b": [1]}},
    [1, 2, 3], [0] * 10_000,
)  # fmt: skip
CONFIG = {"seed": 0, "k": [1, 2], "model": {"name": "testbed"}}
NAMES = st.text(st.sampled_from("ab.-_ é0"), min_size=1, max_size=6).filter(lambda n: n.strip(". ") != "")


@pytest.fixture
def fresh(tmp_path: Path) -> Callable[[], Path]:
    """Makes an empty folder for every example."""
    count = iter(range(10**6))

    def make() -> Path:
        folder = tmp_path / f"e{next(count)}"
        folder.mkdir()
        return folder

    return make


@often
@given(
    names=st.sets(NAMES, min_size=1, max_size=3),
    overwrite=st.booleans(),
    command=st.sampled_from(["rag", "train"]),
)
def test_a_folder_that_no_run_made_is_untouched(fresh, names, overwrite, command):
    out = fresh() / "out"
    for name in names:
        (out / name / "deep").mkdir(parents=True)
        (out / name / "deep" / "mine.txt").write_text("mine")
    before = contents(out)
    with fails("out-taken", out), taking_back():
        RunFolder(out, command, {**CONFIG, "overwrite": overwrite}).claim()
    assert contents(out) == before


@often
@given(fails=st.booleans(), rounds=st.integers(1, 3), computes=st.booleans())
def test_overwrite_sets_aside_and_puts_back_what_a_wrong_request_replaced(fresh, fails, rounds, computes):
    top = fresh()
    out = top / "out"
    with taking_back():
        first = RunFolder(out, "rag", CONFIG)
        first.claim()
        (out / "traces.jsonl").write_text("computed\n")
        first.finish({"n": 1})
    before = contents(out)
    for number in range(1, rounds + 1):
        try:
            with taking_back():
                again = RunFolder(out, "rag", {**CONFIG, "seed": number, "overwrite": True})
                again.claim()
                assert read_state(out.with_name(f"out.old-{number}")) is not None
                if computes:
                    (out / "traces.jsonl").write_text(f"computed {number}\n")
                if fails and number == rounds:
                    raise UserError("a layer that the model lacks")
                if not computes:
                    (out / "results.json").write_text("{}")
                again.finish({})
        except UserError:
            pass
    kept = [contents(folder) for folder in sorted(top.iterdir())]
    assert before in kept
    if fails and not computes:
        assert len(kept) == rounds  # the last one is back in its place
        assert (contents(out) == before) == (rounds == 1)
    else:
        assert len(kept) == rounds + 1


def test_only_a_run_of_the_same_command_is_replaced(fresh):
    out = fresh() / "out"
    with taking_back():
        RunFolder(out, "train", CONFIG).claim()
    before = contents(out)
    with fails("out-taken", "overwrite=true", "probers-rag"):
        RunFolder(out, "rag", {**CONFIG, "overwrite": True}).claim()
    assert contents(out) == before and [p.name for p in out.parent.iterdir()] == ["out"]


def test_a_lock_names_its_holder_and_ends_with_the_command(fresh):
    out = fresh() / "out"
    with taking_back():
        RunFolder(out, "rag", CONFIG).claim()
        with get_context("spawn").Pool(1) as pool:
            said = pool.apply(claimed, (out, "rag", CONFIG))  # of a module that imports little
        assert "is being written by probers-rag (process " in said and "wait=true" in said
    assert not [name for name in contents(out) if name.startswith(".")]
    with taking_back():
        assert RunFolder(out, "rag", CONFIG).claim()


@often
@given(extra=st.sets(NAMES, max_size=2), there=st.booleans())
def test_a_wrong_request_takes_back_what_it_wrote_and_no_more(fresh, extra, there):
    out, old = fresh() / "a" / "out", RunFolder(fresh(), "rag", CONFIG)
    if there:
        out.mkdir(parents=True)
    old.claim()  # an unfinished run of another time
    with pytest.raises(UserError), taking_back():
        assert old.claim()
        folder = RunFolder(out, "rag", CONFIG)
        folder.claim()
        for name in extra:
            (out / f"x{name}").mkdir()
            (out / f"x{name}" / "00000.json").write_text("computed")
        raise UserError("wrong")
    assert (old.path / "run.json").exists()
    if extra:
        assert {f"x{name}/00000.json" for name in extra} <= set(contents(out))
    else:
        assert not contents(out.parent) and out.exists() == there


@dataclass(frozen=True)
class Reader:
    """A file below a folder, and what reads it; ``lines`` are JSON values of their own."""

    file: str
    read: Callable[[Path], Any]
    lines: bool = False


def _store(folder: Path) -> Any:
    store = FeatureStore.open(folder)
    store.verify()
    return list(store.tables(["id"])), list(store.left_out()), store.units


def _aliases(file: Path) -> Any:
    load_aliases.cache_clear()
    return load_aliases(str(file)).same("Bombay", "Mumbai")


def _built(folder: Path) -> Any:
    def make(partial: Path) -> dict[str, int]:
        (partial / "texts").write_bytes(b"abc")
        return {"skipped": 0}

    return build_once(folder / "built", "store", make, lambda: None)


SETS = {
    "hotpotqa": "hotpot_distractor.json", "2wikimultihopqa": "twowiki.json", "nq": "dpr_nq.json",
    "triviaqa": "triviaqa.json", "musique": "musique_full.jsonl", "strategyqa": "strategyqa.json",
    "iirc": "iirc.json", "squad": "squad_v2.json", "webquestions": "webquestions.json",
    "msmarco": "msmarco.json", "beir": "beir_queries.jsonl",
}  # fmt: skip
ASKED = [Question("q0", "Who?"), Question("q1", "Where?")]
READERS = {
    "run.json": Reader("run/run.json", lambda run: (read_state(run), newest_run(["rag"], root=run.parent))),
    "config.json of a run": Reader("train/config.json", lambda folder: [
        newest_prober(kind, model="testbed", root=folder.parent) for kind in ("answers", "tokens")]),
    "config.json of a prober": Reader("prober/config.json", Prober.from_pretrained),
    "metrics.json of a prober": Reader("prober/metrics.json", Prober.from_pretrained),
    "config.json of a classifier": Reader(
        "classifier/config.json", lambda folder: AdaptiveClassifier.load(folder).probabilities(["Who?"])),
    "manifest.json": Reader("store/manifest.json", _store),
    "a shard's JSON": Reader("store/shards/00000.json", lambda folder: _store(folder.parent)),
    "questions": Reader(
        "in/questions.jsonl",
        lambda folder: load_questions(str(folder / "questions.jsonl"), on_bad_line="error"), lines=True),
    "corpus": Reader(
        "in/corpus.jsonl", lambda folder: list(load_corpus(str(folder / "corpus.jsonl"))), lines=True),
    "articles": Reader(
        "in/articles.jsonl", lambda folder: list(open_articles(str(folder / "articles.jsonl"))), lines=True),
    "aliases": Reader("in/aliases.jsonl", lambda folder: _aliases(folder / "aliases.jsonl"), lines=True),
    "traces": Reader(
        "in/traces.jsonl", lambda folder: TraceFile(folder / "traces.jsonl").resume(ASKED), lines=True),
    "built.json": Reader("cache/built/built.json", lambda folder: _built(folder.parent)),
    **{
        name: Reader(
            f"official/{file}", lambda folder, name=name, file=file: open_questions(
                name, path=str(folder / file), on_bad_line="error").questions, lines=file.endswith("l"))
        for name, file in SETS.items()
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with an undamaged file for every reader."""
    from helpers.planted import make_store
    from test_bank import make_bank
    from test_domain import some_domain

    top = tmp_path_factory.mktemp("whole")
    for name in ("run", "train"):
        with taking_back():
            folder = RunFolder(top / name, {"run": "rag"}.get(name, name), CONFIG)
            folder.claim()
            folder.finish({"model": "testbed"})
    make_bank(domain=some_domain()).save_pretrained(top / "prober")
    Seen.of({"train": [("towns", "rome", "")]}).save(top / "prober")
    shutil.copy(top / "prober/config.json", top / "train/config.json")
    labels = ["no", "single", "multi"]
    asked = [f"{word} number {i}" for i in range(6) for word in ("who", "where is", "what of the what is")]
    AdaptiveClassifier.fit(asked, labels * 6).save(top / "classifier")
    make_store(top / "store", 40)
    gold = {"title": "t", "text": "x", "is_gold": True}
    asking = {"question": "Who?", "answers": ["Ada"], "rationale": "So.", "split": "test", "passages": [gold]}
    decision = {
        "fire": True, "score": 0.5, "threshold": 0.1, "position": 2, "tokens": [0], "token_scores": [0.5],
    }  # fmt: skip
    done = {
        "text": "ab", "decision": decision, "query": "q", "passage_ids": ["p"], "accepted": "",
        "tokens": [[0, 2]],
    }  # fmt: skip
    counters = {
        "retrievals": 1, "empty_retrievals": 0, "passages_cut": 0, "generations": 2, "tokens": 3,
        "sentences": 1, "forced": False, "seconds": 0.5,
    }  # fmt: skip
    for name, records in {
        "questions": [{"id": f"q{i}", "group": f"g{i}", **asking} for i in range(2)],
        "corpus": [{"id": str(i), "title": "t", "text": f"a text {i}"} for i in range(2)],
        "articles": [{"title": f"T{i}", "sentences": ["It is so.", "It was so."]} for i in range(2)],
        "aliases": [["Bombay", "Mumbai"], ["Prag", "Prague", "Praha"]],
        "traces": [
            {"id": q.id, "question": q.question, "text": "ab", "answer": "b", "rounds": [done],
             "counters": counters} for q in ASKED
        ],
    }.items():  # fmt: skip
        (top / "in").mkdir(exist_ok=True)
        write_lines(top / "in" / f"{name}.jsonl", records)
    _built(top / "cache")
    shutil.copytree(Path(__file__).parent / "data/questions", top / "official")
    return top


@pytest.fixture
def damaged(whole: Path, tmp_path: Path, request: pytest.FixtureRequest) -> tuple[Path, Reader, list[Any]]:
    """The folder with a copy of a reader's own, the reader, and the values of its file."""
    reader = READERS[request.param]
    part = Path(reader.file).parts[0]
    shutil.copytree(whole / part, tmp_path / part)
    text = (tmp_path / reader.file).read_text()
    return tmp_path, reader, [json.loads(part) for part in (text.splitlines() if reader.lines else [text])]


def told(top: Path, reader: Reader, values: list[Any]) -> str | None:
    """What a reader says of values in its file; any other exception than the two of the project passes."""
    file = top / reader.file
    file.write_text("\n".join(json.dumps(value) for value in values) + "\n", encoding="utf-8")
    try:
        reader.read(file.parent)
    except (UserError, RunError) as error:
        said = str(error)
        assert len(said.splitlines()) == 1 and said.isprintable()
        assert not INTERNALS.search(said)
        return said
    return None


#: Files with checksums, below the folder that is read, by their readers.
SEALED = {
    "prober": ("config.json", "heads.safetensors", "domain.safetensors"),
    "classifier": ("config.json", "adaptive.safetensors"),
    "store": ("shards/00000.parquet", "shards/00000.safetensors"),
    "seen": ("seen.json",),
}
OPENED = {
    "prober": Prober.from_pretrained, "classifier": AdaptiveClassifier.load, "store": _store,
    "seen": Seen.read,
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in SEALED.items() for name in names])
def test_a_damaged_file_is_named(whole, tmp_path, kind, name):
    """Altered, cut short, empty, gone, a link to nothing; converse: the whole one, and a link to it."""
    folder = shutil.copytree(whole / ("prober" if kind == "seen" else kind), tmp_path / kind)
    file, blob = folder / name, (folder / name).read_bytes()
    OPENED[kind](folder)
    for damage in ("altered", "cut", "empty", "gone", "link"):
        file.write_bytes(blob if damage != "empty" else b"")
        if damage == "link":
            (tmp_path / "elsewhere").write_bytes(blob)
            file.unlink()
            file.symlink_to(tmp_path / "elsewhere")
            OPENED[kind](folder)
            (tmp_path / "elsewhere").unlink()
        elif damage != "empty":
            harm(file, damage)
        if (damage, kind) == ("gone", "seen"):
            continue  # nothing is known then
        with fails(None if damage == "gone" else "damaged", file.name):
            OPENED[kind](folder)


@pytest.mark.parametrize("damaged", READERS, indirect=True)
def test_an_undamaged_file_is_read(damaged):
    top, reader, values = damaged
    assert told(top, reader, values) is None


@pytest.mark.parametrize("damaged", READERS, indirect=True)
@pytest.mark.parametrize(
    "value", [None, True, -1, 1.5, 10**30, "", "x", "\ud800", [], [1], {}, {"x": [1]}], ids=ascii
)
def test_any_value_in_any_place_is_one_sentence_or_fine(damaged, value):
    top, reader, values = damaged
    for holder, key in _places(values):
        old = holder[key]
        holder[key] = value
        told(top, reader, values)
        holder[key] = old


def _places(values: list[Any], most: int = 40) -> Iterator[tuple[Any, Any]]:
    """Up to so many holders and keys, spread over all."""
    found = []

    def walk(value: Any) -> None:
        if isinstance(value, (dict, list)):
            for key in list(value) if isinstance(value, dict) else range(len(value)):
                found.append((value, key))
                walk(value[key])

    walk(values)
    return iter(found[:: max(1, len(found) // most)])


@pytest.mark.parametrize("damaged", READERS, indirect=True)
@settings(derandomize=True, max_examples=60, suppress_health_check=FIXTURES)
@given(rng=st.randoms(use_true_random=False))
def test_drawn_damage_is_one_sentence_or_fine(damaged, rng):
    top, reader, values = damaged
    values = copy.deepcopy(values)
    at = rng.randrange(len(values))
    alter(values[at], rng)
    if rng.random() < 0.3:
        values[rng.randrange(len(values))] = copy.deepcopy(rng.choice(WRONG))
    told(top, reader, values)


def alter(value: Any, rng: random.Random) -> None:
    """Change a JSON value in one place: lose, rename, nest, double or replace what stands there."""
    if not (places := list(_places([value], most=10_000))[1:]):
        return
    holder, key = rng.choice(places)
    old = holder[key]
    way = rng.choice(["lost", "renamed", "nested", "doubled", "added", "replaced", "replaced"])
    if way == "lost":
        del holder[key]
    elif way == "renamed" and isinstance(holder, dict):
        holder[f"{key}s"] = holder.pop(key)
    elif way == "nested":
        holder[key] = rng.choice([[old], {"value": old}])
    elif way == "doubled" and isinstance(old, list):
        holder[key] = old + copy.deepcopy(old)
    elif way == "added" and isinstance(holder, dict):
        holder[rng.choice(["schema", "version", "_target_", "extra", ""])] = copy.deepcopy(rng.choice(WRONG))
    else:
        holder[key] = copy.deepcopy(rng.choice(WRONG))


@pytest.mark.parametrize("read", [
    _aliases, lambda file: TwoWikiMultihopQA(path=str(file), aliases=str(file))._names,
    lambda file: StrategyQA(path=str(file), paragraphs=str(file))._texts,
])  # fmt: skip
def test_brackets_without_end_in_a_table_beside_questions_are_one_sentence(tmp_path, read):
    file = tmp_path / "table.jsonl"
    file.write_text("[" * 100_000 + "]" * 100_000)
    with fails(None, "table.jsonl"):
        read(file)


def test_a_device_map_of_numbers_is_one_sentence():
    with fails(None, "device_map={1: 2}"):
        CausalLM.from_pretrained("testbed", device_map={1: 2})


@pytest.mark.parametrize(("command", "typed", "named"), [
    ("train", ["data=fifo"], "fifo"), ("datagen", ["out=/dev/null/x", "limit=1"], "/dev/null/x"),
    ("train", ["data=\udcff"], "data"), ("datagen", [f"layers={'[' * 5000}{']' * 5000}"], "layers"),
    ("rag", ["trigger={_target_: os.system}", "question=x"], "trigger"),
    ("rag", ["corpus=loop", "question=x"], "loop"),
], ids=lambda part: ascii(part)[:40])  # fmt: skip
def test_a_hostile_option_is_one_sentence(command, typed, named, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "fifo")
    assert exits(command, typed) in (1, 2)
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert message.startswith(f"probers-{command}: ") and named in message and message.isprintable()
    assert not INTERNALS.search(message)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["fifo", "loop"]
