"""Every preset of configs/experiment composes with the methods it is for, and its parts are made and work."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.artefacts import read_lines, write_lines
from helpers.refusals import exits
from helpers.tiny import save_tiny, tiny_lm

from probers.cli import main as cli
from probers.cli import presets as published
from probers.cli.components import choices
from probers.cli.compose import normalise, request
from probers.data.splits import Seen
from probers.datagen.labelling import layers_to_read
from probers.datagen.labels.cot import parse_label
from probers.heads import HEADS, WRONG
from probers.model.causal_lm import CausalLM
from probers.prober.prober import Prober
from probers.rag.comparison.compare import selection_of
from probers.rag.queries import QFS
from probers.rag.triggers import FixedLength, Rind
from probers.store.spec import FeatureSpec
from probers.store.store import FeatureStore

#: The methods of each family of presets, by command; those of probers-rag first.
METHODS = {
    "dragin": {
        "rag": ["dragin", "flare", "flare_original", "fl", "fs", "sr", "wo"],
        "compare": ["dragin_table", "dragin_when", "dragin_what", "dragin_theta", "dragin_where"],
    },
    "probing_rag": {
        "rag": ["probing", "probing_released"], "compare": ["probing_table", "probing_theta"],
        "datagen": ["probing_data"],
    },
    "radio": {
        "rag": ["radio"], "compare": ["radio_table", "radio_when", "radio_what"], "datagen": ["radio_data"],
    },
}  # fmt: skip
PRESETS = [name for name in choices("experiment") if "_train" not in name]
TRAINING = [name for name in choices("experiment") if "_train" in name]
DEPTHS = {"probing_rag_gemma_2b": 18, "probing_rag_mistral_7b": 32, "radio_llama2_7b": 32}

# DRAGIN by question set: generate length, tokens between two retrievals of FL-RAG.
ORDER = {"2wiki": (64, 16), "hotpotqa": (100, 32), "iirc": (128, 32), "strategyqa": (100, 32)}
# By model and question set: theta of arXiv's first version, of the conference version and of the files of
# October 2025; top-n, but for NEWER; FLARE's threshold.
PUBLISHED = {
    "llama2_13b": [(0.9, 0.6, 0.8, 25, 0.08), (1.4, 1.2, 1.2, 35, 0.1),
                   (1.25, 1.25, 1.0, 25, 0.1), (1.0, 1.0, 1.3, 25, 0.06)],
    "llama2_7b": [(1.2, 1.0, 1.0, 40, 0.1), (1.3, 1.3, 0.8, 35, 0.08),
                  (1.3, 1.3, 0.6, 35, 0.08), (0.75, 0.75, 0.75, 35, 0.1)],
    "vicuna_13b": [(1.2, 1.2, 1.2, 25, 0.1), (1.4, 1.2, 1.2, 35, 0.1),
                   (1.3, 1.3, 1.3, 35, 0.4), (1.5, 1.5, 1.5, 25, 0.1)],
}  # fmt: skip
#: Top-n by version where it is not that of the first.
NEWER = {("llama2_7b", "2wiki"): {"conference": 25, "october_2025": 25}}

#: One preset of each family.
FIRST = ("dragin_llama2_7b_2wiki", "probing_rag_gemma_2b", "radio_llama2_7b")


def family(preset: str) -> dict[str, list[str]]:
    return next(methods for name, methods in METHODS.items() if preset.startswith(name))


def settings_of(command: str, preset: str, *typed: str) -> Any:
    """The settings, of which every key and value is checked."""
    return request(command, [f"experiment={preset}", *typed])


def combinations(command: str) -> list[tuple[str, str]]:
    """Every preset with its first method of the command, and each further method with one preset."""
    by_preset = {p: family(p).get(command, [])[: None if p in FIRST else 1] for p in PRESETS}
    return [(preset, method) for preset, methods in by_preset.items() for method in methods]


@pytest.fixture(scope="module")
def lm():
    return tiny_lm("llama")


def tiny_prober(lm, preset: str) -> Prober:
    """A prober of the tiny model, of whole answers or, for radio, of single tokens."""
    head = HEADS["linear"](["layer1", "layer2"], lm.width)
    prompt = settings_of("rag", preset).prompt.make()
    spec = FeatureSpec(lm.spec, (1, 2), lm.width, prompt=prompt.fingerprint)
    if not preset.startswith("radio"):
        return Prober(spec, head, 0.0)
    return Prober(replace(spec, pool="tokens", position="entity", prompt=""), head, 0.0, aggregate="max")


def test_every_published_setting_has_a_preset():
    assert set(PRESETS) == {
        *(f"dragin_{model}_{data}" for model in PUBLISHED for data in ORDER),
        "probing_rag_gemma_2b", "probing_rag_mistral_7b", "radio_llama2_7b",
    }  # fmt: skip
    assert TRAINING == ["probing_rag_train", "probing_rag_train_released", "radio_train"]
    methods = [m for f in METHODS.values() for each in f.values() for m in each]
    assert sorted(methods) == choices("method")


@pytest.mark.parametrize("model", PUBLISHED)
@pytest.mark.parametrize("data", ORDER)
def test_the_numbers_of_dragin_are_the_published_ones(model, data):
    length, fixed = ORDER[data]
    first, conference, october, top_n, flare = PUBLISHED[model][list(ORDER).index(data)]
    preset, newer = f"dragin_{model}_{data}", NEWER.get((model, data), {})
    made, chosen = settings_of("rag", preset), published.chosen_by({"experiment": preset})
    assert made.prompt.make().exemplars and made.questions.make()
    assert chosen["questions"] == {"2wiki": "2wikimultihopqa"}.get(data, data)
    assert chosen["prompt"] == f"dragin_{data}"
    named = model.replace("llama2", "llama-2").replace("_", "-")
    assert made.model.name.rsplit("/")[-1].lower().startswith(named)
    assert (made.max_new_tokens, made.k, made.max_retrievals) == (length, 3, length)
    assert made.questions.get("spans") == ("any" if data == "iirc" else None)
    numbers = made.record["published"]
    assert numbers["flare"] == {"threshold": flare, "beta": pytest.approx(1 - flare)}
    assert numbers["fixed_length"] == fixed
    for version, theta in (("conference", conference), ("first", first), ("october_2025", october)):
        versioned = settings_of("rag", preset, f"published.version={version}")
        assert versioned.trigger.make() == Rind(theta, "released")
        assert versioned.query.make() == QFS("released", newer.get(version, top_n))
    assert made.trigger.make() == Rind(conference, "released")


def test_the_numbers_of_radio_are_the_published_ones():
    made = settings_of("rag", "radio_llama2_7b")
    assert (made.max_new_tokens, made.k, made.limit, made.max_retrievals) == (256, 3, 1000, 256)
    assert made.trigger.options.items() >= {"threshold": 0.5, "above_mean": True}.items()
    assert made.query.options.items() >= {"norm": "minmax", "top_n": 25}.items()


@pytest.mark.parametrize(("preset", "method"), combinations("compare"))
def test_every_table_builds_its_methods(preset, method, lm):
    settings = settings_of("compare", preset, f"method={method}")
    made = selection_of(settings).varied(settings.vary)
    # Without a classifier of questions the row that needs one is left out.
    tables = [t for t in made.names if made.table[t].get("if_given") != "classifier"]
    made = replace(made, names=tables)
    methods = made.build(lambda: tiny_prober(lm, preset), None, settings.queries)
    assert [m.name for m in methods] == tables
    assert settings.match is None or settings.match in tables
    assert settings.wrong == ("acc_substring" if method.startswith("probing") else "em")
    # A paper's methods run as published: no threshold of theirs is chosen anew.
    three = [
        m for m in methods if m.name in made.table and m.name.split("_")[0] in ("dragin", "rind", "flare")
    ]
    assert all(m.searches is not None for m in methods if m.name.endswith("sgpt"))
    if method == "dragin_table":
        numbers, triggers = settings.record["published"], {m.name: m.trigger for m in methods}
        assert triggers["fl"] == FixedLength(numbers["fixed_length"])
        assert triggers["flare"].threshold == numbers["flare"]["threshold"]
    assert method.startswith(("probing", "radio")) or not any(m.tunable for m in three)


@pytest.mark.parametrize("command", ["rag", "compare", "datagen", "train"])
def test_a_command_takes_the_presets_and_methods_made_for_it(command):
    mine = TRAINING if command == "train" else [p for p in PRESETS if command in family(p)]
    assert published.presets(command) == mine
    for preset in mine:
        expected = [] if command == "train" else family(preset)[command]
        assert set(expected) <= set(published.methods(command, preset))


def test_another_choice_than_the_presets_comes_without_the_presets_options():
    """FLARE has a threshold and a variant too, and DRAGIN's mean nothing to it."""
    made = settings_of("rag", FIRST[0], "trigger=flare", "trigger.theta=0.3", "query=last_tokens")
    assert made.trigger == request("rag", ["trigger=flare", "trigger.theta=0.3"]).trigger
    assert made.query == request("rag", ["query=last_tokens"]).query
    assert (made.max_new_tokens, made.prompt.name) == (64, "dragin_2wiki")  # the setting stays
    # The same choice keeps them, with what was typed on top.
    made = settings_of("rag", FIRST[0], "trigger=rind", "query.top_n=7")
    assert made.trigger.make() == Rind(1.0, "released") and made.query.make() == QFS("released", 7)
    assert request("rag", ["experiment=null"]).trigger == request("rag", []).trigger
    # What still means something stays: the training questions of another set, not of a file.
    for questions, key, value in (("nq", "hub_split", "train"), ("mine.jsonl", "path", "mine.jsonl")):
        typed = [f"experiment={FIRST[1]}", "method=probing_data", f"questions={questions}"]
        assert request("datagen", normalise("datagen", typed)).questions.get(key) == value


