"""Every preset of configs/experiment composes with the methods it is for, and its parts are made and work."""

from __future__ import annotations

import re
from dataclasses import replace
from importlib import resources

import pytest
from hydra import compose, initialize_config_module
from hydra.utils import instantiate
from omegaconf import DictConfig, OmegaConf, open_dict
from probers.datagen.request import parse_layers
from probers.rag.loop import RAG
from probers.rag.methods import build_methods
from probers.rag.queries import QFS
from probers.rag.triggers import Always, FixedLength, Never, Radio, Rind
from tiny import tiny_lm

from probers import cli
from probers import presets as published
from probers.bank import ProbeBank
from probers.features import FeatureSpec
from probers.heads import HEADS
from probers.parts import build
from probers.presets import choices
from probers.types import Passage, Question, UserError

CONFIGS = resources.files("probers.configs")
#: The methods of each family of presets, by command; those of probers-rag first.
METHODS = {
    "dragin": {
        "rag": ["dragin", "flare", "flare_original", "fl", "fs", "sr", "wo"],
        "compare": ["dragin_table", "dragin_when", "dragin_what"],
    },
    "probing_rag": {
        "rag": ["probing", "probing_released"],
        "compare": ["probing_table"],
        "datagen": ["probing_data"],
    },
    "radio": {"rag": ["radio"], "compare": ["radio_table"], "datagen": ["radio_data"]},
}
PRESETS = [name for name in choices("experiment") if "_train" not in name]
TRAINING = [name for name in choices("experiment") if "_train" in name]
DEPTHS = {"probing_rag_gemma_2b": 18, "probing_rag_mistral_7b": 32, "radio_llama2_7b": 32}

# METHODS.md: generate length, theta of the first version, of the conference version, top-n.
ORDER = ("2wiki", "hotpotqa", "iirc", "strategyqa")
PUBLISHED = {
    "llama2_13b": [(64, 0.9, 0.6, 25), (100, 1.4, 1.2, 35), (128, 1.25, 1.25, 25), (100, 1.0, 1.0, 25)],
    "llama2_7b": [(64, 1.2, 1.0, 40), (100, 1.3, 1.3, 35), (128, 1.3, 1.3, 35), (100, 0.75, 0.75, 35)],
    "vicuna_13b": [(64, 1.2, 1.2, 25), (100, 1.4, 1.2, 35), (128, 1.3, 1.3, 35), (100, 1.5, 1.5, 25)],
}


def family(preset: str) -> dict[str, list[str]]:
    return next(methods for name, methods in METHODS.items() if preset.startswith(name))


def text_of(group: str, name: str) -> str:
    return CONFIGS.joinpath(group, f"{name}.yaml").read_text(encoding="utf-8")


#: One preset of each family.
FIRST = ("dragin_llama2_7b_2wiki", "probing_rag_gemma_2b", "radio_llama2_7b")


def composed(command: str, preset: str, *overrides: str) -> tuple[DictConfig, dict[str, str]]:
    """The configuration, and the choice made in every group."""
    with initialize_config_module("probers.configs", version_base="1.3"):
        cfg = compose(command, [f"experiment={preset}", *overrides], return_hydra_config=True)
    choices = {k: v for k, v in cfg.hydra.runtime.choices.items() if v and "/" not in k and k != "hydra"}
    with open_dict(cfg):
        del cfg["hydra"]
    return cfg, choices


def keys(cfg: DictConfig) -> set[str]:
    """Every key of a configuration by its path; what a user may name freely is one key."""
    found = set()

    def walk(node: DictConfig, path: str) -> None:
        for key in node:
            found.add(f"{path}{key}")
            inner = node._get_node(key)
            if isinstance(inner, DictConfig) and not inner._is_none() and f"{path}{key}" != "methods":
                walk(inner, f"{path}{key}.")

    walk(cfg, "")
    return found


def unknown_keys(command: str, cfg: DictConfig, choices: dict[str, str]) -> set[str]:
    """Keys that the command with the same choices does not have; ``published`` is the presets' own."""
    groups = [f"{k}={v}" for k, v in choices.items() if k not in ("experiment", "method")]
    plain = cli.compose(command, groups)
    return {k for k in keys(cfg) - keys(plain) if k.split(".")[0] != "published"}


