"""--source judged: answers that the model writes, and verdicts that are exact where the world is known."""

import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.artefacts import write_lines
from helpers.parts import computed, in_parts
from helpers.refusals import fails, interruptions
from test_judges import Scripted, asked, said
from transformers import AutoModelForCausalLM, AutoTokenizer

from probers import FeatureStore
from probers.cli import main as cli
from probers.data.texts import Mark, TextSource
from probers.data.topics import PromptFile, Topic
from probers.datagen import Prompts
from probers.datagen.judges.agreement import FILE
from probers.datagen.judges.article import ArticleJudge
from probers.datagen.judges.base import JUDGED, Answer, Grounds
from probers.datagen.judges.relations import another_kind, facts
from probers.testbed.assets import model_path
from probers.words import EntityMatcher, Recogniser, find_entities
from probers.words.wordnet import find_wordnet
from tools.testbed.drawing import load_world
from tools.testbed.relations import RELATIONS

ASKED = [
    "--source", "judged", "limit=14", "max_new_tokens=40", "layers=[6,12]", "shard_size=5", "batch_size=10",
    "pool=[predicting,mean]",
]  # fmt: skip


def true_verdict(sentence: str, span: str, name: str) -> str:
    """What the world says of a sentence about an entity of this name."""
    world = load_world()
    entity = next(e for e in world.entities.values() if e.name == name)
    truths = {fact.relation: fact.truth for fact in world.facts_of(entity)}
    for relation in (each for each in RELATIONS if each.kind == entity.kind):
        for wording in relation.statements:
            form = re.escape(wording).replace(r"\{n\}", f"(?:{re.escape(name)}|He|She|It)?")
            if re.fullmatch(form.replace(r"\{v\}", re.escape(span)), sentence):
                return "supported" if truths[relation.key] == span else "contradicted"
    return "unknown"


def knows_the_world(body):
    reply = asked(body)
    sentence = reply["sentence"].strip()
    verdicts = [{"span": s, "verdict": true_verdict(sentence, s, reply["question"])} for s in reply["spans"]]
    return 200, said({"verdicts": verdicts})


@pytest.fixture(scope="module")
def server():
    with Scripted(knows_the_world) as made:
        yield made


@pytest.fixture(scope="module")
def run(server, tmp_path_factory):
    """Answers of the testbed's model, judged by a server that knows the world."""
    return judged(tmp_path_factory.mktemp("judged") / "world", server)


def asking(server):
    judge = ["judge=openai", f"judge.url={server.url}", "judge.model=m", "judge.passages=0"]
    return [*ASKED, *judge, "judge.parallel=1"]  # replies stand in the file in the order of their coming


def judged(out, server, *typed):
    return cli.run("datagen", [*asking(server), f"out={out}", *typed])


def test_every_verdict_of_a_judge_who_knows_the_world_becomes_its_label(run):
    store = FeatureStore.open(run)
    rows, texts = store.table(), {t.id: t for t in TextSource(str(run / JUDGED)).all()}
    assert len(texts) == 14 and set(rows["correct"]) == {0, 1}
    for row in rows.to_dict("records"):
        text = texts[row["id"].rpartition("/")[0]]
        end = text.answer.find(".", row["cut_at"]) + 1
        start = text.answer.rfind(".", 0, row["cut_at"]) + 1
        verdict = true_verdict(text.answer[start:end].strip(), row["answer"], text.question)
        assert verdict == ("supported" if row["correct"] else "contradicted"), row
    decided = sum(mark.wrong is not None for text in texts.values() for mark in text.spans)
    assert decided == len(rows)


def test_states_are_those_of_plain_transformers_at_the_entity_and_before_it(run):
    store = FeatureStore.open(run).feature(pool="mean")
    before = FeatureStore.open(run).feature(pool="predicting")
    tokenizer = AutoTokenizer.from_pretrained(model_path())
    model = AutoModelForCausalLM.from_pretrained(model_path(), dtype=torch.float32)
    texts = {t.id: t for t in TextSource(str(run / JUDGED)).all()}
    for place, row in enumerate(store.table().to_dict("records")[:6]):
        text = texts[row["id"].rpartition("/")[0]]
        encoding = tokenizer(text.question + text.answer, return_offsets_mapping=True)
        start = len(text.question) + row["cut_at"]
        end = start + len(row["answer"])
        tokens = [i for i, (a, b) in enumerate(encoding["offset_mapping"]) if a < end and b > start]
        with torch.no_grad():
            made = model(torch.tensor([encoding["input_ids"]]), output_hidden_states=True)
        states = made.hidden_states[6][0].numpy()
        np.testing.assert_allclose(store.layer(6)[place], states[tokens].mean(axis=0), rtol=0.03, atol=0.03)
        np.testing.assert_allclose(before.layer(6)[place], states[tokens[0] - 1], rtol=0.03, atol=0.03)


