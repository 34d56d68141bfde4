"""Every preset of configs/experiment composes with the methods it is for, and its parts are made and work."""

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import pytest
import torch
from helpers.artefacts import write_lines
from helpers.refusals import exits
from helpers.tiny import save_tiny, tiny_lm
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict

from probers.cli import main as cli
from probers.cli import presets as published
from probers.cli.components import Component, choices
from probers.cli.compose import fill_store, request
from probers.data.splits import Seen
from probers.datagen.labelling import layers_to_read
from probers.datagen.labels.cot import parse_label
from probers.heads import HEADS, WRONG
from probers.model.causal_lm import CausalLM
from probers.prober.prober import Prober
from probers.rag.comparison.compare import selection_of
from probers.rag.queries import QFS
from probers.rag.triggers import Always, FixedLength, Never, Rind
from probers.store.spec import FeatureSpec
from probers.store.store import FeatureStore

CONFIGS = resources.files("probers.configs")
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


def family(preset: str) -> dict[str, list[str]]:
    return next(methods for name, methods in METHODS.items() if preset.startswith(name))


def build(node: DictConfig, **more: Any) -> Any:
    """The component of a node of a configuration."""
    values = OmegaConf.to_container(node, resolve=True)
    return Component.read(str(node._key()), values).make(**more)


#: One preset of each family.
FIRST = ("dragin_llama2_7b_2wiki", "probing_rag_gemma_2b", "radio_llama2_7b")


def composed(command: str, preset: str, *overrides: str) -> tuple[DictConfig, dict[str, str]]:
    """The configuration, and the choice made in every group."""
    fill_store(command, [f"experiment={preset}", *overrides])
    with initialize_config_module("probers.configs", version_base="1.3"):
        cfg = compose(command, [f"experiment={preset}", *overrides], return_hydra_config=True)
    choices = {k: v for k, v in cfg.hydra.runtime.choices.items() if v and "/" not in k and k != "hydra"}
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg, choices


def checked(command: str, preset: str, *overrides: str) -> tuple[DictConfig, dict[str, str]]:
    """The same, of which every key is one that the command with the same choices has."""
    cfg, choices = composed(command, preset, *overrides)
    assert not unknown_keys(command, cfg, choices)
    OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    return cfg, choices


#: Mappings whose keys a user names: methods, their options, and splits.
FREE = ("methods", "vary", "limit", "balance_to")


def keys(node: Any, path: str = "") -> set[str]:
    """Every key of a configuration by its path; what a user may name freely is one key."""
    found = {f"{path}{key}" for key in node}
    for key in node:
        inner = node._get_node(key)
        if isinstance(inner, DictConfig) and not inner._is_none() and f"{path}{key}" not in FREE:
            found |= keys(inner, f"{path}{key}.")
    return found


def unknown_keys(command: str, cfg: DictConfig, choices: dict[str, str]) -> set[str]:
    """Keys that the command with the same choices does not have; ``published`` is the presets' own."""
    groups = [f"{k}={v}" for k, v in choices.items() if k not in ("experiment", "method")]
    plain = cli.compose(command, groups)
    return {k for k in keys(cfg) - keys(plain) if k.split(".")[0] not in ("published", "commands")}


def combinations(command: str) -> list[tuple[str, str]]:
    """Every preset with its first method of the command, and each further method with one preset."""
    by_preset = {p: family(p).get(command, [])[: None if p in FIRST else 1] for p in PRESETS}
    return [(preset, method) for preset, methods in by_preset.items() for method in methods]


@pytest.fixture(scope="module")
def lm():
    return tiny_lm("llama")


