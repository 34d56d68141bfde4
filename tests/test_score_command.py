"""probers-score: the scores that a growing text has, a page that shows them, malformed files."""

import html
import json
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.artefacts import read_lines
from helpers.refusals import fails
from helpers.tiny import CONTEXT, byte_level, save_tiny

from probers.cli import main as cli
from probers.data.splits import Seen
from probers.data.texts import TextSource
from probers.evaluation.metrics import auroc
from probers.heads import AttentionPoolHead, ProbingRagHead
from probers.model.causal_lm import CausalLM
from probers.prober.calibration import Temperature
from probers.prober.domain import Domain
from probers.prober.prober import Prober
from probers.prober.response import Response
from probers.prober.risk_control import Promise
from probers.prober.token_scores import GrowingScores, text_needs, text_scores
from probers.score.run import parts
from probers.store.spec import FeatureSpec

WRITTEN = [
    {"id": "one", "prompt": "Ada Lovelace was born in", "answer": " London, Great Britain.", "wrong": False},
    {"id": "two", "prompt": "Peru has", "answer": " Lima <b>&amp;\"x\"</b> \u202ee", "wrong": True},
    {"prompt": "No name is", "answer": " in here at all.", "note": {"kept": [1, 2]}, "wrong": True},
    {"id": 4, "prompt": "Anna met", "answer": " Clara Schumann in Vienna on 3 May 1840. 🙂é", "wrong": False},
]  # fmt: skip


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """The folder of a tiny model that writes any text."""
    tokenizer = byte_level(bos=True, every_byte=True, size=400)
    return save_tiny("llama", tmp_path_factory.mktemp("model"), tokenizer=tokenizer)


def loaded(model):
    return CausalLM.from_pretrained(str(model), device="cpu", dtype="float32")


def make_bank(lm, pool="tokens", head=ProbingRagHead, **fields):
    layers = (3,) if pool == "mind" else (1, 3)
    width = 2 * lm.width if pool == "mind" else lm.width
    spec = FeatureSpec(lm.spec, layers, width, pool=pool, dtype="float32")
    of_tokens = pool == "tokens" and head is ProbingRagHead
    return Prober(
        spec, head([f"7/{k}" for k in layers], width), threshold=0.01, calibration=Temperature(0.1),
        aggregate="max" if of_tokens else None, **fields,
    )  # fmt: skip


@pytest.fixture
def place(tmp_path, monkeypatch, model):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model").symlink_to(model)
    write(WRITTEN)
    make_bank(loaded(model), recogniser="rules").save_pretrained(tmp_path / "prober")
    return tmp_path


