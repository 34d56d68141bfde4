"""Support by passages: labels by construction, published layouts, and an answer's origin by a prober."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import httpx
import numpy as np
import pytest
from helpers.artefacts import write_lines
from helpers.refusals import fails
from helpers.serving import bank_for, running

import probers
from probers.cli.components import Component
from probers.data import load_corpus, load_questions
from probers.data.corpus_formats import whole_sentences
from probers.data.texts import Mark, TextSource
from probers.datagen.judges.base import Answer as Judged
from probers.datagen.judges.base import Grounds
from probers.datagen.judges.grounding import nearest
from probers.datagen.labels.grounded import CONDITIONS, Grounded, _text
from probers.datagen.settings import Options
from probers.evaluation.answers import exact_match
from probers.rag.comparison.outcomes import Evaluation, Outcomes
from probers.rag.traces import Answer
from probers.rag.triggers import Ungrounded
from probers.serve.vllm.prober import ServedProber
from probers.signals.grounding import ORIGINS, Pointer, evidence
from probers.types import Passage, Question
from probers.words import EntityMatcher
from probers.words.recogniser import find_entities
from tools import substitutions

SITES = ["resid_diff", "passages"]
#: Middle layers of the testbed's model.
LAYERS = [6, 8]


@pytest.fixture(scope="module")
def source():
    """The source, planned for a few questions of the testbed."""
    source = Grounded("testbed", k=3)
    source.plan(Options(limit=6))
    return source


@pytest.fixture(scope="module")
def store(lm):
    return probers.label(
        lm, Grounded("testbed", conditions=["gold", "missing"]), limit=14, site=SITES, layers=LAYERS
    )


@pytest.fixture(scope="module")
def prober(store):
    return probers.fit(
        store, head="concat", site="resid_diff", beside=["passages"], epochs=3, resamples=100,
        learning_curve=False, split=[0.5, 0.25, 0.25],
    )  # fmt: skip


def test_every_condition_says_of_the_subject_what_its_name_promises(source):
    corpus = {passage.id: passage for passage in load_corpus("testbed")}
    drawn = [q for q in load_questions("testbed") if len(q.truth["gold"]) == 1 and q.truth["believed"]][:30]
    seen = set()
    for question in drawn:
        subject = corpus[question.truth["gold"][0]]
        others = [each for each in list(corpus.values())[:40] if each.id != subject.id]
        answer, believed = question.answers[0], question.truth["believed"]
        for case in source.cases(question, [subject, *others]):
            seen.add(case.condition)
            assert len(case.passages) == 3
            whole = " ".join(t for t in case.passages if t.split()[:2] == subject.text.split()[:2])
            if case.condition == "missing":
                assert subject.text not in case.passages and case.value == ""
            elif case.condition == "removed":
                assert answer not in whole and case.value == ""
            elif case.condition == "gold":
                assert subject.text in case.passages and case.value == answer
            else:
                assert case.value in whole and answer not in whole
                assert (case.value == believed) == (case.condition == "memory")
    assert seen == set(CONDITIONS)


@pytest.mark.parametrize(("condition", "answer", "wrong", "origin"), [
    ("gold", "1915", False, "passage"), ("gold", "1920", True, "memory"),
    ("gold", "1925", True, "other_passage"), ("gold", "1999", True, "invented"),
    ("memory", "1920", False, "both"), ("missing", "1925", True, "other_passage"),
    ("missing", "1920", True, "memory"),
])  # fmt: skip
def test_an_answer_is_supported_by_its_subjects_passage_alone(source, condition, answer, wrong, origin):
    emma = Passage("a", "", "Emma came out in 1915.", is_gold=True)
    trial = Passage("b", "", "Trial came out in 1925.")
    truth = {"believed": "1920", "type": "year"}
    question = Question("q", "When did Emma come out?", ("1915",), passages=(emma,), truth=truth)
    cases = {case.condition: case for case in source.cases(question, [trial])}
    one = _text(cases[condition], f" It was {answer}. So the answer is {answer}.", answer)
    assert (one.wrong, one.record["source"]) == (wrong, origin)


def test_stores_of_passages_have_the_states_without_them_and_the_controls_of_the_text(store, prober):
    assert [spec.site for spec in store.features] == [*SITES, "resid_bare"]
    table = store.table()
    assert {"context_gain", "new_words", "new_pairs", "new_values", "source"} <= set(table)
    assert set(table["source"]) <= set(ORIGINS)
    controls = prober.metrics["controls"]
    assert {"overlap", "without passages", "context gain", "pointer"} <= set(controls) | {
        note.split("'")[1] for note in prober.metrics["notes"] if note.startswith("control")
    }
    assert prober.pointer is not None and len(prober.pointer.heads) >= 4
    origins = prober.metrics["origins"]
    assert 0 <= origins["accuracy"] <= 1 and 1 / 3 <= origins["commonest"] <= 1
    # An unsupported part is remembered where the model would write it without passages.
    pointer = replace(prober.pointer, remembered=-0.5)
    actual = [pointer.origin(*each) for each in ((True, 0.0), (False, -0.4), (False, -0.6))]
    assert actual == ["passage", "memory", "neither"]


def test_a_prober_names_the_passage_and_keeps_its_pointer_when_saved(lm, prober, tmp_path, caplog):
    prober.save_pretrained(tmp_path / "prober")
    loaded = probers.Prober.from_pretrained(tmp_path / "prober")
    with fails("unsupported", "site=resid_diff and site=passages"):  # before vLLM loads its model
        ServedProber(str(tmp_path / "prober")).load()
    subject, other = (each.text for each in load_corpus("testbed")[:2])
    answer = f" {subject.split('.')[0]}."
    shown = ([subject, other], [other, subject])
    rows = [{"prompt": "Who is it?", "passages": passages, "answer": answer} for passages in shown]
    # With so few training texts the heads that it chose are chance; those of layer 6 point.
    scored = replace(loaded, pointer=Pointer((15, 16, 17))).score(lm, rows)
    assert [one.response.grounds[0].passage for one in scored] == [1, 2]
    for one in scored:
        (ground,) = one.response.grounds
        assert ground.source in ("passage", "memory", "neither")
        assert subject[slice(*ground.evidence)] == f"{subject.split('.')[0]}."
    (bare,) = loaded.score(lm, [{"question": "Who is it?", "context": other, "answer": " Nobody."}])
    assert (bare.p_wrong, bare.response.grounds, bool(bare.warning)) == (None, (), True)
    assert loaded.pointer == prober.pointer and "{passages: context, prompt: question}" in caplog.text


def test_passages_beyond_the_context_are_left_out_from_the_end_by_name(lm, prober, caplog, monkeypatch):
    monkeypatch.setattr(lm, "context", 300)
    text = load_corpus("testbed")[0].text
    row = {"prompt": "Who is it?", "passages": [text] * 40, "answer": " Nobody."}
    (one,) = prober.score(lm, [row])
    assert one.response.grounds is not None and "left out, beyond the model's context" in caplog.text
    left_out = one.response.left_out
    assert left_out == tuple(range(left_out[0], 41)) and one.prompt.count(text) == left_out[0] - 1 > 0
    assert one.response.wire()["left_out"] == left_out


def test_what_has_no_word_is_not_judged_and_equal_passages_count_as_the_first(lm, prober):
    subject, other = (each.text for each in load_corpus("testbed")[:2])
    rows = [
        {"prompt": "Who is it?", "passages": [other, subject], "answer": " ..?!"},
        {"prompt": "Who is it?", "passages": [other, subject, subject], "answer": f" {subject}"},
        {"prompt": "Wer ist es?", "passages": ["Emma erschien 1815."], "answer": " Emma erschien 1815."},
        {"prompt": "谁？", "passages": ["《爱玛》于1815年出版。"], "answer": "《爱玛》于1815年出版。"},
    ]
    pointing = replace(prober, pointer=Pointer((15, 16, 17)))  # as above
    nothing, twice, *others = pointing.score(lm, rows)
    assert (nothing.p_wrong, nothing.fires, nothing.response.grounds) == (None, False, ())
    assert "no word" in nothing.warning
    assert [ground.passage for ground in twice.response.grounds] == [2]
    assert all(one.p_wrong is not None and one.response.grounds[0].passage == 1 for one in others)


def test_places_in_a_prompt_stand_for_passages(lm, prober):
    prompt = "Emma came out in 1815. It is long.\nWhen?"
    row = {"prompt": prompt, "passages_at": [[0, 22], [23, 34]], "answer": " In 1815."}
    (one,) = prober.score(lm, [row])
    assert one.response.grounds[0].passage in (1, 2)
    with fails("bad-line", "passages_at"):
        prober.score(lm, [{**row, "passages_at": [[0, 999]]}])
    with fails("unsupported"):  # such a prober does not score while a text is written
        prober.generate(lm, "Emma came out in", max_new_tokens=2)


def test_the_loop_asks_again_without_the_passage_that_an_unsupported_answer_leaned_on(lm, prober):
    def asked(question, threshold, **options):
        trigger = Ungrounded(prober, threshold=threshold, **options)
        return probers.RAG(lm, "testbed", trigger=trigger, max_retrievals=2)(question)

    for question in load_questions("testbed")[:2]:
        answer = asked(question, -1e6)
        first, *later = [each for each in answer.rounds if each.decision is not None]
        assert answer.retrievals == 2 and first.decision.left_out
        assert later and not set(first.decision.left_out) & set(later[-1].passage_ids)
        answer_ = asked(question, -1e6, then="query")
        assert not any(each.decision.left_out for each in answer_.rounds if each.decision)
        assert answer_.retrievals == 2 and answer_.answer and not answer_.abstained
        assert asked(question, 1e6).retrievals == 1  # with the question, before anything is written
    with fails("mismatch"):
        Ungrounded(probers.Prober.from_pretrained("smollm2"))
    with fails("unknown-choice"):
        Ungrounded(prober, then="guess")


def test_an_unsupported_answer_can_be_withdrawn_and_counts_as_unanswered(lm, prober):
    questions = load_questions("testbed")[:12]

    def ask(then, threshold):
        trigger = Ungrounded(prober, threshold=threshold, then=then)
        return probers.RAG(lm, "testbed", trigger=trigger, max_retrievals=2).answer(questions)

    withdrawn = ask("abstain", 1e6)
    scores = [each.rounds[-1 if each.rounds[-1].decision else -2].decision.score for each in withdrawn]
    some = ask("abstain", float(np.median(scores)))
    assert [each.abstained for each in some] == [score > np.median(scores) for score in scores]
    for before, after in zip(withdrawn, some, strict=True):
        assert after.retrievals == before.retrievals == 1  # an answer that is withdrawn is not asked again
        assert after.counters.tokens <= before.counters.tokens
        assert (after.answer, after.text) == (("", "") if after.abstained else (before.answer, before.text))
        assert after.counters.kept_tokens == (0 if after.abstained else before.counters.kept_tokens)
        assert Answer.from_trace(json.loads(json.dumps(after.trace))).abstained == after.abstained
    figures = Evaluation(questions, None).figures(Outcomes(questions, some))
    right = np.array([exact_match(a.answer, q.answers) for a, q in zip(some, questions, strict=True)])
    answered = np.array([not each.abstained for each in some])
    assert figures["answered"] == answered.mean() == 0.5
    assert figures["right_of_answered"] == right[answered].mean()
    assert figures["em"] == right.mean() <= figures["right_of_answered"]
    assert "answered" not in Evaluation(questions, None).figures(Outcomes(questions, withdrawn))


def post(server, path, key="key", **body):
    """Status and body of the server's answer."""
    headers = {"Authorization": f"Bearer {key}"}
    reply = httpx.post(f"{server.url}{path}", json=body, headers=headers, timeout=60)
    return reply.status_code, reply.json()


