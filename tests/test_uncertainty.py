"""Signals of drawn answers and further questions: closed forms, plain re-implementations, and odd input."""

import itertools
import math
import random
from dataclasses import replace
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from helpers.refusals import fails
from transformers import BertConfig, BertForSequenceClassification, BertTokenizer

from probers.model.language_model import Sampling
from probers.prompts import TESTBED_PROMPT
from probers.rag.triggers import Eigenscore
from probers.signals import Draws, Entailment, by_matcher, clusters, draw
from probers.signals.agreement import (
    best_cut,
    eigenscore,
    lexical_similarity,
    self_consistency,
    semantic_entropy,
)
from probers.signals.samples import Prompt, states_at_end
from probers.signals.self_evaluation import P_TRUE_FORM, p_true, question_of, spellings, stated
from probers.types import Needs, RunError
from probers.words import EntityMatcher

SAME = by_matcher(EntityMatcher(wordnet=""))


def test_entropy_of_meanings_in_closed_form():
    assert semantic_entropy([0, 0, 0]) == 0
    assert semantic_entropy([0]) == 0  # one sample means one thing
    assert semantic_entropy([0, 0, 1, 1]) == pytest.approx(math.log(2))
    assert semantic_entropy([0, 1, 2, 3, 4]) == pytest.approx(math.log(5))
    assert semantic_entropy([0, 0, 0, 1]) == pytest.approx(-0.75 * math.log(0.75) - 0.25 * math.log(0.25))


def test_weighted_entropies_are_of_the_sequences_probabilities_and_of_their_tokens():
    share = np.array([0.625, 0.25]) / 0.875
    result = semantic_entropy([0, 1, 0], np.log([0.5, 0.25, 0.125]), variant="sequence")
    assert result == pytest.approx(-(share * np.log(share)).sum())
    for variant in ("weighted", "sequence"):  # very low ones do not underflow
        result = semantic_entropy([0, 1, 1], [-2000.0] * 3, [3] * 3, variant=variant)
        assert result == pytest.approx(semantic_entropy([0, 1, 1]))


def test_weighted_entropy_is_that_of_the_code_of_farquhar_et_al():
    """Mean log-likelihoods of tokens, normalised over samples, summed by meaning; H = -sum p log p."""
    rng = np.random.default_rng(0)
    for _ in range(50):
        tokens = [np.log(rng.uniform(0.05, 1, size=rng.integers(1, 12))) for _ in range(6)]
        of = rng.integers(3, size=6).tolist()
        mean = [float(each.mean()) for each in tokens]
        normal = [value - math.log(math.fsum(map(math.exp, mean))) for value in mean]
        clustered = {
            c: math.log(math.fsum(math.exp(v) for v, m in zip(normal, of, strict=True) if m == c)) for c in of
        }
        expected = -math.fsum(math.exp(value) * value for value in clustered.values())
        result = semantic_entropy(of, [t.sum() for t in tokens], [len(t) for t in tokens], variant="weighted")
        assert result == pytest.approx(expected, abs=1e-9)


def test_what_cannot_be_computed_is_refused():
    for make in (
        lambda: semantic_entropy([]),
        lambda: semantic_entropy([0, 1], [-1.0, -2.0], variant="weighted"),
        lambda: semantic_entropy([0, 1], [-1.0], variant="sequence"),
        lambda: lexical_similarity(["one"]),
        lambda: eigenscore(np.ones((1, 4))),
        lambda: self_consistency("a", [], SAME),
    ):
        with fails("missing-value"):
            make()
    with fails(None, kind=RunError):
        eigenscore(np.array([[1.0, np.nan], [0.0, 1.0]]))
    for draws in (Draws(samples=1), Draws(samples=5, temperature=0.0)):
        with fails(None):
            draws.at_least(2, "semantic entropy")


def test_clusters_are_the_transitive_closure_and_an_undecided_pair_joins_nothing():
    alike = {("a", "b"), ("b", "c")}
    result = clusters("acbdd", lambda x, y: (x, y) in alike or (y, x) in alike)
    assert result.of == (0, 0, 0, 1, 1) and len(result) == 2 and result.undecided == 0
    result = clusters(["John Adams", "John Quincy Adams", "Paris"], SAME)
    assert result.of == (0, 1, 2) and result.undecided == 1
    # Joined through a third answer it is decided.
    verdicts = {"ab": None, "ac": True, "bc": True}
    assert clusters("abc", lambda x, y: verdicts[x + y]).undecided == 0


