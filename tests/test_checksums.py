"""Names of contents, and journals: what a changed byte, a kill or a damaged memory does."""

import os
from pathlib import Path

import pytest
from helpers.refusals import fails

from probers import checksums
from probers.checksums import Journal, check, file_digest, inputs, take
from probers.cli.runs import RunFolder
from probers.files import cache_folder

SIZE = 3_000_000


@pytest.fixture
def reads(monkeypatch, tmp_path) -> list[Path]:
    """Files whose bytes are hashed; files count as settled at once."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(checksums, "_RACY", -1)
    paths, hashed = [], checksums._hashed
    monkeypatch.setattr(checksums, "_hashed", lambda path, kind: [paths.append(path), hashed(path, kind)][1])
    return paths


def change_a_byte(path: Path, place: int) -> None:
    stat = path.stat()
    with path.open("r+b") as file:
        file.seek(place)
        file.write(b"#")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns + 1))


def test_a_byte_in_the_middle_of_a_large_file_makes_another_run(reads):
    name = "corpus.jsonl"
    Path(name).write_bytes(b"x" * SIZE)
    first = inputs(name)
    run = RunFolder(Path("out"), "datagen", {"inputs": first, "seed": 0})
    run.begin()
    run.finish()
    assert run.complete and inputs(name) == first
    assert len(reads) == 1  # an untouched file keeps its name and is not read twice
    change_a_byte(Path(name), SIZE // 2)
    changed = RunFolder(Path("out"), "datagen", {"inputs": inputs(name), "seed": 0})
    assert changed.config["inputs"] != first and len(reads) == 2
    with fails("out-taken", f"{name} has other content"):
        changed.begin()


def test_folders_are_named_by_all_of_their_content_but_hidden_files(reads):
    Path("folder").mkdir()
    Path("folder/a").write_bytes(b"z" * (2 << 20))
    Path("folder/.hidden").write_text("of the run that wrote the folder")
    named = inputs("folder", "testbed")
    assert named["testbed"] == ""
    Path("folder/.hidden").write_text("changed")
    assert inputs("folder", "testbed") == named
    change_a_byte(Path("folder/a"), 1 << 20)
    assert inputs("folder")["folder"] != named["folder"]


def test_a_file_written_a_moment_ago_is_not_remembered(monkeypatch, tmp_path):
    path = tmp_path / "f"
    path.write_text("one")
    first = file_digest(path, tmp_path / "cache")
    assert not (tmp_path / "cache").exists()
    path.write_text("two")
    assert file_digest(path, tmp_path / "cache") != first


def test_a_folder_is_checked_once(reads, tmp_path):
    folder = Path("store")
    folder.mkdir()
    for name in "ab":
        (folder / name).write_text(name * 10)
    files = take(folder, "ab")
    reads.clear()
    assert check(folder, files) is None and check(folder, files) is None and len(reads) == 2
    assert check(folder, files, anew=True) is None and len(reads) == 4
    change_a_byte(folder / "b", 3)
    assert check(folder, files) == ("b", "was altered") and check(folder, files, contents=False) is None
    (folder / "b").unlink()
    assert check(folder, files) == ("b", "is missing")


def test_a_journal_drops_what_a_kill_cut_and_names_damaged_lines(tmp_path):
    journal = Journal(tmp_path / "j.jsonl")
    assert journal.read().records == {}
    journal.append([{"n": 1}, {"n": 2, "text": "é\u2028"}])
    journal.append([{"n": 3}])
    whole = journal.path.read_bytes()
    assert [r["n"] for r in journal.read().records.values()] == [1, 2, 3]
    for cut in range(len(whole)):
        journal.path.write_bytes(whole[:cut])
        records = journal.read()
        lines = whole[:cut].count(b"\n")
        assert list(records.records) == list(range(1, lines + 1)) and not records.damaged
        assert records.cut == bool(whole[:cut].rpartition(b"\n")[2])
    journal.path.write_bytes(whole.replace(b'"n": 2', b'"n": 5'))
    records = journal.read()
    assert records.damaged == (2,) and list(records.records) == [1, 3]
    journal.rewrite(records.records.values())
    assert journal.path.read_bytes() == whole.splitlines(True)[0] + whole.splitlines(True)[2]


@pytest.mark.parametrize(("platform", "variable", "folder"), [
    ("linux", "HOME", "/x/.cache/probers/bm25"), ("darwin", "HOME", "/x/Library/Caches/probers/bm25"),
    ("win32", "LOCALAPPDATA", "/x/probers/bm25"), ("darwin", "PROBERS_CACHE", "/x/bm25"),
])  # fmt: skip
def test_caches_are_in_the_users_folder(platform, variable, folder, monkeypatch):
    for name in ("PROBERS_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "/x")
    monkeypatch.setattr("sys.platform", platform)
    assert cache_folder("bm25") == Path(folder)