def test_a_server_scores_finished_answers_also_in_the_form_of_lettucedetect(lm, prober):
    subject, other = (each.text for each in load_corpus("testbed")[:2])
    answer = f"{subject.split('.')[0]}."
    example = {"contexts": [subject, other], "question": "Who is it?", "answer": answer}
    row = {"prompt": "Who is it?", "passages": [subject, other], "answer": answer}
    (one,) = prober.score(lm, [row])
    with running(lm, bank_for(lm), scorer=prober) as server:
        status, scored = post(server, "/v1/score", model="testbed", **row)
        response, score = scored["hallucination"], pytest.approx(one.score, abs=1e-4)
        assert (status, scored["text"], response["score"]) == (200, answer, score)
        assert response["grounds"][0]["passage"] == one.response.grounds[0].passage
        assert len(post(server, "/v1/lettucedetect/spans", **example)[1]["predictions"]) == int(one.fires)
        status, tokens = post(server, "/v1/lettucedetect/token", **example)
        assert "".join(each["token"] for each in tokens["predictions"]) == answer
        assert all(0 <= each["hallucination_score"] <= 1 for each in tokens["predictions"])
        alone = post(server, "/v1/score", model="testbed", **row | {"passages": []})[1]["hallucination"]
        assert alone["score"] is not None and "grounds" not in alone  # by the server's own prober
        # Without passages nothing is judged, which must not look like a faithful answer.
        for path in ("/v1/lettucedetect/spans", "/v1/lettucedetect/token"):
            assert post(server, path, **example | {"contexts": []})[0] == 400
        assert post(server, "/v1/score", model="other", **row)[0] == 404
        assert post(server, "/v1/score", model="testbed", **row | {"messages": []})[0] == 400
    with running(lm, None) as server:
        assert post(server, "/v1/score", model="testbed", **row)[0] == 400  # no prober


