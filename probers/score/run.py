"""The command ``probers-score``: scores of existing texts."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from ..bank.assessment import Assessor
from ..bank.bank import Prober
from ..bank.risk_control import Promise
from ..checksums import Journal, inputs
from ..commands.inputs import find_prober, load_model
from ..commands.runs import RunFolder
from ..commands.settings import plain
from ..data.texts import Text, TextSource
from ..engine.language_model import ScoreRequest, Scoring
from ..engine.tokens import encode_answer, without_end
from ..evaluation.metrics import Bootstrap, auroc, ece
from ..files import canonical_json, write_text
from ..online.scores import check_growing, text_needs, text_scores
from ..text import count
from ..types import SPLITS, Generation, UserError
from .page import scores_html

if TYPE_CHECKING:
    from ..engine.model import CausalLM
    from .settings import Score

_SCORES, _UNFINISHED, _RESULTS, _PAGE = "scores.jsonl", "unfinished.jsonl", "results.json", "scores.html"
_WORST = 5  # spans shown on the terminal
_POINTS = 200  # largest number of points of the curve of risk and coverage

Judged = TypeVar("Judged")

log = logging.getLogger(__name__)


def run(settings: Score) -> Path:
    """Score the texts of a file; return the folder written. UserErrors come before anything is scored."""
    source = TextSource(**plain(settings.texts), on_bad_line=settings.on_bad_line)
    given, path = list(source.all()), str(settings.texts.path)
    name = find_prober(settings, asks="probers-score")
    bank = Prober.from_pretrained(name, allow_other=settings.allow_other)
    check_growing(bank, whole=True)
    out = Path(settings.out or f"runs/score/{source.file.partition('.')[0]}")
    folder = RunFolder(out, "score", settings.record | {"inputs": inputs(path, name)})
    if not folder.begin():
        return out
    lm = load_model(settings, folder, adapter=bank.adapter)
    lm.skip_too_long()
    bank.check_model(lm.spec)
    texts = readable(given, source, lm.tokenizer)
    edges = ((one.prompt or "")[-1:] + one.answer[:1] for one in texts)
    if glued := sum(len(edge) == 2 and edge[0].isalnum() and edge[1].isalnum() for edge in edges):
        told = "note: %s of %s continue the prompt's last word: begin a new word with a space"
        log.info(told, f"{glued:,}", count(len(texts), "answer"))
    for line in source.left_out.lines():
        log.info("%s", line)
    assessor = Assessor(bank, settings.threshold)
    records = score(lm, bank, assessor, texts, source.file, out / _UNFINISHED)
    write_text(out / _SCORES, "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records))
    results = _results(texts, records, assessor, bank, settings.seed)
    write_text(out / _RESULTS, canonical_json(results))
    limit = float(bank.probability(np.array([assessor.threshold]))[0])
    about = {"texts": path, "model": str(lm.spec), "prober": name}
    promised = _promised(assessor.promise, results, known=bank.domain is not None)
    shown = results | {"promised": promised}
    page = scores_html(texts, records, about=about, results=shown, limit=limit, most=settings.shown)
    write_text(out / _PAGE, page)
    (out / _UNFINISHED).unlink(missing_ok=True)
    folder.finish({"model": settings.model.name, "n": len(records), "fires": results["fires"]})
    for line in [*_unused(texts, results), *_summary(records, results, limit, promised)]:
        log.info("%s", line)
    log.info("wrote %s to %s and a page to %s", count(len(records), "line"), out / _SCORES, out / _PAGE)
    return out


def readable(given: Sequence[Text], source: TextSource, tokenizer: Any) -> list[Text]:
    """Return the texts that the model can write, each without its end marker; leave out others or raise."""
    found = []
    for one in given:
        prompt, answer = one.prompt_for(tokenizer, source.file), without_end(tokenizer, one.answer)
        try:
            encode_answer(tokenizer, prompt, answer, one.id)
            found.append(replace(one, answer=answer))
        except UserError as error:
            source.refuse(one.where, str(error))
    source.check_found(found)
    return found


def score(
    lm: CausalLM, bank: Prober, assessor: Assessor, texts: Sequence[Text], file: str, unfinished: Path
) -> list[dict[str, Any]]:
    """Score texts; return their lines with ``id``, ``text`` and ``hallucination`` (None if too long)."""

    def assessed(one: Text, written: Generation, state: np.ndarray) -> dict[str, Any]:
        pieces = assessor.pieces(written.prompt, written.text, written.offsets)
        parts = None if pieces is None else list(pieces.values())
        return assessor.of_generation(written, *text_scores(bank, state, parts))

    found = read_each(lm, bank, texts, file, unfinished, assessed)
    lines = zip(texts, found, strict=True)
    return [{**one.record, "id": one.id, "text": one.answer, "hallucination": told} for one, told in lines]


def read_each(
    lm: CausalLM, bank: Prober, texts: Sequence[Text], file: str, unfinished: Path,
    judge: Callable[[Text, Generation, np.ndarray], Judged],
) -> list[Judged | None]:  # fmt: skip
    """Read each text in one pass and ``judge`` it with the states that ``bank`` needs; None if too long.

    Results, as plain JSON values, are written to ``unfinished`` batch by batch, and a resumed run reads
    them there.
    """
    journal = Journal(unfinished)
    made = _resumed(journal, texts)
    prompts = [one.prompt_for(lm.tokenizer, file) for one in texts]
    named = zip(prompts, texts, strict=True)
    requests = [ScoreRequest(prompt, one.answer, f"of {file} {one.where}") for prompt, one in named]
    for batch in lm.score_each(requests, Scoring(text_needs(bank)), known=made):
        new: dict[int, Judged | None] = {}
        for place, written in batch.items():
            new[place] = None
            if written.token_ids:
                assert written.state is not None
                new[place] = judge(texts[place], written, written.state)
        journal.append(_kept(new, texts))
        made |= new
    found: list[Judged | None] = [made[place] for place in range(len(texts))]
    if long := sum(each is None for each in found):
        log.info("%s left out, too long for the model's context", count(long, "text"))
    return found


def _resumed(journal: Journal, texts: Sequence[Text]) -> dict[int, Any]:
    """Read the results of an earlier run; texts whose line is damaged are read again."""
    if not journal.path.exists():
        return {}
    found: dict[int, Any] = {}
    for kept in journal.read().records.values():
        with suppress(LookupError, TypeError):
            if kept["id"] == texts[kept["place"]].id:
                found[kept["place"]] = kept["judged"]
    log.info("resuming: %s of %s are scored already", f"{len(found):,}", count(len(texts), "text"))
    journal.rewrite(_kept(found, texts))
    return found


def _kept(judged: Mapping[int, Any], texts: Sequence[Text]) -> list[dict[str, Any]]:
    return [{"place": place, "id": texts[place].id, "judged": told} for place, told in judged.items()]


def _results(
    texts: Sequence[Text], records: Sequence[Mapping[str, Any]], assessor: Assessor, bank: Prober,
    seed: int,
) -> dict[str, Any]:  # fmt: skip
    """Count texts and hits; if the file has labels, measure how well scores predict them.

    Texts that the prober was trained or validated on are counted as ``seen`` and left out of all figures.
    """
    told = [(one, r["hallucination"]) for one, r in zip(texts, records, strict=True) if r["hallucination"]]
    judged = [(one, h) for one, h in told if h["score"] is not None]
    sides = [_seen_in(bank, one) for one, _ in judged]
    fresh = [pair for pair in judged if _fresh(bank, pair[0])]
    results: dict[str, Any] = {
        "n": len(texts), "too_long": len(texts) - len(told), "judged": len(judged),
        "fires": sum(h["fires"] for _, h in judged), "threshold": assessor.threshold,
        "promise": None if assessor.promise is None else assessor.promise.to_dict(),
        "unlike": None if bank.domain is None else sum(h["domain"]["unlike"] for _, h in judged),
        "seen": {side: sides.count(side) for side in SPLITS},
    }  # fmt: skip
    curve = [(one.wrong, h["score"]) for one, h in told if one.wrong is not None and _fresh(bank, one)]
    if curve:
        results["risk_coverage"] = _risk_coverage(*zip(*curve, strict=True))
    if any(one.wrong is not None for one, _ in judged):
        known = [(one.group, one.wrong, h["score"], h["p_wrong"]) for one, h in fresh]
        results["labelled"] = _quality(known, seed)
    pieces = [
        (one.group, one.label_of(span["start"], span["end"]), span["score"], span["p_wrong"])
        for one, h in fresh
        for span in h["spans"]
        if (span["start"], span["end"]) != (0, len(one.answer))
    ]
    if any(wrong is not None for _, wrong, *_ in pieces):
        results["pieces"] = _quality(pieces, seed)
    return results


def _seen_in(bank: Prober, one: Text) -> str:
    return "" if bank.seen is None else bank.seen.side(one.dataset, one.group, one.asked or one.answer)


def _fresh(bank: Prober, one: Text) -> bool:
    """Tell whether the prober was neither trained nor validated on a text."""
    return _seen_in(bank, one) not in ("train", "validation")


def _risk_coverage(wrong: Sequence[bool], scores: Sequence[float | None]) -> dict[str, list[float]]:
    """Compute the share of texts that a threshold passes, and the share of wrong ones among them.

    The points, by rising threshold, tell how many texts a server with ``on_high=abstain`` would answer, and
    how often wrongly (El-Yaniv and Wiener 2010). A text in which nothing is judged always passes.
    """
    values = np.array([-np.inf if score is None else score for score in scores])
    events = np.array(wrong, dtype=float)
    thresholds = np.unique(values[np.isfinite(values)])
    if len(thresholds) > _POINTS:
        thresholds = np.quantile(thresholds, np.linspace(0, 1, _POINTS), method="inverted_cdf")
    passing = [values <= threshold for threshold in thresholds]
    return {
        "threshold": thresholds.tolist(),
        "coverage": [float(each.mean()) for each in passing],
        "risk": [float(events[each].mean()) for each in passing],
    }


def _quality(found: Sequence[tuple[str, bool | None, float, float]], seed: int) -> dict[str, Any]:
    """Measure AUROC and ECE with 95% intervals over groups; null without both right and wrong ones.

    ``found`` has group, label (None is left out), score and P(wrong) of each.
    """
    known = [(group, float(wrong), *rest) for group, wrong, *rest in found if wrong is not None]
    figures: dict[str, Any] = {"n": len(known)}
    if not known:
        return figures | {name: {"value": None, "ci95": None} for name in ("auroc", "ece")}
    groups, wrong, scores, p_wrong = (np.array(column) for column in zip(*known, strict=True))
    bootstrap = Bootstrap(groups, seed=seed)
    figures["wrong"] = float(wrong.mean())
    for name, values, metric in (("auroc", scores, auroc), ("ece", p_wrong, ece)):
        measured = bootstrap.interval(values, partial(metric, wrong))
        value = None if np.isnan(measured.value) else measured.value
        figures[name] = {"value": value, "ci95": measured.limits}
    return figures


def _unused(texts: Sequence[Text], results: Mapping[str, Any]) -> Iterator[str]:
    """Name the labels of the file that only tell whether an answer as a whole is wrong."""
    for name in ("spans", "sentences", "claims"):
        marked = sum(len(getattr(one, name)) for one in texts)
        if marked and "pieces" not in results:
            what = count(marked, f"labelled {name.removesuffix('s')}")
            yield f"note: {what} tell only which answers are wrong: this prober judges whole answers"


def _promised(promise: Promise | None, results: Mapping[str, Any], *, known: bool) -> list[str]:
    """Tell the threshold's promise, and the texts without it; empty without a promise.

    ``known`` says that the prober can recognise texts unlike its training texts.
    """
    if promise is None:
        return []
    lines = [f"promised for texts like those it was chosen on: {promise}"]
    if not known:
        lines.append("their likeness to these texts is unknown: the prober has no domain")
    elif unlike := results["unlike"]:
        lines.append(f"nothing is promised of the {count(unlike, 'text')} unlike the prober's training texts")
    return lines


def _summary(
    records: Sequence[Mapping[str, Any]], results: Mapping[str, Any], limit: float, promised: Sequence[str]
) -> list[str]:
    """Summarise hits, the worst spans and the fit to labels, as lines for the terminal."""
    lines = [
        f"{results['fires']:,} of {count(results['n'], 'text')} fire: "
        f"score above {results['threshold']:.3g}, P(wrong) above {limit:.0%}",
        *promised,
    ]
    if silent := results["n"] - results["too_long"] - results["judged"]:
        lines.append(f"{count(silent, 'text')} without an entity, which this prober cannot score")
    if unlike := results["unlike"]:
        told = f"{unlike:,} of {count(results['judged'], 'judged text')} unlike the prober's training texts: "
        lines.append(f"{told}their P(wrong) is no tested probability")
    spans = [
        (span["score"], span["p_wrong"], r["id"], r["text"][span["start"] : span["end"]])
        for r in records
        for span in (r["hallucination"] or {"spans": ()})["spans"]
    ]
    for _, p, id, part in sorted(spans, key=lambda span: -span[0])[:_WORST]:
        words = " ".join(part.split())
        lines.append(f"  {p:4.0%}  {words if len(words) <= 60 else f'{words[:59]}…'}  ({id})")
    if curve := results.get("risk_coverage"):
        passed = [i for i, threshold in enumerate(curve["threshold"]) if threshold <= results["threshold"]]
        if passed:
            coverage, risk = curve["coverage"][passed[-1]], curve["risk"][passed[-1]]
            told = f"{coverage:.0%} of the labelled texts, {risk:.0%} wrong"
            lines.append(f"on_high=abstain would answer {told}")
    if seen := results["seen"]["train"] + results["seen"]["validation"]:
        lines.append(f"{count(seen, 'text')} that the prober was trained on left out of the figures")
    for what, labelled in (("text", results.get("labelled")), ("piece", results.get("pieces"))):
        if labelled is None:
            continue
        for name, title in (("auroc", "AUROC of wrong"), ("ece", "ECE")):
            value, ci95 = labelled[name]["value"], labelled[name]["ci95"]
            around = f" ({ci95[0]:.2f} to {ci95[1]:.2f})" if ci95 else ""
            told = "–: needs right and wrong texts" if value is None else f"{value:.2f}{around}"
            lines.append(f"{title} over {count(labelled['n'], f'labelled {what}')}: {told}")
    return lines
