"""Progress: one bar for a whole of several stages, which only ever advances, and a bar for a piece alone."""

import re

import pytest

from probers.progress import Bar, Whole, running
from probers.rag.comparison.workload import CURVES, REPLAY, THRESHOLDS, Workload
from probers.rag.queries import AnswerQuery, FlareQuery
from probers.rag.triggers import Entropy, Flare, Never


def shares(text):
    return [int(share) for share in re.findall(r"(\d+)%\|", text)]


def test_bars_within_a_whole_move_it_and_are_not_drawn(capsys):
    with Whole({"first": 1, "second": 3}) as whole:
        assert running()
        whole.stage("first")
        with Bar(total=4, desc="hidden") as bar:
            for _ in range(4):
                bar.update()
        whole.stage("second")
        list(Bar(range(5), desc="hidden"))
        with Bar(total=3, desc="hidden too") as bar:
            bar.update(3)
        whole.stage("not announced")
    assert not running()
    shown = capsys.readouterr().err
    assert "hidden" not in shown and "not announced" not in shown
    assert "1/2 first" in shown and "2/2 second" in shown
    assert shares(shown) == sorted(shares(shown)) and shares(shown)[-1] == 100


def test_a_whole_that_fails_does_not_claim_to_be_done(capsys):
    with pytest.raises(KeyboardInterrupt), Whole({"a": 1, "b": 1}) as whole:
        whole.stage("a")
        whole.stage("b")
        raise KeyboardInterrupt
    assert shares(capsys.readouterr().err)[-1] == 50 and not running()


def test_the_workload_counts_shared_texts_once_and_leaves_out_those_that_exist(tmp_path):
    from probers.rag.comparison.methods import Method

    methods = [
        Method("never", Never(), AnswerQuery()), Method("entropy", Entropy(), AnswerQuery()),
        Method("again", Entropy(), AnswerQuery()), Method("flare", Flare(), FlareQuery()),
    ]  # fmt: skip
    given = {"tuned_on": 30, "reference": "never", "retrievals": 3, "sweep": 0, "traces": tmp_path}
    work = Workload.of(methods, 10, **given)
    stages = {THRESHOLDS: 30, "never": 10, "entropy": 30, "again": 0, "flare": 40}
    assert work.stages == stages | {REPLAY: 30} and work.texts == sum(work.stages.values())
    assert "4 methods on 10 questions, thresholds on 30: at most 140 generations" in work.summary(4, 10)
    assert work.left("never", 40.0) == "about 2 minutes more, at most"  # 100 texts after 40 in 40 seconds
    assert Workload({"never": 0, "flare": 3}).left("never", 1.0) == ""  # a resumed run has timed nothing
    (tmp_path / "flare.jsonl").write_text("{}\n" * 4)
    assert Workload.of(methods, 10, **given).stages["flare"] == 24
    assert CURVES not in work.stages and Workload.of(methods, 10, **given | {"sweep": 2}).stages[CURVES] > 0
