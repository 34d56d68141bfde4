"""The verbs of the library: what they return, that commands return the same, and what they refuse."""

import copy
import json
import math
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.artefacts import write_lines
from helpers.serving import PROMPT, bank_for

import probers
from probers.cli import main as cli
from probers.prompts import AUTO_PROMPT, CHAT_PROMPT, PLAIN_PROMPT, TESTBED_PROMPT
from probers.types import UserError

PUBLIC = ["Articles", "CausalLM", "Prober", "Prompts", "Questions", "RAG", "Texts", "compare", "fit", "label"]
#: A quick training: no learning curve, few resamples.
QUICK = {"learning_curve": False, "resamples": 100}


def sums(count=40):
    """Sums, right and wrong, two for each of ``count`` prompts."""
    pairs = [(a, b) for a in range(2, 22) for b in range(3, 13)][:count]
    return [
        {"prompt": f"{a} + {b} =", "answer": f" {a + b + error}", "wrong": error != 0}
        for a, b in pairs
        for error in (0, 3)
    ]


@pytest.fixture(scope="module")
def lm():
    return probers.CausalLM.from_pretrained("testbed")


@pytest.fixture(scope="module")
def prober(lm):
    return probers.fit(lm, sums(), head="linear", layers=[4, 8], **QUICK)


def code_of(call, *args, **options):
    with pytest.raises(UserError) as error:
        call(*args, **options)
    assert "\n" not in str(error.value)
    return error.value.code


def test_ten_names_are_public_and_importing_the_package_loads_no_torch():
    assert sorted(set(probers.__all__) - {"__version__"}) == PUBLIC
    assert all(hasattr(probers, name) for name in PUBLIC)
    script = "import sys, probers; assert not {'torch', 'transformers', 'pandas', 'numpy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_prober_of_rows_scores_rows_and_warns_of_texts_unlike_its_own(lm, prober):
    scored = prober.score(lm, sums(4))
    assert [each.text for each in scored] == [row["answer"] for row in sums(4)]
    np.testing.assert_allclose(prober.p_wrong(lm, sums(4)), [each.p_wrong for each in scored])
    assert all(each.domain is not None for each in scored)
    assert list(scored.frame["text"]) == [each.text for each in scored]
    other = prober.score(lm, ["Der Fluss ist lang, und niemand weiß, wohin er fließt; so sagt man."])[0]
    assert other.domain.unlike and "unlike" in str(other) and "unlike" in other._repr_html_()
    assert not scored[0].domain.unlike and "unlike" not in str(scored[0])


@pytest.mark.parametrize("make", [
    lambda frame, path: {name: list(frame[name]) for name in frame},
    lambda frame, path: {name: frame[name] if name == "wrong" else frame[name].to_numpy() for name in frame},
    lambda frame, path: frame.set_index("prompt"),
    lambda frame, path: iter(sums()),
    lambda frame, path: pytest.importorskip("datasets").Dataset.from_pandas(frame),
    lambda frame, path: {"all": pytest.importorskip("datasets").Dataset.from_pandas(frame)},
    lambda frame, path: frame.to_csv(path, index=False) or str(path),
])  # fmt: skip
def test_rows_of_every_kind_make_the_same_prober(lm, prober, make, tmp_path):
    rows = make(pd.DataFrame(sums()), tmp_path / "rows.csv")
    again = probers.fit(lm, rows, head="linear", layers=[4, 8], **QUICK)
    np.testing.assert_allclose(again.p_wrong(lm, sums(4)), prober.p_wrong(lm, sums(4)), atol=1e-6)


def test_columns_under_other_names_are_named_and_remembered(lm, prober, tmp_path):
    names = {"prompt": "question", "answer": "output", "wrong": "is_wrong"}
    frame = pd.DataFrame(sums()).rename(columns=names)
    again = probers.fit(lm, frame, head="linear", layers=[4, 8], **names, **QUICK)
    np.testing.assert_allclose(again.p_wrong(lm, sums(4)), prober.p_wrong(lm, sums(4)), atol=1e-6)
    assert again.columns == names and prober.columns is None
    again.save_pretrained(tmp_path)
    saved = probers.Prober.from_pretrained(tmp_path)
    assert set() < {link.split(")")[0] for link in saved.card.split("](plots/")[1:]} < {*saved.pictures}
    for rows in (frame[:4], frame[:4].drop(columns="is_wrong"), sums()[:4]):
        np.testing.assert_allclose(saved.p_wrong(lm, rows), prober.p_wrong(lm, sums()[:4]), atol=1e-4)
    renamed = frame[:4].rename(columns={"output": "text"})
    np.testing.assert_allclose(saved.p_wrong(lm, renamed, answer="text"), saved.p_wrong(lm, frame[:4]))
    assert code_of(probers.fit, lm, frame) == "bad-file"
    assert code_of(probers.fit, lm, frame, answer="outputs") == "unknown-key"