def combinations(command: str) -> list[tuple[str, str]]:
    """Every preset with its first method of the command, and each further method with one preset."""
    found = []
    for preset in PRESETS:
        of_family = family(preset).get(command, [])
        found += [(preset, m) for m in (of_family if preset in FIRST else of_family[:1])]
    return found


@pytest.fixture(scope="module")
def lm():
    return tiny_lm("llama")


def tiny_bank(lm, trigger: str, prompt) -> ProbeBank:
    """A prober of the tiny model, of whole answers or, for radio, of single tokens."""
    layers = (1, 2)
    head = HEADS["linear"]([f"layer{k}" for k in layers], lm.width)
    spec = FeatureSpec(lm.spec, layers, lm.width, prompt=prompt.fingerprint)
    if trigger == "radio":
        return ProbeBank(
            replace(spec, pool="tokens", position="entity", prompt=""), head, 0.0, aggregate="max"
        )
    return ProbeBank(spec, head, 0.0)


def test_every_published_setting_has_a_preset():
    assert set(PRESETS) == {
        *(f"dragin_{model}_{data}" for model in PUBLISHED for data in ORDER),
        "probing_rag_gemma_2b", "probing_rag_mistral_7b", "radio_llama2_7b",
    }  # fmt: skip
    assert TRAINING == ["probing_rag_train", "probing_rag_train_released", "radio_train"]
    methods = [m for f in METHODS.values() for each in f.values() for m in each]
    assert sorted(methods) == choices("method")


@pytest.mark.parametrize("group", ["experiment", "method"])
def test_every_preset_names_its_source_and_its_command(group):
    commands = {f"probers-{c}" for c in ("rag", "compare", "datagen", "train")}
    for name in choices(group):
        lines = text_of(group, name).splitlines()
        assert lines[0] == "# @package _global_"
        assert set(lines[1].removeprefix("# Command: ").split(", ")) <= commands, name
        about = " ".join(line for line in lines[2:] if line.startswith("#"))
        assert re.search(r"DRAGIN|FLARE|Probing-RAG|RaDIO", about), name
        if group == "experiment" and name in PRESETS:
            assert re.search(r"et al\.,? (ACL|NAACL|AAAI) 20\d\d", about), name


@pytest.mark.parametrize("model", PUBLISHED)
@pytest.mark.parametrize("data", ORDER)
def test_the_numbers_of_dragin_are_the_published_ones(model, data):
    length, first, conference, top_n = PUBLISHED[model][ORDER.index(data)]
    cfg, choices = composed("rag", f"dragin_{model}_{data}")
    assert (choices["trigger"], choices["query"], choices["prompt"]) == ("rind", "qfs", "dragin")
    assert choices["questions"] == {"2wiki": "2wikimultihopqa"}.get(data, data)
    assert (
        cfg.model.name.rsplit("/")[-1]
        .lower()
        .startswith(model.replace("llama2", "llama-2").replace("_", "-"))
    )
    assert (cfg.max_new_tokens, cfg.k, cfg.max_retrievals) == (length, 3, length)
    assert build(cfg.trigger) == Rind(conference, "released")
    assert build(cfg.query) == QFS("released", top_n)
    cfg.published.version = "first"
    assert build(cfg.trigger).threshold == first
    assert 0 < cfg.published.flare.threshold == pytest.approx(1 - cfg.published.flare.beta)


@pytest.mark.parametrize(("preset", "method"), combinations("rag"))
def test_every_preset_answers_a_question_with_a_tiny_model(preset, method, lm):
    cfg, choices = composed("rag", preset, f"method={method}")
    assert not unknown_keys("rag", cfg, choices)
    prompt = build(cfg.prompt)
    # The tiny model's context has no room for exemplars.
    assert prompt.exemplars or choices["prompt"] == "radio"
    prompt = replace(prompt, exemplars="")
    bank = {"bank": tiny_bank(lm, choices["trigger"], prompt)} if "bank" in cfg.trigger else {}
    instantiate(cfg.questions)

    class Finds:
        count = 0

        def search(self, queries, k):
            self.count += len(queries)
            return [[Passage("1", "Mill", f"passage {self.count}")] for _ in queries]

    rag = RAG(
        lm, Finds(), build(cfg.trigger, **bank), query=build(cfg.query), prompt=prompt, k=cfg.k,
        max_new_tokens=8, max_retrievals=min(cfg.max_retrievals, 2), answer_tokens=2,
    )  # fmt: skip
    assert rag.answer([Question("q", "Who founded the mill?")])[0].text.strip()
    if method in ("wo", "sr"):
        assert rag.retriever.count == (method == "sr")