def test_dragins_tables_vary_one_thing():
    each = [settings_of("compare", FIRST[0], f"method=dragin_{name}") for name in ("when", "what")]
    when, what = (selection_of(made).build(None, None, made.queries) for made in each)
    assert len({repr(m.query) for m in when}) == 1
    assert len({type(m.trigger) for m in when}) == len(when)
    assert len({repr(m.trigger) for m in what}) == 1
    assert len({type(m.query) for m in what}) == len(what)


@pytest.mark.parametrize(("preset", "method"), combinations("datagen"))
def test_every_training_set_has_layers_of_its_model(preset, method):
    made, depth = settings_of("datagen", preset, f"method={method}"), DEPTHS[preset]
    layers = layers_to_read(made.layers, depth)
    if preset.startswith("probing_rag"):
        # Counted from 0 as the authors do: every second one, Gemma's from a third of the depth.
        first, last = {"probing_rag_gemma_2b": (6, 16), "probing_rag_mistral_7b": (12, 22)}[preset]
        assert [k - 1 for k in layers] == list(range(first, last + 1, 2))
        if preset == FIRST[1]:  # by the released code; its paper names fewer
            paper = settings_of("datagen", preset, f"method={method}", "published.version=paper")
            assert [k - 1 for k in paper.layers] == list(range(6, 15, 2))
        assert (made.source, made.balance, made.questions.get("hub_split")) == ("cot", True, "train")
        right = parse_label(made.label, made.acc)
        assert right(" They knowingly left.", "", ("now",)) and not right(" They left.", "", ("now",))
    else:
        assert layers == (depth,)
        assert (made.source, made.pool, made.within) == ("wiki", "tokens", 1)


