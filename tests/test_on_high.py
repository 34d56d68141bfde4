"""Acting on the score: what is stopped, replaced or drawn again is what the whole text's assessment says."""

import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import httpx
import numpy as np
import openai
import pytest
from helpers.refusals import fails
from helpers.serving import PROMPT, Running, bank_for, running

from probers import CausalLM, Prober
from probers.model.language_model import Sampling
from probers.model.tokens import token_offsets
from probers.prober.assessment import Assessor, GrowingSpans, WrittenText, units_of
from probers.prober.token_scores import text_needs, text_scores

ASKED = [
    PROMPT, "Question: Where was Lena Zaser born?\nAnswer:", "Lena Zaser was born in",
    "Question: When was Jomholm founded?\nAnswer:",
]  # fmt: skip


@pytest.fixture(scope="module")
def bank(lm: CausalLM) -> Prober:
    return bank_for(lm)


@pytest.fixture(scope="module")
def server(lm: CausalLM, bank: Prober) -> Iterator[Running]:
    with running(lm, bank, corpus=True) as server:
        yield server


def complete(server: Running, prompt: Any = PROMPT, *, stream: bool = False, **own: Any) -> Any:
    """The answer of a request with ``hallucination`` made of the other arguments; of a stream its pieces."""
    options = {name: own.pop(name) for name in ("n", "seed", "temperature", "logprobs") if name in own}
    body = {"model": "testbed", "prompt": prompt, "max_tokens": 32, "temperature": 0, **options}
    if stream:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    made = server.client.completions.create(**body, extra_body={"hallucination": own})
    return list(made) if stream else made


def assessed(server: Running, text: str, prompt: str, assess: Assessor) -> dict[str, Any]:
    """The field of a text that exists, as probers-score makes it."""
    assert server.idle()  # nothing else may run the model
    lm, bank = server.served.scheduler.lm, server.served.scheduler.bank
    (read,) = lm.score([prompt], [text], needs=text_needs(bank))
    return assess(WrittenText.of(read, *text_scores(bank, read.state))).wire()


@pytest.mark.parametrize("unit", ["span", "sentence", "token"])
def test_a_text_ends_before_its_first_unit_above_the_threshold(server, bank, unit):
    stopped = 0
    for prompt in ASKED[:3]:
        free = complete(server, prompt).choices[0].text
        spans = assessed(server, free, prompt, Assessor(bank, None, unit))["spans"]
        scores = [span["score"] for span in spans]
        for threshold in [np.quantile(scores, 0.6), max(scores) + 1]:
            response = assessed(server, free, prompt, Assessor(bank, float(threshold), unit))
            above = [span for span in response["spans"] if span["score"] > threshold]
            body: dict[str, Any] = {"on_high": "stop", "threshold": float(threshold), "unit": unit}
            made = complete(server, prompt, **body)
            (choice,), used = made.choices, made.usage.completion_tokens
            *pieces, last, usage = complete(server, prompt, stream=True, **body)
            assert "".join(c.choices[0].text for c in (*pieces, last)) == choice.text
            assert usage.usage.completion_tokens == used == len(choice.hallucination["token_scores"])
            assert last.choices[0].finish_reason == choice.finish_reason
            acted = choice.hallucination["acted"]
            assert (acted is not None) == bool(above) == response["fires"]
            if not above:
                assert choice.text == free and choice.finish_reason != "content_filter"
                continue
            stopped += 1
            assert choice.finish_reason == "content_filter" and choice.text == free[: above[0]["start"]]
            assert acted["span"]["start"] == above[0]["start"] and acted["discarded_tokens"] > 0
            assert not choice.hallucination["fires"]
    assert stopped > 2


def test_texts_beside_one_that_stops_keep_their_tokens(server: Running) -> None:
    free = [choice.text for choice in complete(server, ASKED).choices]
    scores = sorted(choice.hallucination["score"] for choice in complete(server, ASKED).choices)
    made = complete(server, ASKED, on_high="stop", threshold=sum(scores[1:3]) / 2).choices
    ended = [choice.finish_reason == "content_filter" for choice in made]
    assert any(ended) and not all(ended)
    for choice, text, over in zip(made, free, ended, strict=True):
        assert text.startswith(choice.text) and (choice.text == text) != over


