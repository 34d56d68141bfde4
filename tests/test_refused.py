"""Requests that are wrong, for every command: a code, a message that names the option, and nothing made."""

import re
from pathlib import Path

import pytest
from helpers.artefacts import write_lines
from helpers.planted import SPEC, make_store
from helpers.refusals import fails
from test_compare import place  # noqa: F401
from test_parts import RAG

from probers.cli import main as cli
from probers.store.store import FeatureStore
from probers.types import Code

TRAIN = ["data=data", "device=cpu", "resamples=100"]
#: What is always typed.
USUAL = {
    "datagen": ["limit=4"], "train": TRAIN, "search": TRAIN, "rag": RAG[:3],
    "compare": [*RAG, "triggers=[never,always,random,oracle,entropy,rind_paper,probing]"],
    "score": ["texts=texts.jsonl", "model=testbed"],
    "serve": [], "import": [],
}  # fmt: skip
WIKIPEDIA = "source=wiki articles=wikipedia wikipedia.titles=[a]"
MINE = "triggers=[mine] +methods.mine={trigger: always, query: question, "
VARY = "triggers=[never,entropy] vary="

#: Command -> code -> what is typed on top, of which the last word is what is wrong.
CASES: dict[str, dict[Code, list[str]]] = {
    "datagen": {
        "bad-value": [
            "source=web", "layers=some", "shard_size=0", "pool=max", "source=wiki per_article=0",
            "source=wiki within=0", "source=wiki negatives=none", "site=nowhere", "limit={train:0}",
            "limit={dev:5}", "balance_to={train:10}", "balance_to={train:null}", "source=wiki language=it",
            "launch=ray launch.parts=0", "launch=submitit launch.cluster=pbs", "part=0/4", "part=5/4",
            "part=x", "part=1/0", "part=1", "part=-1/2", "part=1/4/2", "part=01/4",
        ],
        "conflict": [
            "pool=mind layers=[3]", "source=wiki limit={train:5}", "language=de",
            f"{WIKIPEDIA} wikipedia.language=de language=fr", "source=wiki reads=thinking",
            "pool=[mean,prompt] reads=thinking", "launch=ray part=1/2", "launch=ray overwrite=true",
            "source=wiki wikipedia.rate=1", "acc=substring", "temperature=0.7", "samples=0 temperature=1",
            "source=judged temperature=0.7", "source=judged corpus=testbed", "source=judged passage_words=50",
            "source=judged articles=testbed retriever.k1=2", "source=texts samples=5",
            "source=cot per_article=5", "source=wiki judge.url=http://x",
            "source=cot wikipedia.language=de", "source=wiki source.samples=5",
        ],
        "layers": ["layers=[13]", "site=attn_out layers=[0,3]"],
        "missing-extra": ["source=wiki recogniser=spacy"],
        "model": ["source=wiki prompt=chat"],
        "network": ["launch=ray launch.address=127.0.0.1:1", "launch=ray launch.address=here:x"],
        "no-file": ["questions=nowhere.jsonl", "model=/no/such/model"],
        "too-long": ["max_new_tokens=2040"],
        "unknown-choice": ["label=f2", "pool=tokens", "source=wiki recogniser=spacy:en_none", "launch=dask"],
        "unknown-key": ["launch=ray launch.speed=9", "launch.parts=4", "source=wiki source.nothing=5"],
        "unsupported": [
            f"{WIKIPEDIA} wikipedia.language=ru",
            "source=judged language=de prompt=chat articles=testbed judge=article",
        ],
        "worker": ["launch=submitit launch.cluster=slurm"],
    },
    "train": {
        "bad-value": [
            "combine=votes", "resamples=3", "threshold=budget", "calibration=beta", "aggregate=sum",
            "split=[0.5,0.5]", "train_on=[squad]", "domain=1.0", "sizes=[60,601]", "sizes=[1]", "sizes=[0]",
            "layer_sets=[early]", "epochs=0", "loss=mse", "seeds=0", "weight_decay=-1", "patience=0",
            "label_smoothing=1", "balance=even", "logger=tensorboard", "head=concat beside=[entropy]",
            "head=adaptive head.c=0", "layer=2-x",
        ],
        "conflict": ["span_weight=5", "loss=double_softmax span_weight=5", "head=adaptive part=1/2"],
        "parts": ["part=4/4"],
        "layers": [
            "layer=9", "layer=3-2", "layer=2-9", "layer_sets=[[2,4]]", "layer_sets=[0]", "layer_sets=[[]]",
        ],
        "missing-value": ["head=radio beside=[lookback]", "head=concat beside=[attention]"],
        "no-artifact": ["data=nowhere", "data=half"],
        "overlap": ["data=[data,data]"],
        "unknown-choice": ["threshold=best", "head=mlp"],
        "unsupported": ["device=cuda:99", "device=xpu"],
    },
    "search": {
        "argument": ["heads=[radio hidden=x]", "heads=[radio hidden=0]"],
        "bad-value": ["layer_sets=all", "folds=1", "minutes=0"],
        "conflict": ["span_weight=5"],
        "labels": ["threshold=risk=0.001@0.95"],
        "layers": ["layer_sets=[all,[9]]", "layer_sets=[0]"],
        "mismatch": ["heads=[linear,sequence]"],
        "missing-value": ["sites=[resid_post,mlp_out]"],
        "unknown-choice": ["heads=[linear,linaer]", "threshold=best"],
        "unknown-key": ['heads=[linear,"radio hiden=3"]', 'heads=["linear name=1"]'],
        "unsupported": ["heads=adaptive"],
    },
    "rag": {
        "bad-value": [
            "question=x? trigger=random trigger.rate=-1", "question=x? trigger=never k=0",
            "question=x? trigger=entity_signal trigger.signal=hope",
        ],
        "conflict": [
            "question=x? limit=3", "question=x? split=train",
            "trigger=never engine_timeout=3", "question=x? trigger=never part=1/2",
        ],
        "empty": ["question="],
        "labels": ["question=x? trigger=oracle"],
        "mismatch": [
            "question=x? trigger=radio", "question=x? trigger=before_entity",
            "question=x? trigger=probing_before",
        ],
        "model": ["question=x? trigger=adaptive trigger.classifier=prober"],
        "no-artifact": [
            "question=x? prober=null trigger=probing", "question=x? trigger=probing prober=nowhere",
            "question=x? trigger=adaptive", "question=x? prober=null trigger=radio",
            "question=x? prober=null trigger=before_entity",
            "question=x? prober=null trigger=probing_before",
        ],
        "no-file": ["trigger=never corpus=missing.jsonl"],
        "unknown-choice": ["trigger=sometimes"],
        "unknown-key": ["trigger=never trigger.rate=1"],
    },
    "compare": {
        "bad-value": [
            "sweep=-1", "sweep=1.5", "sweep=null", "sweep=true", "sweep=many", VARY + "{entropy: 3}",
            "triggers=[never] split=train",
        ],
        "conflict": [
            "triggers=[never,never]", VARY + "{probing: {theta: [1]}}",
            VARY + "{entropy: {threshold: [1, 1]}}", "triggers=[never,entropy] split=all",
        ],
        "empty": ["triggers=[]", "queries=[]", VARY + "{entropy: {threshold: []}}"],
        "missing-value": [MINE + "retriever_options: {k1: 2}}"],
        "no-artifact": ["prober=nowhere", "triggers=[adaptive]", "prober=null"],
        "no-file": ["triggers=[never] prompt.exemplars_file=none.txt"],
        "unknown-choice": [
            "triggers=[never,sometimes]",
            "triggers=[mine] +methods.mine={trigger: wavelet, query: question}",
            MINE + "retriever: library}", "queries=[riddle]", VARY + "{riddle: {threshold: [1]}}",
            "wrong=rouge",
        ],
        "unknown-key": [
            "triggers=[random] +methods.random.trigger_options={budget: 1}", VARY + "{entropy: {luck: [1]}}",
            VARY + "{entropy: {query.luck: [1]}}",
        ],
    },
    "serve": {
        "conflict": [
            "corpus=null passage_words=50", "prober=none answer_tokens=5", "retriever.k1=2", "query=question",
            "seed=3", "prompt=chat",
        ],
    },
    "import": {"conflict": ["probe=p limit=3", "probe=p threshold=f1", "probe=p texts.format=ragtruth"]},
    "score": {
        "bad-value": ["threshold=high"],
        "no-artifact": ["prober=nowhere"],
        "no-file": ["texts=nowhere"],
    },
}  # fmt: skip

