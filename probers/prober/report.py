"""Report of a prober, from its figures alone: text for a terminal, HTML for a notebook."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from textwrap import fill

from ..evaluation.bootstrap import LEAST_GROUPS, bounded, bounds, number
from ..pages import render
from ..store.spec import ranges
from ..types import count
from .figures import ENSEMBLE, ENSEMBLES, SHUFFLED, WITHOUT, WORDS, Detection, Figures, Layer
from .risk_control import Promise

_NAME = 45
#: Title and name of the figures in the terminal after AUROC, and in HTML.
_SHORT = (("AUPRC", "auprc"), ("acc.", "accuracy"), ("F1", "f1"), ("ECE", "ece"))
COLUMNS = (
    ("AUROC", "auroc"), ("AUPRC", "auprc"), ("accuracy", "accuracy"), ("F1", "f1"), ("PRR", "prr"),
    ("recall at 10% FPR", "recall_at_fpr10"), ("ECE", "ece"), ("Brier", "brier"),
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Report:
    """Figures to look at: ``str()`` has the AUROC of the prober and of the best control, and one sentence
    whether it is better than words alone, in lines of at most 100 columns; a notebook shows tables, and the
    ``pictures`` (PNG files by name).
    """

    figures: Figures
    pictures: Mapping[str, bytes] = field(default_factory=dict)

    def __str__(self) -> str:
        titles = "".join(f"{title:>7}" for title, _ in _SHORT)
        lines = [self.tested, f"{'':{_NAME}}{'AUROC':20}{titles}"]
        for name, entry in self.summary:
            cells = "".join(f"{number(entry.get(key)):>7}" for _, key in _SHORT)
            first = f"{cut(name, _NAME - 3):{_NAME - 2}}{bounded(entry, 'auroc', absent='-'):20}"
            lines.append(f"  {first}{cells}")
        lines += [fill(line, 98, subsequent_indent="  ") for line in self.sentences]
        lines += [fill(note, 98, initial_indent="note: ", subsequent_indent="  ") for note in self.notes]
        return of_words("\n".join(lines))

    __repr__ = __str__

    def _repr_html_(self) -> str:
        pictures = {name: base64.b64encode(png).decode() for name, png in self.pictures.items()}
        return of_words(render(
            "probers.prober/report.html.j2",
            figures=self.figures, rows=self.rows, sentences=[self.tested, *self.sentences], notes=self.notes,
            columns=COLUMNS, pictures=pictures, bounded=bounded, layer_name=layer_name,
        ))  # fmt: skip

    @property
    def tested(self) -> str:
        """Size of the test split."""
        test, texts = self.figures.splits["test"], self.figures.words.texts
        of = f"{count(test.n, 'text')}, {count(test.groups, 'group')}"
        return f"test: {of}, {test.wrong:.0%} {texts}; 95% intervals"

    @property
    def notes(self) -> list[str]:
        """Reasons to distrust the figures, and what was left out."""
        return [*warnings(self.figures), *summed(self.figures.notes, reasons=False)]

    @property
    def rows(self) -> list[tuple[str, Detection]]:
        """The prober's scores, every layer, other way to join them, member and control, by name."""
        figures = self.figures
        ways = {kind: f"{ENSEMBLE}: {ENSEMBLES.get(kind, kind)}" for kind in figures.ensembles}
        layers = [(layer_name(figures, entry), entry) for entry in figures.layers]
        if len(layers) == 1:
            ways = {figures.combine: layers.pop()[0]}
        name = f"prober: {ways.pop(figures.combine, ENSEMBLE)}"
        rows: list[tuple[str, Detection]] = [(name, figures.ensemble)]
        if figures.with_entropy:
            rows.append((figures.joined, figures.with_entropy))
        rows += [*layers, *((name, figures.ensembles[kind]) for kind, name in ways.items())]
        rows += [(f"member: {name}", member) for name, member in figures.members.items()]
        return rows + [(f"control: {name}", control) for name, control in figures.controls.items()]

    @property
    def summary(self) -> list[tuple[str, Detection]]:
        """The prober's scores, and the controls to compare them with."""
        figures, single = self.figures, len(self.figures.layers) == 1
        name = layer_name(figures, figures.best) if single else ENSEMBLE
        rows: list[tuple[str, Detection]] = [(f"prober: {name}", figures.ensemble)]
        if figures.members:
            best = best_member(figures)
            rows.append((f"best member: {best}", figures.members[best]))
        if figures.with_entropy:
            rows.append((figures.joined, figures.with_entropy))
        rivals = {name: c for name, c in figures.controls.items() if name != SHUFFLED and c.auroc is not None}
        if rivals:
            best = max(sorted(rivals), key=lambda name: rivals[name].auroc or 0.0)
            rows.append((f"best control: {best}", rivals[best]))
        return rows

    @property
    def sentences(self) -> list[str]:
        """Lead over chance, words alone and the best member, promise, and where the rest is."""
        figures, lines = self.figures, list[str]()
        if (interval := figures.ensemble.auroc_ci) is not None and interval[0] <= 0.5:
            lines.append("Its AUROC is not shown to be above that of chance, 0.5.")
        if words := self._words:
            low, high = figures.pairs[f"{ENSEMBLE} vs {words}"]["auroc"].ci95 or (0.0, 0.0)
            verdict = "better" if low > 0 else "worse" if high < 0 else "not shown to be better"
            if (groups := figures.splits["test"].groups) < LEAST_GROUPS:
                verdict = f"not shown by {count(groups, 'test group')} to be better"
            aim = "" if figures.label == "wrong" else f" at finding {figures.words.texts} answers"
            verdict = f"It is {verdict} than words alone{aim} (a {words})"
            lines.append(f"{verdict}: AUROC {self._pair(words)}.")
        if figures.members:
            best = best_member(figures)
            weights = ", ".join(f"{name} {entry.weight:.2f}" for name, entry in figures.members.items())
            lines.append(f"Stack minus {best}: AUROC {self._pair(best)}; weights: {weights}.")
        for name, before, after in adapter_rows(figures):
            lines.append(f"{name}: {before} without adapters, {after} with them.")
        lines += [promised(figures)] if figures.promise else []
        control = "A control is a simpler score, like the text's length, that a prober should beat."
        more = "README.md (the card) and plots of the saved prober"
        return [*lines, control, f"Every layer, control, calibration and group of texts: {more}."]

    @property
    def _words(self) -> str:
        """Name of the best control of words alone; "" without one."""
        names = [name for name in self.figures.controls if f"{ENSEMBLE} vs {name}" in self.figures.pairs]
        of_words = sorted(name for name in names if name.startswith(WORDS))
        return max(of_words, key=lambda name: self.figures.controls[name].auroc or 0.0, default="")

    def _pair(self, name: str) -> str:
        pair = self.figures.pairs[f"{ENSEMBLE} vs {name}"]["auroc"]
        return f"{number(pair.diff, '+.3f')} {bounds(pair.ci95, '+.3f')}"