@pytest.mark.parametrize("stream", [False, True])
def test_a_sentence_takes_the_place_of_exactly_the_texts_that_fire(server: Running, stream: bool) -> None:
    scores = [choice.hallucination["score"] for choice in complete(server, ASKED).choices]
    threshold, body = float(np.median(scores)), {"abstention": "No idea."}
    made = complete(server, ASKED, stream=stream, on_high="abstain", threshold=threshold, **body)
    choices = [c.choices[0] for c in made if c.choices] if stream else made.choices
    assert [c.index for c in choices] == [0, 1, 2, 3]
    for choice, score in zip(choices, scores, strict=True):
        above = score > threshold
        assert (choice.text == "No idea.") == (choice.finish_reason == "content_filter") == above
        assert (choice.hallucination["acted"] is not None) == above
    low = [c for c, score in zip(complete(server, ASKED).choices, scores, strict=True) if score <= threshold]
    used = made[-1].usage if stream else made.usage
    assert used.completion_tokens == sum(len(c.hallucination["token_scores"]) for c in low)


def test_the_lowest_of_the_draws_is_returned(server: Running, lm: CausalLM) -> None:
    def draws(threshold: float, **draw: Any) -> Any:
        return complete(server, on_high="retry", threshold=threshold, temperature=1.2, seed=5, n=2, **draw)

    free = [complete(server, temperature=1.2, seed=5 + k, n=2).choices for k in range(3)]
    drawn = lm.generate([PROMPT] * 2, max_new_tokens=32, sampling=Sampling(1.2, seed=6))
    assert [choice.text for choice in free[1]] == [draw.text for draw in drawn]
    for choice, *draw in zip(draws(-1e9).choices, *free, strict=True):
        scores = [each.hallucination["score"] for each in draw]
        assert choice.text == draw[int(np.argmin(scores))].text and choice.hallucination["fires"]
        assert choice.hallucination["acted"]["scores"] == pytest.approx(scores, abs=1e-5)
    assert [c.text for c in draws(1e9).choices] == [c.text for c in free[0]]
    assert all(c.hallucination["acted"] is None for c in draws(1e9).choices)
    first = [choice.hallucination["score"] for choice in free[0]]
    middle = (first[0] + first[1]) / 2
    one = draws(middle, draws=2).choices  # the choice that is low enough is not drawn again
    for choice, score in zip(one, first, strict=True):
        assert (choice.hallucination["acted"] is None) == (score < middle)


def test_headers_say_what_the_answer_does(server: Running) -> None:
    def headers(**own: Any) -> httpx.Headers:
        body = {"model": "testbed", "prompt": PROMPT, "temperature": 0, "max_tokens": 32}
        return httpx.post(f"{server.url}/v1/completions", json={**body, "hallucination": own}).headers

    plain, stopped = headers(threshold=1e6), headers(on_high="stop", threshold=-1e6)
    response = complete(server).choices[0].hallucination
    assert float(plain["x-hallucination-score"]) == pytest.approx(response["score"], rel=1e-4)
    assert (plain["x-hallucination-fires"], plain["x-hallucination-action"]) == ("false", "none")
    assert stopped["x-hallucination-action"] == "stop"


def test_what_cannot_be_done_is_named(server: Running, lm: CausalLM) -> None:
    def refused(at: Running, param: str, **own: Any) -> None:
        with pytest.raises(openai.BadRequestError) as error:
            complete(at, **own)
        assert error.value.param == f"hallucination.{param}"

    refused(server, "on_high", on_high="explode")
    refused(server, "on_high", on_high="retry")  # at temperature 0
    refused(server, "on_high", on_high="stop", unit="answer")
    refused(server, "draws", on_high="retry", draws=1)
    refused(server, "abstention", on_high="abstain", abstention="")
    with running(lm, None) as bare:
        refused(bare, "on_high", on_high="stop")
    with running(lm, bank_for(lm, "mean")) as pooled:
        refused(pooled, "on_high", on_high="stop")
        refused(pooled, "unit", unit="token")
        score = complete(pooled).choices[0].hallucination["score"]
        for threshold, above in ((score - 1, True), (score + 1, False)):
            made = complete(pooled, on_high="abstain", threshold=threshold).choices[0]
            assert (made.finish_reason == "content_filter") == above
    with pytest.raises(openai.BadRequestError):
        server.client.completions.create(
            model="testbed", prompt="Who does Lena Zaser work for?",
            extra_body={"hallucination": {"on_high": "stop"}, "retrieval": {"trigger": "flare"}},
        )  # fmt: skip