SCHEMA = {"type": "json_schema", "json_schema": {"schema": {"properties": {"explanation": {}}}}}


def test_a_server_answers_the_form_of_semantic_router(lm, prober):
    subject, other = (each.text for each in load_corpus("testbed")[:2])
    answer = f"Café Zoë. {subject.split('.')[0]}."
    row = {"prompt": "Who\n\nis it?", "passages": [f"{subject}\n\nNote.", other], "answer": answer}
    (one,) = prober.score(lm, [row])
    quoted = "User request: Who\n\nis it?\n\nExcerpt 1:\n{}\n\nExcerpt 2:\n{}\n\nAnswer to verify:\n{}"
    quoted = quoted.format(*row["passages"], answer)
    for threshold, fires in ((-1e6, True), (1e6, False)):
        with running(lm, None, scorer=replace(prober, threshold=threshold), api_key="key") as server:

            def chat(text, **more):
                messages = [{"role": "system", "content": "Find them."}, {"role": "user", "content": text}]
                body = {"model": "testbed", "messages": messages, "temperature": 0.0, **more}
                return post(server, "/v1/semantic-router/chat/completions", **body)

            status, made = chat(quoted, response_format=SCHEMA)
            spans = json.loads(made["choices"][0]["message"]["content"])["hallucinated_spans"]
            assert status == 200 and made["choices"][0]["message"]["role"] == "assistant"
            assert [each["text"] for each in spans] == [part.text for part in one.spans] * fires
            assert all(set(each) == {"text", "category", "subcategory", "explanation"} for each in spans)
            # No passage, no quoted answer, or a stream is an error, which the router takes for no verdict.
            assert chat("Who is it?")[0] == 400 and chat(quoted, stream=True)[0] == 400


