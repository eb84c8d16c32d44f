"""Conditions as people type them: a small part of SQL, without functions or arithmetic.

    condition := part ('or' part)*
    part      := factor ('and' factor)*
    factor    := 'not' factor | '(' condition ')' | test
    test      := column [ comparison value | 'between' value 'and' value | ['not'] 'in' '(' value, … ')'
                          | ['not'] 'like' 'pattern' | 'is' ['not'] 'null' ]  |  value comparison column
    column    := word | "quoted" | tags['name']
    value     := 'text' | number | true | false | x'hexadecimal' | timestamp 'text'

Words are read in any case of letters; a column may be quoted: "with space".
"""

from __future__ import annotations

import re
from typing import Any

from millpond.errors import Invalid
from millpond.maps.model.tags import TAGS, tag_column
from millpond.maps.predicates.tree import COMPARISONS, All, Any_, Compare, Condition, Like, Not, Null, OneOf, check_size

__all__ = ("parse_condition",)

_TOKEN = re.compile(
    r"""(?:
        (?P<bytes>[xX]'(?:[0-9a-fA-F]{2})*+')
      | (?P<text>'[^']*+(?:''[^']*+)*+')
      | (?P<number>[-+]?(?:\d++\.?\d*+|\.\d++)(?:[eE][-+]?\d++)?+)(?![\w.])
      | (?P<word>[^\W\d]\w*)
      | (?P<quoted>"(?=[^"]|"")[^"]*+(?:""[^"]*+)*+")
      | (?P<mark><=|>=|<>|!=|==|[][=<>(),])
    )""",
    re.VERBOSE,
)
_SPACE = re.compile(r"\s*")
_FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
CHARACTERS_MAX = 4 << 20
"""A list of as many values as a condition takes fits into it, if they have no more than forty characters each."""
DEPTH_MAX = 50
DIGITS_MAX = 400
"""More than any number needs; Python refuses to read thousands of digits."""
_WAY_OUT = "write tests such as key = 'JFK' and effective_time >= '2013-06-01'; for more, ask in SQL"


def parse_condition(text: str) -> Condition:
    """The condition a text states.

    >>> parse_condition("key in ('a', 'b') and not n < 3")
    All(parts=(OneOf(column='key', values=('a', 'b')), Not(part=Compare(column='n', comparison='<', value=3))))

    Raises: `Invalid` saying at which character it is not understood, or that it has more than `CHARACTERS_MAX`.
    """
    if len(text) > CHARACTERS_MAX:
        raise Invalid(
            "condition is too large", kind="condition_large", characters=len(text), characters_max=CHARACTERS_MAX,
            hint="look the keys up, or ask in several questions",
        )  # fmt: skip
    parser = _Parser(text)
    condition = parser.condition()
    if parser.kind != "end":
        raise parser.error("this was not expected")
    return condition


