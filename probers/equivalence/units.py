"""Units of measure and currencies: what they measure, and how they convert."""

from __future__ import annotations

import re
from typing import NamedTuple

#: Currency -> its signs, codes and names.
MONEY = {
    "dollar": "us$ $ usd us-dollar u.s.-dollar dollar", "canadian dollar": "c$ ca$ cad canadian-dollar",
    "australian dollar": "a$ au$ aud australian-dollar", "new zealand dollar": "nz$ nzd new-zealand-dollar",
    "hong kong dollar": "hk$ hkd hong-kong-dollar", "pound sterling": "£ gbp british-pound sterling",
    "euro": "€ eur euro", "yen": "¥ jpy yen", "rupee": "₹ inr rs. rs rupee", "franc": "chf swiss-franc franc",
    "won": "₩ krw won", "rouble": "₽ rub rouble ruble", "peso": "₱ peso", "yuan": "cny rmb yuan renminbi",
}  # fmt: skip
CURRENCY_OF = {sign.replace("-", " "): name for name, signs in MONEY.items() for sign in signs.split()}
CURRENCY = re.compile("|".join(re.escape(s) for s in sorted(CURRENCY_OF, key=len)[::-1] if len(s) < 4))

#: quantity -> units with their size in its base unit.
_SIZES = {
    "length": "μm 1e-6 micrometre 1e-6 light-year 9.4607e15 "
    "mm .001 millimetre .001 cm .01 centimetre .01 m 1 metre 1 km 1000 kilometre 1000 inch .0254 "
    "in .0254 ft .3048 foot .3048 feet .3048 yard .9144 yd .9144 mi 1609.344 mile 1609.344 "
    "nautical-mile 1852",
    "mass": "μg 1e-6 microgram 1e-6 "
    "mg .001 milligram .001 g 1 gram 1 kg 1000 kilogram 1000 kilo 1000 t 1000000 tonne 1000000 "
    "metric-ton 1000000 lb 453.592 pound 453.592 oz 28.3495 ounce 28.3495",
    "area": "km2 1 sq-km 1 square-kilometre 1 hectare .01 ha .01 acre .00404686 sq-mi 2.58999 "
    "square-mile 2.58999 m2 .000001 sq-m .000001 square-metre .000001 sq-ft 9.2903e-8 square-foot 9.2903e-8 "
    "square-feet 9.2903e-8",
    "volume": "l 1 litre 1 ml .001 millilitre .001 gallon 3.78541 barrel 158.987 m3 1000 cubic-metre 1000",
    "speed": "km/h 1 kph 1 kilometre-per-hour 1 kilometres-per-hour 1 mph 1.609344 mile-per-hour 1.609344 "
    "miles-per-hour 1.609344 knot 1.852 m/s 3.6 metres-per-second 3.6 km/s 3600",
    "time": "s 1 sec 1 second 1 min 60 minute 60 h 3600 hr 3600 hour 3600 day 86400 week 604800",
    "months": "month 1 year 12 decade 120 century 1200 centurie 1200",
    "people": "people 1 person 1 inhabitant 1 resident 1",
    "share": "% .01 percent .01 per-cent .01 pct .01 ‰ .001 per-mille .001",
    "temperature": "°c 1 celsius 1 degree-celsius 1 degrees-celsius 1 °f .555556 fahrenheit .555556 "
    "degree-fahrenheit .555556 degrees-fahrenheit .555556 ° 1 degree 1",
    "angle": "° 1 degree 1",
    "power": "w 1 watt 1 kw 1000 kilowatt 1000 mw 1e6 megawatt 1e6 gw 1e9 gigawatt 1e9",
    "frequency": "hz 1 khz 1000 mhz 1e6 ghz 1e9 hertz 1",
    "voltage": "v 1 volt 1 kv 1000 kilovolt 1000",
    "memory": "kb 1e3 kilobyte 1e3 mb 1e6 megabyte 1e6 gb 1e9 gigabyte 1e9 tb 1e12 terabyte 1e12",
} | {name: f"{name.replace(' ', '-')} 1 cent .01" for name in MONEY} | {
    "pound sterling": "pound 1 pound-sterling 1 penny .01 pence .01 p .01",
}  # fmt: skip


class Scale(NamedTuple):
    """Quantity that a unit measures, and its size and zero in the base unit."""

    quantity: str
    size: float = 1.0
    zero: float = 0.0


PLAIN = Scale("number")
#: unit -> each of its meanings: a pound is money or mass.
_UNITS: dict[str, list[Scale]] = {}
for _quantity, _listed in _SIZES.items():
    for _name, _size in zip(_listed.split()[::2], _listed.split()[1::2], strict=True):
        _zero = -17.7778 if _size == ".555556" else 0.0  # Fahrenheit's in Celsius
        _UNITS.setdefault(_name.replace("-", " "), []).append(Scale(_quantity, float(_size), _zero))
DOLLARS = frozenset(name for name in MONEY if name.endswith("dollar"))
#: Words after a unit of measure that do not change its quantity.
_DIMENSION = re.compile(
    r"\s(?:long|high|tall|wide|deep|thick|old|away|(?:above|below) sea level|"
    r"in (?:length|height|width|depth|size|area))"
)


def same_unit(a: str, b: str) -> bool:
    """Tell whether two units, or nouns of counted things, measure one quantity; "" only matches itself."""
    x, y = meanings(a), meanings(b)
    return bool({s.quantity for s in x} & {s.quantity for s in y}) if x and y else singular(a) == singular(b)


def read_unit(written: str, money: str) -> str:
    """Read the unit written after a number, or the currency before it."""
    unit = written.lower().replace("µ", "μ").replace("-", " ").strip(" ,.").removeprefix("of ").strip()
    unit = CURRENCY_OF.get(unit) or CURRENCY_OF.get(singular(unit)) or unit
    return money or _DIMENSION.sub("", unit)


def singular(unit: str) -> str:
    """Return a unit or noun without its plural, in British spelling."""
    unit = unit.replace("meter", "metre").replace("liter", "litre").replace("inches", "inch")
    return unit[:-1] if unit.endswith("s") and len(unit) > 2 else unit


def meanings(unit: str) -> list[Scale]:
    """List the quantities that a unit can measure, with their scales; none for a counted noun."""
    return _UNITS.get(unit) or _UNITS.get(singular(unit)) or []
