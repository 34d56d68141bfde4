"""French: names are the capitalised words inside a sentence, also after an elided article ("l'Amazone")."""

from __future__ import annotations

from .base import Language, borders, units, values, words

_ORDINAL = values(
    """deux trois quatr cinqu six sept huit neuv dix onz douz treiz quatorz quinz seiz dix-sept dix-huit
    dix-neuv vingt""",
    2,
)
_INITIAL = r"\p{Lu}\.(?=\s?\p{Lu})"
_WORD = r"\p{Lu}[\p{L}\d]*(?:[-’']\p{L}+)*"
_OF = r"(?:(?:de la |de l['’]|de |du |des |d['’]|van der |van den |van |von |di |da |del )(?:La |Le |Les )?)?"

FRENCH = Language(
    code="fr", name="French",
    function_words=words(
        """
            le la les l un une des du de d et ou mais donc ni car que qui quoi dont où à au aux en dans par
            pour sur sous avec sans entre vers chez depuis pendant après avant est sont était étaient fut
            furent a ont avait avaient été être il elle ils elles on nous vous je ce cet cette ces son sa
            ses leur leurs se s n ne pas plus aussi comme tout toute tous très même y c qu puis lors ainsi
            selon afin si alors quand lorsque
        """,
    ),
    borders=borders(
        titles="""
            m mm mme mmes mlle mlles dr drs pr me st ste mgr av apr j.-c env cf p pp vol éd fig art chap n
            no nos janv févr avr juil sept oct nov déc hab ex p.ex
        """,
        short="etc cie jr ss",
        starters="""
            Le La Les L Un Une Des Du De D Il Elle Ils Elles On Nous Je Ce Cet Cette Ces C En Dans À A Au
            Aux Par Pour Sur Son Sa Ses Leur Leurs Après Avant Depuis Mais Et Puis Lors Ainsi Selon Quand
            Lorsque Comme
        """,
        closing="»”", opening="«“",
    ),
    works=("«»", "“”", '""'), capitals=0.0,
    months=(
        r"janvier|janv\.", r"février|févr?\.", "mars", r"avril|avr\.", "mai", "juin",
        r"juillet|juil\.", "août",
        r"septembre|sept\.", r"octobre|oct\.", r"novembre|nov\.", r"décembre|déc\.",
    ),
    dates=(
        r"(?<![\d.,])(?P<d>{n})(?:er)?\s?(?:[–-]|au|et)\s?(?P<d2>{n})\s(?P<month>{month})(?:\s(?P<y>\d{4}))?(?!\w)",
        r"(?<![\d.,])(?P<d>{n})(?:er)?\s(?P<month>{month})(?:\s(?P<y>\d{3,4}))?(?!\w)",
        r"\b(?P<month>{month})\s(?P<y>\d{4})(?!\w|,\d)",
        r"(?<![\w.,])(?P<d>{n})(?P<sign>[/.-])(?P<m>{n})(?P=sign)(?P<y>\d{4})(?!\w)",
        r"(?<![\w.,])(?P<y>\d{1,4})\s(?:(?P<bc>av(?:\.|ant)\s(?:J\.?-C\.?|Jésus-Christ|notre ère))"
        r"|apr(?:\.|ès)\s(?:J\.?-C\.?|Jésus-Christ))",
        r"\b(?P<roman>[IVX]+)(?:er|e|ème|è)\ssiècle"
        r"(?:\s(?P<bc>av(?:\.|ant)\s(?:J\.?-C\.?|Jésus-Christ|notre ère)))?(?!\w)",
        r"\bannées\s(?P<decade>\d{3}0)(?!\w)",
        r"(?<=\b(?:en|depuis|jusqu'en|jusqu’en|fin|début|mi)[\s-])(?P<month>{month})(?!\w|\s\d)",
    ),
    numerals=values(
        "un|une deux trois quatre cinq six sept huit neuf dix onze douze treize quatorze quinze seize"
    )
    | values("vingt trente quarante cinquante soixante", 20, 10)
    | {"quatre-vingts": 80, "quatre-vingt": 80, "septante": 70, "huitante": 80, "nonante": 90, "cent": 100,
       "cents": 100, "zéro": 0},
    scales={"mille": 1e3, "millions": 1e6, "million": 1e6, "milliards": 1e9, "milliard": 1e9,
            "billions": 1e12},
    joins=(r"(?:[\s-]et[\s-]|[\s-])", r"[\s\u00a0\u202f-](?:(?:de|d)\s)?"), lone=words("neuf"),
    ordinals={stem + "ième": value for stem, value in _ORDINAL.items()},
    ordinal=r"(?:èmes?|ième|es?|res?|er)(?!\w)",
    units=units(
        """
            pour_cent|pourcent:% kilomètres|kilomètre:km mètres|mètre:m centimètres|centimètre:cm
            millimètres:mm kilomètres_carrés|kilomètre_carré:km2 mètres_carrés:m2 hectares|hectare:ha
            mètres_cubes:m3 kilogrammes|kilogramme|kilos:kg grammes|gramme:g tonnes|tonne:t litres|litre:l
            euros|euro:euro dollars|dollar:dollar francs|franc|FF:franc livres_sterling:pound-sterling
            ans|années|année|an:year mois:month semaines|semaine:week jours|jour:day heures|heure:hour
            minutes|minute:minute secondes|seconde:second habitants|habitant:inhabitant personnes:people
            degrés|degré|degrés_Celsius:degree miles:mile
        """,
    ),
    names=(
        rf"(?P<general>)(?<![\p{{L}}\d-])(?P<name>(?:{_INITIAL}|{_WORD})"
        rf"(?:[ \u00a0]{_OF}(?:{_INITIAL}|{_WORD})"
        rf"| d['’]{_WORD}| et de {_WORD}(?<=Lettres|Sciences|Arts|Métiers))*)",
    ),
    plain=words("M MM Mme Mlle Dr Mgr I II III IV V VI VII VIII IX X XI XII Internet Dieu État"),
    articles=words("le la les l un une des du de d"),
    endings=words("s x es e"),
)  # fmt: skip