class _Parser:
    """One pass over the tokens of a text; `kind` and `token` are what comes next."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = self.start = 0
        self.kind = self.token = ""
        self.depth = self.tests = self.values = 0
        self._advance()

    def error(self, reason: str) -> Invalid:
        return Invalid(
            "condition is not understood", kind="condition", reason=reason, at=self.start,
            near=repr(self.text[self.start : self.start + 24]), hint=_WAY_OUT,
        )  # fmt: skip

    def _advance(self) -> None:
        self.start = _SPACE.match(self.text, self.at).end()  # type: ignore[union-attr]  # nothing matches it, too
        if self.start == len(self.text):
            self.kind, self.token = "end", ""
            return
        match = _TOKEN.match(self.text, self.start)
        if match is None:
            raise self.error("this is neither a column, a value nor a comparison")
        self.kind, self.token, self.at = str(match.lastgroup), match[str(match.lastgroup)], match.end()

    def _word(self, *words: str) -> bool:
        """True when one of the words comes next; then it is consumed."""
        if self.kind == "word" and self.token.lower() in words:
            self._advance()
            return True
        return False

    def _mark(self, mark: str) -> None:
        if self.kind != "mark" or self.token != mark:
            raise self.error(f"{mark} was expected")
        self._advance()

    def condition(self) -> Condition:
        parts = [self._part()]
        while self._word("or"):
            parts.append(self._part())
        return parts[0] if len(parts) == 1 else Any_(tuple(parts))

    def _part(self) -> Condition:
        parts = [self._factor()]
        while self._word("and"):
            parts.append(self._factor())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def _factor(self) -> Condition:
        if self.depth == DEPTH_MAX:
            raise self.error(f"nothing may be nested deeper than {DEPTH_MAX}")
        self.depth += 1
        try:
            if self._word("not"):
                return Not(self._factor())
            if self.kind == "mark" and self.token == "(":
                self._advance()
                inner = self.condition()
                self._mark(")")
                return inner
            return self._test()
        finally:
            self.depth -= 1

    def _test(self) -> Condition:
        self.tests += 1
        check_size(self.tests, self.values)
        if self.kind in ("text", "number", "bytes"):
            value, comparison = self._value(), self._comparison()
            return Compare(self._column(), _FLIPPED[comparison], value)
        column = self._column()
        if self._word("is"):
            negated = self._word("not")
            if not self._word("null"):
                raise self.error("null was expected")
            return Not(Null(column)) if negated else Null(column)
        if self.kind == "mark" and self.token not in "(),[]":
            return Compare(column, self._comparison(), self._value())
        if self._word("not"):
            return Not(self._worded(column))
        if self.kind == "word" and self.token.lower() in ("in", "between", "like"):
            return self._worded(column)
        return Compare(column, "=", True)

    def _worded(self, column: str) -> Condition:
        if self._word("between"):
            lower = self._value()
            if not self._word("and"):
                raise self.error("and was expected")
            return All((Compare(column, ">=", lower), Compare(column, "<=", self._value())))
        if self._word("in"):
            return OneOf(column, self._values())
        if self._word("like"):
            pattern = self._value()
            if not isinstance(pattern, str):
                raise self.error("a pattern in quotes was expected")
            return Like(column, pattern)
        raise self.error("in, between or like was expected")

    def _values(self) -> tuple[Any, ...]:
        self._mark("(")
        values = [self._value()]
        while self.kind == "mark" and self.token == ",":
            self._advance()
            values.append(self._value())
            check_size(self.tests, self.values + len(values))
        self.values += len(values)
        self._mark(")")
        return tuple(values)

    def _comparison(self) -> str:
        sign = {"==": "=", "<>": "!="}.get(self.token, self.token)
        if self.kind != "mark" or sign not in COMPARISONS:
            raise self.error("a comparison was expected")
        self._advance()
        return sign

    def _column(self) -> str:
        if self.kind not in ("word", "quoted"):
            raise self.error("a column was expected")
        name = self.token if self.kind == "word" else self.token[1:-1].replace('""', '"')
        self._advance()
        if self.kind != "mark" or self.token != "[":
            return name
        self._advance()
        tag = self._value()
        self._mark("]")
        if name.lower() != TAGS or not isinstance(tag, str):
            raise self.error("only tags have parts: tags['name']")
        return tag_column(tag)

    def _value(self) -> Any:
        self._word("timestamp", "timestamptz", "date")
        kind, token = self.kind, self.token
        if kind == "word" and token.lower() in ("true", "false"):
            value: Any = token.lower() == "true"
        elif kind == "text":
            value = token[1:-1].replace("''", "'")
        elif kind == "bytes":
            value = bytes.fromhex(token[2:-1])
        elif kind == "number":
            if len(token) > DIGITS_MAX:
                raise self.error("a number has at most 64 bits")
            value = float(token) if set(token) & set(".eE") else int(token)
        else:
            raise self.error("a value was expected: 'text' in quotes, a number, true or false")
        self._advance()
        return value
