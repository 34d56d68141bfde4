"""The report page: complete, inert, honest in words, and sensible where parts are absent."""

import math
import re
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from helpers.html_pages import Page, digest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.colors import to_rgb

from probers.pages import esc, num
from probers.rag.report import write_report

PAYLOAD = "</span><script>alert('x')</script><img src=x onerror=\"alert(1)\">&\"'\x00\ud800"
METHODS = {  # closed-book EM is .46: name -> EM, retrievals, none, single, AUROC
    "never": (0.462, 0.0, 1.0, 0.0, None),
    "always": (0.702, 1.0, 0.0, 1.0, None),
    "random": (0.574, 0.49, 0.51, 0.49, 0.497),
    "oracle": (0.764, 0.54, 0.46, 0.54, 1.0),
    "entropy": (0.698, 0.63, 0.41, 0.55, 0.789),
    "rind_paper": (0.651, 0.83, 0.38, 0.44, 0.661),
    "rind_released": (0.668, 1.21, 0.22, 0.41, 0.671),
    "probing": (0.706, 0.71, 0.37, 0.55, 0.768),
    "probing_with_entropy": (0.724, 0.66, 0.39, 0.57, 0.834),
}


def sample_results() -> dict[str, Any]:
    methods = {}
    for name, (em, retrievals, none, single, auroc) in METHODS.items():
        trigger = auroc and {
            "auroc": auroc, "auprc": auroc - 0.04, "base_rate": 0.538, "ece": 0.12 - 0.1 * abs(auroc - 0.5),
            "prr": 2 * auroc - 1,
        }  # fmt: skip
        methods[name] = {
            "em": em, "f1": em + 0.031, "precision": em + 0.03, "recall": em + 0.04, "acc": em + 0.012,
            "retrievals": retrievals, "generations": retrievals + 1, "tokens": 21.4 * (1 + retrievals),
            "read_tokens": 60 + 300 * retrievals,
            "retrieval_share": {"none": none, "single": single, "multi": 1 - none - single},
            "sentences": 1.8, "seconds": 0.11 + 0.09 * retrievals,
            "consistency": None if name == "never" else 0.9, "trigger": trigger,
            "ci95": {"em": [em - 0.031, em + 0.031]}
            | ({"trigger.auroc": [auroc - 0.03, min(1.0, auroc + 0.03)]} if auroc else {}),
        }  # fmt: skip
    pairs = {}
    for a, b in combinations(METHODS, 2):
        diff = METHODS[a][0] - METHODS[b][0]
        pairs[f"{a} vs {b}"] = {"em": {"diff": diff, "ci95": [diff - 0.027, diff + 0.027]}}
    pairs["entropy vs probing"]["trigger.auroc"] = {"diff": 0.021, "ci95": [0.004, 0.041]}
    return {"schema": 1, "config": {}, "n": 800, "methods": methods, "pairs": pairs}


def a_round(tokens, score: float | None, threshold: float | None, *, fired: bool, **query: Any) -> Any:
    """A round of an example; ``tokens`` are (text, score) or (text, score, fired)."""
    keys = ("text", "score", "fired")
    told = [dict(zip(keys, (*token, False)[:3], strict=True)) for token in tokens]
    asked = {"query": None, "passages": []} | query
    return {"tokens": told, "score": score, "threshold": threshold, "fired": fired, **asked}


def a_method(name: str, answer: str, rounds: Any, *, right: bool) -> dict[str, Any]:
    retrievals = sum(each["fired"] for each in rounds)
    return {"method": name, "answer": answer, "correct": right, "retrievals": retrievals, "rounds": rounds}