@pytest.mark.parametrize(("preset", "method"), combinations("compare"))
def test_every_table_builds_its_methods(preset, method, lm):
    cfg, choices = composed("compare", preset, f"method={method}")
    assert not unknown_keys("compare", cfg, choices)
    kind = "radio" if "radio" in cfg.triggers else "probing"
    methods = build_methods(cfg, lambda: tiny_bank(lm, kind, build(cfg.prompt)))
    assert [m.name for m in methods] == list(cfg.triggers)
    assert cfg.match is None or cfg.match in cfg.triggers
    # A paper's methods run as published: no threshold of theirs is chosen anew.
    own = [
        m for m in methods if m.name in cfg.methods and m.name.split("_")[0] in ("dragin", "rind", "flare")
    ]
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


def test_the_help_names_presets_and_methods_and_not_what_is_in_them():
    text = cli.help_text("compare")
    assert "experiment=NAME, one of: dragin_llama2_13b_2wiki, " in text and "radio_train" not in text
    assert "method=NAME, one of: dragin_table, dragin_what, dragin_when, probing_table, radio_table" in text
    assert "generate length" not in text and "  experiment=" not in text
    assert "experiment" not in cli.help_text("demo")


@pytest.mark.parametrize(
    ("command", "overrides", "message"),
    [
        ("compare", ["experiment=dragin_llama2_7b_2wiki"],
         "experiment=dragin_llama2_7b_2wiki needs a method of probers-compare: add method=dragin_table "),
        ("datagen", ["experiment=radio_llama2_7b"], "a method of probers-datagen: add method=radio_data "),
        ("rag", ["experiment=dragin_llama2_7b_2wiki", "method=dragin_table"],
         "method=dragin_table is for probers-compare and not for probers-rag: choose one of dragin, fl"),
        ("compare", ["experiment=dragin_llama2_7b_2wiki", "method=flare"],
         "method=flare is for probers-rag and not for probers-compare: choose one of dragin_table"),
        ("train", ["experiment=radio_llama2_7b"],
         "experiment=radio_llama2_7b is for probers-rag, .*; probers-train has probing_rag_train, "),
        ("rag", ["experiment=radio_train"], "experiment=radio_train is for probers-train; "),
        ("rag", ["experiment=dragin"], "unknown experiment 'dragin': choose one of dragin_llama2_13b_2wiki"),
        ("rag", ["experiment=radio_llama2_7b", "method=flair"], "unknown method 'flair': choose one of"),
        ("rag", ["experiment=radio_llama2_7b", "method=flare"],
         "method=flare needs numbers that experiment=radio_llama2_7b does not give: choose one of radio, "),
        ("rag", ["method=flare"], "numbers from a published setting: add experiment=NAME"),
        ("train", ["experiment=radio_train", "method=radio"], "method=radio is for .*: leave it out"),
        ("rag", ["experiment=dragin_llama2_7b_2wiki", "published.version=third"],
         "trigger.threshold is taken from published.theta.third, and there is no such key"),
    ],
)  # fmt: skip
def test_what_a_command_would_not_run_is_one_sentence(command, overrides, message):
    with pytest.raises(UserError, match=message) as error:
        cli.compose(command, overrides)
    assert "\n" not in str(error.value)


def test_another_choice_than_the_presets_comes_without_the_presets_options():
    """FLARE has a threshold and a variant too, and DRAGIN's mean nothing to it."""
    preset = "experiment=dragin_llama2_7b_2wiki"
    cfg = cli.compose("rag", [preset, "trigger=flare", "trigger.theta=0.3", "query=last_tokens"])
    assert cfg.trigger == cli.compose("rag", ["trigger=flare", "trigger.theta=0.3"]).trigger
    assert cfg.query == cli.compose("rag", ["query=last_tokens"]).query
    assert build(cfg.trigger).threshold == 0.7
    assert (cfg.max_new_tokens, cfg.prompt.name) == (64, "dragin")  # the setting stays
    # The same choice keeps them, with what was typed on top.
    cfg = cli.compose("rag", [preset, "trigger=rind", "query.top_n=7"])
    assert build(cfg.trigger) == Rind(1.0, "released") and build(cfg.query) == QFS("released", 7)
    # What still means something stays: the training questions of another set, not of a file.
    data = ["experiment=probing_rag_gemma_2b", "method=probing_data"]
    assert cli.compose("datagen", [*data, "questions=nq"]).questions.hub_split == "train"
    mine = cli.compose("datagen", cli.normalise([*data, "questions=mine.jsonl"])).questions
    assert build(mine).path == "mine.jsonl"