def test_consistency_is_the_share_that_agrees_with_the_greedy_answer():
    drawn = ["Paris", "paris.", "Rome", "John Adams"]
    assert self_consistency("Paris", drawn, SAME) == 0.5
    assert self_consistency("John Quincy Adams", drawn, SAME) == 0  # undecided is no agreement


def plain_rouge(a, b):
    """ROUGE-L by trying every subsequence of the shorter text."""
    a, b = a.split(), b.split()
    short, long = sorted((a, b), key=len)

    def contained(words):
        rest = iter(long)
        return all(word in rest for word in words)

    sizes = range(len(short), -1, -1)
    most = next(n for n in sizes if any(map(contained, itertools.combinations(short, n))))
    return 2 * most / (len(a) + len(b)) if a or b else 1.0


def test_lexical_similarity_is_the_mean_rouge_of_all_pairs():
    rng = random.Random(0)
    for _ in range(30):
        texts = [" ".join(rng.choices("abcd", k=rng.randint(1, 7))) for _ in range(4)]
        expected = np.mean([plain_rouge(a, b) for a, b in itertools.combinations(texts, 2)])
        assert lexical_similarity(texts) == pytest.approx(expected)
    assert lexical_similarity(["The cat sat.", "the cat sat"]) == 1
    assert lexical_similarity(["one", "two"]) == 0


@pytest.mark.parametrize(("a", "b", "expected"), [
    ("Müller", "Möller", 0), ("MÜLLER", "mu\u0308ller", 1), ("Москва", "МОСКВА", 1),
    ("北京", "东京", 1 / 2), ("東京", "東京都", 4 / 5), ("서울 시", "부산 시", 1 / 2),
    ("القاهرة", "بغداد", 0), ("!?", "", 1), ("don't go_on", "don t go on", 1),
])  # fmt: skip
def test_lexical_similarity_reads_every_script(a, b, expected):
    """Words with their accents; characters where no spaces are written (LCSTS)."""
    assert lexical_similarity([a, b]) == lexical_similarity([b, a]) == pytest.approx(expected)


def test_eigenscore_is_the_formula_written_out():
    z = np.random.default_rng(0).normal(size=(16, 5))  # d x K
    d = len(z)
    centring = np.eye(d) - np.ones((d, d)) / d
    values = np.linalg.eigvalsh(z.T @ centring @ z + 0.001 * np.eye(5))
    assert eigenscore(z.T) == pytest.approx(np.log(values).sum() / 5)
    # States that agree score lowest: one eigenvalue is left.
    assert eigenscore(np.repeat(z.T[:1], 5, axis=0)) < eigenscore(z.T)


def compared(lm, prompt, how, variant):
    """Samples of a prompt, and the score of their states as the trigger computes it."""
    trigger = Eigenscore(variant=variant, **vars(how))
    layer = trigger.layer_of(lm.spec)
    drawn = draw(lm.generate, [Prompt(prompt, "", 8)], how, TESTBED_PROMPT, layer=layer, pool=trigger.pool)
    if variant == "seakr":
        drawn = [replace(drawn[0], states=states_at_end(lm, drawn, layer)[0])]
    return drawn[0], trigger.score(drawn[0], "")[0]


