"""probers-demo: which commands it runs with what, and that it goes on where it stopped."""

import json
from functools import cache
from pathlib import Path

import pytest
from helpers.planted import DEPTH, make_token_store
from helpers.refusals import fails

from probers.cli import demo
from probers.cli import main as cli


@cache
def accepts(command, overrides):
    """Every override is one that the command has."""
    cli.compose(command, list(overrides))


class Commands:
    """Stands in for the commands: notes what they are asked, and makes what the next ones read."""

    def __init__(self):
        self.asked = []
        self.fails_at = None

    def __call__(self, command, overrides):
        if len(self.asked) == self.fails_at:
            raise KeyboardInterrupt
        accepts(command, tuple(overrides))
        given = dict(each.split("=", 1) for each in overrides)
        for key in ("data", "prober", "token_prober", "classifier"):
            assert key not in given or Path(given[key]).is_dir(), f"{key}={given[key]} was not made before"
        self.asked.append((command, given))
        out = Path(given["out"])
        if given.get("source") == "wiki":
            if not out.exists():
                make_token_store(out, 8)
        else:
            out.mkdir(parents=True, exist_ok=True)
        if "test" in given:
            figures = {"n": 9, "auroc": 0.75, "auroc_ci": [0.6, 0.9]}
            cells = {given["data"]: figures, given["test"].strip("[]"): figures | {"auroc": None}}
            (out / "matrix.json").write_text(json.dumps({given["data"]: cells}))
        if command == "compare":
            for name in ("report.html", "results.json"):
                (out / name).write_text(f"{name} of the comparison")
            (out / "report_data.json").write_text('{"verdict": "In short: it depends."}')


@pytest.fixture
def commands(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = Commands()
    monkeypatch.setattr(demo, "run_command", made)
    return made


def test_every_trigger_gets_what_it_needs(commands, caplog):
    demo.run(cli.request("demo", ["out=d", "cot=9", "wiki=8", "compare=7", "seed=3", "full=true"]))
    requests = commands.asked
    assert [command for command, _ in requests] == ["datagen"] * 2 + ["train"] * 4 + ["compare"]
    by_out = {given["out"].removeprefix("d/"): given for _, given in requests}
    names = ("cot", "wiki", "prober", "prober-wiki", "prober-tokens", "classifier", "compare")
    cot, wiki, heads, article_heads, tokens, classifier, compared = (by_out[name] for name in names)
    read = [heads, article_heads, tokens, classifier]
    assert (cot["source"], cot["limit"]) == ("cot", "9")
    assert (wiki["source"], wiki["limit"], wiki["pool"]) == ("wiki", "8", "tokens")
    assert [given["data"] for given in read] == [cot["out"], wiki["out"], wiki["out"], cot["out"]]
    assert [given.get("head") for given in read] == [None, None, "radio", "adaptive"]
    assert [given.get("layer") for given in read[:3]] == ["all", "all", str(DEPTH)]  # the last
    used = {"prober": heads["out"], "token_prober": tokens["out"], "classifier": classifier["out"]}
    assert compared.items() >= used.items() and compared["limit"] == "7"
    assert {given["seed"] for _, given in requests} == {"3"}
    assert len({given["out"] for _, given in requests}) == 7
    # With these no method of the comparison is left out, but for those of probers of what comes before.
    cfg = cli.compose("compare", [f"{key}={value}" for key, value in compared.items()])
    before = {
        None, "entity_prober", "prompt_prober", "grounding_prober", "helps_prober", "helps_prompt_prober",
    }  # fmt: skip
    keys = {method.get("if_given") for method in cfg.methods.values()} - before
    assert keys == {"token_prober", "classifier"} and all(cfg[key] for key in keys)
    assert "$ probers-compare limit=7 validation=21 prober=d/prober" in caplog.text
    assert Path("d/report.html").read_text() == "report.html of the comparison"
    assert json.loads(Path("d/run.json").read_text())["complete"]


def test_the_short_demo_has_steps_of_the_full_one_and_compares_some_of_its_methods(commands):
    """Equal numbers of questions give equal rows: nothing differs but curves and what else is compared."""
    ran = {}
    for full in (False, True):
        typed = [f"out=d-{full}", f"full={str(full).lower()}", "cot=9", "compare=7"]
        demo.run(cli.request("demo", typed))
        ran[full], commands.asked = {given["out"].split("/")[-1]: given for _, given in commands.asked}, []
    assert list(ran[False]) == ["cot", "prober", "compare"]
    extra = {"prober": {"learning_curve": "false"}, "compare": {"triggers": f"[{demo._SHORT}]"}}
    for name, quick in ran[False].items():
        full = ran[True][name]
        assert {key: value for key, value in quick.items() if key not in full} == extra.get(name, {})
        same = {key: value.replace("d-False", "d-True") for key, value in quick.items() if key in full}
        assert same.items() <= full.items()
    assert set(demo._SHORT.split(",")) <= set(cli.compose("compare", []).triggers)


@pytest.mark.parametrize("at", [0, 6])
def test_an_interrupted_demo_asks_for_the_same_again_and_goes_on(commands, at):
    settings = cli.request("demo", ["out=d", "full=true"])
    commands.fails_at = at
    with pytest.raises(KeyboardInterrupt):
        demo.run(settings)
    assert not Path("d/report.html").exists()
    before, commands.asked, commands.fails_at = commands.asked, [], None
    demo.run(settings)
    assert commands.asked[:at] == before and len(commands.asked) == 7
    assert Path("d/report.html").exists()


def test_long_answers_and_cut_articles_are_each_tested_on_both(commands):
    typed = ["out=d", "judged=true", "articles=a.jsonl", "model.name=smollm2", "cot=9", "wiki=8"]
    report = demo.run(cli.request("demo", typed)).read_text()
    assert [command for command, _ in commands.asked] == ["datagen"] * 2 + ["train"] * 4
    (_, judged), (_, wiki), *trained = commands.asked
    assert (judged["source"], judged["prompt"], judged["limit"]) == ("judged", "chat", "9")
    assert (wiki["source"], wiki["limit"]) == ("wiki", "8")
    assert {(given["data"], given["test"], given["pool"]) for _, given in trained} == {
        (f"d/{a}", f"[d/{b}]", pool)
        for a, b in (("judged", "wiki"), ("wiki", "judged")) for pool in ("predicting", "mean")
    }  # fmt: skip
    assert report.count("0.75 (0.60 to 0.90) of 9") == report.count("– of 9") == 4


def test_another_demo_in_the_same_folder_is_refused(commands):
    demo.run(cli.request("demo", ["out=d", "compare=5"]))
    count = len(commands.asked)
    with fails("out-taken", "compare: 5"):
        demo.run(cli.request("demo", ["out=d", "compare=6"]))
    assert len(commands.asked) == count
