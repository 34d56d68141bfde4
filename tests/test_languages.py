"""Languages other than English: entities, sentences, matching, finding of the language, and runs of two."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM

from probers.bank.assessment import Assessor
from probers.commands import main as cli
from probers.entities import Recogniser, find_entities, head_entity, written_entities
from probers.equivalence import EntityMatcher
from probers.equivalence.vectors import cosine, train_vectors
from probers.languages import ENGLISH, LANGUAGES
from probers.languages.detection import detect, language_in
from probers.online.growing_spans import whole_words
from probers.store.store import FeatureStore
from probers.testbed.assets import load_articles
from probers.text import join_sentences, load_vectors, split_sentences
from probers.train.run import _recogniser
from probers.types import Article
from tests.artefacts import contents, write_lines
from tests.fake_lm import linear_bank
from tests.refusals import fails, interrupted
from tests.tiny import EOS, PAD, fast, save_tiny

OTHERS = ("de", "fr", "es", "zh", "ja")
#: Sentences whose entities are in brackets, all of them.
ENTITIES = {
    "de": """
Sie wurde am [3. Mai 1998] in [Leipzig] geboren.
Der Fluss ist [1.234,5 km] lang und hat [zwölf] Brücken.
Im [19. Jahrhundert] lebten dort [3,5 Millionen Menschen].
Der Maler [Johann Sebastian Meier] malte das Bild „[Der blaue Hund]“ im Jahr [1923].
Die [SPD] erhielt [25,7 %] der Stimmen.
Nach dem [Zweiten Weltkrieg] zog Königin [Luise von Preußen] nach [Wien].
Er starb [44 v. Chr.], also vor über [zweitausend Jahren].
In den [1990er Jahren] kostete es [dreihundertzwanzig Euro].
Die Temperatur fiel auf [-5 °C].
Das Haus brannte zwischen [1939–1945] ab, z. B. im [Juni].
Er fragte: „Wer ist da?“ und ging zur Tür.
Die alten Häuser der Stadt und ihre Bäume gefallen den Gästen.
Das Werk wurde am [28.02.1987] von Dr. [Anna Lindner] eröffnet.
Es liegt [einundzwanzig Kilometer] von [Frankfurt am Main] entfernt.
Der Vertrag gilt seit dem [1. April 2004] für [50.000 Einwohner].
Der Bürgermeister der Stadt aß ein Brot mit Käse.
""",
    "fr": """