ROWS = [(c, code, typed) for c, codes in CASES.items() for code, rows in codes.items() for typed in rows]


def words(typed: str) -> list[str]:
    """The words of a request; brackets hold theirs together."""
    found, depth = [""], 0
    for char in typed:
        depth += (char in "{[") - (char in "]}")
        found = [*found, ""] if char == " " and not depth else [*found[:-1], found[-1] + char]
    return found


@pytest.mark.parametrize(("command", "code", "typed"), ROWS, ids=lambda part: part[:60])
def test_a_wrong_request_is_refused_by_its_option_before_anything_is_made(place, command, code, typed):  # noqa: F811
    make_store(Path("data"), n=400)
    FeatureStore.create(Path("half"), [SPEC], config={}, shards=2)
    write_lines(Path("texts.jsonl"), [{"prompt": "a", "answer": " b"}])
    before = set(Path().rglob("*"))
    given = words(typed)
    with fails(code) as refused:
        cli.run(command, [*USUAL[command], *(() if command == "serve" else ("out=out",)), *given])
    named = [*re.findall(r"[a-z][\w/@-]+|k=0", given[-1]), given[-1].partition("_")[0]]  # layer_sets: layer
    assert any(part in str(refused.value) for part in named)
    assert not place.models and set(Path().rglob("*")) == before
