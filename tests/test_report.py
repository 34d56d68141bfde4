"""The report page: complete, inert, honest in words, and sensible where parts are absent."""

import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.html_pages import Page, digest
from hypothesis import given
from hypothesis import strategies as st

from probers.pages import esc
from probers.rag.report import write_report

PAYLOAD = "</span><script>alert('x')</script><img src=x onerror=\"alert(1)\">&\"'\x00\ud800"
METHODS = {  # name -> EM, retrievals, none, single, AUROC
    "never": (0.462, 0.0, 1.0, 0.0, None),
    "always": (0.702, 1.0, 0.0, 1.0, None),
    "random": (0.574, 0.49, 0.51, 0.49, 0.497),
    "oracle": (0.764, 0.54, 0.46, 0.54, 1.0),
    "entropy": (0.698, 0.63, 0.41, 0.55, 0.789),
    "rind_paper": (0.651, 0.83, 0.38, 0.44, 0.661),
    "probing": (0.706, 0.71, 0.37, 0.55, 0.768),
    "probing_with_entropy": (0.724, 0.66, 0.39, 0.57, 0.834),
}


def sample_results() -> dict[str, Any]:
    methods = {}
    for name, (em, retrievals, none, single, auroc) in METHODS.items():
        trigger = auroc and {"auroc": auroc, "auprc": auroc, "base_rate": 0.5, "ece": 0.1, "prr": 0.5}
        methods[name] = {
            "em": em, "f1": em, "precision": em, "recall": em, "acc": em + 0.012, "sentences": 1.8,
            "retrievals": retrievals, "generations": retrievals + 1, "tokens": 21.4, "read_tokens": 60,
            "retrieval_share": {"none": none, "single": single, "multi": 1 - none - single},
            "seconds": 0.1, "consistency": None if name == "never" else 0.9, "trigger": trigger,
            "ci95": {"em": [em - 0.031, em + 0.031]}
            | ({"trigger.auroc": [auroc - 0.03, min(1.0, auroc + 0.03)]} if auroc else {}),
        }  # fmt: skip
    pairs = {}
    for a, b in combinations(METHODS, 2):
        diff = METHODS[a][0] - METHODS[b][0]
        pairs[f"{a} vs {b}"] = {"em": {"diff": diff, "ci95": [diff - 0.027, diff + 0.027]}}
    pairs["entropy vs probing"]["trigger.auroc"] = {"diff": 0.021, "ci95": [0.004, 0.041]}
    return {"schema": 1, "config": {}, "n": 800, "methods": methods, "pairs": pairs}


def sample_example() -> dict[str, Any]:
    """A question that every method answers by words with scores, and anew from a passage where it fired."""
    words = ["Velmora", "Rising", "was", "directed", "by", "Tarel", "Onvik", "of", "Quessandra."]
    silent = {"score": 1.0, "threshold": 0.9, "fired": False, "query": None, "passages": []}
    passage = {"title": "Velmora Rising", "text": "Velmora Rising is a film of 1987."}
    methods = []
    for name in METHODS:
        fired = name not in ("never", "entropy")
        tokens = [{"text": f" {w}", "score": i / 9, "fired": fired and i == 6} for i, w in enumerate(words)]
        rounds = [silent | {"tokens": tokens}]
        if fired:
            rounds[0] |= {"fired": True, "query": "director of Velmora Rising", "passages": [passage]}
            rounds.append(silent | {"tokens": [{"text": " Orlith.", "score": None, "fired": False}]})
        methods.append({"method": name, "answer": "Orlith" if fired else "Quessandra", "correct": fired,
                        "retrievals": int(fired), "rounds": rounds})  # fmt: skip
    question = {"question": "Where was the director of the film Velmora Rising born?", "knowledge": "stale"}
    return question | {"answers": ["Orlith", "the town of Orlith"], "methods": methods}


def sample_data() -> dict[str, Any]:
    triggers = {name: row for name, row in METHODS.items() if row[4] is not None}
    fpr, share = np.linspace(0, 1, 40), np.linspace(0, 1, 25)
    return {
        "title": "Retrieval triggers on the embedded testbed", "command": "probers-demo out=runs/demo",
        "model": "testbed", "corpus": "testbed, 41,203 passages", "n": 800, "date": "2025-01-31",
        "threshold_rule": "best exact match on the validation questions, one rule for all triggers",
        "flags": {"never": "never fired", "always": "always fired"},
        "knowledge_em": {name: {kind: {"em": row[0], "n": n} for kind, n in (("known", 380), ("stale", 420))}
                         for name, row in METHODS.items()},
        "roc": {name: {"fpr": fpr.tolist(), "tpr": (fpr ** (1 / row[4] - 1)).tolist(), "auroc": row[4]}
                for name, row in triggers.items()},
        "replay": {name: {"retrievals": share.tolist(), "em": (0.46 + 0.24 * share).tolist()}
                   for name in triggers if name != "oracle"},
        "points": {name: {"retrievals": row[1], "em": row[0], "em_ci": [row[0] - 0.031, row[0] + 0.031]}
                   for name, row in METHODS.items()},
        "notes": ["Entropy beats the prober in AUROC (0.789 against 0.768).", "The model is small."],
        "examples": [sample_example() for _ in range(10)],
    }  # fmt: skip


