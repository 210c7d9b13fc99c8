# SPDX-License-Identifier: Apache-2.0
"""Evaluates device selectors: the part of CEL that selectors of GPUs are written in. Pure.

Booleans, comparison, `in`, `? :`, indexing, optionals (`.?name.orValue(x)`), `has()`, `quantity()` with its
comparisons, and the functions of text. Anything else raises Unsupported: the caller says so and does not
guess.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from aliquot_api import quantity
from aliquot_api.errors import InvalidInput
from aliquot_api.wire import JsonObject, dig, items, obj, text


class Unsupported(Exception):
    """The expression uses something that is not known here."""


class Failed(Exception):
    """The scheduler would fail on it too: a missing name, or types that do not go together."""


@dataclass(frozen=True, slots=True)
class _Optional:
    value: object
    there: bool


@dataclass(frozen=True, slots=True)
class _Quantity:
    value: int


@dataclass(frozen=True, slots=True)
class _Version:
    parts: tuple[int, ...]


_TOKEN: Final = re.compile(
    r"""\s*(?:(?P<number>\d+(?:\.\d+)?)|(?P<text>r?"(?:[^"\\]|\\.)*"|r?'(?:[^'\\]|\\.)*')"""
    r"""|(?P<name>[A-Za-z_]\w*)|(?P<sign>&&|\|\||==|!=|<=|>=|\.\?|\[\?|[-!<>()\[\].,?:+*/%]))"""
)
_ESCAPE: Final = re.compile(r"""\\(?:u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|x([0-9a-fA-F]{2})|(.))""")
_PLAIN_ESCAPES: Final = {"n": "\n", "t": "\t", "r": "\r"}


def selects(expression: str, device: JsonObject, *, driver: str) -> bool:
    """Whether a selector takes `device` (of a slice of `driver`). Raises Unsupported and Failed."""
    value = _Parser(_tokens(expression), {"device": _device(device, driver)}).whole()()
    if not isinstance(value, bool):
        raise Failed("the expression is neither true nor false")
    return value


def _device(device: JsonObject, driver: str) -> dict[str, object]:
    """The variable `device` as the scheduler makes it: unqualified names belong to the driver's domain."""
    attributes: dict[str, dict[str, object]] = {driver: {}}
    for name, value in obj(device.get("attributes")).items():
        domain, _, short = name.rpartition("/")
        attributes.setdefault(domain or driver, {})[short] = _attribute(obj(value))
    capacity: dict[str, dict[str, object]] = {driver: {}}
    for name, value in obj(device.get("capacity")).items():
        domain, _, short = name.rpartition("/")
        capacity.setdefault(domain or driver, {})[short] = _Quantity(_number(text(dig(value, "value"))))
    return {
        "driver": driver,
        "allowMultipleAllocations": device.get("allowMultipleAllocations") is True,
        "attributes": attributes,
        "capacity": capacity,
    }


def _attribute(value: JsonObject) -> object:
    if "version" in value:
        return _Version(_version(text(value["version"])))
    return next(iter(value.values()), None)


def _version(written: str) -> tuple[int, ...]:
    parts = re.split(r"[-+]", written, maxsplit=1)[0].split(".")
    if not all(part.isdigit() for part in parts):
        raise Failed(f"{written!r} is no semantic version")
    return tuple(map(int, parts))


def _number(written: str) -> int:
    try:
        return quantity.parse(written, field="quantity")
    except InvalidInput as error:
        raise Failed(str(error)) from error


def _tokens(expression: str) -> list[tuple[str, str]]:
    found, position = [], 0
    while position < len(expression.rstrip()):
        match = _TOKEN.match(expression, position)
        if match is None:
            raise Unsupported(f"{expression[position : position + 16].strip()!r} is not understood")
        found.append((match.lastgroup or "", match.group(match.lastgroup or 0)))
        position = match.end()
    return found


_Value = Callable[[], object]
"""A part of the expression, evaluated when it is called: `&&` and `||` need not look at both sides."""