def test_a_pointer_adds_up_the_attention_of_its_heads():
    weights = np.zeros((2, 5, 3), dtype=np.float32)
    weights[:, 1] = [[0.2, 0.0, 0.0], [0.0, 0.2, 0.0]]
    weights[:, 3] = [[0.0, 0.0, 0.4], [0.0, 0.0, 0.2]]
    np.testing.assert_allclose(Pointer((1, 3)).shares(weights), [0.2, 0.2, 0.6], atol=1e-6)
    text = "Emma came out in 1815. It is long."
    assert text[slice(*evidence("In 1815.", text))] == "Emma came out in 1815."


def test_substitutions_are_supported_by_the_passages_that_are_shown_or_not():
    """A copy stands there, a new value nowhere, another one elsewhere; the same seed makes the same texts."""
    emma = "Emma was published in 1815 in London. It is a novel by Jane Austen, who lived in Chawton."
    trial = "The Trial was published in 1925 in Berlin. It is a novel by Franz Kafka. Max Brod edited it."
    passages = (Passage("a", "Emma", emma, is_gold=True), Passage("b", "The Trial", trial))
    questions = [Question("q", "When was Emma published?", ("1815",), passages=passages)]
    texts, again = (list(islice(substitutions.texts(questions), 300)) for _ in range(2))
    assert texts == again != list(islice(substitutions.texts(questions, seed=1), 300))
    seen = set()
    for text in texts:
        shown = " ".join(text["passages"])
        for sentence in text["sentences"]:
            seen.add(sentence["type"])
            words = sentence["text"].rstrip(".").split()
            new = [word for word in words if word.strip(",") not in shown and word not in ("In", "not")]
            kind = sentence["type"]
            assert (sentence["text"] in shown) == (kind == "copy") or kind == "paraphrase"
            assert bool(new) == (kind == "changed") or kind not in ("other", "changed")
    assert seen == set(substitutions.KINDS)
    cases = TextSource(str(Path(__file__).parent / "data" / "grounding_cases.jsonl")).all()  # written by hand
    assert {mark.type for one in cases for mark in one.sentences} == {*seen, "memory"}