def render(results: dict[str, Any], data: dict[str, Any], folder: Path) -> tuple[str, Page]:
    path = folder / "report.html"
    write_report(results, data, path)
    text = path.read_text(encoding="utf-8")
    return text, Page(text)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Page]:
    return render(sample_results(), sample_data(), tmp_path_factory.mktemp("report"))


def test_page_is_complete_and_well_formed(sample: tuple[str, Page]) -> None:
    text, page = sample
    for heading in ("Methods", "Decisions and their cost", "By what the model was taught",
                    "What to try next", "Paired differences", "10 examples", "is small"):  # fmt: skip
        assert heading in page.text
    charts = [chart["aria-labelledby"].split("-")[0] for chart in page.of_class("chart")]
    assert charts == ["tradeoff", "roc"]
    assert len(page.of_class("example")) == 10 and text.count("<h1>") == 1
    # References by id resolve, and cells have heads.
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    named = [ref for _, attrs in page.tags for ref in (attrs.get("aria-labelledby") or "").split()]
    assert len(ids) == len(set(ids)) and named and set(named) <= set(ids)
    assert all(head.get("scope") in ("row", "col") for head in page.all("th"))


def test_nothing_can_load_or_run_and_the_bytes_are_the_same_again(
    sample: tuple[str, Page], tmp_path: Path
) -> None:
    text, page = sample
    assert render(sample_results(), sample_data(), tmp_path)[0] == text
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    style = text.split("<style>")[1].split("</style>")[0]
    assert page.policy.startswith(f"default-src 'none'; style-src '{digest(style)}'")
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "link", "iframe", "object", "a", "base", "form"}
    names = {name for _, attrs in page.tags for name in attrs}
    assert not {name for name in names if name.startswith("on") or name in ("style", "src", "href")}
    assert "url(" not in style and "@import" not in style and "http" not in style


def poisoned(value: Any) -> Any:
    """The same structure with the payload behind every string, keys of free choice included."""
    fixed = {"em", "auroc", "n", "fpr", "tpr", "retrievals", "em_ci"}
    if isinstance(value, str):
        return value + PAYLOAD
    if isinstance(value, list):
        return [poisoned(item) for item in value]
    if isinstance(value, dict):
        free = {"never", "known"} & set(value)
        return {key + PAYLOAD if free and key not in fixed else key: poisoned(v) for key, v in value.items()}
    return value


def test_generated_text_is_escaped_everywhere(tmp_path: Path) -> None:
    results = sample_results()
    data = poisoned(sample_data() | {"flags": {"never": "never fired", "rind_paper": "never fired"}})
    results["methods"] = {name + PAYLOAD: method for name, method in results["methods"].items()}
    results["pairs"] = {
        key.replace(" vs ", f"{PAYLOAD} vs ") + PAYLOAD: v for key, v in results["pairs"].items()
    }
    text, page = render(results, data, tmp_path)
    assert not {"script", "img"} & {tag for tag, _ in page.tags}
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    shown = PAYLOAD.replace("\x00", "\ufffd").replace("\ud800", "\ufffd")
    for before in ("Retrieval triggers on the embedded testbed", "probers-demo out=runs/demo", "never",
                   "Velmora Rising", "the town of Orlith", " Onvik", "stale"):  # fmt: skip
        assert before + shown in page.text, before
    assert "\x00" not in text


@given(st.text())
def test_escaped_text_reads_back_as_itself(text: str) -> None:
    page = Page(f'<p title="{esc(text)}">{esc(text)}</p>')
    odd = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
    clean = re.sub(odd, "\ufffd", text)
    assert (page.text, page.tags) == (clean, [("p", {"title": clean})])


def test_null_figures_are_dashes_and_triggers_that_always_or_never_fire_are_named(tmp_path: Path) -> None:
    results = sample_results()
    results["methods"] = {"entropy": dict.fromkeys(results["methods"]["entropy"])}
    results["pairs"] = {}
    text, page = render(results, {}, tmp_path)
    shown, others = (row.split("</tr>")[0] for row in text.split('<th scope="row">')[1:3])
    assert shown.count("<td") == shown.count("–") == 3 and others.count("<td") == others.count("–") > 8
    assert "None" not in page.text and "nan" not in page.text.lower().split()
    assert "no gold answers" in page.text
    _, page = render({"schema": 1, "methods": {}}, {}, tmp_path)  # nothing at all still makes a page
    assert "no method was run." in page.text
    flags = {"rind_paper": "never fired", "never": "never fired", "entropy": "always fired"}
    _, page = render(sample_results(), sample_data() | {"flags": flags}, tmp_path)
    assert "rind_paper never fired on these questions." in page.text
    assert "entropy always fired on these questions." in page.text
    assert "never never fired" not in page.text  # true by definition