class _Parser:
    """Recursive descent over CEL's grammar, from the weakest operator to the strongest."""

    def __init__(self, tokens: list[tuple[str, str]], variables: Mapping[str, object]) -> None:
        self._tokens = tokens
        self._at = 0
        self._variables = variables

    def whole(self) -> _Value:
        """The expression to its end."""
        value = self._conditional()
        if self._at != len(self._tokens):
            raise Unsupported(f"{self._tokens[self._at][1]!r} is not understood there")
        return value

    def _sign(self, *signs: str) -> str | None:
        if self._at < len(self._tokens):
            kind, word = self._tokens[self._at]
            if word in signs and kind in ("sign", "name"):
                self._at += 1
                return word
        return None

    def _want(self, sign: str) -> None:
        if self._sign(sign) is None:
            raise Unsupported(f"{sign!r} is missing")

    def _conditional(self) -> _Value:
        condition = self._either()
        if self._sign("?") is None:
            return condition
        first = self._conditional()
        self._want(":")
        second = self._conditional()
        return lambda: first() if _truth(condition()) else second()

    def _either(self) -> _Value:
        value = self._both()
        while self._sign("||"):
            value = _or(value, self._both())
        return value

    def _both(self) -> _Value:
        value = self._relation()
        while self._sign("&&"):
            value = _and(value, self._relation())
        return value

    def _relation(self) -> _Value:
        value = self._unary()
        while sign := self._sign("==", "!=", "<=", ">=", "<", ">", "in"):
            value = _compare(sign, value, self._unary())
        return value

    def _unary(self) -> _Value:
        if self._sign("!"):
            negated = self._unary()
            return lambda: not _truth(negated())
        if self._sign("-"):
            number = self._unary()
            return lambda: -_int(number())
        return self._member()

    def _member(self) -> _Value:
        value = self._primary()
        while sign := self._sign(".", ".?", "[", "[?"):
            if sign in ("[", "[?"):
                index = self._conditional()
                self._want("]")
                value = _indexed(value, index, optional=sign == "[?")
                continue
            name = self._name()
            if sign == "." and self._sign("("):
                value = _method(name, value, self._list(")"))
            else:
                value = _indexed(value, lambda name=name: name, optional=sign == ".?")  # type: ignore[misc]  # binds now
        return value

    def _name(self) -> str:
        kind, word = self._tokens[self._at] if self._at < len(self._tokens) else ("", "the end")
        if kind != "name":
            raise Unsupported(f"{word!r} is not understood there")
        self._at += 1
        return word

    def _list(self, end: str) -> list[_Value]:
        values: list[_Value] = []
        while self._sign(end) is None:
            values.append(self._conditional())
            if self._sign(",") is None:
                self._want(end)
                break
        return values

    def _primary(self) -> _Value:
        if self._at >= len(self._tokens):
            raise Unsupported("the expression ends too early")
        kind, word = self._tokens[self._at]
        if self._sign("("):
            value = self._conditional()
            self._want(")")
            return value
        if self._sign("["):
            elements = self._list("]")
            return lambda: [element() for element in elements]
        self._at += 1
        if kind == "name" and self._sign("("):
            return _function(word, self._list(")"))
        literal = self._literal(kind, word)
        return lambda: literal

    def _literal(self, kind: str, word: str) -> object:
        if kind == "number" and "." not in word:
            return int(word)
        if kind == "text":
            return _unquoted(word)
        if kind != "name":
            raise Unsupported(f"{word!r} is not understood there")
        if word in ("true", "false"):
            return word == "true"
        if word not in self._variables:
            raise Unsupported(f"the name {word} is not known")
        return self._variables[word]


def _unquoted(literal: str) -> str:
    if literal.startswith("r"):
        return literal[2:-1]

    def character(match: re.Match[str]) -> str:
        code = match[1] or match[2] or match[3]
        return chr(int(code, 16)) if code else _PLAIN_ESCAPES.get(match[4], match[4])

    return _ESCAPE.sub(character, literal[1:-1])


def _truth(value: object) -> bool:
    if not isinstance(value, bool):
        raise Failed("neither true nor false")
    return value


