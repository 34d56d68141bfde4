"""Spanish: names are the capitalised words inside a sentence, with their particles."""

from __future__ import annotations

from .base import Language, borders, units, values, words

_INITIAL = r"\p{Lu}\.(?=\s?\p{Lu})"
_WORD = r"\p{Lu}[\p{L}\d]*(?:[-’']\p{L}+)*"
_OF = r"(?:(?:de la |de las |de los |de |del |van der |van |von |di |da |do |dos )(?:La |El |Los |Las )?)?"

SPANISH = Language(
    code="es", name="Spanish",
    function_words=words(
        """
            el la los las lo un una unos unas de del al y e o u pero sino que quien cuyo cuya donde a ante
            con contra desde durante en entre hacia hasta para por según sin sobre tras es son era eran fue
            fueron ha han había habían sido ser está están él ella ellos ellas se su sus le les nos me mi
            este esta estos estas ese esa esos esas no más muy también como cuando ya si todo todos toda así
            tiene otro otra otros otras dos además siendo junto
        """,
    ),
    borders=borders(
        titles="""
            ee sr sra sres srta dr dra d dña da prof lic ing fr sto sta mons p.ej ej núm no nº pág págs vol
            cap art fig aprox ca ene feb mar abr jun jul ago sep sept oct nov dic av avda c a.c d.c hab gral
            cnel p pp
        """,
        short="etc uu ud uds cía jr ee.uu s.a",
        starters="""
            El La Los Las Lo Un Una En De Del Al Se Su Sus Él Ella Ellos Ellas Este Esta Estos Estas Ese Esa
            Por Para Con Según Desde Durante Después Tras Entre Pero Y También Además Cuando Como Aunque No
            Sin Sobre Fue
        """,
        closing="»”", opening="«“",
    ),
    works=("«»", "“”", '""'), capitals=0.0,
    months=(
        r"enero|ene\.", r"febrero|feb\.", r"marzo|mar\.", r"abril|abr\.", "mayo",
        r"junio|jun\.", r"julio|jul\.",
        r"agosto|ago\.", r"septiembre|setiembre|sept?\.", r"octubre|oct\.", r"noviembre|nov\.",
        r"diciembre|dic\.",
    ),
    dates=(
        r"(?<![\d.,])(?P<d>{n})\s?(?:[–-]|al|y)\s?(?P<d2>{n})\sde\s(?P<month>{month})(?:\sdel?\s(?P<y>\d{4}))?(?!\w)",
        r"(?<![\d.,])(?P<d>{n})(?:\.?[ºo])?\sde\s(?P<month>{month})(?:,?\sdel?\s(?P<y>\d{3,4}))?(?!\w)",
        r"\b(?P<month>{month})\s(?:del?\s)?(?P<y>\d{4})(?!\w|,\d)",
        r"(?<![\w.,])(?P<d>{n})(?P<sign>[/.-])(?P<m>{n})(?P=sign)(?P<y>\d{4})(?!\w)",
        r"(?<![\w.,])(?P<y>\d{1,4})\s(?:(?P<bc>a\.?\s?(?:C\.|de C\.|n\.\s?e\.)|antes de Cristo)"
        r"|d\.?\s?(?:C\.|de C\.)|después de Cristo)",
        r"\b[Ss]iglo\s(?P<roman>[IVX]+)(?:\s(?P<bc>a\.?\s?(?:C\.|de C\.)|antes de Cristo))?(?!\w)",
        r"\baños\s(?P<decade>\d{3}0)(?!\w)", r"\bdécada\sde\s(?P<decade>\d{3}0)(?!\w)",
        r"(?<=\b(?:en|desde|hasta|finales de|principios de|mediados de)\s)(?P<month>{month})"
        r"(?!\w|\sde[l]?\s\d)",
    ),
    numerals=values(
        """
            un|uno|una dos tres cuatro cinco seis siete ocho nueve diez once doce trece catorce quince
            dieciséis diecisiete dieciocho diecinueve veinte veintiuno|veintiún|veintiuna veintidós
            veintitrés veinticuatro veinticinco veintiséis veintisiete veintiocho veintinueve
        """,
    )
    | values("treinta cuarenta cincuenta sesenta setenta ochenta noventa", 30, 10)
    | values(
        """cien|ciento doscientos|doscientas trescientos|trescientas cuatrocientos|cuatrocientas
        quinientos|quinientas seiscientos|seiscientas setecientos|setecientas ochocientos|ochocientas
        novecientos|novecientas""", 100, 100,
    )
    | {"cero": 0},
    scales={"mil": 1e3, "millones": 1e6, "millón": 1e6, "billones": 1e12, "billón": 1e12},
    joins=(r"(?:\sy\s|\s)", r"[\s\u00a0\u202f](?:de\s)?"),
    ordinals=values("tercer|tercero|tercera", 3)
    | values("quinto|quinta sexto|sexta séptimo|séptima octavo|octava noveno|novena décimo|décima", 5),
    ordinal=r"\.?[ºª]|\.?(?:er|ro|ra|do|da|to|ta|mo|ma|vo|va)(?!\w)",
    units=units(
        """
            por_ciento:% kilómetros|kilómetro:km metros|metro:m centímetros|centímetro:cm milímetros:mm
            kilómetros_cuadrados|kilómetro_cuadrado:km2 metros_cuadrados:m2 hectáreas|hectárea:ha
            metros_cúbicos:m3 kilogramos|kilogramo|kilos:kg gramos|gramo:g toneladas|tonelada:t
            litros|litro:l euros|euro:euro dólares|dólar:dollar pesetas:peseta pesos|peso:peso
            libras_esterlinas:pound-sterling años|año:year meses|mes:month semanas|semana:week días|día:day
            horas|hora:hour minutos|minuto:minute segundos:second habitantes|habitante:inhabitant
            personas:people grados|grados_Celsius:degree millas:mile
        """,
    ),
    names=(
        rf"(?P<general>)(?<![\p{{L}}\d-])(?P<name>(?:{_INITIAL}|{_WORD})"
        rf"(?:[ \u00a0]{_OF}(?:{_INITIAL}|{_WORD})"
        rf"|(?<=\p{{Lu}}\p{{L}}+ {_WORD}) y {_WORD}(?! [\p{{Lu}}]| de))*)",
    ),
    plain=words("I II III IV V VI VII VIII IX X XI XII Internet Dios Estado Sr Sra Dr"),
    articles=words("el la los las un una de del al"),
    endings=words("s es a o"),
)  # fmt: skip