def sample_example(rng: np.random.Generator, index: int) -> dict[str, Any]:
    words = " The film Velmora Rising was directed by Tarel Onvik , who was born in Quessandra ."
    pieces = [f" {word}" for word in words.split()]
    told = {"Velmora Rising": "is a film of 1987, directed by Isa Tremond.", "Tarel Onvik": "is a composer."}
    passages = [{"title": title, "text": f"{title} {text}"} for title, text in told.items()]
    methods = []
    for name in METHODS:
        scores: list[Any] = [None] * len(pieces)
        score = threshold = None
        if "prob" in name or name in ("random", "oracle"):
            score, threshold = float(rng.normal(0, 2)), 0.0
        elif name not in ("never", "always"):
            scores = rng.gamma(1.0, 0.6, len(pieces)).tolist()
            score, threshold = max(scores), 1.2
        fired = name == "always" or (score is not None and score > threshold)
        tokens = [(t, s, fired and s is not None and s == score) for t, s in zip(pieces, scores, strict=True)]
        rounds = [a_round(tokens, score, threshold, fired=fired)]
        if fired:
            rounds[0] |= {"query": "director of Velmora Rising birthplace", "passages": passages}
            again = [(text, None) for text in (" So", " the", " answer", " is", " Orlith", ".")]
            rounds.append(a_round(again, -1.2, 0.0, fired=False))
        methods.append(a_method(name, "Orlith" if fired else "Quessandra", rounds, right=fired))
    return {
        "question": f"Where was the director of the film Velmora Rising {'II ' * (index % 3)}born?",
        "answers": ["Orlith", "the town of Orlith"],
        "knowledge": ("known", "stale", "misbelieved", "unknown")[index % 4],
        "methods": methods,
    }


def sample_data() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    triggers = {name: row for name, row in METHODS.items() if row[4] is not None}
    fpr = np.linspace(0, 1, 400)
    auroc = 0.77 - 0.17 * np.exp(-np.arange(13) / 3.0) + rng.normal(0, 0.006, 13)
    closed_book = {"known": 0.91, "stale": 0.06, "misbelieved": 0.04, "unknown": 0.03}
    controls = {"mean entropy": 0.789, "max entropy": 0.782, "minimum probability": 0.771,
                "perplexity": 0.764, "RIND maximum": 0.67, "question type": 0.655, "bag of words": 0.612,
                "embedding layer": 0.60, "shuffled labels": 0.497, "majority": None}  # fmt: skip
    replay = {}
    for name, (_, _, _, _, quality) in triggers.items():
        if name != "oracle":
            share = np.linspace(0, 1, 25)
            gain = 0.462 + 0.24 * share + (quality - 0.49) * 0.5 * np.sin(math.pi * share**0.8)
            replay[name] = {"retrievals": share.tolist(), "em": gain.tolist()}
    return {
        "title": "Retrieval triggers on the embedded testbed",
        "command": "probers-demo out=runs/demo",
        "model": "testbed", "corpus": "testbed, 41,203 passages", "n": 800,
        "threshold_rule": "best exact match on the validation questions, one rule for all triggers",
        "date": "2025-01-31", "flags": {"never": "never fired", "always": "always fired"},
        "knowledge_em": {
            name: {kind: {"em": value + (row[0] - 0.462) * (0.2 if kind == "known" else 2.4), "n": n}
                   for (kind, value), n in zip(closed_book.items(), (380, 140, 40, 240), strict=True)}
            for name, row in METHODS.items()},
        "layers": [{"layer": k, "accuracy": a - 0.05, "auroc": a, "auroc_ci": [a - 0.03, a + 0.03]}
                   for k, a in enumerate(auroc.tolist())],
        "controls": {name: {"auroc": v, "auroc_ci": v and [v - 0.03, v + 0.03]}
                     for name, v in controls.items()},
        "ensemble": {"auroc": 0.768, "auroc_ci": [0.737, 0.797]},
        "roc": {name: {"fpr": fpr.tolist(), "tpr": (fpr ** (1 / row[4] - 1)).tolist(), "auroc": row[4]}
                for name, row in triggers.items()},
        "replay": replay,
        "points": {name: {"retrievals": row[1], "em": row[0], "em_ci": [row[0] - 0.031, row[0] + 0.031]}
                   for name, row in METHODS.items()},
        "notes": ["Entropy beats the prober in AUROC (0.789 against 0.768).",
                  "The model is small and its world fictional: the figures say nothing about large models."],
        "examples": [sample_example(rng, index) for index in range(10)],
    }  # fmt: skip


def render(results: dict[str, Any], data: dict[str, Any], folder: Path) -> tuple[str, Page]:
    path = folder / "report.html"
    write_report(results, data, path)
    text = path.read_text(encoding="utf-8")
    return text, Page(text)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Page]:
    return render(sample_results(), sample_data(), tmp_path_factory.mktemp("report"))


def chart_of(text: str, key: str) -> str:
    """The SVG of a chart."""
    return text.split(f'aria-labelledby="{key}-title')[1].split("</svg>")[0]