def _int(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise Failed("not a number")
    return value


def _and(left: _Value, right: _Value) -> _Value:
    return lambda: _decided(left, right, by=False)


def _or(left: _Value, right: _Value) -> _Value:
    return lambda: _decided(left, right, by=True)


def _decided(left: _Value, right: _Value, *, by: bool) -> bool:
    """Commutative, as CEL says: a side that decides hides the other one's error."""
    try:
        if _truth(left()) is by:
            return by
    except Failed:
        if _truth(right()) is by:
            return by
        raise
    return _truth(right())


def _compare(sign: str, left: _Value, right: _Value) -> _Value:
    def compared() -> bool:
        one, two = left(), right()
        if sign == "in":
            return one in (two if isinstance(two, dict) else items(two))
        if sign in ("==", "!="):
            same = type(one) is type(two) and one == two
            return same if sign == "==" else not same
        if type(one) is not type(two) or not isinstance(one, int | str):
            raise Failed(f"{sign} between values that have no order")
        order = (one > two) - (one < two)  # type: ignore[operator]  # of the same type, see above
        return {"<": order < 0, ">": order > 0, "<=": order <= 0, ">=": order >= 0}[sign]

    return compared


def _indexed(value: _Value, index: _Value, *, optional: bool) -> _Value:
    def found() -> object:
        base, key = value(), index()
        inner = base.value if isinstance(base, _Optional) else base
        there = (base.there if isinstance(base, _Optional) else True) and key in obj(inner)
        entry = obj(inner).get(str(key))
        if optional or isinstance(base, _Optional):
            return _Optional(entry, there)
        if not there:
            if isinstance(inner, dict) and "/" not in str(key) and "." in str(key):
                return {}  # an unknown domain is an empty map
            raise Failed(f"no such key: {key}")
        return entry

    return found


def _function(name: str, arguments: list[_Value]) -> _Value:
    if name == "has" and len(arguments) == 1:

        def there() -> bool:
            try:
                arguments[0]()
            except Failed:
                return False
            return True

        return there
    if name == "quantity" and len(arguments) == 1:
        return lambda: _Quantity(_number(text(arguments[0]())))
    if name == "semver" and len(arguments) == 1:
        return lambda: _Version(_version(text(arguments[0]())))
    raise Unsupported(f"the function {name}() is not known")


_TEXT: Final[dict[str, Callable[[str, list[object]], object]]] = {
    "lowerAscii": lambda value, _: value.lower(),
    "upperAscii": lambda value, _: value.upper(),
    "contains": lambda value, rest: text(rest[0]) in value,
    "startsWith": lambda value, rest: value.startswith(text(rest[0])),
    "endsWith": lambda value, rest: value.endswith(text(rest[0])),
    "matches": lambda value, rest: re.search(text(rest[0]), value) is not None,
}
_ORDERED: Final[dict[str, Callable[[int], object]]] = {
    "compareTo": lambda order: order,
    "isGreaterThan": lambda order: order > 0,
    "isLessThan": lambda order: order < 0,
}


def _method(name: str, value: _Value, arguments: list[_Value]) -> _Value:
    def called() -> object:
        base, rest = value(), [argument() for argument in arguments]
        if isinstance(base, _Optional) and name in ("orValue", "hasValue"):
            return base.there if name == "hasValue" else (base.value if base.there else rest[0])
        if isinstance(base, str) and name in _TEXT:
            return _TEXT[name](base, rest)
        if name in _ORDERED and rest and type(base) is type(rest[0]):
            return _ORDERED[name](_order(base, rest[0]))
        raise Unsupported(f"the function .{name}() is not known")

    return called


def _order(left: object, right: object) -> int:
    if isinstance(left, _Quantity) and isinstance(right, _Quantity):
        return (left.value > right.value) - (left.value < right.value)
    if isinstance(left, _Version) and isinstance(right, _Version):
        return (left.parts > right.parts) - (left.parts < right.parts)
    raise Unsupported("a comparison that is not known")
