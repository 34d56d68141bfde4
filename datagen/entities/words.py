"""Word lists of the name rules."""

from __future__ import annotations


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


#: Lower-case particles of personal and foreign names.
PARTICLES = _set(
    "de del della dello delle dei di da das do dos du des la le les van von der den ter ten zu zur af "
    "av bin ibn al el y e il los las san op aan d' auf und et"
)
#: Lower-case words that may lie inside an English name.
JOINTS = _set("of the and for at on in to")
#: Nouns that "for" and "at" may follow inside a name, and whose "of X and Y" is one name.
HEADS_FOR = _set(
    "Academy Agency Alliance Association Award Awards Board Bureau Campaign Center Centre Coalition "
    "College Commission Committee Conference Council Department Endowment Faculty Foundation Fund "
    "Hospital Institute Library Medal Ministry Movement Museum Office Organisation Organization Party "
    "Prize Program Programme School Secretary Minister Society Union University Act Bill"
)
#: Nouns that announce titles of works.
WORK_NOUNS = _set(
    "album albums song songs single singles novel novels film films book books publications ep eps play "
    "plays poem poems opera operas series include includes"
)
#: Lower-case heads of compounds whose name begins after the hyphen ("non-English").
LOWER_PREFIXES = _set(
    "non pre post anti pro mid ex trans inter neo sub un all pan early late then now half semi quasi "
    "self intra"
)
#: Ends of compounds that are no part of the name before them ("Swedish-born").
COMMON_TAILS = _set(
    "language born based speaking style era class led area wide winning nominated like type owned "
    "themed related centric controlled occupied held backed bound ruled trained built made inspired "
    "influenced level sponsored supported affiliated educated raised designed run only century day time "
    "free shaped funded selling bred dominated"
)
#: Words that open sentences with a capital that is not theirs, stop words aside.
OPENERS = _set(
    "Born Written Released Directed Located Founded Set Based Produced Published Built Designed Known "
    "Named Following Originally Although Despite Upon Early Later Late Today Currently Recently "
    "Initially Eventually Finally Subsequently Generally Typically Usually Often Sometimes Critics "
    "Reviewers Many Several Some Most Both Two Three Four Five Six Seven Eight Nine Ten First Second "
    "Third Fourth Fifth Sixth Seventh Eighth Ninth Tenth Former Historically Together Prior Given Like "
    "Unlike According Along Around Within Without Until Since Because Additionally Furthermore Moreover "
    "However Nevertheless Meanwhile Instead Also Other Another Each Every Construction Development Work "
    "Plans Production People Members Students Scholars Historians Scientists Children Men Women Fans "
    "Players Modern Ancient Traditional Contemporary New Large Small Local National Winds Heavy "
    "Rainfall Damage Commercially Musically Lyrically Developed Created Performed Recorded Filmed "
    "Formed Established Raised Educated Featuring Starring Having Being Using Giving Taking Making "
    "Considered Described Widely Administratively Geographically Politically Economically Dedicated "
    "Inspired Led Appointed Elected Including Formally Officially Opened Completed Adapted Composed "
    "Near Across Beyond Below Above Between Among Amongst Against Unless Once Whether Whenever Wherever "
    "Whereas Whilst Besides Except Apart Due Only Even Just Still Thus Hence Perhaps Here There Half "
    "None Neither Either Few Much More Less Such Same Certain Various Numerous Different Similar "
    "Further Per Via Yes Oh Let Please See Note Come Go Get Make Why How What"
)
#: Lower-case words that follow a subject, so that a lone capitalised word before them is a name.
PREDICATES = _set(
    "is was were are has had have also later then became becomes began begins wrote writes won wins "
    "made makes took takes said says did does died dies grew left led met went came served would could "
    "will may can and or who which lies stands sold ran held gave found felt fought saw spent taught "
    "sang sings plays stars follows contains describes remains born thought himself herself itself not "
    "never first again"
)
#: Words whose possessive the name goes on after ("People's Republic"), and words that go on so.
OWNERS = _set(
    "People Women Men Children King Queen Majesty Prince Princess Veterans Workers Farmers Mother Father"
)
OWNED = _set(
    "Magazine Day College Church Hospital Cathedral Palace Park Center Centre Cup Hall Weekly Monthly "
    "Court Bridge School Island Law Theorem Eve Bazaar Journal Guide Theatre Theater Castle Creek Bay"
)
#: Names that end in their own "'s".
WITH_S = _set("McDonald Macy Sotheby Christie Wendy Levi Lloyd Sainsbury Domino Kellogg Moody Denny Hershey")
#: Capitalised words that alone name nothing.
NOT_NAMES = _set("I A The No. EP EPs LP LPs CD CDs DVD DVDs TV R&B PhD OK Jr Jr. Sr.")
#: Words that an ordinal before them belongs to ("17th Brigade").
ORDERED = _set(
    "Brigade Division Battalion Regiment Infantry Army Corps Fleet Street Avenue Squadron Cavalry "
    "Congress Amendment Airborne Armored Armoured Battery Ward Parliament"
)
