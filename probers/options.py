"""Types of option values: ranges and choices as annotations, checked by pydantic and described in words.

An annotation such as ``Count`` or ``Literal["mean", "max"] | None`` has three uses: a value is checked
against it, the message about a wrong value lists what it allows, and ``--help`` shows it. Only the first
needs pydantic, whose import takes longer than all the rest of ``--help``. The options of a class are its
fields or keyword-only parameters, described below the field or in the docstring.
"""

from __future__ import annotations

import ast
import difflib
import inspect
import json
import re
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import InitVar, dataclass, fields, is_dataclass
from functools import cache
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from .parts import PARTS
from .types import STEERING, UserError

if TYPE_CHECKING:
    from pydantic import GetCoreSchemaHandler, TypeAdapter
    from pydantic_core import CoreSchema

_MOST = 2**32  # limit of whole numbers, and thus of seeds
_LONGEST = 80  # characters of a value in a message


@dataclass(frozen=True)
class Limits:
    """Limits of an annotated type, as in pydantic's ``Field``, and their description in messages."""

    description: str | Callable[[], str] | None = None
    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    lt: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None
    check: Callable[[str], object] | None = None  # raises ValueError

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        from pydantic import AfterValidator, Field

        others, check = ("description", "check"), self.check
        limits: dict[str, Any] = {name: value for name, value in vars(self).items() if name not in others}
        limited: Any = Annotated[source, Field(**limits)]
        if check is not None:
            limited = Annotated[limited, AfterValidator(lambda value: (check(value), value)[1])]
        return handler.generate_schema(limited)


Count = Annotated[int, Limits(ge=1)]
Natural = Annotated[int, Limits(ge=0)]
Positive = Annotated[float, Limits(gt=0)]
NotNegative = Annotated[float, Limits(ge=0)]
Share = Annotated[float, Limits(ge=0, le=1)]
#: A number that numpy, random and torch all take.
Seed = Annotated[int, Limits(ge=0)]
#: A name or path on one line, not empty.
Name = Annotated[str, Limits("a name on one line", min_length=1, pattern=f"^[^{STEERING}]*$")]
#: The dotted path of a class.
Dotted = Annotated[str, Limits("the dotted path of a class", pattern=r"^[A-Za-z_]\w*(\.\w+)+$")]
#: Text on one line, may be empty.
Line = Annotated[str, Limits("text on one line", pattern=f"^[^{STEERING}]*$")]


def one_of(group: str, *more: str) -> Limits:
    """Limit a text to the names of a group in the table of parts, or ``more``."""

    def check(value: str) -> None:
        if value not in PARTS[group] and value not in more:
            raise ValueError(value)

    return Limits(lambda: f"one of {', '.join((*more, *PARTS[group]))}", check=check)


def check_options(kind: Any, values: Mapping[str, Any], prefix: str = "") -> None:
    """Check plain values of a class's fields or parameters; those that are dataclasses are blocks of options.

    ``prefix`` precedes the keys in messages, for example "model.". UserError for an unknown key, or the first
    value that is not allowed; it lists the allowed ones.
    """
    hints = field_types(kind)
    for name in sorted(values.keys() - hints):
        listed = ", ".join(f"{prefix}{known}" for known in hints)
        raise UserError(f"unknown key {prefix + name!r}: the keys are {listed}", "unknown-key")
    for name, annotation in hints.items():
        if name not in values:
            continue
        value, key = values[name], f"{prefix}{name}"
        if not is_dataclass(annotation):
            check_value(key, value, annotation)
        elif isinstance(value, Mapping):
            check_options(annotation, value, f"{key}.")
        else:
            options = ", ".join(f"{key}.{field.name}" for field in fields(annotation))
            raise UserError(f"{key}={shown(value)} must be a block of options: give {options}")