def sentences_of(number):
    """A labelled text: a sentence of its passage, and one about somebody else."""
    subject, other = (load_corpus("testbed")[place].text for place in (number, number + 40))
    held, invented = (text.split(".")[0] + "." for text in (subject, other))
    answer = f"{held} {invented}"
    marks = [
        {"start": 0, "end": len(held), "wrong": False},
        {"start": len(held) + 1, "end": len(answer), "wrong": True},
    ]
    return {
        "id": f"t{number}", "group": f"g{number}", "prompt": f"Who is number {number}?",
        "passages": [subject], "answer": answer, "sentences": marks,
    }  # fmt: skip


def test_a_judge_of_grounding_gives_the_verdicts_that_it_can_promise(lm, prober, tmp_path):
    sentence_prober = probers.fit(
        lm, [sentences_of(number) for number in range(36)], unit="sentence", site=SITES, layers=LAYERS,
        beside=["passages"], head="concat", epochs=30, resamples=100, learning_curve=False,
        split=[0.6, 0.2, 0.2],
    )  # fmt: skip
    folder = tmp_path / "prober"
    sentence_prober.save_pretrained(folder)
    file = write_lines(tmp_path / "validation.jsonl", map(sentences_of, range(40, 70)))

    def judge(**options):
        grounds = Grounds(EntityMatcher(), find_entities, lambda: None, tmp_path, lm)  # type: ignore[return-value]
        given = {"prober": str(folder), "validation": file} | options
        return Component.of("judge", "grounding", **given).make(grounds)

    def answer(number, reference):
        text = sentences_of(number)
        units = tuple(Mark(((each["start"], each["end"]),), None, "sentence") for each in text["sentences"])
        word = Mark(((0, 4),), None, "name")
        return Judged(text["id"], text["prompt"], text["answer"], (word, *units), "it", reference)

    answers = [answer(number, tuple(sentences_of(number)["passages"])) for number in range(80, 92)]
    easy = judge(precision=0.6)
    rulings = easy.judge([*answers, answer(93, ())])
    assert {ruling.verdict for ruling in rulings.pop()} == {"unknown"}  # it has no article
    given = [
        (one.verdict, truth) for each in rulings for one, truth in zip(each[1:], (True, False), strict=True)
    ]
    known = [(verdict == "supported") == truth for verdict, truth in given if verdict != "unknown"]
    assert len(known) >= 4 and np.mean(known) >= 0.6
    assert all(word.verdict == first.verdict for word, first, _ in rulings)  # of its sentence
    # Nothing is decided where nothing can be promised.
    strict = judge(precision=0.999, confidence=0.999)
    assert {ruling.verdict for each in strict.judge(answers) for ruling in each} == {"unknown"}
    prober.save_pretrained(tmp_path / "answers")
    for options, code in (
        ({"validation": None}, "missing-value"), ({"precision": 1.0}, "bad-value"),
        ({"prober": str(tmp_path / "answers")}, "mismatch"),
    ):  # fmt: skip
        with fails(code):
            judge(**options)


def test_the_parts_of_an_article_that_share_words_with_an_answer_are_shown():
    sentences = [f"Sentence {number} has some {word} in it." for number, word in enumerate("abcdefgh")]
    parts = list(whole_sentences([*sentences, "The mill burned down."], words=14))
    assert " ".join(parts) == " ".join([*sentences, "The mill burned down."])
    assert all(len(part.split()) <= 14 for part in parts) and len(parts) > 3
    assert nearest(parts, "The mill burned.", 2) == [parts[0], parts[-1]]
    assert nearest(parts, "", 99) == parts and nearest([], "x", 3) == []