def test_the_numbers_of_the_released_training_are_the_published_ones():
    made = settings_of("train", "probing_rag_train_released")
    assert (made.loss, made.batch_size, made.lr, made.epochs) == ("double_softmax", 8, 1e-4, 2)


# Runs: the commands themselves, with a tiny model, corpus and question file in place of the preset's.


def run(command: str, preset: str, method: str, *typed: str) -> tuple[dict[str, Any], dict[str, list[dict]]]:
    """results.json, and the traces of every method."""
    out = cli.run(command, [f"experiment={preset}", f"method={method}", f"out={command}-{method}", *typed])
    results = json.loads((out / "results.json").read_text())
    files = {name: out / f"traces/{name}.jsonl" for name in results["methods"]}
    records = {n: read_lines(file if file.exists() else out / "traces.jsonl") for n, file in files.items()}
    assert {len(each) for each in records.values()} == {results["n"]}
    return results, records


def queries(trace: dict[str, Any]) -> list[str]:
    searched = [r["query"] for r in trace["rounds"] if r["query"] is not None]
    assert len(searched) == trace["counters"]["retrievals"]
    return searched


def write_questions(path: Path, golds: Mapping[str, str]) -> None:
    """Questions as the official files of HotpotQA and 2WikiMultihopQA have them."""
    rows = []
    for name, gold in golds.items():
        town, founder = f"Jomholm {name[1:]}", f"Mira {name[1:]}"
        evidences = {"evidences": [[f"Mill of {town}", "founded by", founder]]}
        rows.append({
            "_id": name, "question": f"Who founded the mill in {town}?", "type": "bridge", "level": "hard",
            "answer": gold, "supporting_facts": [[f"Mill of {town}", 0]],
            "context": [[f"Mill of {town}", [f"The mill in {town} was founded by {founder}."]]],
            **(evidences if path.stem == "2wiki" else {}),
        })  # fmt: skip
    path.write_text(json.dumps(rows))


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> Path:
    """A tiny model with room for the exemplars, and a corpus."""
    folder = tmp_path_factory.mktemp("tiny")
    model = save_tiny("llama", folder / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 8192}))
    write_lines(
        folder / "corpus.jsonl",
        [{"id": f"p{i}", "title": f"Mill {i}", "text": f"The mill in Jomholm {i} is Mira's {i % 7}."}
         for i in range(30)],
    )  # fmt: skip
    return folder


