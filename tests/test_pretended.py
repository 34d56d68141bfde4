"""All that reads a model, on pretended devices: the CPU's results, nothing mixed, one copy a token."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from helpers.pretended import Copies, pretending
from helpers.tiny import PROMPTS, forwarded, tiny_lm, tiny_path, without_specials
from test_continuous import Recorded, asked, drain
from test_lm import recorded
from test_loop import without_seconds

from probers.data import load_corpus
from probers.heads import LinearHead
from probers.model.blocks import decoder_layers, decoder_of
from probers.model.causal_lm import CausalLM
from probers.model.language_model import Sampling
from probers.prober.prober import Prober
from probers.prober.token_scores import GrowingScores
from probers.rag import RAG, triggers
from probers.rag.queries import AnswerQuery
from probers.rag.retrievers import BM25
from probers.serve.continuous import ContinuousBatch
from probers.store.spec import FeatureSpec
from probers.types import POOLS, Feature, Generation, Needs, Pool, Question

FIRST, SECOND = "privateuseone:0", "privateuseone:1"


def assert_same(actual: Any, wanted: Any, where: str = "") -> None:
    """The same values of everything inside; numbers to rounding, which goes by where in memory they lie."""
    assert type(actual) is type(wanted), where
    if isinstance(wanted, Generation):
        left, right = ([one.token_ids, one.top, list(one.states), *recorded(one)] for one in (actual, wanted))
        assert_same(left, right, where)
    elif isinstance(wanted, dict):
        assert list(actual) == list(wanted), where
        for key, value in wanted.items():
            assert_same(actual[key], value, f"{where}/{key}")
    elif isinstance(wanted, (list, tuple)):
        assert len(actual) == len(wanted), where
        for place, (one, other) in enumerate(zip(actual, wanted, strict=True)):
            assert_same(one, other, f"{where}/{place}")
    elif isinstance(wanted, (float, np.ndarray)):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-4, err_msg=where)
    else:
        assert actual == wanted, where


def dealt(family: str) -> dict[str, str]:
    """A device map of the tiny model: its first block and what comes before on the first device."""
    model = tiny_lm(family).model
    names = {module: name for name, module in model.named_modules()}
    decoder, blocks = decoder_of(model), decoder_layers(model)
    places, device = {}, FIRST
    for child in decoder.children():
        if child is blocks:
            places |= {names[block]: FIRST if block is blocks[0] else SECOND for block in blocks}
            device = SECOND
        else:
            places[names[child]] = device
    head = names[model.get_output_embeddings()]
    return places | {head: FIRST if model.config.tie_word_embeddings else SECOND}


def on(where: str, family: str = "llama") -> CausalLM:
    """The tiny model on the CPU, a pretended device, or dealt over both."""
    if where != "both":
        return tiny_lm(family, device=where)
    lm = CausalLM.from_pretrained(str(tiny_path(family)), device_map=dealt(family))
    without_specials(lm.model, lm.tokenizer)
    return lm


def everything(family: str) -> Needs:
    """All that can be read of a tiny model: every pool and site, attention, the two top probabilities."""
    pools = [Feature((3,) if "mind" in pool else (0, 1, 3), pool=pool) for pool in POOLS]
    sites = ["attn_out", "mlp_out"] if family == "falcon" else ["attn_out", "mlp_out", "resid_mid"]
    ratios = [Feature((3,), site="lookback", pool=pool) for pool in ("tokens", "mean")]
    features = (*pools, *(Feature((3, 1), site=site) for site in sites), *ratios)
    return Needs(features, attention=True, top=True)


#: The last two: windows of 8 positions beside full attention; its own attention function, and no middle.
SOME = ("llama", "gemma3", "falcon")
DRAWN = Sampling(0.8, top_k=20, top_p=0.9)


@pytest.mark.parametrize("family", SOME)
def test_every_feature_is_that_of_the_cpu(family: str):
    """Greedy texts that end at different steps and may end with a stop string, drawn ones, and given ones."""
    all_, middle = everything(family), Needs(attention=True, attention_layer=2)
    limits: dict[str, Any] = {"max_new_tokens": (5, 2, 4, 3, 5)}
    plain = tiny_lm(family).generate(PROMPTS, needs=all_, stop=["zzz"], **limits)
    made = {}
    with pretending() as copies:
        for where in ("cpu", FIRST, "both"):
            lm = on(where, family)
            made[where] = lm.generate(PROMPTS, needs=all_, stop=["zzz"], **limits)
            made[where] += lm.generate(PROMPTS, needs=middle, sampling=DRAWN, **limits)
            made[where] += lm.score(PROMPTS, [text.token_ids for text in made[where][:5]], needs=all_)
            assert where != "cpu" or not len(copies)
    assert_same(made[FIRST], made["cpu"])
    assert_same(made["both"], made["cpu"])
    assert_same(made["cpu"][: len(plain)], plain)  # which was written where no memory was filled with NaN
    assert len(plain[0].states) == len(all_.features)


def more_copies(run: Callable[[int], Any], copies: Copies, few: int = 3, many: int = 6) -> float:
    """Copies to the host for each further token that ``run`` is told to write."""
    counts = []
    for count in (few, few, many):  # what is computed once is computed in the first
        copies.counts.clear()
        run(count)
        counts.append(len(copies))
    return (counts[2] - counts[1]) / (many - few)


@pytest.mark.parametrize(("family", "where"), [*((family, FIRST) for family in SOME), ("gemma3", "both")])
def test_a_token_is_one_copy_whatever_is_read(family: str, where: str):
    """Rows of unlike lengths, so that masks hide something; one text ends early and the others go on."""
    with pretending() as copies:
        lm = on(where, family)

        def write(count: int, **how: Any) -> None:
            lm.generate(PROMPTS, max_new_tokens=(count, 2, count, count, count), **how)

        assert more_copies(write, copies) == 1
        of_tokens = [line.split(":")[0] for line, count in copies.lines().items() if count >= 6]
        assert of_tokens == ["probers/model/decode.py"]
        assert more_copies(lambda n: write(n, needs=everything(family), sampling=DRAWN), copies) == 1


def prober(lm: CausalLM, pool: Pool = "mean") -> Prober:
    """Random heads of two layers that fire at nearly anything."""
    position = "entity" if pool == "predicting" else "generated"
    spec = FeatureSpec(lm.spec, (1, 3), lm.width, "resid_post", pool, position=position, dtype="float32")
    head = LinearHead(["1/1", "1/3"], lm.width)
    return Prober(spec, head, threshold=-9.0, aggregate="max" if pool == "tokens" else None)


ASKED = Question("q", "Who does Lena Zaser work for?", answers=("Rekman Labs",), dataset="testbed")


#: Triggers that read states, words of the vocabulary, attention, and drawn answers.
TRIGGERS: dict[str, Any] = {
    "probing": lambda lm: triggers.Probing(prober(lm)), "entropy": lambda lm: triggers.Entropy(),
    "rind": lambda lm: triggers.Rind(), "eigenscore": lambda lm: triggers.Eigenscore(samples=3),
}  # fmt: skip


@pytest.mark.parametrize("name", TRIGGERS)
def test_the_loop_of_a_trigger_is_that_of_the_cpu(name, monkeypatch):
    """No trigger decides within a text: of each text it reads what was copied once, at its end."""
    answers = []
    with pretending() as copies:
        for where in ("cpu", FIRST):
            lm = on(where)
            options = {"k": 1, "max_new_tokens": 6, "max_retrievals": 1, "answer_tokens": 3, "draft": 0}
            loop = RAG(lm, BM25(load_corpus("testbed")), TRIGGERS[name](lm), AnswerQuery(), **options)
            passes = forwarded(lm, monkeypatch)
            copies.counts.clear()
            answers.append(without_seconds(loop(ASKED)))
    assert_same(answers[1], answers[0])
    texts = sum(rows for rows, columns in passes if columns > 1)
    for line, count in copies.lines().items():
        of_tokens = line.startswith("probers/model/decode.py") and count <= len(passes)
        assert count <= 2 * texts or of_tokens, (line, count, passes)


@pytest.mark.parametrize("pool", ["mean", "predicting"])
def test_a_watched_loop_copies_once_a_token_more(pool: Pool):
    """A plain transformers model that generates, and a prober that watches it."""
    with pretending() as copies:
        scores = []
        for where in ("cpu", FIRST):
            lm = on(where)
            bank = prober(lm, pool).to(where)
            texts = lm.tokenizer(list(PROMPTS), return_tensors="pt", padding=True, padding_side="left")
            write = partial(lm.model.generate, **texts.to(where), do_sample=False)

            def watched(count: int, bank: Prober = bank, lm: CausalLM = lm, write: Any = write) -> Any:
                with bank.watch(lm.model) as scores:
                    scores.finish(write(max_new_tokens=count))
                    return scores.tokens

            scores.append(watched(8))
        assert_same(scores[1], scores[0])
        alone = more_copies(lambda n: write(max_new_tokens=n), copies)
        assert more_copies(watched, copies) == alone + 1  # which rows its token counts in


@pytest.mark.parametrize(("pool", "where"), [("tokens", FIRST), ("predicting", "both")])
def test_continuous_batches_copy_once_a_token(pool: Pool, where: str):
    texts: dict[str, Any] = {}
    with pretending() as copies:
        for place in ("cpu", where):
            lm, recorded = on(place), Recorded()
            made = asked(lm, PROMPTS, (5, 9, 6, 3, 8), alternatives=2)
            batch = ContinuousBatch(lm, Feature((1, 3), pool=pool), recorded, rows=3, piece=8)
            with batch:
                batch.add(made)
                drain(batch)
            states = [torch.stack(recorded.states[id(text)]).cpu().numpy() for text in made]
            pairs = zip(made, states, strict=True)
            texts[place] = [(t.row.ids, t.logprobs, t.entropies, t.tops, each) for t, each in pairs]
        assert_same(texts[where], texts["cpu"])

        def write(count: int, reader: Any = lambda texts, states: None) -> None:
            sampling = {"sampling": Sampling(), "alternatives": 3}
            made = asked(lm, PROMPTS, (count,) * 5, **sampling)
            for number, text in enumerate(made):
                text.random = np.random.default_rng(number)
            with ContinuousBatch(lm, Feature((1, 3), pool=pool), reader, rows=5) as batch:
                batch.add(made)
                drain(batch)

        assert more_copies(write, copies) == 1
        # A prober's score is told with its token: whether the states are finite, and what it makes of them.
        growing = GrowingScores(prober(lm, pool).to(SECOND if where == "both" else FIRST))
        assert more_copies(lambda n: write(n, growing.add_each), copies) == 3