def write(lines, file="texts.jsonl"):
    with open(file, "w") as out:
        out.writelines((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)


def score(*overrides):
    return cli.run("score", ["texts.jsonl", "model=./model", "prober=prober", "model.device=cpu",
                             "model.dtype=float32", *overrides])  # fmt: skip


def lines_of(folder):
    return read_lines(folder / "scores.jsonl")


def results_of(folder):
    return json.loads((folder / "results.json").read_text())


@pytest.mark.parametrize("pool", ["mean", "last", "tokens", "predicting"])  # whose vectors are of one layer
def test_a_text_read_whole_has_the_scores_that_it_had_while_it_grew(model, pool):
    lm = loaded(model)
    bank = make_bank(lm, pool)
    (read,) = lm.score(["Ada was"], [" born in London."], needs=text_needs(bank))
    ids, before, so_far = read.token_ids, len(read.prompt_ids), []
    handle = lm.model.model.norm.register_forward_pre_hook(lambda module, given: so_far.append(given[0][0]))
    with handle, torch.inference_mode():
        states = lm.model(torch.tensor([[*read.prompt_ids, *ids]]), output_hidden_states=True).hidden_states
    growing, scores = GrowingScores(bank), []
    for place in range(before, before + len(ids)):
        at = place - growing.before
        scores += growing.add_each(["text"], torch.stack([states[1][0, at], so_far[0][at]])[None])
    assert len(scores) > 3
    np.testing.assert_allclose(text_scores(bank, read.state)[0], scores, atol=1e-4)


def test_every_line_comes_back_with_its_scores_and_its_own_fields(place):
    lines = lines_of(score())
    assert [line["id"] for line in lines] == ["one", "two", "line 3", "4"]
    assert lines[2]["note"] == {"kept": [1, 2]} and lines[2]["text"] == lines[2]["answer"]
    lm, bank = loaded(place / "model"), Prober.from_pretrained("prober")
    for line in lines:
        scored = line["hallucination"]
        (read,) = lm.score([line["prompt"]], [line["answer"]], needs=bank.needs)
        np.testing.assert_allclose(scored["token_scores"], bank.score_states(read.state), atol=1e-4)
        np.testing.assert_allclose(scored["token_logprobs"], read.logprobs, atol=1e-4)
        assert [tuple(each) for each in scored["token_offsets"]] == list(read.offsets)
        assert scored["fires"] == (scored["score"] > scored["threshold"])
        assert scored["score"] == max([span["score"] for span in scored["spans"]], default=scored["score"])
    named = [lines[0]["text"][s["start"] : s["end"]] for s in lines[0]["hallucination"]["spans"]]
    assert named == ["London", "Great Britain"]
    scores = np.array([line["hallucination"]["score"] for line in lines])
    labelled = results_of(place / "runs/score/texts")["labelled"]
    assert labelled["auroc"]["value"] == auroc(np.array([0, 1, 1, 0]), scores)


def test_the_page_shows_every_character_inert_and_loads_nothing(place):
    page = (score() / "scores.html").read_text()
    lines = lines_of(place / "runs/score/texts")
    answers = re.findall(r'<p class="tokens made">(.*?)\s*</p>', page, re.DOTALL)
    # As a browser shows them, without the marks of what fired.
    shown = [html.unescape(re.sub(r'<span class="flag">.*?</span>|<[^>]*>', "", each)) for each in answers]
    order = sorted(lines, key=lambda line: -line["hallucination"]["score"])
    assert shown == [line["answer"] for line in order]
    assert "http://" not in page and "https://" not in page and "<script" not in page and "src=" not in page
    for line in lines:
        answer, response = line["answer"], Response.model_validate(line["hallucination"])
        marked = [
            "".join(piece.text for piece in pieces) for span, pieces in parts(answer, response, 0.5) if span
        ]
        assert marked == [answer[span.start : span.end] for span in response.spans]


def test_a_chat_is_put_as_the_tokenizer_puts_it(place):
    tokenizer = loaded(place / "model").tokenizer
    template = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}\n{% endfor %}[assistant]"
    tokenizer.chat_template = template
    messages = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Who?"}]
    write([{"messages": messages, "answer": " Ada."}])
    (one,) = TextSource("texts.jsonl").all()
    assert one.prompt_for(tokenizer, "f") == "[system] Be short.\n[user] Who?\n[assistant]"
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with fails("model", "f line 1", "roles must alternate"):
        one.prompt_for(tokenizer, "f")


CHAT = [{"role": "user", "content": "x"}]
#: Malformed lines, and the field or value that the message names.
BAD = [
    ('{"prompt": "a", "answer": ', "column"), ("[1]", "object"), ({"prompt": "a b"}, "no answer"),
    ({"prompt": "a", "messages": CHAT, "answer": "a"}, "messages"), ({"prompt": 3, "answer": "x"}, "prompt"),
    ({"prompt": "a", "answer": "x", "wrong": 2}, "wrong"),
    ({"prompt": "a", "answer": "x", "id": "one"}, "line 1"),
    ({"prompt": "a", "answer": "x", "note": "\ud800"}, "surrogates"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "named"), BAD, ids=range(len(BAD)))
def test_a_malformed_line_is_named_or_left_out(place, line, named):
    write([WRITTEN[0], line, WRITTEN[1]])
    with fails("bad-line", "texts.jsonl line 2", named):
        score()
    assert not (place / "runs").exists()
    left = TextSource("texts.jsonl", on_bad_line="skip")
    assert [one.id for one in left.all()] == ["one", "two"] and len(left.left_out) == 1


def test_what_cannot_be_scored_is_left_out_or_named(place, caplog):
    write([WRITTEN[0], {"prompt": "so " * CONTEXT, "answer": " long"}])
    assert lines_of(score())[1]["hallucination"] is None
    assert "1 text left out, too long" in caplog.text
    write([])
    with fails("empty", "texts=texts.jsonl"):
        score()
    write(WRITTEN)
    make_bank(loaded(place / "model"), head=AttentionPoolHead).save_pretrained(place / "pooling")
    with fails("unsupported", "heads"):
        score("prober=pooling")
    with fails("no-artifact", "probers-score"):
        cli.run("score", ["texts.jsonl"])


def test_an_end_marker_is_no_part_of_an_answer_and_no_answer_alone(place, caplog):
    """Converse: an answer that goes on within a word is pointed out."""
    end = loaded(place / "model").tokenizer.eos_token
    answers = [end, " Lima.", f" Lima.{end}\n", "vian gold"]
    write([{"prompt": "Peru", "answer": answer} for answer in answers])
    with fails("bad-line", "texts.jsonl line 1"):
        score()
    plain, ended, _ = lines_of(score("on_bad_line=skip", "out=second"))
    assert ended["text"] == plain["text"] == " Lima."
    assert ended["hallucination"]["token_scores"] == plain["hallucination"]["token_scores"]
    assert "1 answer glued to the last word of the prompt" in caplog.text