@pytest.fixture
def small(tiny, tmp_path, monkeypatch) -> list[str]:
    """Options that put the tiny model, its corpus and questions in place of a preset's."""
    monkeypatch.chdir(tmp_path)
    for name in ("2wiki", "hotpotqa"):
        write_questions(Path(f"{name}.json"), {f"q{i}": f"Mira {i}" for i in range(20)})
    return [f"model={tiny / 'model'}", f"corpus={tiny / 'corpus.jsonl'}", "model.device=cpu"]


def save_prober(tiny: Path, preset: str) -> list[str]:
    """Heads of the tiny model for the preset's prompt that find all wrong."""
    torch.manual_seed(0)
    bank = tiny_prober(CausalLM.from_pretrained(str(tiny / "model"), device="cpu"), preset)
    with torch.no_grad():
        bank.head.linear.bias[:, WRONG] += 100.0
    replace(bank, seen=Seen({})).save_pretrained(Path("prober"))
    return ["prober=prober"]


def test_a_papers_table_runs_from_its_preset(small, tiny):
    preset, typed = FIRST[1], ["questions.path=hotpotqa.json", "max_new_tokens=36", "limit=null"]
    typed += [*small, *save_prober(tiny, preset), "validation=4", "resamples=100", "examples=1"]
    results, ran = run("compare", preset, "probing_table", *typed)
    names = "always dragin fixed_sentence flare llm_judge never oracle probing random"
    assert " ".join(sorted(results["methods"])) == names and results["n"] >= 4
    assert results["config"]["k"] == 5 and results["options"]["flare"]["variant"] == "paper"
    options = results["config"]["methods"]["probing"]
    assert options["query_options"] == {"with_passages": True} and options["trigger_options"] == {"theta": 0}
    assert results["options"]["random"]["rate"] == results["methods"]["probing"]["retrievals"]
    assert {len(queries(t)) for t in ran["always"]} == {1} and not any(map(queries, ran["never"]))
    assert max(len(queries(t)) for t in ran["probing"]) == 4  # as many as are allowed