def test_the_article_judge_is_right_where_it_decides(run, tmp_path):
    folder = cli.run("datagen", [*ASKED, f"out={tmp_path / 'article'}"])
    out = cli.run("judge", ["agreement", str(folder), str(run), f"out={tmp_path / 'agreement'}"])
    figures = json.loads((out / FILE).read_text())["figures"]
    assert figures["decided_precision"]["value"] >= 0.9
    assert 0.1 <= figures["coverage"]["value"] < 1


@pytest.mark.long
def test_an_interrupted_run_ends_the_same_and_pays_no_call_twice(server, run, tmp_path):
    before, out = len(server.bodies), tmp_path / "b"
    assert len(list(interruptions(lambda: judged(out, server), FeatureStore, "write_shard", 1))) > 1
    requests = [json.dumps(body) for body in server.bodies[before:]]
    assert len(requests) == len(set(requests))
    ours, theirs = computed(out), computed(run)
    for each in (ours, theirs):
        each["manifest.json"]["summary"].pop("judge")  # the calls of the last session alone
    assert ours == theirs


def test_parts_equal_the_whole(server, run, tmp_path):
    in_parts("datagen", asking(server), tmp_path / "run", 2)
    merged = cli.run("merge", [f"parts=[{tmp_path / 'run'}]"])  # the folder of the run, for its parts
    assert (merged / JUDGED).read_bytes() == (run / JUDGED).read_bytes()
    a, b = FeatureStore.open(run).table(), FeatureStore.open(merged).table()
    pd.testing.assert_frame_equal(a, b, rtol=1e-3, atol=1e-6)


def test_judged_answers_are_labelled_texts_for_every_unit(server, run, tmp_path):
    typed = ["--source", "texts", f"texts={run / JUDGED}", "unit=span", "layers=[6,12]"]
    read = FeatureStore.open(cli.run("datagen", [*typed, f"out={tmp_path / 't'}"])).table()
    rows = FeatureStore.open(run).table()
    both = [table[["answer", "correct", "group"]].values.tolist() for table in (read, rows)]
    assert sorted(both[0]) == sorted(both[1])
    tokens = FeatureStore.open(judged(tmp_path / "tok", server, "pool=tokens")).table()
    assert (tokens["inside"] == 1).sum() > len(rows) and set(tokens["token_wrong"]) == {-1, 0, 1}
    sentences = FeatureStore.open(judged(tmp_path / "s", server, "pool=mean", "unit=sentence")).table()
    wrong = [{id.rpartition("/")[0] for id in t["id"][t["correct"] == 0]} for t in (sentences, rows)]
    assert wrong[0] == wrong[1]


def test_further_answers_are_drawn_and_judged(server, tmp_path):
    out = judged(tmp_path / "n", server, "limit=4", "answers_per_prompt=3", "temperature=1.5")
    texts = list(TextSource(str(out / JUDGED)).all())
    assert [t.id.rpartition("/")[2] for t in texts] == ["0", "1", "2"] * 4
    assert len({t.answer for t in texts}) > 8 and len({t.group for t in texts}) == 4


def marks(text, message="Tell me about Ada Lovelace.", stop="eos", units="entities"):
    source = Prompts(judge_units=units)
    source.keep(recognise=Recogniser("rules", fine=True, quiet=True))
    generation = SimpleNamespace(text=text, stop=stop)
    marked = source._marks(generation, message, Topic("a", message, "Ada Lovelace"))
    return [(text[m.start : m.end], m.rule) for m in marked]


def test_what_the_prompt_or_the_answer_has_named_before_is_not_judged():
    text = "Lovelace was born in London. She left London in 1835. She left London in 1835. She met Byron"
    assert marks(text, stop="length") == [
        ("Lovelace", "named in the prompt"), ("London", ""), ("London", "named before in the answer"),
        ("1835", ""), ("London", "in a repeated sentence"), ("1835", "in a repeated sentence"),
        ("Byron", "cut off by max_new_tokens"),
    ]  # fmt: skip
    assert marks(text)[-1] == ("Byron", "")  # the model ended its answer itself
    sentences = marks(text, stop="length", units="sentences")
    assert [why for _, why in sentences] == ["", "", "in a repeated sentence", "cut off by max_new_tokens"]


ARTICLE = (
    "Bob Nielson (born September 28, 1959) is an American football coach.",
    "He was born in Marion, Iowa, and played at the University of Dubuque.",
)