def test_paired_differences_are_corrected_for_all_pairs_where_p_values_are_there(tmp_path: Path) -> None:
    results = sample_results()
    assert "Of all pairs" not in render(results, sample_data(), tmp_path)[1].text
    for entry in results["pairs"].values():
        entry["em"] |= {"p": 0.001, "p_holm": 0.3}
    page = render(results, sample_data(), tmp_path)[1].text
    assert "Of all pairs" in page and "p = 0.300" in page


@pytest.mark.parametrize("part", [*sample_data(), "methods", "pairs"])
def test_a_missing_part_leaves_the_rest(part: str, tmp_path: Path) -> None:
    results, data = sample_results(), sample_data()
    (results if part in ("methods", "pairs") else data).pop(part)
    page = render(results, data, tmp_path)[1]
    assert len(page.of_class("chart")) == 2 - (part == "roc")
    assert ("10 examples" in page.text) == (part != "examples")


def rows_of(text: str, key: str) -> dict[str, str]:
    """The rows of a table by their head."""
    table = text.split(f'aria-labelledby="{key}-caption"')[-1].split("</table>")[0]
    rows = (row.split('<th scope="row">')[1] for row in table.split("<tr>")[2:])
    return {re.sub("<svg.*?</svg>", "", row).split("<")[0].strip(): row for row in rows}


def verdict_of(results: dict[str, Any], data: dict[str, Any], folder: Path) -> str:
    (sentence,) = render(results, data, folder)[1].within("p", "verdict")
    return sentence


def test_the_verdict_is_one_sentence_about_the_best_trigger(tmp_path: Path) -> None:
    results, data = sample_results(), sample_data()
    best = "In short: probing_with_entropy, the best trigger, is right on 72% of 800 questions with 0.66"
    assert verdict_of(results, data, tmp_path).startswith(best)
    assert "for random" not in verdict_of(results, data, tmp_path)
    fixed = data | {"flags": {"probing_with_entropy": "always fired"}}
    assert "probing_with_entropy, the best" not in verdict_of(results, fixed, tmp_path)
    lucky = sample_results()
    lucky["methods"]["random"]["em"] = 0.75
    assert "against 75% for random" in verdict_of(lucky, data, tmp_path)
    figure = {"value": 0.6, "diff": 0.106, "ci95": [0.05, 0.16], "p_holm": 0.01}
    results["random_at_budget"] = {"probing_with_entropy": {"query": "answer", "em": figure}}
    assert "; it is above random retrieval" in verdict_of(results, data, tmp_path)
    for changed in ({"p_holm": 0.2}, {"ci95": [-0.01, 0.2]}):
        results["random_at_budget"]["probing_with_entropy"]["em"] = figure | changed
        assert "it is not shown to differ from random" in verdict_of(results, data, tmp_path)
    for method in results["methods"].values():
        method["em"] = 0.5
    assert "all methods are right on 50%" in verdict_of(results, data, tmp_path)
    # Few questions settle nothing, and that is said first.
    for n, noun in ((1, "1 question settles"), (29, "29 questions settle"), (30, "30 questions settle")):
        few = sample_results() | {"n": n, "bootstrap": {"unit": "question", "units": n}}
        said = verdict_of(few, data | {"n": n}, tmp_path)
        assert said.startswith(f"{noun} nothing: ") == (n < 30)


def test_random_at_the_same_budget_is_a_column_and_queries_are_named(tmp_path: Path) -> None:
    results = sample_results()
    plain, _ = render(results, sample_data(), tmp_path)
    assert "EM vs random" not in plain and "asks with" not in plain
    results["queries"] = {name: "question" for name in METHODS} | {"rind_paper": "qfs"}
    above, unsettled, common = (
        {"query": "answer", "em": {"value": 0.6, "diff": diff, "ci95": [diff - 0.05, diff + 0.05]}}
        for diff in (0.106, -0.01, 0.051)
    )
    results["random_at_budget"] = {
        "probing": above, "entropy": unsettled, "rind_paper": above | {"query": "qfs", "common": common},
    }  # fmt: skip
    text, _ = render(results, sample_data(), tmp_path)
    rows, others = rows_of(text, "methods"), rows_of(text, "more")
    assert "<td><b>+0.106</b><small>+0.056 to +0.156</small></td>" in rows["probing"]
    assert "<td>−0.010<small>" in rows["entropy"]  # not settled, so not bold
    assert "+0.051" in rows["rind_paper"] and "+0.106" not in rows["rind_paper"]
    assert "asks with: qfs" in others["rind_paper"] and "asks with" not in others["never"]


def test_tokens_that_fired_are_marked_and_those_without_a_score_have_no_colour(sample) -> None:
    article = sample[0].split("<article")[1]
    assert re.search(r'class="tok s\d fired" title="score 0.667; fired">Onvik</span>', article)
    assert '<span class="tok"> Orlith.</span>' in article
    assert article.count("▲ fired") == len(METHODS) - 2
    assert "✓ right" in article and "✗ wrong" in article
