"""Conditions as people type them: a small part of SQL, without functions or arithmetic.

    condition := part ('or' part)*
    part      := factor ('and' factor)*
    factor    := 'not' factor | '(' condition ')' | test
    test      := column [ comparison value | 'between' value 'and' value | ['not'] 'in' '(' value, … ')'
                          | ['not'] 'like' 'pattern' | 'is' ['not'] 'null' ]  |  value comparison column
    value     := 'text' | number | true | false | x'hexadecimal' | timestamp 'text'

Words are read in any case of letters; a column may be quoted: "with space".
"""

from __future__ import annotations

import re
from typing import Any

from millpond.errors import Invalid
from millpond.maps.predicate_tree import COMPARISONS, All, Any_, Compare, Condition, Like, Not, Null, OneOf

__all__ = ("parse_condition",)

_TOKEN = re.compile(
    r"""\s*(?:
        (?P<bytes>[xX]'(?:[0-9a-fA-F]{2})*')
      | (?P<text>'(?:[^']|'')*')
      | (?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)(?![\w.])
      | (?P<word>[^\W\d]\w*)
      | (?P<quoted>"(?:[^"]|"")+")
      | (?P<mark><=|>=|<>|!=|==|[=<>(),])
    )""",
    re.VERBOSE,
)
_FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_WAY_OUT = "write tests such as key = 'JFK' and effective_time >= '2013-06-01'; for more, ask in SQL"


def parse_condition(text: str) -> Condition:
    """The condition a text states.

    >>> parse_condition("key in ('a', 'b') and not n < 3")
    All(parts=(OneOf(column='key', values=('a', 'b')), Not(part=Compare(column='n', comparison='<', value=3))))

    Raises: `Invalid` saying at which character it is not understood.
    """
    parser = _Parser(text)
    told = parser.condition()
    if parser.kind != "end":
        raise parser.error("this was not expected")
    return told


class _Parser:
    """One pass over the tokens of a text; `kind` and `token` are what comes next."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = self.start = 0
        self.kind = self.token = ""
        self.advance()

    def error(self, reason: str) -> Invalid:
        return Invalid(
            "condition is not understood", kind="condition", reason=reason, at=self.start,
            near=repr(self.text[self.start : self.start + 24]), hint=_WAY_OUT,
        )  # fmt: skip

    def advance(self) -> None:
        rest = self.text[self.at :]
        if not rest.strip():
            self.start, self.kind, self.token = len(self.text), "end", ""
            return
        self.start = self.at + len(rest) - len(rest.lstrip())
        found = _TOKEN.match(self.text, self.at)
        if found is None:
            raise self.error("this is neither a column, a value nor a comparison")
        self.kind, self.token, self.at = str(found.lastgroup), found[str(found.lastgroup)], found.end()

    def word(self, *words: str) -> bool:
        """Whether one of the words comes next; then it is passed."""
        if self.kind == "word" and self.token.lower() in words:
            self.advance()
            return True
        return False

    def mark(self, mark: str) -> None:
        if self.kind != "mark" or self.token != mark:
            raise self.error(f"{mark} was expected")
        self.advance()

    def condition(self) -> Condition:
        parts = [self.part()]
        while self.word("or"):
            parts.append(self.part())
        return parts[0] if len(parts) == 1 else Any_(tuple(parts))

    def part(self) -> Condition:
        parts = [self.factor()]
        while self.word("and"):
            parts.append(self.factor())
        return parts[0] if len(parts) == 1 else All(tuple(parts))

    def factor(self) -> Condition:
        if self.word("not"):
            return Not(self.factor())
        if self.kind == "mark" and self.token == "(":
            self.advance()
            inner = self.condition()
            self.mark(")")
            return inner
        return self.test()

    def test(self) -> Condition:
        if self.kind in ("text", "number", "bytes"):
            value, comparison = self.value(), self.comparison()
            return Compare(self.column(), _FLIPPED[comparison], value)
        column = self.column()
        if self.word("is"):
            negated = self.word("not")
            if not self.word("null"):
                raise self.error("null was expected")
            return Not(Null(column)) if negated else Null(column)
        if self.kind == "mark" and self.token not in "(),":
            return Compare(column, self.comparison(), self.value())
        if self.word("not"):
            return Not(self.worded(column))
        if self.kind == "word" and self.token.lower() in ("in", "between", "like"):
            return self.worded(column)
        return Compare(column, "=", True)

    def worded(self, column: str) -> Condition:
        if self.word("between"):
            lower = self.value()
            if not self.word("and"):
                raise self.error("and was expected")
            return All((Compare(column, ">=", lower), Compare(column, "<=", self.value())))
        if self.word("in"):
            return OneOf(column, self.values())
        if self.word("like"):
            pattern = self.value()
            if not isinstance(pattern, str):
                raise self.error("a pattern in quotes was expected")
            return Like(column, pattern)
        raise self.error("in, between or like was expected")

    def values(self) -> tuple[Any, ...]:
        self.mark("(")
        told = [self.value()]
        while self.kind == "mark" and self.token == ",":
            self.advance()
            told.append(self.value())
        self.mark(")")
        return tuple(told)

    def comparison(self) -> str:
        told = {"==": "=", "<>": "!="}.get(self.token, self.token)
        if self.kind != "mark" or told not in COMPARISONS:
            raise self.error("a comparison was expected")
        self.advance()
        return told

    def column(self) -> str:
        if self.kind not in ("word", "quoted"):
            raise self.error("a column was expected")
        told = self.token if self.kind == "word" else self.token[1:-1].replace('""', '"')
        self.advance()
        return told

    def value(self) -> Any:
        self.word("timestamp", "timestamptz", "date")
        kind, token = self.kind, self.token
        if kind == "word" and token.lower() in ("true", "false"):
            told: Any = token.lower() == "true"
        elif kind == "text":
            told = token[1:-1].replace("''", "'")
        elif kind == "bytes":
            told = bytes.fromhex(token[2:-1])
        elif kind == "number":
            told = float(token) if set(token) & set(".eE") else int(token)
        else:
            raise self.error("a value was expected: 'text' in quotes, a number, true or false")
        self.advance()
        return told
