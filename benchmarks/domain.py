"""Share of texts that a prober calls unlike its training texts: its model's own, and others'.

    python benchmarks/domain.py --articles articles.jsonl --texts truthfulqa.jsonl ragtruth.jsonl

Own texts continue articles that the prober has not seen: written as in its training (greedily), read again
from their characters as by probers-score, drawn at two temperatures, and the article's own continuation.
Other texts are drawn from files in any layout of probers-score. Only texts in which the prober judges
something count.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from report import invocation, publish
from timing import Results

from probers.bank.assessment import Assessor, WrittenText
from probers.bank.bank import Prober
from probers.bank.response import DomainDistance
from probers.data.articles import Rules, open_articles
from probers.data.texts import TextSource
from probers.engine.language_model import Sampling
from probers.engine.model import CausalLM
from probers.evaluation.bootstrap import Bootstrap
from probers.online.scores import text_needs, text_scores
from probers.score.run import readable
from probers.types import Generation

SECTION = "Texts unlike a prober's training texts"
_BATCH = 16
#: Number of words of an article that are shown, drawn from this range, and of its own continuation.
_SHOWN, _FOLLOWING = (25, 100), 50


class Reader:
    """Model and prober that read texts."""

    def __init__(self, model: str, prober: str, dtype: str) -> None:
        self.lm = CausalLM.from_pretrained(model, dtype=dtype)
        self.lm.on_too_long = "skip"
        self.bank = Prober.from_pretrained(prober)
        self.bank.check_model(self.lm.spec)
        self._assess, self._needs = Assessor(self.bank), text_needs(self.bank)

    def write(self, prompts: Sequence[str], tokens: int, temperature: float = 0.0) -> list[Generation]:
        """Continue prompts by ``tokens``, greedily at temperature 0."""
        sampling = Sampling(temperature=temperature) if temperature else None
        return self.lm.generate(prompts, max_new_tokens=tokens, needs=self._needs, sampling=sampling)

    def read(self, prompts: Sequence[str], answers: Sequence[str]) -> list[Generation]:
        """Read answers after their prompts."""
        found: list[Generation] = []
        for start in range(0, len(prompts), _BATCH):
            part = slice(start, start + _BATCH)
            found += self.lm.score(prompts[part], answers[part], needs=self._needs)
        return found

    def domains(self, texts: Sequence[Generation]) -> Iterator[DomainDistance]:
        """Tell for each text with a judged part whether it is unlike the training texts."""
        for one in texts:
            if not one.token_ids or one.state is None:
                continue
            pieces = self._assess.pieces(one.prompt, one.text, one.offsets)
            parts = None if pieces is None else list(pieces.values())
            record = WrittenText.of(one, *text_scores(self.bank, one.state, parts))
            if (domain := self._assess(record).domain) is not None:
                yield domain


def beginnings(file: str, bank: Prober, n: int) -> list[tuple[str, str]]:
    """List beginnings of unseen articles of the test split, with their continuations."""
    source = open_articles(
        file, limit=None, seed=0, on_bad_line="error", rules=Rules(2, 100_000), wikipedia={}
    )  # fmt: skip
    found, rng = [], random.Random(0)
    for article in source:
        words = " ".join(article.sentences).split()
        seen = bank.seen is not None and bank.seen.side("wiki", article.id, "")
        if article.split == "test" and not seen and len(words) > sum(_SHOWN):
            cut = rng.randint(*_SHOWN)
            found.append((" ".join(words[:cut]), " " + " ".join(words[cut : cut + _FOLLOWING])))
    rng.shuffle(found)
    return found[:n]


def row_of(name: str, found: Sequence[DomainDistance]) -> tuple[object, ...]:
    """Format number of texts, shares that are unlike by both, by the states and by surprise, and medians."""
    if not found:
        return name, 0, *"–" * 5
    unlike, far, distance = (
        np.array([value(each) for each in found], dtype=float)
        for value in (lambda d: d.unlike, lambda d: d.distance > d.limit, lambda d: d.distance)
    )
    drawn = Bootstrap(np.arange(len(found)))
    share = "{:.2f} ({:.2f} to {:.2f})".format(*drawn.interval(unlike))
    told = [(d.surprise, d.surprise_range) for d in found]
    known = [(value, *ends) for value, ends in told if value is not None and ends is not None]
    outside = [not low <= value <= high for value, low, high in known]
    by_surprise, surprise = (f"{f(x):.2f}" if known else "–" for f, x in (
        (np.mean, outside), (np.median, [value for value, *_ in known] or [0.0])
    ))  # fmt: skip
    return name, len(found), share, f"{far.mean():.2f}", by_surprise, f"{np.median(distance):.2f}", surprise


def main(argv: list[str] | None = None) -> None:
    """Measure, print, and write the section if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--prober", default="smollm2", help="prober folder, or the name of the shipped one")
    parser.add_argument("--articles", help="articles that the model continues")
    parser.add_argument("--texts", nargs="*", default=[], help="files of others' texts")
    parser.add_argument("--n", type=int, default=100, help="texts of each kind")
    parser.add_argument("--tokens", type=int, default=48, help="tokens written behind each beginning")
    parser.add_argument("--write", action="store_true", help="put the section into RESULTS.md")
    options = parser.parse_args(argv)

    columns = "judged | unlike (95%) | by states | by surprise | distance, median | surprise, median"
    results = Results({"domain": f"texts | {columns}"})
    reader = Reader(options.model, options.prober, options.dtype)

    def told(name: str, texts: Sequence[Generation]) -> None:
        results.row("domain", *row_of(name, list(reader.domains(texts))))

    if options.articles:
        prompts, following = zip(*beginnings(options.articles, reader.bank, options.n), strict=True)
        own = reader.write(prompts, options.tokens)
        told("own, as trained", own)
        told("own, read again", reader.read(prompts, [one.text for one in own]))
        for temperature in (0.5, 1.0):
            told(f"own, temperature {temperature}", reader.write(prompts, options.tokens, temperature))
        told("the articles' own", reader.read(prompts, following))
    for file in options.texts:
        source = TextSource(file, on_bad_line="skip")
        texts = list(source.all())
        random.Random(0).shuffle(texts)
        texts = readable(texts[: options.n], source, reader.lm.tokenizer)
        asked = [one.prompt_for(reader.lm.tokenizer, file) for one in texts]
        told(Path(file).name, reader.read(asked, [one.answer for one in texts]))
    argv = ["--articles", str(options.articles), "--texts", *options.texts, "--n", str(options.n)]
    argv += ["--tokens", str(options.tokens)]
    publish({SECTION: results.body("domain")}, invocation("domain.py", argv), write=options.write)


if __name__ == "__main__":
    main()
