"""part=i/n and probers-merge of labels: n parts are the run in one piece; what is no part is refused."""

import errno
import json
import shutil
from collections import Counter
from pathlib import Path
from unittest.mock import Mock

import pytest
from artefacts import harm, write_lines
from parts import computed, in_parts, merged, tree
from refusals import fails, interrupted

from probers import FeatureStore
from probers.cli import main as cli
from probers.cli.inputs import newest_store
from probers.data.splits import Partition
from probers.types import RunError

#: One prompt at a time: the arithmetic is then the same however the work is cut.
LONG = pytest.mark.long
ALONE = ["layers=[0,6]", "batch_size=1"]
COT = ["source=cot", "limit=6", "shard_size=2", *ALONE]
WIKI = ["source=wiki", "limit=12", "shard_size=5", *ALONE]
BALANCED = ["negatives=untouched", "balance=true"]
FEW = ["limit={train: 16, validation: 12}", "balance_to={train: 4, validation: 4}"]
QUOTAS = ["source=cot", *FEW, "shard_size=5", *ALONE]


@pytest.fixture(scope="module")
def cot(tmp_path_factory):
    """The folder of a run in one piece, and those of its parts."""
    folder = tmp_path_factory.mktemp("cot")
    cli.run("datagen", [*COT, f"out={folder}/whole"])
    return folder / "whole", in_parts("datagen", COT, folder / "parts_of_it", 2)


def test_parts_are_cut_by_group_the_same_everywhere():
    groups = [f"group {i}" for i in range(4000)]
    parts = [Partition(i, 4) for i in range(1, 5)]
    owners = [[part.number for part in parts if part.owns(group)] for group in groups]
    assert all(len(owner) == 1 for owner in owners)
    counts = Counter(owner[0] for owner in owners)
    assert all(900 < counts[number] < 1100 for number in range(1, 5))
    # Fixed for all time: parts that were made are merged by it later.
    assert [owner[0] for owner in owners[:12]] == [4, 4, 3, 4, 1, 4, 2, 2, 4, 3, 2, 2]
    assert all(Partition(1, 1).owns(group) for group in groups)


def test_a_block_of_layers_is_a_stretch_and_all_of_them_are_everything():
    layers = list(range(1, 12))
    blocks = [list(Partition(i, 3).block(layers)) for i in (1, 2, 3)]
    assert [layer for block in blocks for layer in block] == layers and {len(b) for b in blocks} <= {3, 4}


@pytest.mark.parametrize(
    ("typed", "count"),
    [
        (COT, 3),
        pytest.param(WIKI, 2, marks=LONG),
        pytest.param([*WIKI, *BALANCED, "context=16", "dtype=float32"], 3, marks=LONG),
        pytest.param([*WIKI, "pool=tokens", "site=[resid_post,mlp_out]", "layers=[6]"], 2, marks=LONG),
        pytest.param(QUOTAS, 2, marks=LONG),
    ],
    ids=["cot", "wiki", "balance", "tokens", "quotas"],
)
def test_merged_labels_are_those_of_one_piece_to_the_last_byte(cot, tmp_path, typed, count):
    one_piece = cot[0] if typed is COT else cli.run("datagen", [*typed, f"out={tmp_path}/whole"])
    folders = in_parts("datagen", typed, tmp_path / "run", count)
    assert folders == [f"{tmp_path}/run/parts/{i}of{count}" for i in range(1, count + 1)]
    whole = FeatureStore.open(one_piece)
    each = [len(FeatureStore.open(folder).table()) for folder in folders]
    assert (min(each) > 0 and max(each) < len(whole)) or "balance_to" in str(typed)
    out = merged(folders[::-1], tmp_path / "run")
    assert computed(out) == computed(one_piece)
    assert (out / "manifest.json").read_bytes() == (one_piece / "manifest.json").read_bytes()
    assert out == tmp_path / "run" and cli.run("datagen", [*typed, f"out={out}"]) == out  # complete


@pytest.mark.long
def test_every_part_compares_names_by_the_vectors_of_all_articles(tmp_path):
    typed = ["source=wiki", "limit=60", "per_article=1", "layers=[6]", "matcher.vectors=own", "batch_size=1"]
    cli.run("datagen", [*typed, f"out={tmp_path}/whole"])
    folders = in_parts("datagen", typed, tmp_path / "run", 2)
    vectors = [(Path(folder) / "vectors.bin").read_bytes() for folder in [tmp_path / "whole", *folders]]
    assert len(set(vectors)) == 1
    assert computed(merged(folders, tmp_path / "run")) == computed(tmp_path / "whole")
    shutil.rmtree(tmp_path / "run", ignore_errors=True)
    again = in_parts("datagen", typed, tmp_path / "run", 2)
    (Path(again[1]) / "vectors.bin").write_bytes(vectors[0][:-1] + b"x")
    with fails(None, "word vectors"):
        merged(again, tmp_path / "merged")


