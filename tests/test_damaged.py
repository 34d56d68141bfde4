"""Damaged artefacts are named in one sentence, hostile ones too; folders that are not ours are untouched."""

import copy
import json
import os
import random
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import pytest
from helpers.artefacts import contents, harm, write_lines
from helpers.refusals import claimed, exits, fails
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from probers import FeatureStore, Prober
from probers.adaptive import AdaptiveClassifier
from probers.cli.inputs import newest_prober, newest_run
from probers.cli.runs import RunFolder, read_state, taking_back
from probers.data import load_corpus
from probers.data.questions import load_questions, open_questions
from probers.data.splits import Seen
from probers.types import RunError, UserError

FIXTURES = [HealthCheck.function_scoped_fixture]
#: Python's messages about its own objects, which are no sentence for a user.
INTERNALS = re.compile(
    r"object is not|NoneType|has no attribute|cannot be interpreted|indices must be|unhashable|positional arg"
    r"|unexpected keyword|could not convert|not supported between|unsupported operand|invalid literal"
    r"|to unpack|must be str, not|expected str instance|bytes-like|index out of range|object of type|<class '"
    r"|\bat 0x|surrogates not allowed|embedded null byte|recursion depth|\b(Key|Type|Attribute|Index)Error\b"
)
#: JSON values that may stand where another is expected.
WRONG: tuple[Any, ...] = (
    None, True, 0, 2, -1, -0.0, 1e308, 10**30, float("nan"), float("-inf"), "", "x", "1", "\0", "\ud800",
    "../../x", "/etc/passwd", "\n", "\x1b[31m", "x" * 100_000, [], [[]], {}, {"": None}, {"a": {"b": [1]}},
    [1, 2, 3], [0] * 10_000,
)  # fmt: skip
CONFIG = {"seed": 0, "k": [1, 2], "model": {"name": "testbed"}}


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_folder_that_no_run_made_is_untouched(tmp_path, overwrite):
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("mine")
    with fails("out-taken", out), taking_back():
        RunFolder(out, "rag", {**CONFIG, "overwrite": overwrite}).claim()
    assert (out / "mine.txt").read_text() == "mine" and [path.name for path in out.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("rounds", [1, 2, 3])
@pytest.mark.parametrize(("wrong", "computes"), [(False, False), (True, False), (True, True)])
def test_overwrite_sets_aside_and_puts_back_what_a_wrong_request_replaced(tmp_path, rounds, wrong, computes):
    out = tmp_path / "out"
    with taking_back():
        first = RunFolder(out, "rag", CONFIG)
        first.claim()
        (out / "traces.jsonl").write_text("computed\n")
        first.finish({"n": 1})
    before = contents(out)
    for number in range(1, rounds + 1):
        with suppress(UserError), taking_back():
            again = RunFolder(out, "rag", {**CONFIG, "seed": number, "overwrite": True})
            again.claim()
            assert read_state(out.with_name(f"out.old-{number}")) is not None
            if computes:
                (out / "traces.jsonl").write_text(f"computed {number}\n")
            if wrong and number == rounds:
                raise UserError("a layer that the model lacks")
            again.finish({})
    contents_before = [contents(folder) for folder in sorted(tmp_path.iterdir())]
    assert before in contents_before
    if wrong and not computes:
        assert len(contents_before) == rounds  # the last one is back in its place
        assert (contents(out) == before) == (rounds == 1)
    else:
        assert len(contents_before) == rounds + 1


def test_a_lock_names_its_holder_and_ends_with_the_command(tmp_path):
    with taking_back():
        RunFolder(tmp_path, "rag", CONFIG).claim()
        with get_context("spawn").Pool(1) as pool:
            said = pool.apply(claimed, (tmp_path, "rag", CONFIG))  # of a module that imports little
        assert "is being written by probers-rag (process " in said and "wait=true" in said
    assert not [name for name in contents(tmp_path) if name.startswith(".")]
    with taking_back():
        assert RunFolder(tmp_path, "rag", CONFIG).claim()


@pytest.mark.parametrize("computes", [False, True])
@pytest.mark.parametrize("there", [False, True])
def test_a_wrong_request_takes_back_what_it_wrote_and_no_more(tmp_path, computes, there):
    out, old = tmp_path / "a" / "out", RunFolder(tmp_path / "old", "rag", CONFIG)
    if there:
        out.mkdir(parents=True)
    old.claim()  # an unfinished run of another time
    with pytest.raises(UserError), taking_back():
        assert old.claim()
        RunFolder(out, "rag", CONFIG).claim()
        if computes:
            (out / "00000.json").write_text("computed")
        raise UserError("wrong")
    assert (old.path / "run.json").exists()
    if computes:
        assert "00000.json" in contents(out)
    else:
        assert not contents(tmp_path / "a") and out.exists() == there


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
    **{
        name: Reader(
            f"official/{file}", lambda folder, name=name, file=file: open_questions(
                name, path=str(folder / file), on_bad_line="error").questions, lines=file.endswith("l"))
        for name, file in (("musique", "musique_full.jsonl"), ("iirc", "iirc.json"))
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
    rows = [f"{word} number {i}" for i in range(6) for word in ("who", "where is", "what of the what is")]
    AdaptiveClassifier.fit(rows, labels * 6).save(top / "classifier")
    make_store(top / "store", 40)
    gold = {"title": "t", "text": "x", "is_gold": True}
    asking = {"question": "Who?", "answers": ["Ada"], "rationale": "So.", "split": "test", "passages": [gold]}
    for name, records in {
        "questions": [{"id": f"q{i}", "group": f"g{i}", **asking} for i in range(2)],
        "corpus": [{"id": str(i), "title": "t", "text": f"a text {i}"} for i in range(2)],
    }.items():
        (top / "in").mkdir(exist_ok=True)
        write_lines(top / "in" / f"{name}.jsonl", records)
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


#: What reads files with checksums, and the files below its folder.
SEALED = {
    "prober": (Prober.from_pretrained, "config.json", "heads.safetensors", "domain.safetensors"),
    "classifier": (AdaptiveClassifier.load, "config.json", "adaptive.safetensors"),
    "store": (_store, "shards/00000.parquet", "shards/00000.safetensors"),
    "seen": (Seen.read, "seen.json"),
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in SEALED for name in SEALED[kind][1:]])
def test_a_damaged_file_is_named(whole, tmp_path, kind, name):
    """Altered, cut short, empty, gone, a link to nothing; converse: the whole one, and a link to it."""
    folder = shutil.copytree(whole / ("prober" if kind == "seen" else kind), tmp_path / kind)
    file, blob, read = folder / name, (folder / name).read_bytes(), SEALED[kind][0]
    read(folder)
    for damage in ("altered", "cut", "empty", "gone", "link"):
        file.write_bytes(blob if damage != "empty" else b"")
        if damage == "link":
            (tmp_path / "elsewhere").write_bytes(blob)
            file.unlink()
            file.symlink_to(tmp_path / "elsewhere")
            read(folder)
            (tmp_path / "elsewhere").unlink()
        elif damage != "empty":
            harm(file, damage)
        if (damage, kind) == ("gone", "seen"):
            continue  # nothing is known then
        with fails(None if damage == "gone" else "damaged", file.name):
            read(folder)


@pytest.mark.parametrize("damaged", READERS, indirect=True)
@settings(derandomize=True, max_examples=150, suppress_health_check=FIXTURES)
@given(rng=st.randoms(use_true_random=False))
def test_drawn_damage_is_one_sentence_or_fine(damaged, rng):
    """Converse: what is undamaged is read."""
    top, reader, whole = damaged
    assert told(top, reader, whole) is None
    values = copy.deepcopy(whole)
    alter(values[rng.randrange(len(values))], rng)
    if rng.random() < 0.3:
        values[rng.randrange(len(values))] = copy.deepcopy(rng.choice(WRONG))
    told(top, reader, values)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Every holder and key below a JSON value."""
    if isinstance(value, (dict, list)):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            yield value, key
            yield from places(value[key])


def alter(value: Any, rng: random.Random) -> None:
    """Change a JSON value in one place: lose, rename, nest, double or replace what stands there."""
    if not (there := list(places(value))):
        return
    holder, key = rng.choice(there)
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


@pytest.mark.parametrize(("command", "typed", "named"), [
    ("train", ["data=fifo"], "fifo"), ("datagen", ["out=/dev/null/x", "limit=1"], "/dev/null/x"),
    ("datagen", [f"layers={'[' * 5000}{']' * 5000}"], "layers"),
    ("rag", ["corpus=loop", "question=x"], "loop"),
    ("rag", ["trigger={_target_: os.system}", "question=x"], "trigger"),
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
