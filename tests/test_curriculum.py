"""What the testbed's model is trained on."""

import json
import random

import pytest

from tools.testbed.__main__ import main, parse
from tools.testbed.curriculum import KINDS, Curriculum, DocumentStream
from tools.testbed.recipe import Recipe, _Batcher, train_tokenizer
from tools.testbed.world import World, WorldConfig

SIZES = (("person", 60), ("town", 25), ("company", 25), ("film", 20), ("river", 8))


@pytest.fixture(scope="module")
def world():
    return World.generate(WorldConfig(seed=3, known=SIZES))


@pytest.fixture(scope="module")
def tokenizer(world):
    return train_tokenizer(world, vocab_size=600, documents=600)


def test_nothing_about_unknown_entities_is_ever_told(world):
    stream = DocumentStream(world, Curriculum(), seed=0)
    unknown = [e.name for e in world.entities.values() if not e.known]
    for kind in KINDS:
        for _ in range(150):
            document = stream.draw(kind)
            assert not any(name in document.context + document.target for name in unknown)


def test_passages_of_reading_examples_hold_the_answer_unless_memory_must(world):
    stream = DocumentStream(world, Curriculum(recall_share=0.0), seed=0)
    for _ in range(200):
        document = stream.draw("reading")
        assert document.target.rsplit(" is ", 1)[1].rstrip(".") in document.context
        assert 1 <= document.context.count("\n[") <= 3
    recall = DocumentStream(world, Curriculum(recall_share=1.0), seed=0)
    missing = 0
    for _ in range(100):
        document = recall.draw("reading")
        sentence = document.target.split(" So the answer is")[0].rsplit(". ", 1)[-1].strip()
        missing += sentence not in document.context
    assert missing > 90


def test_rows_restart_per_document_and_weigh_answers_over_context(world, tokenizer):
    plan = Curriculum()
    batcher = _Batcher(Recipe(lengths=(64, 128, 400)), plan, tokenizer)
    stream = DocumentStream(world, plan, seed=0)
    documents = [stream.draw(random.Random(i).choice(KINDS)) for i in range(40)]
    batches = list(batcher.rows(documents))
    assert all(len(ids) % 16 == 0 for ids, _, _ in batches)
    filled = 0
    for ids, weights, _ in batches:
        for tokens, weight in zip(ids.tolist(), weights, strict=True):
            if not weight.any():  # a row that only fills up the batch
                assert set(tokens) == {tokenizer.pad_token_id}
                continue
            filled += 1
            end = tokens.index(tokenizer.eos_token_id)
            assert set(tokens[end + 1 :]) <= {tokenizer.pad_token_id}
            assert weight[end] == 1.0 and not weight[end + 1 :].any()
            text = tokenizer.decode(tokens[: end + 1])
            assert ("Question:" in text) == bool((weight == plan.context_weight).any())
    assert filled == len(documents)


@pytest.mark.long
def test_a_model_is_trained_measured_and_trained_once(tmp_path, capsys):
    small = ["recipe.layers=1", "recipe.width=24", "recipe.mlp=32", "recipe.vocab_size=300", "threads=0"]
    small += ["recipe.tokens=4000", "recipe.step_documents=24", "recipe.compile=false", "limit=12"]
    sizes = "world.known={person: 60, town: 25, company: 25, film: 20, river: 8}"
    typed = [f"out={tmp_path}/run", sizes, *small]
    folder = main(parse(typed))
    figures = json.loads((tmp_path / "run/figures.json").read_text())
    assert figures["questions"] == 12 and {"closed_book", "gold", "retrieved", "auroc"} < set(figures)
    capsys.readouterr()
    main(parse(typed))
    assert "wrote the model" not in capsys.readouterr().out
    for wrong, named in ((["recipe.seed=1"], "another world or recipe"), (["limits=20"], "limits")):
        with pytest.raises(SystemExit, match=named):
            main(parse([*typed, *wrong]))
    main(parse([f"evaluate={folder}", "limit=12"]))
    assert json.loads(capsys.readouterr().out) == figures
