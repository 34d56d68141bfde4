"""The command ``probers-score``: scores of existing texts, and their page.

The page is one HTML file: tokens coloured by score, firing spans underlined and named.
"""

from __future__ import annotations

import json
import logging
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import numpy as np

from ..checksums import Journal, inputs
from ..cli.command_lines import folder_names
from ..cli.inputs import find_prober, load_model
from ..cli.runs import RunFolder
from ..cli.settings import plain
from ..data.texts import Text, TextSource
from ..evaluation.bootstrap import few_groups
from ..evaluation.metrics import Bootstrap, auroc, ece_interval
from ..files import canonical_json, write_text
from ..pages import num, render
from ..prober.assessment import Assessor
from ..prober.prober import Prober
from ..prober.response import DomainDistance, Response, ScoredSpan
from ..prober.risk_control import Promise
from ..prober.scoring import readable, score_texts
from ..prober.token_scores import check_growing
from ..signals.grounding import Ground
from ..types import SPLITS, count

if TYPE_CHECKING:
    from .settings import Score

#: Journal of a run that is not finished.
UNFINISHED = "unfinished.jsonl"
_SCORES, _RESULTS, _PAGE = "scores.jsonl", "results.json", "scores.html"
_WORST = 5  # spans shown on the terminal
_POINTS = 200  # largest number of points of the curve of risk and coverage
#: Steps of the colours of the report's style sheet, and number of them above the threshold.
LEVELS, ABOVE = 7, 3
#: Number of characters shown of the end of a prompt.
_PROMPT = 400
#: A text with its response.
Scored: TypeAlias = tuple[Text, Response]

log = logging.getLogger(__name__)