def test_page_is_complete_and_well_formed(sample: tuple[str, Page]) -> None:
    text, page = sample
    for heading in ("Methods", "Decisions and their cost", "By what the model was taught",
                    "Layers and controls", "Paired differences", "10 examples"):  # fmt: skip
        assert heading in page.text
    charts = [chart["aria-labelledby"].split("-")[0] for chart in page.of_class("chart")]
    assert charts == ["tradeoff", "roc", "layers", "controls"]
    assert len(page.of_class("example")) == 10
    assert page.all("html")[0]["lang"] == "en" and text.count("<h1>") == 1
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
    fixed = {"em", "auroc", "auroc_ci", "n", "fpr", "tpr", "retrievals", "em_ci", "layer", "accuracy"}
    if isinstance(value, str):
        return value + PAYLOAD
    if isinstance(value, list):
        return [poisoned(item) for item in value]
    if isinstance(value, dict):
        free = {"never", "known", "mean entropy"} & set(value)
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
                   "Velmora Rising", "the town of Orlith", " Onvik", "mean entropy", "stale"):  # fmt: skip
        assert before + shown in page.text, before
    assert "\x00" not in text


@given(st.text())
def test_escaped_text_reads_back_as_itself(text: str) -> None:
    page = Page(f'<p title="{esc(text)}">{esc(text)}</p>')
    odd = "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]"
    clean = re.sub(odd, "\ufffd", text)
    assert (page.text, page.tags) == (clean, [("p", {"title": clean})])


def summary_of(results: dict[str, Any], folder: Path) -> str:
    text, _ = render(results, sample_data(), folder)
    told = text.split('<h2 id="summary">')[1].split("</summary>")[1].split("</details>")[0]
    return Page(re.sub("</?b>", "", told)).text


def test_summary_says_who_is_above_whoever_it_is(tmp_path: Path) -> None:
    results = sample_results()
    for diff, ci, words in (
        (0.021, [0.004, 0.041], "entropy is above"), (-0.05, [-0.07, -0.03], "probing is above"),
        (0.021, [-0.01, 0.05], "the interval contains zero"),
    ):  # fmt: skip
        results["pairs"]["entropy vs probing"]["trigger.auroc"] = {"diff": diff, "ci95": ci}
        first = summary_of(results, tmp_path)
        sentence = first.split("probing against entropy.")[1].split("Exact match")[0]
        assert sentence.strip().endswith(f"{words}.") and num(-diff, 3, sign=True) in sentence
        # Filed the other way round, the same numbers give the same sentence.
        del results["pairs"]["entropy vs probing"]["trigger.auroc"]
        results["pairs"]["probing vs entropy"] = {"trigger.auroc": {"diff": -diff, "ci95": [-ci[1], -ci[0]]}}
        assert sentence in summary_of(results, tmp_path)
        del results["pairs"]["probing vs entropy"]


def test_summary_names_the_best_method_and_what_is_not_settled(tmp_path: Path) -> None:
    results = sample_results()
    text = summary_of(results, tmp_path)
    for told in (
        "The highest exact match is that of probing_with_entropy: it reaches 0.724",
        "with 0.66 retrievals per question", "Its lead over probing, always and entropy is not settled",
        "The oracle, which is told the truth, reaches 0.764",
    ):  # fmt: skip
        assert told in text
    for entry in results["pairs"].values():
        entry["em"]["ci95"] = [entry["em"]["diff"] - 1e-3, entry["em"]["diff"] + 1e-3]
    assert "intervals against every other method lie above zero" in summary_of(results, tmp_path)
    results["methods"]["always"]["em"] = 0.9
    assert "The highest exact match is that of always" in summary_of(results, tmp_path)
    results["methods"]["never"]["em"] = 0.9
    assert "never and always share the highest exact match" in summary_of(results, tmp_path)


def test_methods_are_ranked_by_the_headline(tmp_path: Path) -> None:
    """By match meaning `never` wins here, though its exact match is the lowest."""
    results = sample_results() | {"headline": "match"}
    for name, entry in results["methods"].items():
        entry["match"] = 0.95 if name == "never" else 0.9
        entry["ci95"]["match"] = [entry["match"] - 0.01, entry["match"] + 0.01]
    assert "The highest match by meaning is that of never: it reaches 0.950" in summary_of(results, tmp_path)
    assert "highest exact match" not in summary_of(results, tmp_path)


