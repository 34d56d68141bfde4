"""German: nouns are capitalised too, so that only certain names count."""

from __future__ import annotations

from .base import Language, borders, either, units, values, words

_ONES = values(
    "ein|eins|eine|einen|einer|einem zwei|zwo drei vier fünf sechs sieben acht neun zehn elf zwölf"
)
_TEENS = values("dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn", 13)
_TENS = values("zwanzig dreißig|dreissig vierzig fünfzig sechzig siebzig achtzig neunzig", 20, 10)
_ORDINAL = values("zweit dritt viert fünft sechst siebt|siebent acht neunt zehnt elft zwölft", 2)
_GIVEN = words(
    """
    Adolf Albert Albrecht Alexander Alfred Andreas Angela Anna Anne Annette Anton Arnold Arthur August
    Axel Barbara Benjamin Bernd Bernhard Bertolt Bettina Birgit Boris Bruno Carl Caroline Charlotte
    Christian Christiane Christoph Christine Claudia Clara Daniel David Dieter Dietrich Dorothea Eduard
    Elisabeth Elke Emil Emma Erich Erika Ernst Erwin Eugen Eva Felix Ferdinand Florian Frank Franz
    Franziska Friedrich Fritz Gabriele Georg Gerhard Gertrud Gisela Gottfried Gottlieb Günter Günther
    Gustav Hannah Hannelore Hans Harald Heidi Heinrich Heinz Helene Helga Helmut Herbert Hermann Hildegard
    Horst Hugo Ida Ingeborg Ingrid Irene Jakob Jan Jens Joachim Johann Johanna Johannes Jürgen Joseph
    Josef Julia Julius Jutta Käthe Karl Karin Karoline Katharina Klara Klaus Konrad Kurt Lena Leonhard
    Leopold Lise Lothar Louise Ludwig Luise Lukas Manfred Margarete Margarethe Maria Marie Marianne
    Marlene Martha Martin Martina Matthias Max Maximilian Michael Monika Moritz Nikolaus Nina Norbert Olaf
    Oskar Oswald Otto Paul Paula Peter Petra Philipp Rainer Ralf Reinhard Reinhold Renate Richard Robert
    Rolf Rosa Rudolf Ruth Sabine Sebastian Siegfried Sigmund Simon Sofie Sophie Stefan Stephan Susanne
    Theodor Theresia Thomas Ulrich Ulrike Ursula Uwe Viktor Viktoria Walter Walther Werner Wilhelm
    Wilhelmine William Willi Willy Wolfgang Wolfram John James George Charles Henry Edward Mary Jean
    Pierre Louis Marie Jacques François Giovanni Giuseppe Antonio José Juan Isaac Abraham Leonardo Galileo
    Winston Victor Vincent Pablo
    """
)
_PLACES = words(
    """
        Deutschland Österreich Schweiz Frankreich Italien Spanien Portugal England Schottland Irland
        Großbritannien Belgien Dänemark Schweden Norwegen Finnland Island Polen Tschechien Slowakei Ungarn
        Rumänien Bulgarien Griechenland Türkei Russland Ukraine Serbien Kroatien Slowenien Ägypten Israel
        Iran Irak Indien China Japan Korea Australien Kanada Mexiko Brasilien Argentinien Chile Peru Kuba
        Südafrika Nigeria Kenia Europa Afrika Asien Amerika Nordamerika Südamerika Bayern Sachsen Preußen
        Hessen Thüringen Brandenburg Westfalen Rheinland Saarland Pommern Schlesien Baden-Württemberg
        Nordrhein-Westfalen Niedersachsen Sachsen-Anhalt Mecklenburg-Vorpommern Schleswig-Holstein
        Rheinland-Pfalz Tirol Kärnten Steiermark Böhmen Elsass Berlin Hamburg München Köln Frankfurt
        Stuttgart Düsseldorf Leipzig Dresden Dortmund Nürnberg Hannover Bremen Bonn Mannheim Karlsruhe
        Augsburg Wiesbaden Münster Aachen Kiel Lübeck Erfurt Jena Weimar Rostock Mainz Kassel Halle
        Magdeburg Freiburg Heidelberg Darmstadt Regensburg Würzburg Göttingen Ulm Potsdam Wien Graz Linz
        Salzburg Innsbruck Zürich Basel Bern Genf Lausanne Luzern Paris London Rom Madrid Lissabon Barcelona
        Mailand Venedig Florenz Neapel Prag Warschau Krakau Budapest Moskau Petersburg Kopenhagen Stockholm
        Oslo Helsinki Amsterdam Brüssel Antwerpen Athen Istanbul Jerusalem Kairo Peking Tokio Washington
        Chicago Rhein Donau Elbe Oder Neckar Mosel Weser Isar Nil Themse Seine Alpen Bodensee Nordsee Ostsee
        Mittelmeer Atlantik Pazifik
    """,
)
_INITIAL = r"\p{Lu}\.(?=\s?\p{Lu})"
_WORD = r"\p{Lu}[\p{L}\d]*(?:[-’']\p{L}+)*"
_OF = r"(?:(?:von(?: der| den| und zu)?|vom|van(?: der| den)?|zu|zur|de|di|da) )?"
_EPITHET = " (?:der|die|dem|den|des) (?:Großen?|Jüngeren?|Älteren?|Weisen?|Kühnen?|Frommen?|Starken?)"
_REST = rf"(?: {_OF}(?:{_INITIAL}|{_WORD}))*(?:{_EPITHET})?"
_ADJECTIVES = words(
    """
    Deutsch Österreichisch Schweizerisch Römisch Heilig Vereinigt Rot Schwarz Weiß Groß Alt Neu Erst Zweit
    Dritt Europäisch Französisch Britisch Englisch Amerikanisch Russisch Sowjetisch Spanisch Polnisch
    Italienisch Preußisch Bayerisch Sächsisch International National Königlich Kaiserlich Kalt
    Dreißigjährig Siebenjährig Westfälisch Evangelisch Katholisch Demokratisch Christlich
    Sozialdemokratisch Kommunistisch Nordatlantisch Wiener Berliner Münchner Kölner Hamburger Leipziger
    Dresdner Frankfurter Nürnberger Prager Pariser Londoner Heidelberger Bonner
    """
)