def test_no_preset_may_be_said():
    assert cli.compose("rag", ["experiment=null"]) == cli.compose("rag", [])


def test_dragins_tables_vary_one_thing():
    when = build_methods(composed("compare", "dragin_llama2_7b_2wiki", "method=dragin_when")[0], None)
    assert len({repr(m.query) for m in when}) == 1
    assert len({type(m.trigger) for m in when}) == len(when)
    what = build_methods(composed("compare", "dragin_llama2_7b_2wiki", "method=dragin_what")[0], None)
    assert len({repr(m.trigger) for m in what}) == 1
    assert len({type(m.query) for m in what}) == len(what)
    table = build_methods(composed("compare", "dragin_llama2_7b_2wiki", "method=dragin_table")[0], None)
    made = {m.name: m for m in table}
    assert isinstance(made["wo"].trigger, Never)
    assert isinstance(made["sr"].trigger, Always)
    assert made["fl"].trigger == FixedLength(16)
    assert (made["flare"].trigger.variant, made["flare"].trigger.threshold) == ("mean", 0.1)
    assert made["dragin"].trigger.threshold == 1.0


@pytest.mark.parametrize(("preset", "method"), combinations("datagen"))
def test_every_training_set_has_layers_of_its_model(preset, method):
    cfg, choices = composed("datagen", preset, f"method={method}")
    assert not unknown_keys("datagen", cfg, choices)
    depth = DEPTHS[preset]
    layers = parse_layers(cfg.layers, depth)
    if preset.startswith("probing_rag"):
        # As "stride" has it, the embedding aside: the authors' 6, 8, .., counted from 0, are our 7, 9, ..
        assert layers == parse_layers("stride", depth)[1:]
        assert (cfg.source, cfg.acc, cfg.balance, cfg.questions.hub_split) == (
            "cot",
            "anywhere",
            True,
            "train",
        )
    else:
        assert layers == (depth,)
        assert (cfg.source, cfg.pool, cfg.within) == ("wiki", "tokens", 1)


@pytest.mark.parametrize("preset", TRAINING)
def test_every_training_preset_composes(preset):
    cfg, choices = composed("train", preset)
    assert not unknown_keys("train", cfg, choices)
    assert choices["head"] == ("radio" if preset.startswith("radio") else "probing_rag")
    OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
    if preset.endswith("released"):
        assert (cfg.loss, cfg.batch_size, cfg.lr, cfg.epochs) == ("double_softmax", 8, 1e-4, 2)


def test_gemmas_layers_are_counted_from_one():
    cfg, _ = composed("rag", "probing_rag_gemma_2b")
    assert list(cfg.published.layers) == [7, 9, 11, 13, 15, 17]


def test_a_misspelt_key_would_be_found():
    cfg, choices = composed("rag", "dragin_llama2_7b_2wiki")
    with open_dict(cfg):
        cfg.max_new_token = 3
        cfg.trigger.treshold = 3
    assert unknown_keys("rag", cfg, choices) == {"max_new_token", "trigger.treshold"}


def test_radios_knobs_are_the_papers(lm):
    cfg, _ = composed("rag", "radio_llama2_7b")
    made = build(cfg.trigger, bank=tiny_bank(lm, "radio", build(cfg.prompt)))
    assert isinstance(made, Radio)
    assert (made.threshold, made.above_mean, cfg.query.norm) == (0.5, True, "minmax")


@pytest.mark.slow
@pytest.mark.parametrize("preset", PRESETS)
def test_every_preset_composes_with_every_method_it_is_for(preset):
    for command, methods in family(preset).items():
        for method in methods:
            cfg, choices = composed(command, preset, f"method={method}")
            assert not unknown_keys(command, cfg, choices), (preset, method)
            OmegaConf.to_container(cfg, resolve=True, throw_on_missing=True)