def tiny_bank(lm, trigger: str, prompt) -> Prober:
    """A prober of the tiny model, of whole answers or, for radio, of single tokens."""
    head = HEADS["linear"](["layer1", "layer2"], lm.width)
    spec = FeatureSpec(lm.spec, (1, 2), lm.width, prompt=prompt.fingerprint)
    if trigger != "radio":
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
    cfg, choices = checked("rag", f"dragin_{model}_{data}")
    assert build(cfg.prompt).exemplars
    instantiate(cfg.questions)
    assert (choices["trigger"], choices["query"], choices["prompt"]) == ("rind", "qfs", f"dragin_{data}")
    assert choices["questions"] == {"2wiki": "2wikimultihopqa"}.get(data, data)
    named = model.replace("llama2", "llama-2").replace("_", "-")
    assert cfg.model.name.rsplit("/")[-1].lower().startswith(named)
    assert (cfg.max_new_tokens, cfg.k, cfg.max_retrievals) == (length, 3, length)
    assert build(cfg.trigger) == Rind(conference, "released")
    newer = NEWER.get((model, data), {})
    assert build(cfg.query) == QFS("released", newer.get("conference", top_n))
    assert cfg.questions.get("spans") == ("any" if data == "iirc" else None)
    assert cfg.published.flare == {"threshold": flare, "beta": pytest.approx(1 - flare)}
    assert cfg.published.fixed_length == fixed
    cfg.published.version = "first"
    assert (build(cfg.trigger).threshold, build(cfg.query).top_n) == (first, top_n)
    cfg.published.version = "october_2025"
    latest = newer.get("october_2025", top_n)
    assert (build(cfg.trigger).threshold, build(cfg.query).top_n) == (october, latest)


@pytest.mark.parametrize(("preset", "method"), combinations("compare"))
def test_every_table_builds_its_methods(preset, method, lm):
    cfg, _ = checked("compare", preset, f"method={method}")
    settings = request("compare", [f"experiment={preset}", f"method={method}"])
    made = selection_of(settings).varied(settings.vary)
    # Without a classifier of questions the row that needs one is left out.
    kept = [t for t in made.names if made.table[t].get("if_given") != "classifier"]
    kind = "radio" if method.startswith("radio") else "probing"
    made = replace(made, names=kept)
    methods = made.build(lambda: tiny_bank(lm, kind, build(cfg.prompt)), None, settings.queries)
    assert [m.name for m in methods] == kept
    assert settings.match is None or settings.match in kept
    # A paper's methods run as published: no threshold of theirs is chosen anew.
    published_ = ("dragin", "rind", "flare")
    own = [m for m in methods if m.name in made.table and m.name.split("_")[0] in published_]
    assert all(m.searches is not None for m in methods if m.name.endswith("sgpt"))
    assert method.startswith(("probing", "radio")) or not any(m.tunable for m in own)


@pytest.mark.parametrize("command", ["rag", "compare", "datagen", "train"])
def test_a_command_takes_the_presets_and_methods_made_for_it(command):
    mine = TRAINING if command == "train" else [p for p in PRESETS if command in family(p)]
    assert published.presets(command) == mine
    for preset in mine:
        own = [] if command == "train" else family(preset)[command]
        fitting = published.methods(command, preset)
        assert set(own) <= set(fitting)
        for method in set(fitting) - set(own) if preset in FIRST else ():  # all numbers are there
            cli.compose(command, [f"experiment={preset}", f"method={method}"])