def test_flags_and_notes_are_shown(tmp_path: Path) -> None:
    flags = dict.fromkeys(("rind_paper", "never"), "never fired")
    flags |= dict.fromkeys(("entropy", "probing"), "always fired")
    data = sample_data() | {"flags": flags}
    _, page = render(sample_results(), data, tmp_path)
    assert "rind_paper never fired on these questions." in page.text
    assert "entropy and probing always fired on these questions." in page.text
    assert "never never fired" not in page.text  # true by definition
    assert data["notes"][0] in page.text


def test_null_figures_are_dashes(tmp_path: Path) -> None:
    results = sample_results()
    results["methods"] = {"entropy": dict.fromkeys(results["methods"]["entropy"])}
    results["pairs"] = {}
    text, page = render(results, {}, tmp_path)
    shown, others = (row.split("</tr>")[0] for row in text.split('<th scope="row">')[1:3])
    assert shown.count("<td") == shown.count("–") == 3 and others.count("<td") == others.count("–") > 8
    assert "None" not in page.text and "nan" not in page.text.lower().split()
    assert "no gold answers" in page.text
    _, page = render({"schema": 1, "methods": {}}, {}, tmp_path)  # nothing at all still makes a page
    assert "No method was run." in page.text
    assert not page.of_class("chart") and not page.all("table")


@pytest.mark.parametrize("part", [*sample_data(), "methods", "pairs"])
def test_a_missing_part_leaves_the_rest(part: str, tmp_path: Path) -> None:
    results, data = sample_results(), sample_data()
    holder = results if part in ("methods", "pairs") else data
    holder[part] = None
    pages = [render(results, data, tmp_path)[0]]
    del holder[part]
    pages.append(render(results, data, tmp_path)[0])
    for page in map(Page, pages):
        assert len(page.of_class("chart")) == 4 - (part in ("layers", "roc"))
        assert ("10 examples" in page.text) == (part != "examples")


def rows_of(text: str, key: str) -> dict[str, str]:
    """The rows of a table by their head."""
    table = text.split(f'aria-labelledby="{key}-caption"')[-1].split("</table>")[0]
    rows = (row.split('<th scope="row">')[1] for row in table.split("<tr>")[2:])
    return {re.sub("<svg.*?</svg>", "", row).split("<")[0].strip(): row for row in rows}


def test_the_first_table_is_sorted_by_the_share_of_the_oracles_gain(tmp_path: Path) -> None:
    results = sample_results()
    names = [*results["methods"]]
    shares = dict(zip(names, [None, *(0.3 * (-1) ** i * i for i in range(1, len(names)))], strict=True))
    for name, share in shares.items():
        results["methods"][name]["gain_share"] = share
    text, _ = render(results, sample_data(), tmp_path)
    assert [*rows_of(text, "methods")] == sorted(names[1:], key=shares.__getitem__, reverse=True) + names[:1]


def test_the_first_table_has_five_columns_and_every_figure_is_there_once(sample: tuple[str, Page]) -> None:
    text, _ = sample
    rows, others = rows_of(text, "methods"), rows_of(text, "more")
    assert [*rows] == [*others]
    cells, more = (
        [re.sub("<svg.*?</svg>", "", cell).split("</td>")[0] for cell in row.split("<td>")[1:]]
        for row in (rows["probing_with_entropy"], others["probing_with_entropy"])
    )
    assert cells == [
        "<b>0.724</b><small>0.69 to 0.76</small>",
        "0.66",
        "<b>0.834</b><small>0.80 to 0.86</small>",
    ]
    assert more[2:6] == ["39 / 57 / 4", "1.66", "35.5", "258"]  # calls of the model, tokens written and read
    assert "0.79<small>base 0.54</small>" in more
    assert "<b>" not in rows["oracle"]
    heads = re.findall(r'<th scope="col" title="[^"]*">([^<]+)', text.split("</section>")[0])
    assert len(heads) == len(set(heads)) and {"EM", "ACC", "AUROC", "Seconds"} <= set(heads)