def nearest(name: str, known: Iterable[str]) -> str:
    """Name the nearest of the known names, as part of a sentence; "" if none is near."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean {close[0]}?)" if close else ""


def refuse_unknown(what: str, given: Iterable[str], known: Iterable[str], rest: str = "") -> None:
    """Refuse an option that ``what`` does not take (UserError "unknown-key"); ``rest`` ends the sentence."""
    known = list(known)
    for name in given:
        if name not in known:
            message = f"{what} has no option {name!r}{nearest(name, known)}"
            raise UserError(f"{message}: its options are {', '.join(known) or 'none'}{rest}", "unknown-key")


def check_extra(asks: str, extra: str, *modules: str, instead: str = "") -> None:
    """Refuse what ``asks`` for missing modules of an extra (UserError); ``instead`` is another way out."""
    if missing := [module for module in modules if find_spec(module) is None]:
        problem = f"{asks} needs {' and '.join(missing)}"
        raise UserError(f'{problem}: pip install "probers[{extra}]"{instead}', "missing-extra")


def check_record(kind: Any, values: Any, prefix: str = "") -> None:
    """Check plain values from a file like :func:`check_options`; all fields must be there."""
    names = [field.name for field in fields(kind)]
    odd = sorted(set(values) ^ set(names)) if isinstance(values, Mapping) else [shown(values)]
    if odd:
        name = kind.__name__.lstrip("_")
        message = f"a {name} has the fields {sorted(names)}; missing or unknown: {shown(odd)}"
        raise UserError(message, "bad-file")
    check_options(kind, values, prefix)


def check_value(key: str, value: Any, annotation: Any) -> None:
    """Check one plain value: null, true, a number, a text, or lists and mappings of these."""
    if (number := _too_large(value)) is not None:
        raise UserError(f"{key}={shown(value)} is too large: {number:,} is not below {_MOST:,}")
    try:
        # Like JSON, where a list is also a tuple, and text is never a number.
        _adapter(annotation).validate_json(json.dumps(value))
    except (ValueError, TypeError):  # pydantic's ValidationError is a ValueError
        # A text that looks like a number is shown as one in quotes.
        typed = repr(value) if isinstance(value, str) and re.fullmatch(r"[\d.+-]+", value) else shown(value)
        raise UserError(f"{key}={typed} must be {allowed(annotation)}") from None


def _too_large(value: Any) -> int | None:
    if isinstance(value, (list, dict)):
        inner = value.values() if isinstance(value, dict) else value
        return next((n for each in inner if (n := _too_large(each)) is not None), None)
    return value if type(value) is int and abs(value) >= _MOST else None


def shown(value: Any) -> str:
    """Show a value in a message as it is typed, shortened and without control characters."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = re.sub(r"(?<=://)[^/\s]*@", "***@", text)  # no password
    if not text.isprintable() or text != text.strip() or not text:
        text = ascii(text)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} .."


def allowed(annotation: Any) -> str:
    """Describe the values of an annotation: "a whole number of 1 or more, or null"."""
    *most, last = dict.fromkeys(_allowed(annotation))
    comma = "," if any(" or " in choice for choice in most) else ""
    return f"{', '.join(most)}{comma} or {last}" if most else last


def text_keys(kind: type) -> list[str]:
    """List the dotted keys that take text but no number, list or mapping."""
    return [key for key, hint in _keys(kind) if all(_is_text(choice) for choice in _members(hint))]