def run(settings: Score) -> Path:
    """Score the texts of a file; return the folder written. UserErrors come before anything is scored."""
    source = TextSource(**plain(settings.texts), on_bad_line=settings.on_bad_line)
    name = find_prober(settings, asks="probers-score")
    bank = Prober.from_pretrained(name, allow_other=settings.allow_other)
    source.usual = bank.columns
    given, path = list(source.all()), str(settings.texts.path)
    check_growing(bank, whole=True)
    folder = _folder(settings, source, settings.record | {"inputs": inputs(path, name)})
    out = folder.path
    if not folder.begin():
        return out
    lm = load_model(settings, folder, adapter=bank.adapter)
    bank.check_model(lm.spec)
    texts = readable(source, given, bank, lm.tokenizer)
    for line in source.lines():
        log.info("%s", line)
    journal = Journal(out / UNFINISHED)
    responses = score_texts(lm, bank, texts, threshold=settings.threshold, journal=journal)
    scored = [(one, response) for one, response in zip(texts, responses, strict=True) if response]
    results = _results(len(texts), scored, Assessor(bank, settings.threshold), bank, settings.seed)
    limit = float(bank.probability(np.array([results["threshold"]]))[0])
    shown = results | {"promised": _promised(results, known=bank.domain is not None)}
    about = {"texts": path, "model": str(lm.spec), "prober": name}
    lines = [
        {**one.record, "id": one.id, "text": one.answer, "hallucination": response and response.wire()}
        for one, response in zip(texts, responses, strict=True)
    ]
    write_text(out / _SCORES, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    write_text(out / _RESULTS, canonical_json(results))
    page = scores_html(scored, about=about, results=shown, limit=limit, most=settings.shown)
    write_text(out / _PAGE, page)
    journal.path.unlink(missing_ok=True)
    folder.finish({"model": settings.model.name, "n": len(texts), "fires": results["fires"]})
    for name in ("spans", "sentences", "claims"):
        marked = sum(len(getattr(one, name)) for one in texts)
        if marked and "pieces" not in results:
            what = count(marked, f"labelled {name.removesuffix('s')}")
            log.info("note: %s tell only which answers are wrong: this prober judges whole answers", what)
    for line in _summary(scored, shown, limit):
        log.info("%s", line)
    log.info("wrote %s to %s and a page to %s", count(len(texts), "line"), out / _SCORES, out / _PAGE)
    return out


def _folder(settings: Score, source: TextSource, config: Mapping[str, Any]) -> RunFolder:
    """Return the run's folder, by default named after the file, and the options that are other ones there."""
    name = f"runs/score/{source.file.partition('.')[0]}"
    folder = RunFolder(Path(settings.out or name), "score", config)
    if settings.out is None and (changed := folder.changed):
        (options,) = folder_names([[f"{key}={value}" for key, value in changed.items()]])
        return RunFolder(Path(f"{name},{options}"), "score", config)
    return folder


def _results(n: int, scored: Sequence[Scored], assessor: Assessor, bank: Prober, seed: int) -> dict[str, Any]:
    """Count ``n`` texts and hits; if the file has labels, measure how well scores predict them.

    Texts that the prober was trained or validated on are counted as ``seen`` and left out of all figures.
    """
    judged = [(one, response) for one, response in scored if response.score is not None]
    seen = Counter(_seen_in(bank, one) for one, _ in judged)
    unseen = [pair for pair in scored if _seen_in(bank, pair[0]) not in ("train", "validation")]
    fresh = [(one, response) for one, response in unseen if response.score is not None]
    results: dict[str, Any] = {
        "n": n, "too_long": n - len(scored), "judged": len(judged),
        "fires": sum(response.fires for _, response in judged), "threshold": assessor.threshold,
        "promise": None if assessor.promise is None else assessor.promise.to_dict(),
        "unlike": None if bank.domain is None else sum(r.domain.unlike for _, r in judged if r.domain),
        "seen": {side: seen[side] for side in SPLITS},
    }  # fmt: skip
    if curve := [(one.wrong, response.score) for one, response in unseen if one.wrong is not None]:
        results["risk_coverage"] = _risk_coverage(*zip(*curve, strict=True))
    if any(one.wrong is not None for one, _ in judged):
        results["labelled"] = _quality([(one.group, one.wrong, r.score, r.p_wrong) for one, r in fresh], seed)
    pieces = [
        (one.group, one.label_of(span.start, span.end), span.score, span.p_wrong)
        for one, response in fresh
        for span in response.spans
        if (span.start, span.end) != (0, len(one.answer))
    ]
    if any(wrong is not None for _, wrong, *_ in pieces):
        results["pieces"] = _quality(pieces, seed)
    return results


def _seen_in(bank: Prober, one: Text) -> str:
    return "" if bank.seen is None else bank.seen.side(one.dataset, one.group, one.question or one.answer)


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


def _quality(judged: Sequence[tuple[Any, ...]], seed: int) -> dict[str, Any]:
    """Measure AUROC and ECE, with 95% intervals, of (group, label if known, score, P(wrong)) of each."""
    known = [(group, float(wrong), *rest) for group, wrong, *rest in judged if wrong is not None]
    figures: dict[str, Any] = {"n": len(known)}
    if not known:
        return figures | {name: {"value": None, "ci95": None} for name in ("auroc", "ece")}
    groups, wrong, scores, p_wrong = (np.array(column) for column in zip(*known, strict=True))
    bootstrap = Bootstrap(groups, seed=seed)
    figures |= {"wrong": float(wrong.mean()), "groups": bootstrap.size}
    ranked = bootstrap.interval(scores, partial(auroc, wrong))
    for name, measured in (("auroc", ranked), ("ece", ece_interval(bootstrap, wrong, p_wrong))):
        value = None if np.isnan(measured.value) else measured.value
        figures[name] = {"value": value, "ci95": measured.limits if bootstrap.size > 1 else None}
    return figures


def _promised(results: Mapping[str, Any], *, known: bool) -> list[str]:
    """Tell the threshold's promise, if any; ``known``: texts unlike the training texts are recognised."""
    if results["promise"] is None:
        return []
    lines = [f"promised for texts like those it was chosen on: {Promise(**results['promise'])}"]
    if not known:
        lines.append("their likeness to these texts is unknown: the prober has no domain")
    elif unlike := results["unlike"]:
        lines.append(f"nothing is promised of the {count(unlike, 'text')} unlike the prober's training texts")
    return lines


def _summary(scored: Sequence[Scored], results: Mapping[str, Any], limit: float) -> list[str]:
    """Summarise hits, the worst spans and the fit to labels, as lines for the terminal."""
    above = f"score above {results['threshold']:.3g}, P(wrong) above {limit:.0%}"
    lines = [f"{results['fires']:,} of {count(results['n'], 'text')} fire: {above}", *results["promised"]]
    if not results["judged"]:
        lines = [f"nothing was judged of {count(results['n'], 'text')}"]
    reasons = (one.not_scored or "the answer has no entity" for _, one in scored if one.score is None)
    for reason, silent in Counter(reasons).most_common():
        lines.append(f"{count(silent, 'text')} not judged: {reason}")
    if unlike := results["unlike"]:
        texts = f"{unlike:,} of {count(results['judged'], 'judged text')}"
        lines.append(f"{texts} unlike the prober's training texts: their P(wrong) is no tested probability")
    spans = [(span, one) for one, response in scored for span in response.spans]
    for span, one in sorted(spans, key=lambda each: -each[0].score)[:_WORST]:
        words = " ".join(one.answer[span.start : span.end].split())
        short = words if len(words) <= 60 else f"{words[:59]}…"
        lines.append(f"  {span.p_wrong:4.0%}  {short}  ({one.id})")
    if curve := results.get("risk_coverage"):
        passed = [i for i, threshold in enumerate(curve["threshold"]) if threshold <= results["threshold"]]
        if passed:
            coverage, risk = (f"{curve[name][passed[-1]]:.0%}" for name in ("coverage", "risk"))
            lines.append(f"on_high=abstain would answer {coverage} of the labelled texts, {risk} wrong")
    if seen := results["seen"]["train"] + results["seen"]["validation"]:
        lines.append(f"{count(seen, 'text')} that the prober was trained on left out of the figures")
    for what, labelled in (("text", results.get("labelled")), ("piece", results.get("pieces"))):
        if labelled is None:
            continue
        for name, title in (("auroc", "AUROC of wrong"), ("ece", "ECE")):
            value, ci95 = labelled[name]["value"], labelled[name]["ci95"]
            around = f" ({ci95[0]:.2f} to {ci95[1]:.2f})" if ci95 else ""
            message = "–: needs right and wrong texts" if value is None else f"{value:.2f}{around}"
            lines.append(f"{title} over {count(labelled['n'], f'labelled {what}')}: {message}")
        if few := few_groups(labelled.get("groups", 0)):
            lines.append(f"note: labelled {what}s of {few}")
    return lines


class Piece(NamedTuple):
    """A piece of a text within one token, its step of colour (None without a score), and its tooltip."""

    text: str
    level: int | None
    tooltip: str


def scores_html(
    scored: Sequence[Scored], *, about: Mapping[str, str], results: Mapping[str, Any], limit: float, most: int
) -> str:
    """Make the page of the ``most`` highest scores, with the threshold as a probability, ``limit``."""
    highest = sorted(scored, key=lambda pair: (pair[1].score is None, -(pair[1].score or 0.0)))
    return render(
        "probers.score/scores.html.j2",
        shown=[(one, response, list(parts(one.answer, response, limit))) for one, response in highest[:most]],
        rest=max(0, len(scored) - most), about=about, results=results, limit=limit, unlike=unlike,
        few=few_groups(results.get("labelled", {}).get("groups", 0)), grounds=grounds,
        levels=LEVELS, above=ABOVE, tail=lambda text: text if len(text) <= _PROMPT else f"…{text[-_PROMPT:]}",
    )  # fmt: skip


def grounds(one: Text, response: Response) -> list[tuple[Ground, str]]:
    """Pair what each part of an answer rests on with the text of its passage."""
    shown = one.passages or [(one.prompt or "")[start:end] for start, end in one.passages_at]
    return [(ground, shown[ground.passage - 1]) for ground in response.grounds or ()]


def unlike(domain: DomainDistance) -> str:
    """Tell how far a text is from the training texts, and the limits."""
    message = f"distance of its states {num(domain.distance)}, limit {num(domain.limit)}"
    if domain.surprise is None or domain.surprise_range is None:
        return message
    low, high = domain.surprise_range
    message += f"; surprise {num(domain.surprise)} nats per token"
    return f"{message}, {num(max(low, 0))} to {num(high)} of the training texts"


def level(p: float, limit: float) -> int:
    """Choose a colour step; the upper :data:`ABOVE` of :data:`LEVELS` are above ``limit``."""
    below = LEVELS - ABOVE
    if p > limit:
        return below + min(ABOVE - 1, int((p - limit) / (1 - limit) * ABOVE))
    return min(below - 1, int(p / limit * below)) if limit > 0 else below - 1


def parts(text: str, response: Response, limit: float) -> Iterator[tuple[ScoredSpan | None, list[Piece]]]:
    """Cut a text at the borders of tokens and spans, from left to right.

    It yields a span, or None between spans, and its pieces. A span over the whole text is not marked: the
    text's own score says the same. ``limit`` is the threshold as a probability.
    """
    offsets = response.token_offsets
    spans = [span for span in response.spans if (span.start, span.end) != (0, len(text))]
    marks = [0, len(text), *(mark for each in offsets for mark in each)]
    marks += [mark for span in spans for mark in (span.start, span.end)]
    borders = sorted({min(max(mark, 0), len(text)) for mark in marks})
    pieces = []
    for start, end in zip(borders, borders[1:], strict=False):
        token = next((i for i, (a, b) in enumerate(offsets) if a <= start < b), None)
        place = next((i for i, span in enumerate(spans) if span.start <= start < span.end), None)
        pieces.append((place, _piece(text[start:end], response, token, limit)))
    for place, group in groupby(pieces, key=lambda piece: piece[0]):
        yield None if place is None else spans[place], [piece for _, piece in group]


def _piece(text: str, response: Response, token: int | None, limit: float) -> Piece:
    if token is None or (score := response.token_scores[token]) is None:
        return Piece(text, None, "")
    p, logprobs = response.token_p_wrong[token] or 0.0, response.token_logprobs or ()
    figures = f"P(wrong) {p:.0%}, score {num(score)}, log-probability {num(logprobs[token])}"
    return Piece(text, level(p, limit), figures)
