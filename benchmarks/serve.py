"""Cost of the server, compared with the engine alone, with and without scores, and one request at a time.

    python benchmarks/serve.py --articles FILE.jsonl [--model smollm2] [--prober smollm2] [--write]

Servers are separate processes that are idle while the others work; the clients that read their streams
run on the same processor.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import statistics
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import torch
from flags import add_place, positive
from report import invocation, publish
from streams import NEW, stream, tokens_of
from timing import Results, by_turns, ratios, spread, verdict

from probers import CausalLM, Prober
from probers.data.articles import open_articles
from probers.model.loading import pick_device

TITLES = {"serve": "Serving", "first": "Serving: seconds to the first token"}
HEADS = {
    "serve": "model | streams | way | tokens/s | of the engine | of no scores | target | verdict",
    "first": "model | idle, s | 15 others being written, s | ratio | target | verdict",
}
ENGINE, PLAIN, SCORED = "`CausalLM.generate`, one batch", "server without a prober", "server with scores"
_WORDS = 40  # number of words of a beginning


def _dtype(model: str) -> str:
    """Choose the number format for serving."""
    return "float32" if model == "testbed" else "bfloat16"


@contextmanager
def served(model: str, prober: str, rows: int, dtype: str, device: str) -> Iterator[str]:
    """Run a server on a free port; yield its URL."""
    command = [
        str(Path(sys.executable).with_name("probers-serve")), f"model={model}", f"prober={prober}", "port=0",
        f"rows={rows}", "cache_megabytes=0",
        f"model.dtype={dtype}", f"model.device={device}",
    ]  # fmt: skip
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        line = next((line for line in server.stdout if line.startswith("serving ")), "")
        if not line:
            raise SystemExit(f"{' '.join(command)} did not start")
        yield next(word for word in line.split() if word.startswith("http"))
    finally:
        server.terminate()
        server.wait(30)


def to_first_token(url: str, model: str, prompts: Sequence[str], new: str, wait: float = 0) -> float:
    """Time the first token of another text in seconds, sent ``wait`` seconds after all others began."""

    async def run() -> float:
        async with httpx.AsyncClient(timeout=600) as client:
            written = [asyncio.Event() for _ in prompts]
            others = [
                asyncio.create_task(stream(client, url, model, prompt, begun=begun))
                for prompt, begun in zip(prompts, written, strict=True)
            ]
            for begun in written:
                await begun.wait()
            await asyncio.sleep(wait)
            made = await stream(client, url, model, new)
            await asyncio.gather(*others)
        return made.first

    return asyncio.run(run())


def offline(lm: CausalLM, prompts: Sequence[str]) -> int:
    """Count the tokens of one batch of the engine."""
    return sum(len(made.token_ids) for made in lm.generate(prompts, max_new_tokens=NEW))


def one_at_a_time(lm: CausalLM, prompts: Sequence[str]) -> int:
    """Do the same without this package: transformers with all hidden states, one request after the other."""
    tokens = 0
    for prompt in prompts:
        given = lm.tokenizer(prompt, return_tensors="pt").to(lm.device)
        made = lm.model.generate(
            **given,
            max_new_tokens=NEW,
            do_sample=False,
            output_hidden_states=True,
            return_dict_in_generate=True,
        )
        tokens += made.sequences.shape[1] - given["input_ids"].shape[1]
    return tokens


def measure(
    results: Results, model: str, prober: str, prompts: Sequence[str], options: argparse.Namespace
) -> None:
    """Add the rows of one model."""
    how = {"dtype": options.dtype or _dtype(model), "device": options.device}
    with served(model, "none", 16, **how) as plain, served(model, prober, 16, **how) as scored:
        if "serve" in options.only:
            lm = CausalLM.from_pretrained(model, **how)
            throughput(results, lm, prober, (plain, scored), prompts, options.rounds)
        if "first" in options.only:
            first_tokens(results, model, scored, prompts, options.rounds)


def throughput(
    results: Results, lm: CausalLM, prober: str, urls: tuple[str, str], prompts: Sequence[str], rounds: int
) -> None:
    """Compute tokens per second of servers at two URLs, of the engine, and of single requests."""
    model = lm.spec.id
    head = Prober.from_pretrained(prober).head
    of_model, of_heads = (sum(p.numel() for p in each.parameters()) / 1e6 for each in (lm.model, head))
    results.note(
        "serve",
        f"{model}: {of_model:.1f} million parameters, its {len(head.streams)} heads {of_heads:.1f} million.",
    )
    for streams in (1, 4, 16):
        some = prompts[:streams]
        calls: dict[str, Any] = {
            ENGINE: partial(offline, lm, some),
            PLAIN: partial(tokens_of, urls[0], model, some),
            SCORED: partial(tokens_of, urls[1], model, some),
            "transformers, all states, one by one": partial(one_at_a_time, lm, some[:2]),
        }
        compare(results, model, streams, calls, rounds, lm.device)


def compare(
    results: Results, model: str, streams: int, calls: dict[str, Any], rounds: int, device: torch.device,
    target: float = 0.95,
) -> None:  # fmt: skip
    """Add the rows of one number of streams: of the servers, and of the alternatives."""
    took, made = by_turns(calls, warm=calls, least=rounds, exactly=rounds, device=device)
    per_token = {name: [s / made[name] for s in took[name]] for name in calls}
    for name in calls:
        rate = spread([1 / s for s in per_token[name]], 1)
        row = ["", "", "", ""]
        if ENGINE in calls:
            of_engine = ratios(per_token[ENGINE], per_token[name])
            row[0] = spread(of_engine)
            if name == PLAIN:
                row[2:] = [">= 0.90 of the engine", verdict(statistics.median(of_engine) >= 0.9)]
        if name == SCORED:
            of_plain = ratios(per_token[PLAIN], per_token[name])
            met = verdict(statistics.median(of_plain) >= target)
            row[1:] = [spread(of_plain), f">= {target:.2f} of no scores", met]
        results.row("serve", model, streams, name, rate, *row)


def first_tokens(results: Results, model: str, url: str, prompts: Sequence[str], rounds: int) -> None:
    """Time the first token, in seconds, at an idle server, and while fifteen other texts are written.

    It is requested at a random moment of a step of the others: right after they began, it would always be at
    the beginning of a step.
    """
    moments, alone, busy = random.Random(0), list[float](), list[float]()
    to_first_token(url, model, [], prompts[-1])
    for new in prompts[16 : 16 + rounds]:
        alone.append(to_first_token(url, model, [], new))
        busy.append(to_first_token(url, model, prompts[:15], new, moments.uniform(0, 1)))
    share = statistics.median(busy) / statistics.median(alone)
    results.row(
        "first", model, spread(alone, 3), spread(busy, 3), f"{share:.2f}", "<= 1.5", verdict(share <= 1.5)
    )


def main(argv: list[str] | None = None) -> None:
    """Measure, print, and write the sections if asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--articles", required=True, help="FILE.jsonl, whose beginnings are continued")
    parser.add_argument("--model", nargs="+", default=["smollm2"])
    parser.add_argument("--prober", nargs="+", default=["smollm2"], help="one for each model")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--only", nargs="+", choices=TITLES, default=list(TITLES))
    parser.add_argument("--write", action="store_true", help="put the sections into RESULTS.md")
    add_place(parser)
    options = parser.parse_args(argv)
    articles = open_articles(options.articles, limit=200, seed=0)
    texts = [" ".join(" ".join(article.sentences).split()[:_WORDS]) for article in articles]
    prompts = [text for text in texts if len(text.split()) == _WORDS][:32]
    results = Results(HEADS)
    for model, prober in zip(options.model, options.prober, strict=True):
        measure(results, model, prober, prompts, options)
    note = (
        f"torch threads per process: {torch.get_num_threads()}. Beginnings of {_WORDS} words, {NEW} "
        f"new tokens, greedy; {options.rounds} rounds in turn; streams are read by a client on the same "
        "cores. At most two texts run one by one: only their rate counts."
    )
    for section in options.only:
        results.note(section, note)
    typed = ["--articles", "FILE.jsonl", "--model", *options.model, "--only", *options.only]
    typed += ["--device", options.device] if options.device != "auto" else []
    typed += ["--dtype", options.dtype] if options.dtype else []
    command = invocation("serve.py", [*typed, "--rounds", str(options.rounds)])
    kind = pick_device(options.device).type
    sections = {f"{TITLES[section]} ({kind})": results.body(section) for section in options.only}
    publish(sections, command, write=options.write)


if __name__ == "__main__":
    main()
