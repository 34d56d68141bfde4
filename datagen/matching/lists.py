"""Word lists the name rules rest on; all lower case without diacritics."""

from __future__ import annotations

from .words import listed

TITLES = frozenset(
    listed(
        "mr mrs ms miss dr doctor prof professor sir dame lord lady king queen prince princess emperor "
        "empress pope president senator governor general colonel captain admiral major lieutenant sergeant "
        "chancellor minister judge justice reverend rev father cardinal bishop archbishop duke duchess "
        "count countess"
    )
)
SUFFIXES = frozenset(["jr", "sr"])
PARTICLES = frozenset(listed("van von de da di del della der den du la le el al bin ibn ter ten"))
COMPANY = frozenset(listed("inc ltd llc corp corporation co company plc gmbh ag sa group limited"))
FORMS = (
    "federal republic of",
    "republic of",
    "kingdom of",
    "commonwealth of",
    "state of",
    "city of",
    "town of",
    "province of",
    "county of",
)
#: Forms whose long and short name are two different places.
NOT_THE_SAME = frozenset(["china", "congo"])
LANDFORMS = frozenset(["river", "mount"])
#: States that share the name of a river.
RIVER_STATES = frozenset(
    listed(
        "mississippi missouri ohio colorado delaware connecticut arkansas illinois iowa kansas tennessee "
        "alabama minnesota wisconsin"
    )
)
#: "University of X" and "X University" are two institutions.
TWO_UNIVERSITIES = frozenset(["miami", "washington", "york"])

#: Words that make another place or thing of the name they stand before.
DIRECTIONS = frozenset(
    listed(
        "new north south east west northern southern eastern western upper lower northeast northwest "
        "southeast southwest"
    )
)
#: Words before a last word that is then no family name ("Hong Kong", "Red Cross").
NOT_GIVEN = DIRECTIONS | frozenset(
    listed(
        "saint san santa los las el fort port lake mount cape united royal national international air bank "
        "real ac inter abu hong great grand central old big little black white red blue green golden silver "
        "dark free holy high middle inner outer deutsche british american french german english european "
        "african asian australian canadian papua equatorial and for in on at"
    )
)
#: Last words that are no family name: kinds of places, organisations and works.
GENERIC = frozenset(
    listed(
        "city town village river university college party street avenue road park island islands union "
        "state states kingdom republic army navy force forces times post museum bank company records prize "
        "award awards war wars sea ocean gulf bay mountain mountains hill hills valley county province "
        "region district church cathedral hall house school institute association league club band show "
        "world cup championship championships game games series festival center building tower bridge "
        "airport station library theater hospital court council parliament senate congress department "
        "ministry office empire dynasty century album song film movie book novel symphony concerto opera "
        "man woman boy girl night day love life death time home road story stories star rises returns "
        "knight division regiment squadron brigade fleet society academy foundation organization committee "
        "agency bureau service network television radio news magazine journal press studios pictures "
        "entertainment productions group team stadium garden gardens square palace castle temple lake coast "
        "desert forest beach canal channel act treaty battle siege revolution movement language people "
        "peoples system theory law effect disease award medal order conference"
    )
)
#: Common given names: a middle name may be missing only after one of these, or after an initial.
GIVEN = frozenset(
    listed(
        "james john robert michael william david richard joseph thomas charles christopher daniel matthew "
        "anthony mark donald steven paul andrew joshua kenneth kevin brian george edward ronald timothy "
        "jason jeffrey ryan jacob gary nicholas eric jonathan stephen larry justin scott brandon benjamin "
        "samuel gregory frank alexander raymond patrick jack dennis jerry tyler aaron jose henry adam "
        "douglas nathan peter zachary kyle walter harold carl arthur roger keith jeremy terry lawrence sean "
        "christian albert joe ethan austin jesse willie billy bruce ralph roy eugene louis philip johnny "
        "bobby franklin theodore frederick ernest martin leonard edgar herbert hugh oscar oliver victor "
        "simon alan allen allan francis clive gerald ludwig karl johann wolfgang friedrich wilhelm heinrich "
        "hans otto pierre jean jacques marie francois claude henri charlotte emily anne anna mary patricia "
        "jennifer linda elizabeth barbara susan jessica sarah karen lisa nancy betty margaret sandra ashley "
        "kimberly donna michelle carol amanda melissa deborah stephanie rebecca laura sharon cynthia "
        "kathleen amy angela shirley brenda emma pamela nicole helen samantha katherine christine debra "
        "rachel carolyn janet maria catherine heather diane ruth julie olivia joyce virginia victoria kelly "
        "lauren christina joan evelyn judith agatha jane alice eleanor hillary juan carlos luis antonio "
        "pedro diego pablo miguel giuseppe giovanni marco luigi ivan vladimir sergei nikolai boris leon "
        "percy ralph edmund horatio winston neville ulysses abraham isaac noah elijah josef erik lars sven "
        "olaf"
    )
)
NICKNAMES: dict[str, str] = {
    short: full
    for full, shorts in {
        "william": "bill billy will willie",
        "robert": "bob bobby rob robbie",
        "richard": "dick rick richie",
        "james": "jim jimmy jamie",
        "joseph": "joe joey",
        "thomas": "tom tommy",
        "anthony": "tony",
        "michael": "mike mick mickey",
        "edward": "ed eddie ted ned",
        "charles": "charlie chuck",
        "john": "johnny jack",
        "daniel": "dan danny",
        "david": "dave davy",
        "samuel": "sam sammy",
        "benjamin": "ben benny",
        "andrew": "andy drew",
        "matthew": "matt",
        "nicholas": "nick",
        "christopher": "chris",
        "stephen": "steve",
        "steven": "steve",
        "alexander": "alex",
        "elizabeth": "liz beth betty",
        "katherine": "kate kathy",
        "margaret": "maggie peggy",
        "kenneth": "ken kenny",
        "ronald": "ron ronnie",
        "donald": "don donnie",
        "gerald": "gerry jerry",
        "lawrence": "larry",
        "timothy": "tim",
        "gregory": "greg",
        "jeffrey": "jeff",
        "patrick": "pat",
        "philip": "phil",
        "peter": "pete",
        "frederick": "fred freddie",
        "albert": "al bert",
        "susan": "sue susie",
        "jennifer": "jen jenny",
        "rebecca": "becky",
        "deborah": "debbie",
    }.items()
    for short in listed(shorts)
}
SPELLINGS: dict[str, str] = {
    "centre": "center",
    "theatre": "theater",
    "harbour": "harbor",
    "labour": "labor",
    "defence": "defense",
    "colour": "color",
    "honour": "honor",
    "favourite": "favorite",
    "grey": "gray",
    "mohammed": "muhammad",
    "mohamed": "muhammad",
    "encyclopaedia": "encyclopedia",
    "vol": "volume",
    "pt": "part",
    "dr": "doctor",
    "prof": "professor",
    "mt": "mount",
    "ave": "avenue",
    "bros": "brothers",
    "corp": "corporation",
    "vs": "versus",
    "v": "versus",
    "&": "and",
}