@pytest.mark.parametrize(("preset", "method"), [(p, m) for p in FIRST for m in family(p)["rag"]])
def test_every_method_runs_as_a_command(preset, method, small, tiny):
    made = settings_of("rag", preset, f"method={method}")
    assert made.prompt.make().exemplars or made.prompt.name == "radio"
    file = "hotpotqa" if "probing" in preset else "2wiki"
    typed = [*small, f"questions.path={file}.json"]
    if not preset.startswith("dragin"):
        typed += save_prober(tiny, preset)
    results, ran = run("rag", preset, method, "limit=3", "max_new_tokens=20", *typed)
    (traces,) = ran.values()
    assert len(traces) == 3
    searched = [queries(trace) for trace in traces]
    assert max(map(len, searched)) <= results["config"]["max_retrievals"]
    if method in ("fl", "fs", "sr", "probing_released"):
        assert [each[0] for each in searched] == [trace["question"] for trace in traces]
    counts = {len(each) for each in searched}
    assert counts == {"wo": {0}, "sr": {1}}.get(method, counts)
    if method == "probing_released":  # the whole output, exemplars included, from the second query on
        exemplar = "Query: Which was built first"
        assert not any(exemplar in each[0] for each in searched)
        assert all(exemplar in query for each in searched for query in each[1:]) and len(searched[0]) > 1


def test_probing_rags_examples_are_made_trained_on_and_used(small):
    """The paper's presets one after the other; a letter that every text has is right for half of them."""
    typed = [*small, "questions.path=hotpotqa.json"]
    write_questions(Path("hotpotqa.json"), {f"q{i}": "e" if i % 2 else "zebra" for i in range(40)})
    preset, length = "probing_rag_gemma_2b", "max_new_tokens=24"
    given = ["layers=[1,2]", "limit=null", length, "questions.hub_split=validation", "out=store"]
    cli.run("datagen", [f"experiment={preset}", "method=probing_data", *typed, *given])
    rows = FeatureStore.open(Path("store")).table()
    assert set(rows["condition"]) == {"closed_book", "with_passages"}
    train = rows[rows["split"] == "train"]
    assert train["correct"].mean() == 0.5 and len(train) > 8
    given = ["data=store", "out=prober", "resamples=100", "learning_curve=false"]
    cli.run("train", ["experiment=probing_rag_train_released", *given])
    bank = Prober.from_pretrained(Path("prober"))
    assert (bank.combine, bank.spec.layers) == ("probabilities", (1, 2))
    results, _ = run("rag", preset, "probing_released", "prober=prober", "limit=3", length, *typed)
    assert results["n"] == 3 and list(results["methods"]) == ["probing"]


def test_a_model_that_the_numbers_are_not_for_is_told_once(small, capsys):
    preset = ["experiment=dragin_llama2_7b_2wiki", "method=wo"]
    typed = ["-m", "seed=0,1", "limit=1", "max_new_tokens=4", *small, "questions.path=2wiki.json"]
    for more, count in ((typed, 1), (["model=meta-llama/Llama-2-7b-chat-hf", "corpus=nowhere"], 0)):
        exits("rag", [*preset, *more])
        assert capsys.readouterr().out.count("is published for meta-llama/Llama-2-7b-chat-hf") == count