def test_accuracy_that_equals_exact_match_is_shown_once(tmp_path: Path) -> None:
    results, data = sample_results(), sample_data()
    for name, method in results["methods"].items():
        method["acc"] = method["em"]
        data["points"][name] |= {"acc": method["em"]}
    text, _ = render(results, data, tmp_path)
    assert ">ACC<" not in text and "tradeoff-acc" not in text and ">EM<" in text
    results["headline"] = "acc"  # the figure that ranks is never the one left out
    assert ">ACC<" in render(results, data, tmp_path)[0]


def verdict_of(results: dict[str, Any], data: dict[str, Any], folder: Path) -> str:
    (sentence,) = render(results, data, folder)[1].within("p", "verdict")
    return sentence


def test_the_verdict_is_one_sentence_about_the_best_trigger(tmp_path: Path) -> None:
    results, data = sample_results(), sample_data()
    best = "In short: probing_with_entropy, the best trigger, is right on 72% of 800 questions with 0.66"
    assert verdict_of(results, data, tmp_path).startswith(best)
    assert "for random" not in verdict_of(results, data, tmp_path)
    lucky = results | {
        "methods": results["methods"] | {"random": results["methods"]["random"] | {"em": 0.75}}
    }
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


@pytest.mark.parametrize("n", [1, 12, 29, 30])
def test_few_questions_settle_nothing_and_that_is_said_first(n: int, tmp_path: Path) -> None:
    results = sample_results() | {"n": n, "bootstrap": {"unit": "question", "units": n}}
    said = verdict_of(results, sample_data() | {"n": n}, tmp_path)
    noun = "1 question settles" if n == 1 else f"{n} questions settle"
    assert said.startswith(f"{noun} nothing: ") == (n < 30)


def test_random_at_the_same_budget_is_a_column_and_queries_are_named(tmp_path: Path) -> None:
    results = sample_results()
    plain, _ = render(results, sample_data(), tmp_path)
    assert "EM vs random" not in plain and "asks with" not in plain
    results["queries"] = {name: "question" for name in METHODS} | {"rind_paper": "qfs"}
    results["random_at_budget"] = {
        "probing": {"query": "answer", "em": {"value": 0.6, "diff": 0.106, "ci95": [0.05, 0.16]}},
        "entropy": {"query": "answer", "em": {"value": 0.6, "diff": -0.01, "ci95": [-0.05, 0.03]}},
        "rind_paper": {
            "query": "qfs", "em": {"value": 0.3, "diff": 0.351, "ci95": [0.3, 0.4]},
            "common": {"query": "answer", "em": {"value": 0.6, "diff": 0.051, "ci95": [0.01, 0.09]}},
        },
    }  # fmt: skip
    text, page = render(results, sample_data(), tmp_path)
    rows, others = rows_of(text, "methods"), rows_of(text, "more")
    assert "<td><b>+0.106</b><small>+0.050 to +0.160</small></td>" in rows["probing"]
    assert "<td>−0.010<small>" in rows["entropy"]  # not settled, so not bold
    assert "+0.051" in rows["rind_paper"] and "+0.351" not in rows["rind_paper"]
    assert "asks with: qfs" in others["rind_paper"] and "asks with" not in others["never"]
    assert "Methods differ in when they retrieve" in page.text


def test_the_same_is_drawn_against_all_tokens_where_they_are_known(tmp_path: Path) -> None:
    data = sample_data()
    for entry in (*data["points"].values(), *data["replay"].values()):
        entry |= {"tokens": entry["retrievals"], "read_tokens": entry["retrievals"]}
    for name, point in data["points"].items():
        point |= {"tokens": 21.4, "read_tokens": 60 + 300 * METHODS[name][1]}
    for curve in data["replay"].values():
        curve |= {"tokens": [21.4] * 25, "read_tokens": [60 + 300 * r for r in curve["retrievals"]]}
    text, page = render(sample_results(), data, tmp_path)
    names = [chart["aria-labelledby"].split()[0] for chart in page.of_class("chart")]
    assert names[:2] == ["tradeoff-title", "tradeoff-tokens-title"]
    chart = chart_of(text, "tradeoff-tokens")
    assert "probing: EM 0.71 at 294 tokens" in chart and "tokens per question, written and read" in chart
    # Without them nothing is drawn of it: of a method alone, or at all.
    del data["points"]["probing"]["read_tokens"]
    chart = chart_of(render(sample_results(), data, tmp_path)[0], "tradeoff-tokens")
    assert "probing: EM" not in chart and "entropy: EM" in chart
    assert "tradeoff-tokens" not in render(sample_results(), sample_data(), tmp_path)[0]