def _keys(kind: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, annotation in field_types(kind).items():
        if is_dataclass(annotation):
            yield from _keys(annotation, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", annotation


def _is_text(annotation: Any) -> bool:
    annotation, _ = _plain(annotation)
    if get_origin(annotation) is Literal:
        return all(isinstance(choice, str) for choice in get_args(annotation))
    return annotation in (str, types.NoneType)


def _allowed(annotation: Any) -> Iterator[str]:
    """List the choices of an annotation, null last."""
    for member in sorted(_members(annotation), key=lambda member: member is types.NoneType):
        base, constraints = _plain(member)
        limits = next((c for c in constraints if isinstance(c, Limits)), Limits())
        origin, inner = get_origin(base) or base, get_args(base)
        if limits.description is not None:
            yield limits.description if isinstance(limits.description, str) else limits.description()
        elif origin is Literal:
            yield from map(str, inner)
        elif base is bool:
            yield from ("true", "false")
        elif base is types.NoneType:
            yield "null"
        elif base in (int, float):
            yield ("a whole number" if base is int else "a number") + _range(limits)
        elif base is str:
            yield "text"
        elif isinstance(origin, type) and issubclass(origin, Mapping):
            yield "a mapping such as {key: value}"
        elif isinstance(origin, type) and issubclass(origin, Sequence):
            items = [item for item in inner if item is not Ellipsis]
            of = allowed(items[0]) if items else "values"
            many = f" of {len(items)}" if origin is tuple and Ellipsis not in inner else ""
            yield f"a list [..]{many}, each {of}" if items else "a list [..]"
        # Objects, such as a loaded prober, cannot be typed and are left out.


def _range(limits: Limits) -> str:
    """Describe a range: `` of 1 or more`` for ``ge=1``."""
    bounds = {k: f"{v:,}" for k, v in vars(limits).items() if k in ("ge", "gt", "le", "lt") and v is not None}
    match bounds:
        case {"ge": least, "le": most}:
            return f" from {least} to {most}"
        case {"ge": least, "lt": below}:
            return f" from {least} to below {below}"
        case {"ge": least}:
            return f" of {least} or more"
        case {"gt": above}:
            return f" above {above}"
    return ""


def _members(annotation: Any) -> list[Any]:
    base, constraints = _plain(annotation)
    if constraints or get_origin(base) not in (Union, types.UnionType):
        return [annotation]
    return [inner for member in get_args(base) for inner in _members(member)]


def _plain(annotation: Any) -> tuple[Any, tuple[Any, ...]]:
    """Split an annotation into its type and its constraints."""
    if get_origin(annotation) is Annotated:
        base, *constraints = get_args(annotation)
        return base, tuple(constraints)
    return annotation, ()


@cache
def _adapter(annotation: Any) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, TypeAdapter

    # Whole numbers count as numbers; nothing else is converted.
    strict = ConfigDict(strict=True, allow_inf_nan=False, arbitrary_types_allowed=True)
    return TypeAdapter(annotation, config=strict)


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a class: its default as a plain value, its type, and its description."""

    name: str
    default: Any
    type: Any
    about: str


@cache
def options_of(kind: Any) -> tuple[Option, ...]:
    """List the options of a class: what a configuration can set, which has a default and a plain type."""
    listed, types_, about = [], field_types(kind), descriptions(kind)
    dataclass_fields = getattr(kind, "__dataclass_fields__", {})
    for name, given in inspect.signature(kind).parameters.items():
        optional = given.default is not given.empty and (dataclass_fields or given.kind is given.KEYWORD_ONLY)
        if not optional or name.startswith("_") or not _is_typed(types_.get(name)):
            continue
        factory = repr(given.default) == "<factory>"
        default = dataclass_fields[name].default_factory() if factory else given.default
        default = list(default) if isinstance(default, tuple) else default
        listed.append(Option(name, default, types_[name], about.get(name, "")))
    return tuple(listed)


def _is_typed(annotation: Any) -> bool:
    """Tell whether a user can type a value, unlike a loaded corpus."""
    written = (str, int, float, bool, list, tuple, dict, Mapping, Literal)
    members = map(_plain, _members(annotation))
    return any(constraints or (get_origin(base) or base) in written for base, constraints in members)


_SECTIONS = r"^(?:Attributes|Args):\n((?:^ +.*\n?|^\n)+)"


def about(kind: Any) -> str:
    """Return the docstring of a class without its sections."""
    return re.split(r"\n\n(?:Attributes|Args|Raises):", inspect.getdoc(kind) or "")[0]


@cache
def descriptions(kind: type) -> dict[str, str]:
    """Read the text below each field, or its entry in the docstring, of a class and its bases."""
    texts: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if base.__module__.partition(".")[0] != kind.__module__.partition(".")[0]:
            continue
        for section in re.findall(_SECTIONS, inspect.cleandoc(base.__doc__ or ""), re.M):
            for entry in re.split(r"\n(?=\w)", inspect.cleandoc(section)):
                names, _, text = entry.partition(":")
                texts |= dict.fromkeys(names.split(", "), " ".join(text.split()))
        body = node.body if (node := _classes(base.__module__).get(base.__name__)) else []
        for field, text in zip(body, body[1:], strict=False):
            match field, text:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(below))):
                    texts[name] = inspect.cleandoc(below)
    return texts


@cache
def _classes(module: str) -> dict[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {node.name: node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}


@cache
def field_types(target: Callable[..., Any]) -> dict[str, Any]:
    """Map the parameters of a class or function to their annotations."""
    names = list(inspect.signature(target).parameters)
    function: Any = target
    if isinstance(target, type) and not is_dataclass(target):
        function = inspect.getattr_static(target, "__init__")
    elsewhere: dict[str, Any] = {}
    while True:
        try:
            hints = get_type_hints(inspect.unwrap(function), None, elsewhere, include_extras=True)
            break
        except NameError as error:  # imported for type checkers only, so never a configured value
            elsewhere[str(error.name)] = _Unwritable
    given = ((name, hints[name]) for name in names if name in hints)
    return {name: hint.type if isinstance(hint, InitVar) else hint for name, hint in given}


class _Unwritable:
    """Placeholder for a class that is imported for type checkers only."""


def check_keywords(kind: Any, given: Iterable[str]) -> None:
    """Refuse keywords that the constructor of a class does not take, naming the nearest (UserError)."""
    parameters = inspect.signature(kind.__init__).parameters
    if all(each.kind is not each.VAR_KEYWORD for each in parameters.values()):
        refuse_unknown(kind.__name__, given, [name for name in parameters if name != "self"])
