"""Languages other than English: entities, sentences, matching, finding of the language, and runs of two."""

import re
from pathlib import Path

import pytest
import torch
import yaml
from helpers.artefacts import write_lines
from helpers.fake_lm import linear_bank
from helpers.refusals import fails
from helpers.tiny import EOS, PAD, fast, save_tiny
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM

from probers.cli import main as cli
from probers.prober.assessment import Assessor, WrittenText, whole_words
from probers.store.store import FeatureStore
from probers.testbed.assets import load_articles
from probers.train.run import _recogniser
from probers.types import Article
from probers.words import EntityMatcher, Recogniser, find_entities
from probers.words.language import ENGLISH, LANGUAGES, detect, language_in
from probers.words.text import join_sentences, split_sentences
from probers.words.vectors import cosine, load_vectors, train_vectors

OTHERS = ("de", "fr", "es", "zh", "ja")
#: By language: sentences whose entities are in brackets, pairs of mentions by verdict, texts by sentence.
DATA = yaml.safe_load(Path(__file__).with_name("data").joinpath("languages.yaml").read_text(encoding="utf-8"))
GERMAN = [
    f"{name} war Müller in der Stadt und wurde im Jahr {year} geboren. Die Mühle am Fluss wurde "
    f"im Jahr {year + 30} gebaut und hatte {year - 1799} Räder. Sie gehörte der Familie bis "
    f"zum Jahr {year + 60} und wurde dann verkauft."
    for year, name in enumerate(["Arno", "Bela", "Cord", "Dora", "Egon", "Fina", "Gero", "Hera"], 1801)
]
JAPANESE = [
    f"{name}は小さな町の工場である。この工場は{year}年に建てられ、長い歴史がある。"
    f"そこでは{year + 30}年から紙を作っている。また{year + 60}年に新しい建物ができた。"
    for year, name in enumerate(["青木", "石井", "上田", "江口", "岡本", "加藤", "木村", "工藤"], 1801)
]


def marked(line: str) -> tuple[str, list[tuple[int, int]]]:
    """A text without its brackets, and what stood in them."""
    text, spans = "", []
    for part in re.split(r"(\[[^\]]*\])", line):
        inside = part.strip("[]") if part.startswith("[") else ""
        if inside:
            spans.append((len(text), len(text) + len(inside)))
        text += inside or part
    return text, spans


def articles_of(texts: list[str], folder: Path) -> str:
    return write_lines(folder / "a.jsonl", [{"title": f"T{i}", "text": t} for i, t in enumerate(texts)])


def matcher(code: str) -> EntityMatcher:
    return EntityMatcher(wordnet="").in_language(LANGUAGES[code])


@pytest.mark.parametrize("code", OTHERS)
def test_entities_of_each_language(code):
    lines, by_english_rules = DATA["entities"][code].splitlines(), 0
    assert len(lines) >= 15
    for line in lines:
        text, spans = marked(line.replace("[Sr.]", "Sr."))
        entities = find_entities(text, fine=True, language=LANGUAGES[code])
        assert [(e.start, e.end) for e in entities] == spans, (line, [e.text for e in entities])
        assert all(text[e.start : e.end] == e.text for e in entities)
        by_english_rules += [(e.start, e.end) for e in find_entities(text)] == spans
    assert by_english_rules <= len(lines) - 10


@pytest.mark.parametrize("code", OTHERS)
def test_pairs_of_each_language(code):
    compare, english = matcher(code), EntityMatcher(wordnet="")
    least, other = {"equivalent": 15, "different": 15, "undecided": 5}, 0
    for verdict, listed in DATA["pairs"][code].items():
        pairs = [pair.strip().rsplit("=", 1) for pair in listed.split("|")]
        assert len(pairs) >= least[verdict]
        for a, b in pairs:
            for match in (compare.match(a, b), compare.match(b, a)):
                assert match.verdict == verdict, (a, b, match)
            other += english.match(a, b).verdict != verdict
    assert other >= 10
    assert not {"wordnet", "acronym", "alias"} & set(compare.active) and "English" in compare.described()


@pytest.mark.parametrize("code", OTHERS)
def test_sentences_of_each_language(code):
    expected, language = DATA["sentences"][code].splitlines(), LANGUAGES[code]
    text = ("" if code in ("zh", "ja") else " ").join(expected)
    assert [text[a:b] for a, b in split_sentences(text, language)] == expected
    assert join_sentences(expected) == text or code in ("zh", "ja")
    assert [text[a:b] for a, b in split_sentences(text)] != expected or code == "zh"


def test_each_language_is_found_and_english_in_the_testbed():
    for code in OTHERS:
        text = marked(DATA["entities"][code].replace("\n", " "))[0]
        assert language_in(text) == code and detect([text] * 3) is LANGUAGES[code]
    assert detect(join_sentences(article.sentences) for article in load_articles()[:300]) is ENGLISH
    assert detect(["1, 2, 3", "Xyz.", ""]) is ENGLISH and detect([]) is ENGLISH


def test_unsupported_and_several_languages_are_refused_by_name(caplog):
    for name, text in DATA["unsupported"].items():
        with fails("unsupported", name, "German", "language=CODE"):
            detect([text] * 5)
    english = "The miller of the town was born in the year and he built the mill that is at the river."
    with fails("unsupported", "80 in German", "20 in English"):
        detect([GERMAN[0]] * 80 + [english] * 20)
    assert detect([GERMAN[0]] * 98 + [english] * 2) is LANGUAGES["de"]
    assert "language: German (de), found in 98 of 100 texts" in caplog.text


