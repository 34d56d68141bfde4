"""The response field: one model for servers, finished texts, docs and readers; scoring without a folder."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.refusals import fails
from helpers.serving import bank_for

from probers import CausalLM
from probers.checksums import Journal
from probers.data.texts import TextSource
from probers.prober.response import Response, TokenScores
from probers.prober.scoring import score_texts

DOCS = Path(__file__).parents[1] / "docs" / "serving.md"
PROMPT, ANSWER = "Who does Lena Zaser work for?\nAnswer:", " She works for the Bank of England."


@pytest.fixture(scope="module")
def lm():
    return CausalLM.from_pretrained("testbed")


@pytest.fixture
def texts(tmp_path):
    lines = [{"id": "a", "prompt": PROMPT, "answer": ANSWER}, {"prompt": "so " * 3000, "answer": " long"}]
    (tmp_path / "texts.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return list(TextSource(str(tmp_path / "texts.jsonl")).all())


def test_the_table_of_the_docs_is_that_of_the_model():
    rows = [f"| `{name}` | {field.description} |" for name, field in Response.model_fields.items()]
    table = re.search(r"\| field \| content \|\n\| --- \| --- \|\n(.*?)\n\n", DOCS.read_text(), re.DOTALL)
    assert table and table[1].split("\n") == rows


def test_a_chunk_has_the_lists_alone_and_what_is_read_is_what_was_sent():
    lists = {"token_scores": (0.5, None), "token_p_wrong": (0.6, None), "token_offsets": ((0, 1), (1, 2))}
    assert TokenScores(**lists).wire() == lists
    whole = Response(**lists, threshold=0.5, score=None, acted=None)
    assert whole.wire() == lists | {"threshold": 0.5, "score": None, "acted": None}
    assert Response.model_validate(json.loads(json.dumps(whole.wire()))) == whole


def test_the_last_chunk_has_the_tokens_after_those_sent_and_the_scores_that_changed():
    lists = {"token_scores": (0.5, None, 1.0), "token_p_wrong": (0.6, None, 0.7)}
    whole = Response(**lists, token_offsets=((0, 1), (1, 2), (2, 4)), threshold=0.5, token_entropies=None)
    assert whole.since([]) is whole
    same = whole.since([0.5, None]).wire()
    assert same["token_scores"] == (1.0,) and same["token_offsets"] == ((2, 4),) and "revised" not in same
    assert same["token_entropies"] is None and "token_logprobs" not in same
    revised = whole.since([0.5, 0.1, 2.0]).wire()
    assert revised["token_scores"] == revised["token_p_wrong"] == ()
    changed = [{"token": 1, "score": None, "p_wrong": None}, {"token": 2, "score": 1.0, "p_wrong": 0.7}]
    assert list(revised["revised"]) == changed


def test_texts_are_scored_without_a_folder(lm, texts, tmp_path):
    bank = bank_for(lm)
    made, long = score_texts(lm, bank, texts)
    assert long is None and made.threshold == bank.threshold
    assert lm.on_too_long == "error"  # as before
    low, _ = score_texts(lm, bank, texts, threshold=-1e9, unit="sentence")
    assert low.fires and [ANSWER[s.start : s.end] for s in low.spans] == [ANSWER.strip()]
    assert low.token_scores == made.token_scores
    journal = Journal(tmp_path / "journal")
    assert score_texts(lm, bank, texts, journal=journal) == [made, None]
    monkey = replace(texts[0], answer=" read again, this would differ")
    assert score_texts(lm, bank, [monkey, texts[1]], journal=journal) == [made, None]
    with fails("unsupported", "unit=claim"):
        score_texts(lm, bank, texts, unit="claim")
