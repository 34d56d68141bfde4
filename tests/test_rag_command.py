"""probers-rag with a scripted model: one question on the terminal, many into files, bad requests."""

import json

import pytest
from fake_elasticsearch import FakeElasticsearch
from hydra.utils import get_class
from probers.rag.parts import named_part
from test_compare import place  # noqa: F401

from probers import cli
from probers.cli import choices, compose
from probers.parts import build
from probers.types import UserError

COMMON = ["questions=questions.jsonl", "corpus=corpus.jsonl", "limit=null"]


@pytest.fixture
def rag(place):  # noqa: F811
    def run(*overrides):
        return cli.run("rag", [*COMMON, *overrides])

    run.path, run.models = place.path, place.models
    return run


def test_one_question_streams_where_it_fired_what_it_asked_and_fetched(rag, capsys):
    assert rag("question=Where is town 3?", "trigger=probing", "prober=prober") is None
    shown = capsys.readouterr().out
    for part in (
        "prober: prober",
        "Question: Where is town 3?",
        "[1] It must be Nowhere. So the answer is Nowhere.",
        "▲ probing fired on the whole answer: score 2, threshold 0",
        "query: Where is town 3? It must be Nowhere.",
        "fetched: Town 3 (",
        "[2] It must be Land3.",
        "Answer: Land3  (right; gold: Land3)",
        "1 retrieval, 2 generations",
    ):
        assert part in shown, part
    assert sorted(p.name for p in rag.path.iterdir()) == ["corpus.jsonl", "prober", "questions.jsonl"]


def test_a_question_that_nobody_knows_has_no_verdict(rag, capsys):
    rag("question=Where  is town 777?", "trigger=rind", "query=qfs")
    shown = capsys.readouterr().out
    assert "Question: Where is town 777?" in shown
    assert "gold" not in shown
    assert "rind" in shown


def test_one_question_with_out_writes_its_trace(rag):
    rag("question=Where is town 3?", "trigger=always", "out=one")
    assert json.loads((rag.path / "one" / "traces.jsonl").read_text())["answer"] == "Land3"
    assert json.loads((rag.path / "one" / "results.json").read_text())["n"] == 1


def test_many_questions_are_written_and_a_second_run_is_done_already(rag, capsys):
    out = rag("trigger=entropy", "split=test")
    assert str(out) == "runs/rag/entropy"
    lines = [json.loads(line) for line in (out / "traces.jsonl").read_text().splitlines()]
    assert len(lines) == 40
    assert set(lines[0]) == {"id", "question", "text", "answer", "rounds", "counters"}
    results = json.loads((out / "results.json").read_text())
    assert list(results["methods"]) == ["entropy"]
    assert (results["schema"], results["n"], results["methods"]["entropy"]["em"]) == (1, 40, 1.0)
    assert "wrote 40 traces to runs/rag/entropy/traces.jsonl" in capsys.readouterr().out
    rag("trigger=entropy", "split=test")
    assert "complete" in capsys.readouterr().out
    assert len(rag.models) == 1


def test_an_out_folder_of_a_different_run_is_refused(rag):
    rag("trigger=never", "split=test", "out=here")
    with pytest.raises(UserError, match="here holds a different run"):
        rag("trigger=always", "split=test", "out=here")
    rag("trigger=always", "split=test", "out=here", "overwrite=true")


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["question=  "], "question is empty"),
        (["trigger=sometimes"], "unknown trigger 'sometimes': choose one of always, entropy, never"),
        (["question=x?", "trigger=probing"], "probers-datagen"),
        (["question=x?", "trigger=probing", "prober=nowhere"], "nowhere"),
        (["question=x?", "trigger=random", "trigger.rate=-1"], r"trigger\.rate=-1"),
        (["question=x?", "trigger=never", "k=0"], "k=0"),
        (["question=x?", "trigger=oracle"], "oracle needs gold answers"),
        (["trigger=never", "corpus=missing.jsonl"], "missing.jsonl"),
        (["trigger=never", "trigger.rate=1"], "rate"),
    ],
)
def test_bad_requests_are_one_sentence(rag, overrides, message):
    with pytest.raises(UserError, match=message):
        rag(*overrides)


def test_every_part_in_the_configuration_can_be_made(rag, monkeypatch):
    """The YAML of a part and its class have the same options with the same defaults."""
    with FakeElasticsearch() as server:
        monkeypatch.setenv("ES_URL", server.url)
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        _make_every_part()


def _make_every_part():
    for group, given in (("trigger", {"bank": "prober"}), ("query", {}), ("retriever", {})):
        for name in choices(group):
            node = named_part(group, name, {})
            target = get_class(node["_target_"])
            names = set(node) - {"_target_"}
            corpus = [[_passage()]] if group == "retriever" else []
            made = build(node, *corpus, **{k: v for k, v in given.items() if k in names})
            assert type(made) is target
            fields = getattr(target, "__dataclass_fields__", None)
            if fields is not None:
                options = {k for k, f in fields.items() if f.init and not k.startswith("_")}
                assert options == names, name
                assert {k: getattr(made, k) for k in names - {"bank", "theta"}} == {
                    k: node[k] for k in names - {"bank", "theta"}
                }
                # Thresholds have no default that fits every model; everything else agrees with Python's.
                for key in names - {"bank", "theta", "threshold"}:
                    assert fields[key].default == node[key], (name, key)


def _passage():
    from probers.types import Passage

    return Passage("1", "t", "text")


def test_every_key_of_the_commands_is_explained():
    for command in ("rag", "compare"):
        text = cli.help_text(command)
        for key in compose(command, []):
            lines = [x for x in text.splitlines() if x.strip().startswith(f"{key}:")]
            groups = ("model", "prompt", "trigger", "query", "retriever", "methods", "questions")
            assert key in groups or any("#" in line for line in lines), key