def test_heads_of_entities_say_nothing_of_a_text_without_one(place):
    bank = make_bank(loaded(place / "model"), recogniser="rules")
    for position, judged in (("entity", False), ("generated", True)):
        replace(bank, spec=replace(bank.spec, position=position)).save_pretrained(place / position)
        write([{"prompt": "Peru has", "answer": " I do not know."}])
        (line,) = lines_of(score(f"prober={position}", f"out=of_{position}", "threshold=-1e9"))
        scored = line["hallucination"]
        assert (scored["score"] is not None, scored["fires"]) == (judged, judged)


SENTENCES = {"prompt": "Peru", "answer": " has Lima. Ada was in Vienna. No name is here."}


def test_a_prober_of_sentences_judges_each_alone(place):
    """Its sentence's score is that of the sentence's own tokens, and the text has the highest."""
    lm = loaded(place / "model")
    bank = make_bank(lm, "mean")
    bank = replace(bank, spec=replace(bank.spec, position="sentence"))
    bank.save_pretrained(place / "sentences")
    marks = [{"text": "has Lima.", "wrong": True}, {"text": "No name is here.", "wrong": False}]
    write([SENTENCES | {"sentences": marks}])
    folder = score("prober=sentences")
    (response,) = (line["hallucination"] for line in lines_of(folder))
    texts = [SENTENCES["answer"][span["start"] : span["end"]] for span in response["spans"]]
    assert texts == ["has Lima.", "Ada was in Vienna.", "No name is here."]
    bank = Prober.from_pretrained("sentences")
    (read,) = lm.score([SENTENCES["prompt"]], [SENTENCES["answer"]], needs=text_needs(bank))
    for span in response["spans"]:
        tokens = [i for i, (a, b) in enumerate(read.offsets) if a < span["end"] and b > span["start"]]
        pooled = torch.from_numpy(read.state[tokens]).mean(dim=0)
        np.testing.assert_allclose(span["score"], bank.score_states(pooled[None])[0], atol=1e-4)
    assert response["score"] == max(span["score"] for span in response["spans"])
    results = results_of(folder)
    assert results["pieces"]["n"] == 2 and results["labelled"]["n"] == 1
    with fails("unsupported", "sentence"):
        GrowingScores(bank)


def test_what_the_prober_was_trained_on_is_counted_apart(place):
    bank = make_bank(loaded(place / "model"))
    seen = Seen.of({"train": [("texts", "", "Peru has")], "test": [("texts", "", "Anna met")]})
    replace(bank, seen=seen).save_pretrained(place / "prober")
    results = results_of(score())
    assert results["seen"] == {"train": 1, "validation": 0, "test": 1}
    assert results["labelled"]["n"] == 3 and results["n"] == 4


def domain_of(lm, bank):
    """A domain that all texts are unlike by their surprise, and none without it."""
    generations = lm.generate([line["prompt"] for line in WRITTEN], max_new_tokens=8, needs=text_needs(bank))
    read = torch.from_numpy(np.concatenate([text.state for text in generations]))
    return replace(Domain.fit(lambda: iter([read.float()]), 0.05), limit=1e3, surprise=(-0.01, 0.01))


def test_a_promise_is_told_where_its_threshold_is_used(place, caplog):
    """Converse: not where another threshold is, and not of texts unlike the training texts."""
    lm = loaded(place / "model")
    bank = make_bank(lm, promise=Promise(0.125, 0.9, 312, 120, 4))
    bank.save_pretrained(place / "prober")
    promised = "at most 12.5% is wrong"
    results = results_of(score("out=own"))
    assert results["promise"] == bank.promise.to_dict() and results["unlike"] is None
    assert all(line["hallucination"]["promise"] == bank.promise.to_dict() for line in lines_of(place / "own"))
    assert promised in caplog.text and promised in (place / "own/scores.html").read_text()
    assert results_of(score("out=other", "threshold=0.5"))["promise"] is None
    assert lines_of(place / "other")[0]["hallucination"]["promise"] is None
    assert promised not in (place / "other/scores.html").read_text()
    domain = domain_of(lm, bank)
    for limits, unlike in ((domain, 4), (replace(domain, surprise=None), 0)):
        replace(bank, domain=limits).save_pretrained(place / "prober")
        out = score(f"out=foreign{unlike}")
        page = (out / "scores.html").read_text()
        assert results_of(out)["unlike"] == page.count("badge unlike") == unlike
        assert promised in page and ("promised of the 4 texts unlike" in page) == (unlike > 0)