Le peintre [Charles Baudelaire] est né le [1er mai 1821] à [Paris].
Il publia « [Les Fleurs du mal] » en [1857].
La ville compte [3,5 millions d'habitants] et [trois] gares.
Le fleuve mesure [1 234,5 km] et traverse l'[Italie].
Elle vécut à [La Rochelle] au [XIXe siècle].
La bataille eut lieu en [44 av. J.-C.] près de [Rome].
Le roi [Louis XIV] aimait [Jeanne d'Arc].
Dans les [années 1990], il y avait [vingt et un] élèves.
Le prix monta de [12 %] en [juillet 1998].
Il rencontra M. [Dupont] et Mme [Claire de La Tour].
La guerre de [1939-1945] fit [deux cent mille] morts.
Il a dit : « Je viens demain. »
Les grandes maisons de la ville sont belles.
L'hôtel possède [quatre-vingt-dix-sept] chambres.
Le [3/5/1998], la [deuxième] édition fut annulée.
Un écrivain de l'[Université de Paris] l'aida.
""",
    "es": """
El pintor [José Ortega y Gasset] nació el [3 de mayo de 1883] en [Madrid].
Su novela «[El otro mar]» se publicó en [1925].
La ciudad tiene [3,5 millones de habitantes] y [tres] puentes.
El río mide [1.234,5 km] y cruza [Costa Rica].
Ella vivió en [Sevilla] en el [siglo XIX].
La guerra duró de [1936-1939] y murieron [doscientos mil] soldados.
En los [años 1990] había [treinta y cinco años] de paz.
El precio subió un [12 %] en [julio de 1998].
El [Sr.] era alto.
La batalla de [44 a. C.] fue cerca de [Roma].
El [3/5/1998] llegó la [quinta] edición.
Dijo: «Vengo mañana.»
Las casas grandes de la ciudad son bonitas.
El hotel está a [5 kilómetros] de [San Juan].
La [Universidad de Salamanca] es antigua.
El ministro de [México] habló en la [ONU].
""",
    "zh": """
他于[1998年5月3日]出生在[北京]。
小说《[红楼梦]》发行了[300万册]。
物理学家[阿尔伯特·爱因斯坦]住在[德国]。
人口为[三百二十万人]，占[百分之三十]。
[二〇〇三年]，他去了[美国]。
在[19世纪]，那里很穷。
[20世纪90年代]，价格上涨了[12.5%]。
秦朝建立于[公元前221年]。
他们用了[三十天]和[3亿5000万元]。
一方面，他十分高兴。
中国共产党的一个成员万能。
[民国10年]，学校有[25名]老师。
[第三届]大会在[上海]的学校举行。
河长[1,234公里]。
他在[1939年至1945年]当兵。
公司叫[IBM]。
""",
    "ja": """
彼は[1998年5月3日]に[東京]で生まれた。
小説『[こころ]』は[大正3年]に出た。
物理学者の[アルベルト・アインシュタイン]は[ドイツ]に住んだ。
人口は[３億5000万人]で、[30%]が子供である。
[平成10年5月]に[第3回]大会があった。
[二十世紀]の町は静かだった。
[1990年代]には[12校]があった。
テレビ・ラジオの番組を見た。
一方、彼は十分に一般的だった。
東京大学を卒業した。
[ローマ]は[前221年]より古い。
長さは[1,234キロメートル]である。
[三百二十人]が[5時間]歩いた。
映画「[青い空]」は[2001年]の作品である。
「はい」と彼は言った。
会社は[IBM]である。
""",
}  # fmt: skip
#: Pairs of mentions: equal, different, and undecided ones.
PAIRS = {
    "de": (
        """3,5 Millionen=3.500.000|3. Mai 1998=03.05.1998|50 %=50 Prozent|-5 °C=−5 °C|dreihundertzwanzig=320
        |2 km=2000 m|einundzwanzig=21|der Rhein=Rhein|Deutscher Bundestag=Deutschen Bundestag|Müller=Mueller
        |19. Jahrhundert=19. Jh.|1990er Jahre=1990er|5 Mio. €=5 Millionen Euro|Thomas Mann=Mann, Thomas
        |Baden-Württemberg=Baden Württemberg|1.234,5=1234,5|zweitausend=2.000|44 v. Chr.=44 v. Chr.""",
        """3. Mai 1998=4. Mai 1998|3. Mai 1998=05.03.1998|-5 °C=5 °C|3,5 Millionen=3,5 Milliarden|50 %=60 %
        |Bonn=Berlin|3 Tage=3 Wochen|Thomas Mann=Heinrich Mann|19. Jahrhundert=20. Jahrhundert
        |44 v. Chr.=44 n. Chr.|Rhein=Donau|einundzwanzig=zwölf|1.234=1.235|2 km=2 m|Ludwig XIV=Ludwig XVI""",
        """1,234=1234|Goethe=Johann Wolfgang von Goethe|USA=Vereinigte Staaten|1998=3. Mai 1998
        |München=Münchens|J. W. Goethe=Johann Wolfgang Goethe|zwei=zweite|London=Londen""",
    ),
    "fr": (
        """trois millions=3 000 000|1er mai 1998=1/5/1998|12 %=12 pour cent|l'Amazone=Amazone|Éluard=Eluard
        |soixante-dix=70|quatre-vingt-dix-sept=97|2 km=2 000 mètres|mille neuf cent=1900
        |XIXe siècle=XIXe siècle|vingt et un=21|3,50=3,5|Hugo, Victor=Victor Hugo|2e=deuxième|1 234=1.234
        |années 1990=années 1990""",
        """trois millions=trois mille|1er mai 1998=5 janvier 1998|12 %=13 %|Paris=Lyon|XIXe siècle=XXe siècle
        |71=70|2 km=2 m|Louis XIV=Louis XVI|Pierre Curie=Marie Curie|50 av. J.-C.=51 av. J.-C.
        |années 1990=années 1980|vingt=trente|2e=3e|Nantes=Brest|1 234=1 235""",
        """ONU=Organisation des Nations unies|Hugo=Victor Hugo|années 1990=1995|1,234=1234|V. Hugo=Victor Hugo
        |1998=mai 1998""",
    ),
    "es": (
        """3,5 millones=3.500.000|3 de mayo de 1998=3/5/1998|treinta y cinco años=35 años|El Salvador=Salvador
        |50 %=50 por ciento|México=Mexico|dos mil tres=2003|3.º=tercero|2 km=2000 metros|siglo XIX=siglo XIX
        |mayo de 1998=mayo 1998|3,50=3,5|Lorca, Federico=Federico Lorca|veintiuno=21
        |doscientos mil=200.000""",
        """3,5 millones=3,5 mil|3 de mayo de 1998=5 de marzo de 1998|Madrid=Barcelona|siglo XIX=siglo XX
        |50 %=60 %|2 km=2 m|40 km=40 millas|dos mil tres=2004|Carlos III=Carlos IV|44 a. C.=44 d. C.
        |tres=cuatro|Perú=Chile|1.234=1.235|años 1990=años 1980|Juan Rulfo=Pedro Rulfo""",
        "1,234=1234|Cervantes=Miguel de Cervantes|ONU=Naciones Unidas|1998=3 de mayo de 1998|Londres=Londre",
    ),
    "zh": (
        """三百=300|1998年5月3日=1998/5/3|3亿5000万=350000000|百分之三十=30%|两千人=2000人|台湾=臺灣
        |19世纪=十九世纪|５=5|1.5万=15000|二〇〇三年=2003年|3公里=3000米|阿尔伯特·爱因斯坦=阿尔伯特•爱因斯坦
        |民国10年=1921年|１９９８年=1998年|前221年=公元前221年""",
        """三百=301|1998年5月3日=1998年5月4日|北京=上海|19世纪=20世纪|百分之三十=百分之四十|1998年=1999年
        |3公里=3米|三万=三千|前221年=221年|美国=英国|3亿=3万|5月3日=5月4日|1990年代=1980年代|两千人=三千人
        |民国10年=1922年""",
        "爱因斯坦=阿尔伯特·爱因斯坦|北京=Peking|1998年=1998年5月|王小明=王小朋|第三=三",
    ),
    "ja": (
        """三百=300|平成10年=1998年|1998年5月3日=1998/5/3|３億5000万円=350000000円|コンピューター=コンピュータ
        |3人=三人|アルベルト・アインシュタイン=アルベルト＝アインシュタイン|ヴェネツィア=ベネツィア
        |昭和元年=1926年|二十世紀=20世紀|30％=30パーセント|1万=10000|三つ=3つ|3キロメートル=3000メートル
        |第3回=第三回""",
        """三百=301|平成10年=1999年|5月3日=5月4日|東京=京都|二十世紀=十九世紀|3人=4人|30%=40%|1万=1億|3人=3年
        |1990年代=1980年代|前221年=221年|大正3年=昭和3年|3メートル=3キロメートル|ドイツ=フランス
        |令和元年=平成元年""",
        "アインシュタイン=アルベルト・アインシュタイン|東京=東京都|東京=Tokyo|1998年=1998年5月|3回=第3回",
    ),
}  # fmt: skip
SENTENCES = {
    "de": (
        "Das ist z. B. gut.|Am 3. Mai kam Dr. Meier.|Er sagte: „Ja.“|Dann ging er um 1998.|Die Nr. 5 blieb.|"
        "Karl V. Habsburg lebte."
    ),
    "fr": (
        "M. Dupont est là !|Il a dit : « Oui. »|Elle vint en 44 av. J.-C. avec lui.|Où ?|"
        "Nulle part, p. ex. ici."
    ),
    "es": "El Sr. Pérez vino, p. ej. ayer.|¿Quién?|¡Nadie!|Dijo: «Sí.»|La EE. UU. Steel existe.",
    "zh": "他来了。|她问：“谁？”|没有人！|再见。",
    "ja": "「はい。」と言った。|彼は来た。|誰？|終わり。",
}  # fmt: skip
UNSUPPORTED = {
    "Cyrillic": "Иоганн Себастьян Бах родился в городе Эйзенах и был великим композитором своего времени.",
    "Arabic": "ولد يوهان سباستيان باخ في مدينة آيزناخ وكان مؤلفا موسيقيا كبيرا في زمانه",
    "Korean": "요한 제바스티안 바흐는 독일의 작곡가이며 아이제나흐에서 태어났다 그는 위대한 음악가였다",
    "Italian": (
        "Il compositore è nato nella città di Eisenach e ha scritto molte opere che sono state suonate per "
        "la prima volta al duomo della città."
    ),
    "Portuguese": (
        "O compositor nasceu na cidade de Eisenach e escreveu muitas obras que foram tocadas pela primeira "
        "vez na catedral da cidade com os seus filhos."
    ),
    "Dutch": (
        "De componist werd geboren in de stad Eisenach en hij schreef een groot aantal werken die voor het "
        "eerst in de kerk van de stad zijn gespeeld."
    ),
    "Swedish": (
        "Kompositören föddes i staden Eisenach och han skrev ett stort antal verk som för första gången "
        "spelades i den kyrka där hans far var organist."
    ),
    "Polish": (
        "Kompozytor urodził się w mieście Eisenach i napisał wiele utworów, które po raz pierwszy były "
        "grane w kościele, a jego ojciec był tam organistą."
    ),
}  # fmt: skip
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
    lines = ENTITIES[code].strip().splitlines()
    assert len(lines) >= 15
    wrong = english = 0
    for line in lines:
        text, spans = marked(line.replace("[Sr.]", "Sr."))
        found = find_entities(text, fine=True, language=LANGUAGES[code])
        assert [(e.start, e.end) for e in found] == spans, (line, [e.text for e in found])
        assert all(text[e.start : e.end] == e.text for e in found)
        wrong += [(e.start, e.end) for e in find_entities(text)] != spans
        english += find_entities(text, language=ENGLISH) == find_entities(text)
    assert wrong >= 10  # by English rules
    assert english == len(lines)


@pytest.mark.parametrize("code", OTHERS)
def test_pairs_of_each_language(code):
    compare, english = matcher(code), EntityMatcher(wordnet="")
    least = {"equivalent": 15, "different": 15, "undecided": 5}
    other = 0
    for (verdict, number), listed in zip(least.items(), PAIRS[code], strict=True):
        pairs = [pair.strip().rsplit("=", 1) for pair in listed.split("|")]
        assert len(pairs) >= number
        for a, b in pairs:
            for match in (compare.match(a, b), compare.match(b, a)):
                assert match.verdict == verdict, (a, b, match)
            other += english.match(a, b).verdict != verdict
    assert other >= 10
    assert not {"wordnet", "acronym", "alias"} & set(compare.active) and "English" in compare.told()
    assert "wordnet" in english.stages


@pytest.mark.parametrize("code", OTHERS)
def test_sentences_of_each_language(code):
    expected, borders = SENTENCES[code].split("|"), LANGUAGES[code].borders
    text = ("" if code in ("zh", "ja") else " ").join(expected)
    assert [text[a:b] for a, b in split_sentences(text, borders)] == expected
    assert join_sentences(expected) == text or code in ("zh", "ja")
    assert [text[a:b] for a, b in split_sentences(text)] != expected or code == "zh"


def test_each_language_is_found_and_english_in_the_testbed():
    for code in OTHERS:
        text = marked(ENTITIES[code].replace("\n", " "))[0]
        assert language_in(text) == code and detect([text] * 3) is LANGUAGES[code]
    assert detect(join_sentences(article.sentences) for article in load_articles()[:300]) is ENGLISH
    assert detect(["1, 2, 3", "Xyz.", ""]) is ENGLISH and detect([]) is ENGLISH


@pytest.mark.parametrize("name", UNSUPPORTED)
def test_unsupported_languages_are_refused_by_name(name):
    with fails("unsupported", name, "German", "language=CODE"):
        detect([UNSUPPORTED[name]] * 5)


def test_several_languages_are_refused_with_their_shares(caplog):
    english = "The miller of the town was born in the year and he built the mill that is at the river."
    with fails("unsupported", "80 in German", "20 in English"):
        detect([GERMAN[0]] * 80 + [english] * 20)
    assert detect([GERMAN[0]] * 98 + [english] * 2) is LANGUAGES["de"]
    assert "language: German (de), found in 98 of 100 texts" in caplog.text
    with fails("unsupported", "no language that is known"):
        detect(["lorem ipsum dolor sit amet consectetur adipiscing elit sed eiusmod " * 6] * 9)


def test_a_recogniser_has_one_language():
    assert Recogniser("rules:de").language.code == "de" and Recogniser("rules").language is ENGLISH
    with fails("unknown-choice", "rules:ru"):
        Recogniser("rules:ru")
    german = Recogniser("rules:de", quiet=True)
    found = written_entities(" 3. Mai 1998 in Wien. Er ging.", german, prompt="Sie kam am")
    assert [e.text for e in found] == ["3. Mai 1998", "Wien"]
    entity = head_entity(" der 3,5 Millionen Menschen, die", german)
    assert entity and entity.text == "3,5 Millionen Menschen"
    assert head_entity("彼は1998年に", Recogniser("rules:ja", quiet=True)) is None


@pytest.mark.parametrize("lang", ["de", "ja", "ru", "en", "xx"])
def test_spacy_pipelines_of_a_language(lang, monkeypatch, tmp_path):
    spacy = pytest.importorskip("spacy")
    blank = spacy.blank(lang if lang != "ja" else "xx")
    blank.lang = lang
    patterns = {"die Acme": "ORG", "Ulmendorf": "LOC", "deutsche": "MISC", "1998": "DATE"}
    blank.add_pipe("entity_ruler").add_patterns([{"label": k, "pattern": p} for p, k in patterns.items()])
    monkeypatch.setattr("probers.entities.recogniser._load", {"pipe": blank}.__getitem__)
    text = "Im Jahr 1998 baute die Acme in Ulmendorf eine deutsche Mühle für 3,5 Millionen Euro."
    if lang == "ru":
        with fails("unsupported", "language=ru", "spacy:pipe"):
            Recogniser("spacy:pipe")
        return
    recogniser = Recogniser("spacy:pipe", fine=True)
    if lang == "de":
        found = [(e.text, e.type) for e in recogniser(text)]
        assert found == [
            ("1998", "year"), ("Acme", "organisation"), ("Ulmendorf", "place"),
            ("3,5 Millionen Euro", "number"),
        ]  # fmt: skip
        return
    articles = articles_of(GERMAN, tmp_path)
    with fails("mismatch", "recogniser=spacy:pipe", "German"):
        datagen(articles, tmp_path / "out", "recogniser=spacy:pipe")


def test_what_has_no_other_language_refuses_it(tmp_path):
    wiki = ["source=wiki", "articles=wikipedia", "wikipedia.titles=[a]"]
    judged = ["source=judged", "language=de", "prompt=chat", "articles=testbed", "limit=5"]
    for typed, code, *named in (
        (["language=de"], "unsupported", "language=de", "source=cot"),
        (["source=wiki", "language=it"], None, "language=it"),
        ([*wiki, "wikipedia.language=ru"], "unsupported", "wikipedia.language=ru"),
        ([*wiki, "wikipedia.language=de", "language=fr"], "conflict", "language=fr", "wikipedia.language=de"),
        (judged, "unsupported", "judge=article", "German"),
    ):
        with fails(code, *named):
            cli.run("datagen", [*typed, f"out={tmp_path}/a"])


def test_vectors_of_a_script_without_spaces(tmp_path):
    texts = [Article(str(i), "t", tuple(JAPANESE[i % 8].split("。")[:3])) for i in range(40)]
    train_vectors(texts, tmp_path / "v.bin", seed=0, language=LANGUAGES["ja"])
    vectors = load_vectors(str(tmp_path / "v.bin"))
    assert "工場" in vectors.key_to_index
    assert cosine("工場", "歴史", vectors, spaced=False).value is not None
    assert cosine("紙工場", "歴史", vectors, spaced=False).unknown == ("紙工",)


def test_a_prober_keeps_the_language_of_its_labels():
    assert _recogniser({"source": "wiki", "recogniser": "auto"}) == "auto"
    assert _recogniser({"source": "wiki", "recogniser": "auto", "language": "de"}) == "rules:de"
    assert _recogniser({"source": "judged", "recogniser": "rules", "language": "ja"}) == "rules:ja"
    assert _recogniser({"source": "judged", "recogniser": "rules"}) is None
    text = " am 3. Mai 1998 in Wien. Er kam."
    offsets = [(m.start(), m.end()) for m in re.finditer(r"\s*\S+", text)]
    for recogniser, spans in (("rules:de", ["3. Mai 1998", "Wien"]), ("rules", ["3. Mai 1998", "Wien"][1:])):
        bank = linear_bank(pool="tokens", position="entity", recogniser=recogniser)
        found = Assessor(bank)("Sie kam", text, offsets, [0.0] * len(offsets)).spans
        assert [text[s.start : s.end].strip() for s in found][-len(spans) :] == spans or recogniser == "rules"
    assert (
        whole_words("彼は1998年に東京で") == "彼は1998年に東京で" and whole_words("He was bor") == "He was "
    )


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
    run_datagen(articles, out, *more)
    return FeatureStore.open(out)


def run_datagen(articles, out, *more):
    typed = ["source=wiki", f"articles={articles}", f"out={out}", "layers=[1]", "max_new_tokens=24"]
    typed += ["context=100", "prompt=mind", "per_article=4", "within=null", "min_sentences=1", "shard_size=4"]
    cli.run("datagen", [*typed, *more])


@pytest.mark.parametrize(("code", "texts"), [("de", GERMAN), ("ja", JAPANESE)])
def test_a_run_in_another_language(code, texts, model, tmp_path, caplog):
    """Claim: labels by the language's rules, which the record names; converse: by English ones others."""
    articles = articles_of(texts, tmp_path)
    store = datagen(articles, tmp_path / "auto", f"model={model}")
    assert store.config["language"] == code and f"({code}), found in 8 of 8 texts" in caplog.text
    rows = store.table()
    assert len(rows) >= 8 and set(rows["question_type"]) <= {"year", "number", "date"}
    for row in rows.itertuples():
        same = matcher(code).match(row.gold, row.answer).verdict == "equivalent"
        assert row.correct == int(same)
    assert "wordnet" not in store.summary["matcher_stages"]
    told = datagen(articles, tmp_path / "told", f"model={model}", f"language={code}")
    assert told.config == store.config | {} and told.table().equals(rows)
    datagen(articles, tmp_path / "told", f"model={model}")  # the same run, however the language was told
    if code == "ja":
        with fails("empty", "nothing to cut at"):
            datagen(articles, tmp_path / "en", f"model={model}", "language=en")
        return
    english = datagen(articles, tmp_path / "en", f"model={model}", "language=en")
    assert "language" not in english.config and not english.table().equals(rows)


@pytest.mark.long
def test_a_resumed_run_and_parts_equal_the_whole(model, tmp_path, monkeypatch):
    articles = articles_of(GERMAN, tmp_path)
    whole = datagen(articles, tmp_path / "whole", f"model={model}")
    with interrupted(FeatureStore, "write_shard", 2):
        datagen(articles, tmp_path / "resumed", f"model={model}")
    with fails("out-taken", "language"):
        datagen(articles, tmp_path / "resumed", f"model={model}", "language=fr")
    resumed = datagen(articles, tmp_path / "resumed", f"model={model}")
    assert resumed.table().equals(whole.table())
    shards = [{n: d for n, d in contents(s.path).items() if "shard" in n} for s in (whole, resumed)]
    assert shards[0] == shards[1] != {}
    out = tmp_path / "parts"
    for typed in (["part=1/2"], ["part=2/2", "language=fr"]):
        run_datagen(articles, out, f"model={model}", *typed)
    folders = [str(out / "parts" / name) for name in ("1of2", "2of2")]
    with fails("parts", "language"):
        cli.run("merge", [*folders, f"out={out}"])
    run_datagen(articles, out, f"model={model}", "part=2/2", "language=de", "overwrite=true")
    cli.run("merge", [*folders, f"out={out}"])
    merged = FeatureStore.open(out)
    assert merged.table().equals(whole.table()) and merged.config["language"] == "de"


def test_english_runs_are_recorded_as_before(tmp_path):
    out = tmp_path / "store"
    cli.run("datagen", ["source=wiki", "limit=6", f"out={out}", "layers=[6]"])
    assert "language" not in FeatureStore.open(out).config
    assert "language" not in json.loads((out / "run.json").read_text()).get("config", {})
    assert replace(ENGLISH, name="x").english