def of_words(text: str) -> str:
    """Write "bag of words of the text" for the name "bag of words, text" of a control."""
    return re.sub(f"{WORDS}, (?=text|question|answer)", f"{WORDS} of the ", text)


def cut(text: str, width: int) -> str:
    """Shorten a text to ``width`` columns, ending in two dots."""
    return text if len(text) <= width else text[: width - 2] + ".."


def layer_name(figures: Figures, entry: Layer) -> str:
    """Name a layer, or those of one head, with the site where there are several."""
    site = f"{entry.site} " if len(figures.sites) > 1 else ""
    named = f"{site}layer{'s' * bool(entry.together)} {_layers(entry)}"
    return " + ".join([named, *entry.beside])


def best_name(figures: Figures) -> str:
    """Number of the layer that is best on validation, with its site where there are several."""
    site = f"{figures.best_site} " if len(figures.sites) > 1 else ""
    return f"{site}{_layers(figures.best)}"


def _layers(entry: Layer) -> str:
    return ranges(entry.together) if entry.together else str(entry.layer)


def best_member(figures: Figures) -> str:
    """Name the member of a stack that is best on validation."""
    return max(figures.members, key=lambda name: figures.members[name].validation["auroc"])


def warnings(figures: Figures) -> list[str]:
    """List reasons to distrust the figures, one sentence each."""
    messages = []
    shuffled = figures.controls.get(SHUFFLED)
    if shuffled is not None and not shuffled.at_chance:
        why = "by chance (one run in twenty) or because something is wrong; train with another seed"
        reached = f"{number(shuffled.auroc)} {bounds(shuffled.auroc_ci)}"
        messages.append(f"a head on shuffled labels reached AUROC {reached}, not 0.5: {why}")
    if figures.calibration.constant:
        why = f"on validation, higher scores are not more often {figures.words.texts}"
        messages.append(f"{figures.words.probability} is the same for every text: {why}")
    train, test = (set(figures.splits[split].datasets) for split in ("train", "test"))
    if train and test and not train & test:
        sets = f"trained on {', '.join(sorted(train))}, tested on {', '.join(sorted(test))}"
        messages.append(f"out of domain: {sets}")
    return messages


#: A note on a control: its name, and why it is left out.
_LEFT_OUT = re.compile(r"(?:control '(.+?)'|positive (control)) left out: (.+)", re.DOTALL)


def summed(notes: Sequence[str], *, reasons: bool = True) -> list[str]:
    """Put the notes on controls that were left out into one, which comes last."""
    matched = [_LEFT_OUT.fullmatch(note) for note in notes]
    rest = [note for note, match in zip(notes, matched, strict=True) if match is None]
    each = {match[1] or "positive control": match[3] for match in matched if match}
    if not each:
        return rest
    listed = [f"{name} ({why})" for name, why in each.items()] if reasons else list(each)
    where = "" if reasons else " (README.md of the saved prober says why)"
    return [*rest, f"{count(len(each), 'control')} left out{where}: {', '.join(listed)}"]


def adapter_rows(figures: Figures) -> list[tuple[str, str, str]]:
    """List what adapters below the head do: name, without them, with them; [] where none were kept."""
    adapter = figures.adapter
    if not adapter or not adapter["kept"]:
        return []
    limit = "" if adapter["kl_limit"] is None else f" (limit {adapter['kl_limit']:.3g})"
    texts = adapter["perplexity"]
    return [
        ("AUROC", bounded(figures.controls[WITHOUT], "auroc"), bounded(figures.ensemble, "auroc")),
        (f"KL to the model, nats a token{limit}", "0", bounded(adapter, "kl", ".4f")),
        (f"perplexity of its own {texts['texts']} texts", f"{texts['without']:.3f}", f"{texts['with']:.3f}"),
        ("trained parameters of the model", "0", f"{adapter['parameters']:,}"),
    ]


def promised(figures: Figures) -> str:
    """Say what the threshold promises and what came of it on the test texts; "" without a promise."""
    if (entry := figures.promise) is None:
        return ""
    promise = Promise(entry.risk, entry.confidence, entry.groups, entry.passing, entry.wrong)
    passing, wrong = entry.test["passing"], entry.test["wrong"]
    share = f" ({wrong / passing:.0%})" if passing else ""
    return f"promise: {promise}; of {passing} test groups that pass {wrong} are wrong{share}"