@pytest.mark.parametrize(("text", "entity", "verdict", "rule"), [
    ("Bob Nielson was born on September 28, 1959.", "September 28, 1959", "supported", "same fact"),
    ("Bob Nielson was born in 1959.", "1959", "unknown", ""),  # a year is a part of a date
    ("Bob Nielson was born in 1972.", "1972", "contradicted", "other fact"),
    ("His brother was born in 1972.", "1972", "unknown", ""),
    ("Bob Nielson is a Canadian coach.", "Canadian", "contradicted", "other fact"),
    ("He played at the University of Dubuque.", "University of Dubuque", "supported", "same sentence"),
    ("He taught at the University of Dubuque.", "University of Dubuque", "unknown", ""),
    ("He lived at the time of Napoleon.", "Napoleon", "unknown", ""),
])  # fmt: skip
def test_the_article_judge_decides_where_it_is_sure(text, entity, verdict, rule):
    assert ruled(text, entity) == (verdict, rule)
    assert ruled(text, entity, reference=())[0] == "unknown"


JUDGE = ArticleJudge(Grounds(EntityMatcher(wordnet=""), find_entities, lambda: None, None))  # type: ignore[return-value]


def ruled(text, entity, reference=ARTICLE):
    start = text.index(entity)
    kind = next((e.type for e in find_entities(text, fine=True) if e.start == start), "name")
    mark = Mark(((start, start + len(entity)),), None, kind)
    ((ruling,),) = JUDGE.judge([Answer("a", "", text, (mark,), "Bob Nielson", reference)])
    return ruling.verdict, ruling.rule


@pytest.mark.skipif(find_wordnet() is None, reason="WordNet's files are not here")
def test_of_another_subject_everything_is_contradicted_and_nothing_supported():
    article, name = " ".join(ARTICLE), "Bob Nielson"
    text = "Bob Nielson is an American astrophysicist. He won the Nobel Prize and met Carl Sagan in Iowa."
    assert another_kind(text, article, name) == "coach / astrophysicist"
    assert ruled(text, "Carl Sagan") == ("contradicted", "another subject")
    assert ruled(text, "American")[0] == "unknown"
    assert ruled(text, "Iowa")[0] == "unknown"  # the article names it
    land = "Zimbabwe is a country in Africa."
    assert another_kind("Zimbabwe is a continent.", land, "Zimbabwe") == ""
    assert another_kind("Zimbabwe is a singer.", land, "Zimbabwe") == "country / singer"
    alike, both = (text.replace("astrophysicist", w) for w in ("trainer", "coach and astrophysicist"))
    assert another_kind(alike, article, name) == another_kind(both, article, name) == ""
    assert ruled(alike, "Carl Sagan")[0] == "unknown"


@pytest.mark.parametrize(("text", "subject", "wanted"), [
    ("Tangled (1910 film) is an American film directed by John Hill. His son was born in 1911.",
     "Tangled (1910 film)", {("directed by", "John Hill"), ("country", "United States")}),
    ("Ada Lovelace (10 December 1815 – 27 November 1852) was an English mathematician.", "Ada Lovelace",
     {("born", "10 December 1815"), ("died", "27 November 1852"), ("country", "England")}),
])  # fmt: skip
def test_facts_are_of_the_subject_alone(text, subject, wanted):
    values = {(f.relation, f.value) for f in facts(text, find_entities(text, fine=True), subject)}
    assert wanted <= values and ("born", "1911") not in values


def test_prompts_of_a_file(tmp_path):
    file = write_lines(
        tmp_path / "p.jsonl",
        [{"prompt": "Tell me of Rome.", "title": "Rome"}, {"prompt": "Tell more of Rome.", "title": "Rome"},
         {"prompt": "What is love?", "topic": "longfact"}, {"prompt": "What is love?"}],
    )  # fmt: skip
    prompts = PromptFile(file)
    topics = prompts.topics()
    assert [t.prompt for t in topics] == ["Tell me of Rome.", "Tell more of Rome.", "What is love?"]
    assert topics[0].split == topics[1].split and topics[0].group == "Rome" != topics[2].group
    assert prompts.left_out.counts == {"repeated prompt": 1}
    assert len(PromptFile(file, limit=2).topics()) == 2
    again = write_lines(tmp_path / "q.jsonl", [{"prompt": "x", "id": 1}, {"prompt": "y", "id": 1}])
    for path, code in ((again, "bad-line"), (write_lines(tmp_path / "e", []), "empty")):
        with fails(code, path):
            PromptFile(path).topics()
    with fails("missing-value", "judge.passages"):  # no article to judge by
        cli.run("datagen", ["--source", "judged", f"prompts={file}", f"out={tmp_path / 'o'}"])