def test_probers_of_whole_answers_and_of_entities_judge_nothing_else(lm: CausalLM) -> None:
    pooled, tokens = bank_for(lm, "mean"), bank_for(lm)
    entities = replace(tokens, spec=replace(tokens.spec, position="entity"))
    assert units_of(pooled) == ("answer",)
    assert units_of(entities) == units_of(bank_for(lm, "predicting")) == ("span",)
    for other, unit in ((entities, "token"), (pooled, "span")):
        with fails("unsupported", unit):
            Assessor(other, None, unit)


def test_a_client_that_leaves_ends_its_draws(server: Running) -> None:
    body = {
        "model": "testbed", "prompt": PROMPT, "temperature": 1.5, "max_tokens": 400, "n": 4,
        "hallucination": {"on_high": "retry", "threshold": -1e9, "draws": 8},
    }  # fmt: skip
    with pytest.raises(httpx.ReadTimeout):
        httpx.post(f"{server.url}/v1/completions", json=body, timeout=0.3)
    assert server.idle()


def test_a_stopping_criterion_stops_where_the_server_does(server: Running, bank: Prober) -> None:
    lm = CausalLM.from_pretrained("testbed", dtype="float32")  # the server has its own
    prompt = ASKED[1]
    scores = [span["score"] for span in complete(server, prompt).choices[0].hallucination["spans"]]
    for threshold in (float(np.median(scores)), max(scores) + 1):
        with_stop = complete(server, prompt, on_high="stop", threshold=threshold).choices[0]
        stop = bank.stopping_criteria(lm.model, lm.tokenizer, threshold, unit="span")
        given = lm.tokenizer([prompt], return_tensors="pt")
        how = {"max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}
        made = lm.model.generate(**given, **how, stopping_criteria=[stop])
        stop.close()
        prompt_ids = given["input_ids"][0].tolist()
        text, _ = token_offsets(lm.tokenizer, made[0, len(prompt_ids) :].tolist(), prompt_ids)
        (span,) = stop.spans
        assert (span is not None) == bool(stop.fired[0]) == (threshold < max(scores))
        assert with_stop.text == (text[: span.start] if span else with_stop.text)
    with fails("unsupported", "unit=answer"):
        bank.stopping_criteria(lm.model, lm.tokenizer, unit="answer")
    with fails("missing-value", "tokenizer"):
        bank.stopping_criteria(lm.model, None, unit="span")


ENGLISH = (
    "Ada Lovelace was born in London on 10 December 1815. She met Charles Babbage in June 1833, and wrote "
    '"Notes on the Analytical Engine" in 1843. Her mother, Anne Isabella Milbanke, left Lord Byron a month '
    'later. "Enchantress of Numbers" is what Babbage called her. Her notes were printed again in New York '
    "City, by J. H. Vincent, who was then 54. The Bank of England Museum shows some."
)


@pytest.mark.parametrize("unit", ["span", "sentence"])
def test_a_growing_text_is_judged_as_the_whole_one(bank: Prober, unit: str) -> None:
    """Nothing of a span that ends the text was let out before it was judged."""
    offsets = [match.span() for match in re.finditer(r"\s?\S{1,4}", ENGLISH)]
    draw, fired, held = random.Random(3), 0, 0
    judge = Assessor(bank, 0.9, unit)
    for _ in range(20):
        scores = [draw.random() * (1 if draw.random() < 0.04 else 0.85) for _ in offsets]
        whole = judge.spans("", ENGLISH, offsets, scores)
        first = min((s for s in whole if s.score > 0.9), key=lambda s: s.start, default=None)
        growing = GrowingSpans(judge, "user:")
        for count in range(1, len(offsets) + 1):
            end = offsets[count - 1][1]
            growing.read(ENGLISH[:end], offsets[:count], scores[:count])
            assert growing.sure <= (end if first is None else first.start)
            held += end - growing.sure
            if growing.high is not None:
                break
        growing.read(ENGLISH, offsets, scores, over=True)
        # Where a title in quotes ends is not known when its beginning is judged.
        high = growing.high
        assert (high and (high.start, high.score)) == (first and (first.start, first.score))
        fired += first is not None
    assert 3 < fired <= 20 and held > 0


def test_a_unit_that_never_ends_is_never_let_out(bank: Prober) -> None:
    growing = GrowingSpans(Assessor(bank, 0.9, "sentence"), "")
    text = "and so on " * 40
    offsets = [match.span() for match in re.finditer(r"\S+\s", text)]
    growing.read(text, offsets, [0.0] * len(offsets))
    assert growing.sure == 0 and growing.high is None
    growing.read(text, offsets, [0.0] * len(offsets), over=True)
    assert growing.sure == len(text)