def test_another_choice_than_the_presets_comes_without_the_presets_options():
    """FLARE has a threshold and a variant too, and DRAGIN's mean nothing to it."""
    preset = "experiment=dragin_llama2_7b_2wiki"
    cfg = cli.compose("rag", [preset, "trigger=flare", "trigger.theta=0.3", "query=last_tokens"])
    assert cfg.trigger == cli.compose("rag", ["trigger=flare", "trigger.theta=0.3"]).trigger
    assert cfg.query == cli.compose("rag", ["query=last_tokens"]).query
    assert build(cfg.trigger).threshold == 0.7
    assert (cfg.max_new_tokens, cfg.prompt.name) == (64, "dragin_2wiki")  # the setting stays
    # The same choice keeps them, with what was typed on top.
    cfg = cli.compose("rag", [preset, "trigger=rind", "query.top_n=7"])
    assert build(cfg.trigger) == Rind(1.0, "released") and build(cfg.query) == QFS("released", 7)
    assert cli.compose("rag", ["experiment=null"]) == cli.compose("rag", [])  # no preset may be said
    # What still means something stays: the training questions of another set, not of a file.
    data = ["experiment=probing_rag_gemma_2b", "method=probing_data"]
    assert cli.compose("datagen", [*data, "questions=nq"]).questions.hub_split == "train"
    mine = cli.compose("datagen", cli.normalise("datagen", [*data, "questions=mine.jsonl"])).questions
    assert build(mine).path == "mine.jsonl"


def test_dragins_tables_vary_one_thing():
    each = [composed("compare", FIRST[0], f"method=dragin_{name}")[0] for name in ("when", "what", "table")]
    when, what, table = (selection_of(cfg).build(None, None, cfg.queries) for cfg in each)
    assert len({repr(m.query) for m in when}) == 1
    assert len({type(m.trigger) for m in when}) == len(when)
    assert len({repr(m.trigger) for m in what}) == 1
    assert len({type(m.query) for m in what}) == len(what)
    made = {m.name: m for m in table}
    assert isinstance(made["wo"].trigger, Never) and isinstance(made["sr"].trigger, Always)
    assert made["fl"].trigger == FixedLength(16)
    assert (made["flare"].trigger.variant, made["flare"].trigger.threshold) == ("dragin", 0.1)
    assert made["dragin"].trigger.threshold == 1.0


@pytest.mark.parametrize(("preset", "method"), combinations("datagen"))
def test_every_training_set_has_layers_of_its_model(preset, method):
    cfg, _ = checked("datagen", preset, f"method={method}")
    depth = DEPTHS[preset]
    layers = layers_to_read(cfg.layers, depth)
    if preset.startswith("probing_rag"):
        # Counted from 0 as the authors do: every second one, Gemma's from a third of the depth.
        first, last = {"probing_rag_gemma_2b": (6, 16), "probing_rag_mistral_7b": (12, 22)}[preset]
        assert [k - 1 for k in layers] == list(range(first, last + 1, 2))
        assert (cfg.source, cfg.balance, cfg.questions.hub_split) == ("cot", True, "train")
        right = parse_label(cfg.label, cfg.acc)
        assert right(" They knowingly left.", "", ("now",)) and not right(" They left.", "", ("now",))
    else:
        assert layers == (depth,)
        assert (cfg.source, cfg.pool, cfg.within) == ("wiki", "tokens", 1)


@pytest.mark.parametrize("preset", TRAINING)
def test_every_training_preset_composes(preset):
    cfg, choices = checked("train", preset)
    assert choices["head"] == ("radio" if preset.startswith("radio") else "probing_rag")
    if preset.endswith("released"):
        assert (cfg.loss, cfg.batch_size, cfg.lr, cfg.epochs) == ("double_softmax", 8, 1e-4, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("preset", "command", "method"),
    [(p, command, m) for p in PRESETS for command, methods in family(p).items() for m in methods],
)
def test_every_preset_composes_with_every_method_it_is_for(preset, command, method):
    checked(command, preset, f"method={method}")


# Runs: the commands themselves, with a tiny model, corpus and question file in place of the preset's.