def test_vectors_of_a_script_without_spaces(tmp_path):
    texts = [Article(str(i), "t", tuple(JAPANESE[i % 8].split("。")[:3])) for i in range(40)]
    train_vectors(texts, tmp_path / "v.bin", seed=0, language=LANGUAGES["ja"])
    vectors = load_vectors(str(tmp_path / "v.bin"))
    assert "工場" in vectors.key_to_index
    assert cosine("工場", "歴史", vectors, spaced=False).value is not None
    assert cosine("紙工場", "歴史", vectors, spaced=False).unknown == ("紙工",)


def test_a_prober_keeps_the_language_of_its_labels():
    assert _recogniser({"source": "wiki", "recogniser": "auto", "language": "de"}) == "rules:de"
    assert _recogniser({"source": "judged", "recogniser": "rules", "language": "en"}) is None
    assert _recogniser({"source": "wiki", "recogniser": "auto"}) == "auto"
    text = " am 3. Mai 1998 in Wien. Er kam."
    offsets = [(m.start(), m.end()) for m in re.finditer(r"\s*\S+", text)]
    languages = {}
    for recogniser in ("rules:de", "rules"):
        bank = linear_bank(pool="tokens", position="entity", recogniser=recogniser)
        spans = Assessor(bank)(WrittenText("Sie kam", text, offsets, [0.0] * len(offsets))).spans
        languages[recogniser] = [text[s.start : s.end].strip() for s in spans]
    assert languages["rules:de"][-2:] == ["3. Mai 1998", "Wien"] != languages["rules"][-2:]
    assert whole_words("彼は1998年に東京で") == "彼は1998年に東京で"
    assert whole_words("He was bor") == "He was "


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A small model that has read the articles of both languages."""
    texts = [*GERMAN, *JAPANESE]
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    options = {"vocab_size": 500, "initial_alphabet": alphabet, "show_progress": False}
    bpe.train_from_iterator(texts, trainers.BpeTrainer(special_tokens=[EOS, PAD], **options))
    tokenizer = fast(bpe, eos_token=EOS, pad_token=PAD)
    folder = save_tiny("llama", tmp_path_factory.mktemp("two"), layers=2, tokenizer=tokenizer)
    lm = AutoModelForCausalLM.from_pretrained(folder)
    optimiser = torch.optim.AdamW(lm.parameters(), lr=5e-3)
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    labels = batch.input_ids.masked_fill(batch.attention_mask == 0, -100)
    for _ in range(120):
        loss = lm(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=labels).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    lm.save_pretrained(folder)
    return folder


def datagen(articles, out, *more):
    typed = ["source=wiki", f"articles={articles}", f"out={out}", "layers=[1]", "max_new_tokens=24"]
    typed += ["context=100", "prompt=mind", "per_article=4", "within=null", "min_sentences=1", "shard_size=4"]
    return FeatureStore.open(cli.run("datagen", [*typed, *more]))


@pytest.mark.parametrize(("code", "texts"), [("de", GERMAN), ("ja", JAPANESE)])
def test_a_run_in_another_language(code, texts, model, tmp_path, caplog):
    """Claim: labels by the language's rules, which the record names; converse: by English ones others."""
    articles = articles_of(texts, tmp_path)
    store = datagen(articles, tmp_path / "auto", f"model={model}")
    assert store.config["language"] == code and f"({code}), found in 8 of 8 texts" in caplog.text
    rows = store.table()
    assert len(rows) >= 8 and set(rows["question_type"]) <= {"year", "number", "date"}
    for row in rows.itertuples():
        assert row.correct == int(matcher(code).match(row.gold, row.answer).verdict == "equivalent")
    assert "wordnet" not in store.summary["matcher_stages"]
    # The same run, however the language was told.
    again = datagen(articles, tmp_path / "auto", f"model={model}", f"language={code}")
    assert again.config == store.config and again.table().equals(rows)
    if code == "ja":
        with fails("empty", "nothing to cut at"):
            datagen(articles, tmp_path / "en", f"model={model}", "language=en")
        return
    english = datagen(articles, tmp_path / "en", f"model={model}", "language=en")
    assert english.config["language"] == "en" and not english.table().equals(rows)


def test_a_spacy_pipeline_of_a_language(monkeypatch):
    blank = pytest.importorskip("spacy").blank("de")
    patterns = {"die Acme": "ORG", "Ulmendorf": "LOC", "deutsche": "MISC", "1998": "DATE"}
    blank.add_pipe("entity_ruler").add_patterns([{"label": k, "pattern": p} for p, k in patterns.items()])
    monkeypatch.setattr("probers.words.recogniser._load", {"pipe": blank}.__getitem__)
    text = "Im Jahr 1998 baute die Acme in Ulmendorf eine deutsche Mühle für 3,5 Millionen Euro."
    assert [(e.text, e.type) for e in Recogniser("spacy:pipe", fine=True)(text)] == [
        ("1998", "year"), ("Acme", "organisation"), ("Ulmendorf", "place"), ("3,5 Millionen Euro", "number"),
    ]  # fmt: skip