def test_token_colours_follow_scores_and_marks_show_where_it_fired(tmp_path: Path) -> None:
    scores = [0.0, 0.5, 1.0, 2.0, 3.0, None]
    tokens = [(f" w{i}", score, score == 3.0) for i, score in enumerate(scores)]
    by_token = a_round(tokens, 3.0, 1.2, fired=True, query="w4?")
    plain = [(f" v{i}", None) for i in range(3)]
    whole = [a_round(plain, score, 0.0, fired=score > 0) for score in (2.0, -2.0)]
    methods = [a_method("entropy", "x", [by_token], right=True), a_method("probing", "y", whole, right=False)]
    example = {"question": "q", "answers": ["x"], "knowledge": "", "methods": methods}
    text, _ = render(sample_results(), {"examples": [example]}, tmp_path)
    article = text.split("<article")[1]
    levels = [int(found) for found in re.findall(r'class="tok s(\d)[^>]*> ?w', article)]
    assert levels == sorted(levels) and levels[0] == 0 and levels[-1] == 6 and len(levels) == 5
    assert '<span class="tok"> w5</span>' in article  # no score, no colour
    assert ' <span class="tok s6 fired" title="score 3.000; fired">w4</span>' in article
    assert article.count('title="whole answer: 2.000"') == article.count('title="whole answer: −2.000"') == 3
    assert article.count("▲ fired") == 2
    assert article.index(" v2</span>") < article.rindex("▲ fired") < article.rindex(" v0</span>")
    assert "✓ right" in article and "✗ wrong" in article


def luminance(colour: str) -> float:
    linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in to_rgb(colour)]
    return float(np.dot([0.2126, 0.7152, 0.0722], linear))


def contrast(a: str, b: str) -> float:
    low, high = sorted((luminance(a), luminance(b)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("theme", [0, 1, 2], ids=["light", "dark", "print"])
def test_colours_are_readable(theme: int, sample: tuple[str, Page]) -> None:
    blocks = re.findall(r":root \{(.*?)\}", sample[0], flags=re.S)
    colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]+);", blocks[0]))
    assert set(dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]+);", blocks[1]))) == set(colours)
    colours |= dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]+);", blocks[theme]))
    for text in ("ink", "muted", "right", "wrong", "link", "fired"):
        assert contrast(colours[text], colours["paper"]) >= 4.5, text
    for line in range(7):
        assert contrast(colours[f"c{line}"], colours["paper"]) >= 3, f"c{line}"
        assert contrast(colours["ink"], colours[f"s{line}"]) >= 4.5, f"s{line}"
    shades = [luminance(colours[f"s{level}"]) for level in range(7)]
    assert shades == sorted(shades, reverse=theme != 1)  # one direction: readable without hue


def test_statements_are_repeated_for_all_pairs_where_their_p_values_are_known(tmp_path: Path) -> None:
    results = sample_results()
    assert "Of all pairs" not in render(results, sample_data(), tmp_path)[1].text
    for entry in results["pairs"].values():
        entry["em"] |= {"p": 0.001, "p_holm": 0.2}
    results["pairs"]["entropy vs probing"]["trigger.auroc"] |= {"p": 0.001, "p_holm": 0.004}
    pairs = len(results["pairs"])
    sentence = summary_of(results, tmp_path).split("probing against entropy.")[1].split("Exact match")[0]
    assert "entropy is above. Corrected for all 1 pairs (Holm), p = 0.004, it still is." in sentence
    text = summary_of(results, tmp_path)
    assert f"Corrected for all {pairs} pairs (Holm), its lead over" in text
    page = render(results, sample_data(), tmp_path)[1].text
    assert "Of all pairs" in page and "p = 0.200" in page
    for entry in results["pairs"].values():
        entry["em"]["p_holm"] = 0.01
    assert f"Corrected for all {pairs} pairs (Holm), its lead over" not in summary_of(results, tmp_path)
    results["pairs"]["entropy vs probing"]["trigger.auroc"]["p_holm"] = 0.3
    assert "p = 0.300, not settled." in summary_of(results, tmp_path)