@pytest.mark.parametrize(("rows", "code"), [
    ([], "empty"), ((row for row in ()), "empty"), ({"answer": ["a", "b"], "wrong": [True]}, "mismatch"),
    ([3], "bad-value"), ([{**row, "wrong": True} for row in sums()], "labels"), ("nowhere.jsonl", "no-file"),
    ([*sums(), {"answer": "\ud83d", "wrong": True}], "bad-line"), (sums(3), "labels"),
])  # fmt: skip
def test_rows_that_cannot_be_used_are_refused(lm, rows, code):
    assert code_of(probers.fit, lm, rows) == code


@pytest.mark.parametrize(("words", "change"), [
    ("hallucinated", {"hallucinated": 1}), ("anew", {"split": "train"}), ("without a", {"prompt": None}),
    ("glued to", {"prompt": "5:", "answer": "5"}), ("the first is", {"prompt": "5:", "answer": " 5"}),
])  # fmt: skip
def test_rows_that_are_not_read_as_they_are_given_are_told_once(lm, caplog, words, change):
    caplog.set_level("INFO", "probers")
    changed = [*sums(8)[12:], *(row | change for row in sums(6))]
    for rows, times in ((sums(6), 0), (changed, 1)):
        probers.label(lm, probers.Texts(rows), layers=4)
        levels = [record.levelname for record in caplog.records if words in record.message]
        assert levels == ["WARNING"] * times


def test_wrong_requests_are_refused_with_a_code(lm, prober):
    right = [{**row, "wrong": False} for row in sums()]  # which is refused when texts are read
    for code, option in (
        ("layers", {"layers": np.array([0, 4])}), ("layers", {"layers": "stride"}),
        ("labels", {"layers": range(1, 3)}), ("conflict", {"pool": ["mean", "last"]}),
        ("mismatch", {"head": "attention_pool"}), ("missing-value", {"head": "stacked"}),
        ("unknown-key", {"heads": "linear"}), ("unknown-choice", {"head": "linaer"}),
    ):  # fmt: skip
        assert code_of(probers.fit, lm, right, **option) == code
    assert code_of(probers.fit, lm) == "missing-value"
    assert code_of(probers.label, lm, sums(2)) == "bad-value"
    assert code_of(probers.fit, lm, sums(), head={"name": "linear"}) == "argument"
    assert code_of(prober.score, lm, sums(1), unit="token") == "unsupported"
    assert code_of(prober.score, "testbed", sums(2)) == "bad-value"
    for prompts in ({"prompt": "2 + 2 ="}, pd.DataFrame(sums(2)), None, ["2 + 2 =", None]):
        assert code_of(prober.generate, lm, prompts) == "bad-value"
    for code, options in {
        "unknown-choice": {"on_high": "stopp"}, "unknown-key": {"max_tokens": 3}, "conflict": {"seed": 1},
        "bad-value": {"max_new_tokens": 8.0}, "bad-value ": {"threshold": "a"}, " bad-value": {"sampling": 1},
    }.items():  # fmt: skip
        assert code_of(prober.generate, lm, "2 + 2 =", **options) == code.strip()
    assert code_of(prober.score, lm, sums(2), thresold=1) == "unknown-key"
    assert code_of(prober.p_wrong, lm, sums(2), on_bad_line="skip") == "conflict"
    assert code_of(prober.generate, lm, []) == "empty"
    assert code_of(prober.watch, lm) == code_of(prober.stopping, lm, lm.tokenizer) == "model"
    assert code_of(lm.states, ["a"], layers=[99]) == "layers"
    assert code_of(lm.states, "a text") == code_of(lm.states, pd.DataFrame(sums(2))) == "bad-value"
    assert code_of(probers.CausalLM.from_pretrained, "testbed", devise="cpu") == "unknown-key"
    assert code_of(probers.CausalLM, lm.tokenizer, lm.model) == "model"
    assert code_of(probers.RAG(lm, ["a b"], "never"), ["Who?", "Where?"]) == "bad-value"
    assert code_of(probers.RAG, lm, "One passage alone.", "never") == "no-file"


def test_what_fires_is_acted_on_and_nothing_else(lm, prober):
    prompts, how = ["2 + 3 =", "4 + 5 ="], {"max_new_tokens": 8}
    plain = prober.generate(lm, prompts, **how)
    for on_high in ("stop", "abstain"):
        calm = prober.generate(lm, prompts, on_high=on_high, threshold=math.inf, **how)
        assert [each.text for each in calm] == [each.text for each in plain]
        assert not any(each.response.acted for each in calm)
        high = prober.generate(lm, prompts[0], on_high=on_high, threshold=-math.inf, **how)
        assert high.response.acted.action == on_high and high.response.acted.discarded_tokens
        assert high.text != plain[0].text and plain[0].text.startswith(high.text) == (on_high == "stop")
    how |= {"on_high": "retry", "threshold": -math.inf, "seed": 3}
    once, best = (prober.generate(lm, prompts[0], draws=draws, **how) for draws in (1, 4))
    assert best.response.score < once.response.score