@pytest.mark.long
def test_in_other_batches_labels_agree_and_states_up_to_rounding(cot, tmp_path):
    typed = ["source=cot", "limit=12", "layers=[0,6]", "shard_size=5", "batch_size=8"]
    cli.run("datagen", [*typed, f"out={tmp_path}/whole"])
    out = merged(in_parts("datagen", typed, tmp_path / "run", 2), tmp_path / "run")
    ours, theirs = FeatureStore.open(out), FeatureStore.open(tmp_path / "whole")
    columns = ["id", "group", "split", "correct", "text", "answer"]
    assert ours.table()[columns].equals(theirs.table()[columns])
    assert abs(ours.states((6,)).astype(float) - theirs.states((6,)).astype(float)).max() < 0.02


@pytest.mark.long
def test_more_parts_than_groups_leave_empty_ones_which_merge(tmp_path):
    typed = ["source=cot", "limit=4", "layers=[6]", "batch_size=1"]
    cli.run("datagen", [*typed, f"out={tmp_path}/whole"])
    folders = in_parts("datagen", typed, tmp_path / "run", 9)
    rows = [sum(json.loads((Path(f) / "manifest.json").read_text())["rows"]) for f in folders]
    assert 0 in rows and sum(rows) == 8
    assert computed(merged(folders, tmp_path / "run")) == computed(tmp_path / "whole")


@pytest.mark.long
def test_a_part_that_died_is_done_again_by_the_same_command_and_by_no_other(tmp_path, cot):
    (whole, _), out = cot, tmp_path / "run"
    with interrupted(FeatureStore, "write_shard", 1):
        cli.run("datagen", [*COT, f"out={out}", "part=2/2"])
    cli.run("datagen", [*COT, f"out={out}", "part=1/2"])
    folders = [f"{out}/parts/1of2", f"{out}/parts/2of2"]
    before = tree(Path(folders[0]))
    with fails("parts", "2of2", "probers-datagen", " part=2/2"):
        merged(folders, out)
    assert not (out / "run.json").exists()
    cli.run("datagen", [*COT, f"out={out}", "part=2/2"])
    assert tree(Path(folders[0])) == before
    assert computed(merged(folders, out)) == computed(whole)


def test_a_merge_that_was_killed_goes_on_and_a_full_disk_is_said(cot, tmp_path, monkeypatch):
    whole, folders = cot
    before = [tree(Path(folder)) for folder in folders]
    write, out = FeatureStore.write_shard, tmp_path / "merged"
    with interrupted(FeatureStore, "write_shard", 1):
        merged(folders, out)
    with monkeypatch.context() as patch, fails("disk", kind=RunError):

        def fill(self, *given, **named):
            full = OSError(errno.ENOSPC, "No space left on device")
            patch.setattr("os.fsync", Mock(side_effect=full))
            write(self, *given, **named)

        patch.setattr(FeatureStore, "write_shard", fill)
        merged(folders, out)
    assert list(out.glob("shards/*.json"))
    assert computed(merged(folders, out)) == computed(whole)
    assert [tree(Path(folder)) for folder in folders] == before


def test_a_part_is_not_taken_for_a_store_that_nobody_named(cot):
    whole, folders = cot
    assert newest_store(root=Path(folders[0]).parent) is None
    assert newest_store(root=whole.parent) == whole


def test_a_part_may_be_given_once_only(cot, tmp_path):
    _, folders = cot
    twin = shutil.copytree(folders[0], tmp_path / "twin")
    with fails("parts", f"{folders[0]} and {twin}", "part 1/2"):
        merged([*folders, str(twin)], tmp_path / "merged")


@pytest.mark.parametrize("part", ["0/4", "5/4", "x", "1/0", "1", "-1/2", "1/4/2", "01/4"])
def test_a_part_that_is_none_is_refused_by_name(part, tmp_path):
    with fails("bad-value", f"part={part} "):
        cli.run("datagen", [f"part={part}", f"out={tmp_path}/x"])
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("given", "named"),
    [(["seed=1"], "seed: 1 in "), (["limit=2"], "limit: 2 in "), (["layers=[6]"], "layers: ")],
)
def test_parts_of_two_runs_are_refused_by_the_option_that_differs(cot, tmp_path, given, named):
    other = cli.run("datagen", [*COT, *given, f"out={tmp_path}/x", "part=2/2"])
    with fails("parts", named):
        merged([cot[1][0], str(other)], tmp_path / "merged")
    assert not (tmp_path / "merged").exists()


