"""Several probers in one comparison: each comes out as in one of its own, and the guard knows all."""

import shutil
from dataclasses import replace

import pytest
from helpers.fake_lm import SPEC, linear_bank
from helpers.refusals import fails
from test_compare import TEST, VALIDATION, place  # noqa: F401

from probers.data.splits import Seen


def make_prober(folder, layers=(1, 2), *, weight=1.0, texts=80, **changes):
    """A prober that finds what the scripted model does not know; with a negative weight, what it knows."""
    measured = {"accuracy": 0.75, "accuracy_ci": [0.7, 0.8], "auroc": 0.5 + texts / 1000, "auroc_ci": None}
    metrics = {"ensemble": measured, "splits": {"train": {"n": texts, "groups": texts // 2}}, "layers": []}
    bank = linear_bank(layers, weight=weight, metrics=metrics, seen=Seen({}), **changes)
    bank.save_pretrained(folder)


@pytest.fixture
def probers(place):  # noqa: F811
    """Three: one that sees through the model, one of a single layer that is wrong, one that never fires."""
    make_prober(place.path / "swept/sizes/100")
    make_prober(place.path / "swept/sizes/20", (2,), weight=-1.0, texts=20)
    make_prober(place.path / "swept/layers/1", (1,), weight=0.5)
    shutil.rmtree(place.path / "prober")
    return place


def compared(place, *given, out):  # noqa: F811
    return place.compare("triggers=[never,random,probing]", "sweep=0", *given, out=out)


def trace(place, out, method):  # noqa: F811
    """What a method wrote, found and decided; without its seconds."""
    lines = place.trace(method, out)
    for line in lines:
        line.pop("sha256")
        line["counters"].pop("seconds")
    return lines


@pytest.mark.parametrize("queries", ["null", "[question,last_sentence]"])
def test_each_prober_comes_out_as_in_a_comparison_of_its_own(probers, queries):
    given = f"queries={queries}"
    together = compared(probers, given, "probers=[swept/sizes/20,swept/layers/1]", out="all")
    for name, folder in (("20", "sizes/20"), ("1", "layers/1")):
        alone = compared(probers, given, f"prober=swept/{folder}", out=f"alone-{name}")
        assert trace(probers, "all", "never") == trace(probers, f"alone-{name}", "never")
        for method in [m for m in alone["methods"] if m.startswith("probing")]:
            same = method.replace("probing", f"probing_{name}")
            assert trace(probers, "all", same) == trace(probers, f"alone-{name}", method)
            mine, its = together["methods"][same], alone["methods"][method]
            assert mine | {"seconds": 0, "ci95": 0} == its | {"seconds": 0, "ci95": 0}
            assert together["options"][same] == alone["options"][method]


def test_the_table_has_what_each_was_trained_on_and_what_came_of_it(probers):
    results = compared(probers, "probers=[swept/sizes,swept/layers]", out="all")
    table = results["probers"]
    assert {name: (row["texts"], row["layers"], row["prober"]) for name, row in table.items()} == {
        "probing_20": (20, [2], "swept/sizes/20"),
        "probing_100": (80, [1, 2], "swept/sizes/100"),
        "probing_1": (80, [1], "swept/layers/1"),
    }
    assert set(results["methods"]) == {"never", "random", *table}
    assert table["probing_20"]["auroc"] == pytest.approx(0.52)
    assert table["probing_20"]["accuracy_ci"] == [0.7, 0.8]
    assert 'aria-labelledby="probers"' in probers.page("all")
    # What they share is generated once.
    calls = sum(probers.models[-1].batches)
    compared(probers, "probers=[swept/sizes/20,swept/sizes/100]", out="two")
    assert calls == sum(probers.models[-1].batches)


def test_what_any_of_them_was_trained_on_is_not_asked(probers, capsys):
    """Their union: neither what the first has seen nor what the second has."""
    for folder, trained, tuned in (("sizes/100", TEST[:3], VALIDATION[:2]), ("sizes/20", TEST[2:7], [])):
        texts = {"train": [*trained, *tuned]}
        seen = {s: [("", "", f"Where is town {i}?") for i in towns] for s, towns in texts.items()}
        Seen.of(seen).save(probers.path / "swept" / folder)
    results = compared(probers, "probers=[swept/sizes]", out="both")
    assert results["n"] == 33
    ids = {line["id"] for line in trace(probers, "both", "never")}
    assert ids == {f"q{i}" for i in TEST[7:]}
    assert f"chosen on {len(VALIDATION) - 2} validation questions" in capsys.readouterr().out
    assert compared(probers, "prober=swept/sizes/100", out="one")["n"] == 37
    (probers.path / "swept/sizes/20/seen.json").unlink()
    with fails("overlap", "sizes/20 does not say which questions it was trained on"):
        compared(probers, "probers=[swept/sizes]", out="silent")


@pytest.mark.parametrize(("given", "code", "named"), [
    (["probers=[swept/sizes,swept/sizes/20]"], "conflict", ["swept/sizes/20"]),
    (["probers=[swept/sizes]", "prober=swept/sizes/20"], "conflict", ["prober=swept/sizes/20"]),
    (["probers=[nothing]"], None, ["nothing", "config.json"]),
    (["probers=[swept/sizes]", "triggers=[never,entropy]"], "conflict", ["triggers=[never,entropy]"]),
    (["probers=[swept/sizes/20,other]"], "mismatch", ["sizes/20", "fake", "other", "big"]),
    (["probers=[swept/sizes/20,before]"], "mismatch", ["probers, before:", "trigger=probing"]),
])  # fmt: skip
def test_probers_that_cannot_be_compared_are_told_before_a_model_runs(probers, given, code, named):
    make_prober(probers.path / "other", model=replace(SPEC, id="big", revision="r2"))
    make_prober(probers.path / "before", pool="predicting")
    with fails(code, *named):
        compared(probers, *given, out="out")
    assert not probers.models and not (probers.path / "out").exists()