@dataclass(frozen=True)
class Place:
    """A folder, and options that put the tiny model, its corpus and its questions in place of a preset's."""

    folder: Path
    overrides: tuple[str, ...]

    def run(self, command: str, preset: str, method: str, *more: str) -> tuple[dict[str, Any], Path]:
        """results.json and the folder of a run."""
        out = self.folder / f"{command}-{preset}-{method}"
        cli.run(command, [f"experiment={preset}", f"method={method}", *self.overrides, f"out={out}", *more])
        return json.loads((out / "results.json").read_text()), out

    def compare(self, preset: str, method: str, *more: str) -> tuple[dict[str, Any], dict[str, list[dict]]]:
        """results.json of at least four questions, and every method's traces."""
        small = ("limit=null", "validation=4", "resamples=100", "examples=1")
        results, out = self.run("compare", preset, method, *small, *more)
        found = {name: traces(out / "traces" / f"{name}.jsonl") for name in results["methods"]}
        assert {len(each) for each in found.values()} == {results["n"]} and results["n"] >= 4
        return results, found


def traces(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def queries(trace: dict[str, Any]) -> list[str]:
    found = [r["query"] for r in trace["rounds"] if r["query"] is not None]
    assert len(found) == trace["counters"]["retrievals"]
    return found


def write_questions(path: Path, golds: Mapping[str, str] | None = None) -> None:
    """Questions as the official files of HotpotQA and 2WikiMultihopQA (with ``evidences``) have them."""
    rows = []
    for name, gold in (golds or {f"q{i}": f"Mira {i}" for i in range(20)}).items():
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
def place(tiny, tmp_path, monkeypatch) -> Callable[[str], Place]:
    """Makes the place of a preset that asks HotpotQA or 2WikiMultihopQA."""
    monkeypatch.chdir(tmp_path)

    def make(questions: str) -> Place:
        path = tmp_path / f"{questions}.json"
        write_questions(path)
        given = (f"model={tiny / 'model'}", f"corpus={tiny / 'corpus.jsonl'}", f"questions.path={path}")
        return Place(tmp_path, (*given, "model.device=cpu"))

    return make


def save_prober(place: Place, tiny: Path, preset: str, *, bias: float = 0.0) -> str:
    """Random heads of the tiny model for the preset's prompt; with a large ``bias`` they find all wrong."""
    lm = CausalLM.from_pretrained(str(tiny / "model"), device="cpu")
    cfg, choices = composed("rag", preset)
    torch.manual_seed(0)
    bank = tiny_bank(lm, choices["trigger"], build(cfg.prompt))
    with torch.no_grad():
        bank.head.linear.bias[:, WRONG] += bias
    replace(bank, seen=Seen({})).save_pretrained(place.folder / "prober")
    return str(place.folder / "prober")


@pytest.mark.long
def test_dragins_table_runs_from_its_preset(place):
    here = place("hotpotqa")
    preset, version = "dragin_llama2_13b_hotpotqa", "published.version=first"
    results, ran = here.compare(preset, "dragin_table", version, "max_new_tokens=36")
    assert {*results["methods"]} == {"wo", "sr", "fl", "fs", "flare", "dragin", "random", "oracle"}
    options = results["options"]
    assert options["fl"] == {"n": 32}
    assert options["flare"]["variant"] == "dragin" and options["flare"]["threshold"] == 0.1
    assert options["dragin"] == {"variant": "released", "threshold": 1.4}
    assert options["random"]["rate"] == results["methods"]["dragin"]["retrievals"]
    assert results["config"]["methods"]["dragin"]["query_options"]["top_n"] == 35
    assert results["config"]["k"] == 3
    asked = {"wo": "question", "sr": "question", "fl": "last_tokens", "fs": "last_sentence", "flare": "flare",
             "dragin": "qfs"}  # fmt: skip
    assert {name: results["queries"][name] for name in asked} == asked
    assert all(len(r["passage_ids"]) <= 3 for found in ran.values() for t in found for r in t["rounds"])
    assert any(len(queries(t)) > 1 for t in ran["fl"])
    assert any(queries(t) for t in ran["dragin"]) and any(queries(t) for t in ran["flare"])


def test_probing_rags_table_runs_from_its_preset(place, tiny):
    here = place("hotpotqa")
    prober = save_prober(here, tiny, "probing_rag_gemma_2b", bias=100.0)
    typed = (f"prober={prober}", "max_new_tokens=36")
    results, ran = here.compare("probing_rag_gemma_2b", "probing_table", *typed)
    names = "always dragin fixed_sentence flare llm_judge never oracle probing random"
    assert " ".join(sorted(results["methods"])) == names
    own = results["config"]["methods"]["probing"]
    assert own["trigger_options"] == {"theta": 0} and own["query_options"] == {"with_passages": True}
    assert (results["config"]["k"], results["config"]["max_retrievals"]) == (5, 4)
    assert results["options"]["flare"]["variant"] == "paper"
    assert results["options"]["random"]["rate"] == results["methods"]["probing"]["retrievals"]
    assert not any(queries(t) for t in ran["never"])
    assert {len(queries(t)) for t in ran["always"]} == {1}
    assert max(len(queries(trace)) for trace in ran["probing"]) == 4  # as many as are allowed


def test_radios_table_runs_from_its_preset(place, tiny):
    here = place("2wiki")
    prober = save_prober(here, tiny, "radio_llama2_7b")
    cfg, _ = composed("rag", "radio_llama2_7b")  # before anything is made small
    assert (cfg.max_new_tokens, cfg.k, cfg.limit) == (256, 3, 1000)
    results, ran = here.compare("radio_llama2_7b", "radio_table", f"prober={prober}", "max_new_tokens=12")
    names = "always fixed_length fixed_sentence flare never radio random rind_released"
    assert " ".join(sorted(results["methods"])) == names
    assert results["options"]["radio"].items() >= {"threshold": 0.5, "above_mean": True}.items()
    assert results["queries"]["radio"] == "cioqf"
    assert results["config"]["methods"]["radio"]["query_options"] == {"norm": "minmax", "top_n": 25}
    assert results["config"]["max_retrievals"] == 12  # as many as there are tokens
    assert results["options"]["random"]["rate"] == results["methods"]["radio"]["retrievals"]
    assert any(queries(t) for t in ran["radio"])


#: What a method of probers-rag is called in its results, and what its first query is.
ROWS = {
    "dragin": ("rind", None), "flare": ("flare", None), "flare_original": ("flare", None),
    "fl": ("fixed_length", "question"), "fs": ("fixed_sentence", "question"), "sr": ("always", "question"),
    "wo": ("never", None), "probing": ("probing", None), "probing_released": ("probing", "question"),
    "radio": ("radio", None),
}  # fmt: skip
RUNS = [*((p, m) for p in FIRST for m in family(p)["rag"]), ("probing_rag_mistral_7b", "probing")]


@pytest.mark.parametrize(("preset", "method"), RUNS)
def test_every_method_runs_as_a_command(preset, method, place, tiny, caplog):
    cfg, choices = checked("rag", preset, f"method={method}")
    assert build(cfg.prompt).exemplars or choices["prompt"] == "radio"
    instantiate(cfg.questions)
    here = place("2wiki" if "probing" not in preset else "hotpotqa")
    more = []
    if not preset.startswith("dragin"):
        more = [f"prober={save_prober(here, tiny, preset, bias=100.0)}"]
    results, out = here.run("rag", preset, method, "limit=3", "max_new_tokens=20", *more)
    name, first = ROWS[method]
    assert list(results["methods"]) == [name] and results["n"] == 3
    found = traces(out / "traces.jsonl")
    for trace in found:
        asked = queries(trace)
        assert len(asked) <= results["config"]["max_retrievals"]
        assert first is None or asked[0] == trace["question"]
    counts = {len(queries(t)) for t in found}
    assert counts == {"wo": {0}, "sr": {1}}.get(method, counts)
    if method == "probing_released":  # the whole output, exemplars included, from the second query on
        exemplar = "Query: Which was built first"
        assert all(exemplar not in queries(t)[0] for t in found)
        assert all(exemplar in q for t in found for q in queries(t)[1:]) and len(queries(found[0])) > 1
    assert name in caplog.text


def test_probing_rags_examples_are_made_trained_on_and_used(place):
    """The paper's presets one after the other; a letter that every text has is right for half of them."""
    here = place("hotpotqa")
    golds = {f"q{i}": "e" if i % 2 else "zebra" for i in range(40)}
    write_questions(here.folder / "hotpotqa.json", golds)
    preset, length = "probing_rag_gemma_2b", "max_new_tokens=24"
    store, prober = here.folder / "store", here.folder / "prober"
    given = ["layers=[1,2]", "limit=null", length, "questions.hub_split=validation", f"out={store}"]
    cli.run("datagen", [f"experiment={preset}", "method=probing_data", *here.overrides, *given])
    rows = FeatureStore.open(store).table()
    assert set(rows["condition"]) == {"closed_book", "with_passages"}
    train = rows[rows["split"] == "train"]
    assert train["correct"].mean() == 0.5 and len(train) > 8
    given = [f"data={store}", f"out={prober}", "resamples=100", "learning_curve=false"]
    cli.run("train", ["experiment=probing_rag_train_released", *given])
    bank = Prober.from_pretrained(prober)
    assert (bank.combine, bank.spec.layers) == ("probabilities", (1, 2))
    results, _ = here.run("rag", preset, "probing_released", f"prober={prober}", "limit=3", length)
    assert results["n"] == 3 and list(results["methods"]) == ["probing"]


def test_probing_rags_layers_may_be_the_papers_and_not_the_codes():
    cfg, _ = composed("datagen", FIRST[1], "method=probing_data", "published.version=paper")
    assert [k - 1 for k in cfg.layers] == list(range(6, 15, 2))  # counted from 0


def test_probing_rags_table_judges_answers_as_its_paper():
    assert composed("compare", "probing_rag_gemma_2b", "method=probing_table")[0].wrong == "acc_substring"
    for preset, method in (("dragin_llama2_7b_iirc", "dragin_table"), ("radio_llama2_7b", "radio_table")):
        assert composed("compare", preset, f"method={method}")[0].wrong == "em"


def test_a_model_that_the_numbers_are_not_for_is_told_once(place, capsys):
    here = place("2wiki")
    preset = "experiment=dragin_llama2_7b_2wiki"
    for arguments, count in (
        ([preset, "method=wo", "-m", "seed=0,1", "limit=1", "max_new_tokens=4", *here.overrides], 1),
        ([preset, "method=wo", "model=meta-llama/Llama-2-7b-chat-hf", "corpus=nowhere"], 0),
        ([preset, "method=wo", "model=other", "corpus=nowhere"], 1),
        (["model=other", "corpus=nowhere"], 0),
    ):
        exits("rag", arguments)
        told = capsys.readouterr().out
        note = f"note: {preset} is published for meta-llama/Llama-2-7b-chat-hf: its"
        assert told.count(note) == told.count("is published for") == count, arguments


def test_the_papers_numbers_of_examples_come_out_of_three_sets():
    """26,060 examples to train on and 500 to validate on, half of them right in each condition."""
    common = ["experiment=probing_rag_gemma_2b", "method=probing_data"]
    found = Counter[str]()
    last = ["balance_to.train=8684", "balance_to.validation=164"]
    for questions, more in (("hotpotqa", []), ("nq", []), ("triviaqa", last)):
        cfg = cli.request("datagen", [*common, f"questions={questions}", *more])
        assert set(cfg.limit) == set(cfg.balance_to) == {"train", "validation", "test"}
        for split in ("train", "validation"):
            found[split] += cfg.balance_to[split]
            assert cfg.limit[split] * 2 > cfg.balance_to[split]
    assert found == {"train": 26060, "validation": 500}
    said = (CONFIGS / "method/probing_data.yaml").read_text(encoding="utf-8")
    assert "8684" in said and "164" in said
    assert cli.request("datagen", [*common, "limit=6"]).limit == 6