def test_parts_that_do_not_make_a_run_are_refused_by_name(cot, tmp_path):
    whole, folders = cot
    out = tmp_path / "merged"
    for given, code, named in (
        ([], "missing-value", "parts"),
        (folders[:1], "parts", "part=2/2"),
        ([str(whole)], "parts", f"{whole} is a whole run of probers-datagen"),
        ([str(tmp_path)], "parts", f"{tmp_path} is no run"),
        ([str(tmp_path / "nowhere")], "parts", "nowhere is no run"),
    ):
        with fails(code, named):
            merged(given, out)
    third = cli.run("datagen", [*COT, f"out={tmp_path}/x", "part=2/3"])
    with fails("parts", "part 1/2", "part 2/3"):
        merged([folders[0], str(third)], out)
    assert not out.exists()


def test_another_revision_of_the_model_is_refused_by_name(cot, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(cot[1][1], other)
    state = json.loads((other / "run.json").read_text())
    assert state["chosen"]["model"].startswith("testbed@")
    state["chosen"]["model"] = "testbed@0123456789ab (12 layers of width 128)"
    (other / "run.json").write_text(json.dumps(state))
    with fails("parts", "(model: testbed@0123456789ab ", ", testbed@"):
        merged([cot[1][0], str(other)], tmp_path / "merged")


@pytest.mark.long
def test_an_out_that_is_not_the_merged_runs_is_refused_and_kept(cot, tmp_path):
    whole, folders = cot
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("x")
    with fails("out-taken", "probers-datagen"):
        merged(folders, tmp_path / "mine")
    cli.run("datagen", [*COT, "seed=5", f"out={tmp_path}/other"])
    with fails("out-taken", "seed: 5 there, 0 now"):
        merged(folders, tmp_path / "other")
    with fails("conflict", "overwrite=true"):
        merged(folders, Path(folders[0]).parent.parent, "overwrite=true")
    assert (tmp_path / "mine/notes.txt").read_text() == "x"
    out = merged(folders, tmp_path / "other", "overwrite=true")
    assert computed(out) == computed(whole) and (tmp_path / "other.old-1").is_dir()


def test_a_damaged_part_is_named(cot, tmp_path):
    parts = tmp_path / "parts"
    for folder in cot[1]:
        shutil.copytree(folder, parts / Path(folder).name)
    shard = next((parts / "2of2/shards").glob("*.safetensors"))
    harm(shard)
    with fails("damaged", "2of2", shard.name):
        merged([str(p) for p in parts.iterdir()], tmp_path / "merged")
    (parts / "2of2/run.json").write_text("{")
    with fails("damaged", "2of2/run.json"):
        merged([str(p) for p in parts.glob("*of2")], tmp_path / "merged")
    (parts / "1of2/config.yaml").write_text("typed: 3")
    with fails("damaged", "config.yaml"):
        merged([str(parts / "1of2")], tmp_path / "merged")


@pytest.mark.long
def test_inputs_that_have_changed_since_are_refused(tmp_path):
    text = "It is old. It was built by Anna Berg in 19{:02}. It is here."
    lines = [{"title": f"Town {i}", "text": text.format(i)} for i in range(8)]
    articles = write_lines(tmp_path / "articles.jsonl", lines)
    typed = ["source=wiki", f"articles={articles}", "limit=8", "layers=[6]", "batch_size=1"]
    folders = in_parts("datagen", typed, tmp_path / "run", 2)
    write_lines(tmp_path / "articles.jsonl", lines[:-1])
    with fails("parts", "inputs"):
        merged(folders, tmp_path / "run")
    assert not (tmp_path / "run/run.json").exists()
    write_lines(tmp_path / "articles.jsonl", lines)
    merged(folders, tmp_path / "run")


def test_the_command_takes_folders_as_a_shell_writes_them(cot, tmp_path, capsys):
    for typed, code, said in (
        ([*cot[1], f"out={tmp_path}/a=b"], 0, "merging 2 parts of probers-datagen"),
        ([cot[1][0], f"out={tmp_path}/b"], 2, "part=2/2 [parts]"),
        (["--help"], 0, "folders of the parts"),
    ):
        with pytest.raises(SystemExit) as ended:
            cli.main("merge", typed)
        assert ended.value.code == code and said in "".join(capsys.readouterr())