def test_seakrs_score_is_of_the_mlps_output_at_the_end_mark(lm):
    """Independent: a plain pass of transformers over prompt, sample and mark; the covariance written out."""
    (prompt,) = questions("Lena Zaser")
    samples, score = compared(lm, prompt, Draws(samples=4, temperature=3.0), "seakr")
    block = lm.model.model.layers[lm.num_layers // 2 - 1]
    rows = []
    for one in samples.calls:
        ids = [*one.prompt_ids, *(one.token_ids[:-1] if one.stop == "length" else one.token_ids)]
        handle = block.mlp.register_forward_hook(lambda module, args, output: rows.append(output[0, -1]))
        with torch.inference_mode():
            lm.model(torch.tensor([[*ids, lm.tokenizer.eos_token_id]]))
        handle.remove()
    z = torch.stack(rows).float()
    k, d = z.shape
    centring = torch.eye(d) - torch.ones(d, d) / d
    expected = torch.logdet((z @ centring @ z.T + 1e-3 * torch.eye(k)).double()) / k
    assert score == pytest.approx(float(expected), abs=1e-3)
    assert score != pytest.approx(
        compared(lm, prompt, Draws(samples=4, temperature=3.0), "paper")[1], abs=0.1
    )


def test_insides_score_is_of_the_state_before_the_last_token(lm):
    (prompt,) = questions("Lena Zaser")
    samples, score = compared(lm, prompt, Draws(samples=3, temperature=3.0), "inside")
    rows = []
    for one in samples.calls:
        with torch.inference_mode():
            ids = torch.tensor([[*one.prompt_ids, *one.token_ids]])
            states = lm.model(ids, output_hidden_states=True).hidden_states
        rows.append(states[len(states) // 2][0, -2].float())
    values = np.linalg.svd(torch.cov(torch.stack(rows)).numpy() + 1e-3 * np.eye(3))[1]
    assert score == pytest.approx(np.mean(np.log10(values)), abs=1e-3)


@pytest.mark.parametrize(("reply", "expected"), [
    (" 85%", 0.85), ("100", 1.0), ("0", 0.0), ("0.85", 0.85), (".7", 0.7), ("1", 0.01), ("0.5%", 0.005),
    ("about 60 percent, I think 90", 0.6), ("very sure", None), ("", None), ("250", None), ("-5", None),
    ("9 out of 10", 0.9), ("4/5", 0.8), ("3 in 4", 0.75), ("12/10", None), ("9 out of", None),
    ("4/5/2024", None), ("60/40", 0.6), ("99,9%", 0.999), ("1,000", None), ("1e-1", 0.1),
    ("90-95%", 0.925), ("between 90 and 95 percent", 0.9), ("0.9 (90%)", 0.9), ("８０％", 0.8),
    ("Confidence: 7 on a scale of 1 to 10", 0.7), ("7 on a scale of 1 to", None), ("8 (1-10)", 0.8),
    ("on a scale of 0 to 100, I say 85", 0.85), ("0-100", None), ("Ninety-five percent.", 0.95),
    ("one of the best", None), ("in 1994", None), ("9 sur 10", 0.9), ("90パーセント", 0.9),
])  # fmt: skip
def test_a_stated_confidence_is_read_or_missing(reply, expected):
    assert stated(reply) == (None if expected is None else pytest.approx(expected))


def test_the_best_cut_has_the_least_variance_on_both_sides():
    rng = np.random.default_rng(1)
    for _ in range(20):
        values = rng.choice([0.0, 0.5, 0.69, 1.1, 1.6], size=12) + rng.normal(0, 0.01, 12)

        def within(at, values=values):
            sides = (values[values <= at], values[values > at])
            return sum(len(side) * side.var() for side in sides if side.size)

        assert within(best_cut(values)) == pytest.approx(min(within(v) for v in np.sort(values)[:-1]))


def questions(*names):
    return [TESTBED_PROMPT.question(f"Who does {name} work for?") for name in names]


THREE = Draws(samples=3)


def drawn(lm, prompts, how=THREE, **options):
    return draw(lm.generate, [Prompt(text, "", 24) for text in prompts], how, TESTBED_PROMPT, **options)


def test_samples_depend_on_prompt_and_settings_alone(lm):
    prompts = questions("Lena Zaser", "Faye Brolgal", "Lena Zaser")
    together = drawn(lm, prompts)
    for samples, prompt in zip(together, prompts, strict=True):
        assert samples.texts == drawn(lm, [prompt])[0].texts
    assert together[0] is together[2]
    hot, other = (Draws(samples=3, temperature=3.0, seed=seed) for seed in (0, 1))
    texts = [drawn(lm, prompts[:1], how)[0].texts for how in (THREE, hot, other)]
    assert len(set(texts)) == 3


def test_samples_are_those_that_the_model_draws_one_by_one(lm):
    """Without shared keys and values, and with the recorded numbers of a plain pass over each text."""
    (prompt,) = questions("Lena Zaser")
    (drawn_samples,) = drawn(lm, [prompt], Draws(samples=4, temperature=2.0, seed=3), layer=4)
    how = {"max_new_tokens": 24, "stop": TESTBED_PROMPT.stop, "sampling": Sampling(2.0, seed=3)}
    plain = [lm.generate([prompt] * (i + 1), **how)[-1] for i in range(4)]
    assert drawn_samples.texts == tuple(g.text for g in plain)
    read = lm.score([prompt] * 4, [g.token_ids for g in plain], needs=Needs.of([4], pool="last"))
    expected = [g.logprobs.sum() for g in read]
    np.testing.assert_allclose(drawn_samples.logprobs, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(drawn_samples.states, [g.state[0] for g in read], rtol=1e-3, atol=1e-4)


def test_samples_without_an_answer_are_completed_like_greedy_texts(lm):
    (prompt,) = questions("Lena Zaser")
    cut = lm.generate, [Prompt(prompt, "", 3)], Draws(samples=2), TESTBED_PROMPT
    (short,), (whole,) = draw(*cut), draw(*cut, answer_tokens=8)
    assert short.answers == ("", "") and all(whole.answers)
    calls = []
    whole.spend(lambda generation, read: calls.append(read))
    assert calls == [True, False, True, True]  # one prompt for the samples, and each completed text


def test_p_true_is_the_first_tokens_probability(lm):
    prompts = [
        question_of(P_TRUE_FORM, "Who?", "Ada"),
        question_of(P_TRUE_FORM, "Who?", "", ["Ada", "Ada", "Bo"]),
    ]
    assert "Possible answers: Ada; Bo\n" in prompts[1] and "Possible" not in prompts[0]
    true, false = spellings(lm.tokenizer)
    for prompt, judged in zip(prompts, p_true(lm, prompts), strict=True):
        with torch.inference_mode():
            ids = lm.tokenizer(prompt, return_tensors="pt")["input_ids"]
            chances = lm.model(ids).logits[0, -1].float().softmax(-1)
        both = [float(chances[[token for (token,) in each]].sum()) for each in (true, false)]
        assert judged.chance == pytest.approx(both[0] / sum(both), abs=1e-5)
        assert judged.mass == pytest.approx(sum(both), rel=1e-3)


def test_replies_are_all_spellings_with_a_token_of_their_own():
    words = ["True", " True", "true", "untrue", " False", "false", " falsehood"]
    vocabulary = {word: i for i, word in enumerate(words)}
    tokenizer = Mock(get_vocab=lambda: vocabulary, decode=lambda ids: words[ids[0]])
    result = spellings(tokenizer)
    assert [[words[i] for (i,) in each] for each in result] == [words[:3], words[4:6]]


def test_an_entailment_model_decides_in_both_directions(tmp_path):
    """A tiny classifier of pairs with random weights, whose entailments go both ways, one way and neither."""
    labels, words = ["CONTRADICTION", "NEUTRAL", "ENTAILMENT"], ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    (tmp_path / "vocab.txt").write_text("\n".join([*words, *"abcdefgh"]))
    tokenizer = BertTokenizer(str(tmp_path / "vocab.txt"))
    tokenizer.save_pretrained(tmp_path)
    torch.manual_seed(4)
    config = BertConfig(  # type: ignore[call-arg]
        vocab_size=len(words) + 8, hidden_size=16, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=16, num_labels=3, id2label=dict(enumerate(labels)), initializer_range=0.6,
        label2id={label: i for i, label in enumerate(labels)},
    )  # fmt: skip
    model = BertForSequenceClassification(config).eval()
    model.save_pretrained(tmp_path)
    same = Entailment(str(tmp_path))

    def entails(a, b):
        with torch.inference_mode():
            return int(model(**tokenizer(a, b, return_tensors="pt")).logits.argmax()) == 2

    texts = [" ".join(words) for words in itertools.permutations("bcde", 2)]
    pairs = list(itertools.permutations(texts, 2))
    one_way = [pair for pair in pairs if entails(*pair) and not entails(*pair[::-1])]
    assert one_way and any(entails(*pair) and entails(*pair[::-1]) for pair in pairs)
    assert all(same(*pair) == (entails(*pair) and entails(*pair[::-1])) for pair in pairs)
    model.config.id2label = dict(enumerate(["good", "bad", "odd"]))
    model.save_pretrained(tmp_path)
    with fails("model"):
        Entailment(str(tmp_path))