GERMAN = Language(
    code="de", name="German",
    function_words=words(
        """
            der die das den dem des ein eine einen einem einer eines und oder aber auch als am an auf aus
            bei beim bis durch für gegen im in ins ist sind war waren wird wurde wurden werden worden hat
            hatte haben sein seine seinen seiner seines ihr ihre ihren er sie es sich nicht noch nach mit
            ohne seit sowie über um unter von vom vor zu zum zur zwischen wie wenn dass daß diese dieser
            dieses dieses nur so dort damit kann sehr mehr man
        """,
    ),
    borders=borders(
        titles="""
            z z.b d.h d u.a v.a i.d.r dr prof hl st sog ca evtl ggf inkl bzw vgl geb gest verh nr bd hrsg
            abb art kap jan feb mär apr jun jul aug sep sept okt nov dez mio mrd tel chr ing dipl frl hr fr
            lat engl griech frz ital span russ ev kath röm dt jh jhd jhdt s
        """,
        short="usw etc u.s.w str co jr e.v a.d ff",
        starters="""
            Der Die Das Den Dem Des Ein Eine Einen Einem Einer Er Sie Es Wir Ihr Ich Im In Am An Auf Aus Bei
            Nach Mit Seit Von Vor Zu Zum Zur Als Auch Aber Und Doch Danach Dann Dort Diese Dieser Dieses
            Seine Sein Ihre Während Wenn Weil Zwar Zwischen Unter Über Durch Für Gegen Heute Später Damit
            Daher
        """,
        closing="“«‹‘", opening="„»›‚", numbered=r"\d{1,2}|[IVX]+",
    ),
    works=("„“", "»«", "“”", "«»", '""'), capitals=0.3,
    months=(
        r"Januar|Jänner|Jan\.", r"Februar|Feber|Feb\.", r"März|Mär\.", r"April|Apr\.", "Mai", r"Juni|Jun\.",
        r"Juli|Jul\.", r"August|Aug\.", r"September|Sept?\.", r"Oktober|Okt\.",
        r"November|Nov\.", r"Dezember|Dez\.",
    ),
    dates=(
        r"(?<!\d)(?P<d>{n})\.\s?(?P<month>{month})\s?[–-]\s?(?P<d2>{n})\.\s?(?P<month2>{month})(?:\s(?P<y2>\d{4}))?",
        r"(?<!\d)(?P<d>{n})\.\s?[–-]\s?(?P<d2>{n})\.\s?(?P<month>{month})(?:\s(?P<y>\d{4}))?(?!\w)",
        r"(?<![\d.,])(?P<d>{n})\.\s?(?P<month>{month})(?:\s(?P<y>\d{3,4}))?(?!\w)",
        r"\b(?P<month>{month})\s(?P<y>\d{4})(?!\w|,\d)",
        r"(?<![\w.,])(?P<d>{n})\.\s?(?P<m>{n})\.\s?(?P<y>\d{4})(?!\w)",
        r"(?<![\w.,])(?P<y>\d{1,4})\s(?:(?P<bc>v\.\s?(?:Chr\.|u\.\s?Z\.))|n\.\s?(?:Chr\.|u\.\s?Z\.))",
        r"(?<![\w.,])(?P<century>{n})\.\s(?:Jahrhunderts?|Jh(?:d?t?s?)\.)(?:\s(?P<bc>v\.\s?Chr\.))?(?!\w)",
        r"(?<![\w.,])(?P<decade>\d{3}0)er(?:[\s-]Jahren?)?(?!\w)",
        r"(?<=\b(?:im|Im|ab|Ab|seit|Seit|bis|Bis|Ende|Anfang|Mitte|vom|zum)\s)(?P<month>{month})(?!\w|\s\d)",
    ),
    numerals=_ONES | _TEENS | _TENS | {"hundert": 100}
    | {"null": 0},
    scales={"tausend": 1e3, "Millionen": 1e6, "Million": 1e6, "Mio.": 1e6, "Milliarden": 1e9,
            "Milliarde": 1e9,
            "Mrd.": 1e9, "Billionen": 1e12, "Billion": 1e12, "Tsd.": 1e3},
    joins=("(?:und)?", r"[\s\u00a0]?"), lone=words("acht"),
    ordinals={stem + end: value for stem, value in _ORDINAL.items() for end in ("e", "er", "es", "en", "em")
              if stem + end not in ("achte", "achten")},
    ordinal=r"\.(?=\s\p{L})",
    units=units(
        """
            Prozent|Prozents|v._H.:% Promille:‰ Kilometer|Kilometern:km Meter|Metern|Meters:m
            Zentimeter|Zentimetern:cm Millimeter|Millimetern:mm Meilen|Meile:mile
            Quadratkilometer|Quadratkilometern|qkm:km2 Quadratmeter|Quadratmetern:m2 Hektar:ha
            Kubikmeter|Kubikmetern:m3 Kilogramm:kg Gramm:g Tonnen|Tonne:t Liter|Litern:l Euro|EUR:euro
            Dollar|US-Dollar:dollar Pfund:pound Franken|Schweizer_Franken:franc Mark|Reichsmark|DM:mark
            Jahre|Jahren|Jahr:year Monate|Monaten|Monat:month Wochen|Woche:week Tage|Tagen|Tag:day
            Stunden|Stunde:hour Minuten|Minute:minute Sekunden|Sekunde:second
            Einwohner|Einwohnern:inhabitant Menschen|Personen:people Grad|Grad_Celsius:degree Uhr:clock
        """,
    ),
    names=(
        rf"\b(?:Herrn?|Frau|Dr\.|Prof\.|Professor|König|Königin|Kaiser|Kaiserin|Papst|Fürst|Fürstin|Herzog|Graf|Gräfin|"
        rf"Bundeskanzler|Bundeskanzlerin|Präsident|Präsidentin)(?:\sDr\.)?\s(?P<name>{_WORD}{_REST})",
        rf"\b(?P<name>(?:{either(_GIVEN)})"
        rf"(?:{_EPITHET}|(?:-\p{{L}}+)?(?: {_OF}(?:{_INITIAL}|{_WORD})){_REST}))",
        rf"(?P<inside>)\b(?P<name>(?:{either(_ADJECTIVES)})(?:e[rnsm]?)? "
        rf"(?:(?:{either(_ADJECTIVES)})e[rnsm]? )?{_WORD}"
        r"(?: der Vereinten Nationen| von Amerika| Nation)?)",
        rf"(?<![\p{{L}}\d-])(?P<name>New York|Los Angeles|San Francisco|Buenos Aires|(?:{either(_PLACES)})"
        r"(?: am Main| an der (?:Oder|Spree|Saale|Isar|Weser|Ruhr|Donau))?)(?=s?(?![\p{L}\d-]))",
        r"(?<![\p{L}\d-])(?P<name>\p{Lu}{2,6})(?![\p{L}\d-]|\.\p{L})",
    ),
    plain=words(
        "I II III IV V VI VII VIII IX X XI XII XIII XIV XV XVI XVII XVIII XIX XX XXI DM EUR ISBN CD DVD TV"
    ),
    places=_PLACES,
    articles=words("der die das den dem des ein eine"),
    endings=words("e en er es em s n"),
)  # fmt: skip