def test_a_scored_text_shows_its_parts_in_terminal_notebook_and_table(lm):
    row = {"prompt": PROMPT, "answer": " She was born in 1990 & <b>moved</b> in 1995."}
    (one,) = scored = bank_for(lm).score(lm, [row], threshold=-1e9)
    assert [part.text for part in one.spans] == ["1990", "1995"]
    marks = [f"[{part.text} {part.p_wrong:.0%}]" for part in one.spans]
    assert str(scored).endswith(f"in {marks[0]} & <b>moved</b> in {marks[1]}.")
    assert "spans=2" in repr(one) and "1 fire" in repr(scored) and len(scored.frame["spans"][0]) == 2
    page = scored._repr_html_()
    assert page.count("<span style=") == 2 and "&lt;b&gt;moved" in page and "<b>" not in page


def test_states_are_those_of_a_score(lm):
    texts = ["The river is long.", "The town is old."]
    states = lm.states(texts, layers=[4, 8])
    assert states.shape == (2, 2, lm.width) and lm.states([], layers=[4]).shape == (0, 1, lm.width)
    tokens = lm.states(texts, layers=[4, 8], pool="tokens")
    np.testing.assert_allclose(states[0], tokens[0].mean(axis=0), atol=1e-4)
    assert lm.states([], layers=[4]).shape == (0, 1, lm.width)
    assert [len(state) for state in lm.states(texts, layers=[4], pool="predicting")] == list(map(len, tokens))


def test_a_model_that_is_held_is_known_by_its_weights_and_read_without_dropout(lm, prober):
    model = copy.deepcopy(lm.model).train()
    held = probers.CausalLM(model, lm.tokenizer)
    np.testing.assert_array_equal(prober.p_wrong(held, sums(2)), prober.p_wrong(lm, sums(2)))
    assert model.training and all(module.training for module in model.modules())
    with torch.no_grad():
        model.lm_head.weight.mul_(1.5)
    assert code_of(prober.score, probers.CausalLM(model, lm.tokenizer), sums(2)) == "mismatch"


def test_threads_take_turns(lm):
    texts = [[f"Text {part} of {number} is here." for number in range(20)] for part in range(2)]

    def states(part):
        return [lm.states(texts[part], layers=[4 + 4 * part]) for _ in range(3)]

    expected = [states(part)[0] for part in range(2)]
    with ThreadPoolExecutor(2) as pool:
        for states_of_part, one in zip(pool.map(states, range(2)), expected, strict=True):
            np.testing.assert_array_equal(states_of_part, [one] * 3)


def test_prompt_auto_is_the_models_own_form(lm):
    plain = SimpleNamespace(name_or_path="somewhere", chat_template=None)
    write = "U: {[content]}\nA:".format
    chat = SimpleNamespace(chat_template="some", apply_chat_template=lambda turns, **how: write(*turns))
    assert AUTO_PROMPT.bind(lm.tokenizer) == TESTBED_PROMPT
    assert AUTO_PROMPT.bind(plain) == PLAIN_PROMPT and AUTO_PROMPT.bind(None) == PLAIN_PROMPT
    bound = AUTO_PROMPT.bind(SimpleNamespace(**vars(plain) | vars(chat), bos_token=None))
    assert bound.fingerprint == CHAT_PROMPT.fingerprint
    assert bound.question("Who?") == "U: Question: Who?\nAnswer:\nA:"


def test_the_command_scores_like_the_verb(lm, prober, tmp_path):
    prober.save_pretrained(tmp_path / "prober")
    write_lines(tmp_path / "rows.jsonl", sums(4))
    cli.run("score", [f"{tmp_path}/rows.jsonl", f"prober={tmp_path}/prober", f"out={tmp_path}/out"])
    judged = [json.loads(line)["hallucination"] for line in (tmp_path / "out/scores.jsonl").open()]
    scored = probers.Prober.from_pretrained(tmp_path / "prober").score(lm, sums(4))
    assert [each["p_wrong"] for each in judged] == pytest.approx([each.p_wrong for each in scored])
    assert [each["fires"] for each in judged] == [each.fires for each in scored]


def test_a_question_is_answered_by_the_command_as_by_the_verb(lm, tmp_path):
    question = "Who does Lena Zaser work for?"
    rag = probers.RAG(lm, "testbed", "always")
    write_lines(tmp_path / "asked.jsonl", [{"id": "1", "question": question, "answers": ["x"]}])
    typed = [f"questions={tmp_path}/asked.jsonl", "split=null", "trigger=always", f"out={tmp_path}/out"]
    cli.run("rag", [*typed, f"max_new_tokens={rag.max_new_tokens}"])
    trace = json.loads((tmp_path / "out" / "traces.jsonl").read_text().splitlines()[0])
    assert rag(question).text == trace["text"] and rag(question).retrievals == 1


@pytest.mark.parametrize(("command", "key"), [("rag", "questions"), ("datagen source=wiki", "articles")])
def test_a_real_model_is_not_asked_about_the_testbed_unasked(command, key, capsys):
    with pytest.raises(SystemExit) as exit:
        cli.main(command.split()[0], [*command.split()[1:], "model=somewhere"])
    assert exit.value.code == 2 and f"{key} is not given" in capsys.readouterr().err
