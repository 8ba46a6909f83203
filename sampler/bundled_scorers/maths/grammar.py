"""Tokens to a reading: scalars, tuples and intervals, sets, lists, matrices, relations. By recursive descent.

list     relation (, | ; | and | or) …       relation   union (= | < | ≤ | …) …        union    sum (∪ | ∩ | ∖) sum
sum      product (+ | - | ±) …               product    power (× | / | side by side) …  power    unary ^ power
"""

import re

from sampler.bundled_scorers.maths.atoms import MOST_DEPTH, AtomReader
from sampler.bundled_scorers.maths.lexing import NotRead, tokens_of
from sampler.bundled_scorers.maths.readings import Collection, Reading, Relation, SetOperation, as_term, is_fraction
from sampler.bundled_scorers.maths.symbols import CLOSING, JOINS, LISTS, MATRICES, OVER, RELATIONS, TIMES
from sampler.bundled_scorers.maths.terms import Call, Number, PlusMinus, Term

MOST_TOKENS = 2_000
_BEGIN = re.compile(r"\\begin\s*\{(\w+)\*?\}(?:\s*\{[clr| ]*\})?(.*?)\\end\s*\{\1\*?\}", re.DOTALL)


def read(text: str) -> Reading:
    """Of a cleaned text. Raises NotRead for anything that is not read to its end."""
    matrices: list[Reading] = []

    def stored(match: re.Match[str]) -> str:
        if match[1] not in MATRICES:
            raise NotRead(match[1])
        rows = [row for row in re.split(r"\\\\|\\cr", match[2].replace("\\hline", "")) if row.strip()]
        cells = [tuple(read(cell.strip()) for cell in row.split("&")) for row in rows]
        if not cells or len({len(row) for row in cells}) > 1:
            raise NotRead("a matrix with rows of several lengths")
        matrices.append(Collection("matrix", tuple(Collection("row", row) for row in cells)))
        return f" \\matrixnumber {len(matrices) - 1} "

    tokens = tokens_of(_BEGIN.sub(stored, text))
    if not tokens or len(tokens) > MOST_TOKENS:
        raise NotRead("nothing, or too much")
    parser = _Parser(tokens, matrices)
    reading = parser.listed(())
    parser.require_end()
    return reading


class _Parser(AtomReader):
    def listed(self, ends: tuple[str, ...]) -> Reading:
        """Up to one of `ends`. A single element is itself."""
        items = [self._relation()]
        while self._next in LISTS and self._next not in ends:
            while self._next in LISTS:
                self._at += 1
            if not self._next or self._next in ends:
                raise NotRead("a list that ends with its comma")
            items.append(self._relation())
        return items[0] if len(items) == 1 else Collection("list", tuple(items))

    def _relation(self) -> Reading:
        sides, signs = [self._union()], []
        while self._next in RELATIONS:
            signs.append(RELATIONS[self._next])
            self._at += 1
            sides.append(self._union())
        return Relation(tuple(sides), tuple(signs)) if signs else sides[0]

    def _union(self) -> Reading:
        union = self.sum()
        while self._next in JOINS:
            sign = JOINS[self._next]
            self._at += 1
            union = SetOperation(sign, (union, self.sum()))
        return union

    # ------------------------------------------------------------------ arithmetic

    def sum(self) -> Reading:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise NotRead("nested too deeply")
        total = self._signed()
        while self._next in ("+", "-", "\\pm", "\\mp"):
            sign = self._next
            self._at += 1
            right = as_term(self._product())
            if sign in ("\\pm", "\\mp"):
                right = Call("*", PlusMinus(1 if sign == "\\pm" else -1), right)
            total = Call("-" if sign == "-" else "+", as_term(total), right)
        self._depth -= 1
        return total

    def _signed(self) -> Reading:
        sign = self._next
        if sign not in ("+", "-", "\\pm", "\\mp"):
            return self._product()
        self._at += 1
        inner = as_term(self._signed())
        if sign in ("\\pm", "\\mp"):
            return Call("*", PlusMinus(1 if sign == "\\pm" else -1), inner)
        return inner if sign == "+" else Call("neg", inner)

    def _product(self) -> Reading:
        product = self._power()
        while True:
            if self._takes(*TIMES):
                product = Call("*", as_term(product), as_term(self._factor()))
            elif self._takes(*OVER):
                product = Call("/", as_term(product), as_term(self._factor()))
            elif isinstance(product, Term) and self._begins_factor():
                product = self._beside(product)
            else:
                return product

    def _factor(self) -> Reading:
        if self._next in ("-", "+"):
            sign = self._token().written
            inner = as_term(self._factor())
            return Call("neg", inner) if sign == "-" else inner
        return self._power()

    def _beside(self, left: Term) -> Term:
        """A product without a sign; a whole number beside a fraction of whole numbers is a mixed number."""
        previous, mixed = self._tokens[self._at - 1], self._mixed(left)
        if mixed is not None:
            return mixed
        if self._tokens[self._at].kind == "number" and previous.written not in ("!", ")"):
            raise NotRead("a number behind a factor")
        return Call("*", left, as_term(self._power()))

    def _mixed(self, whole: Term) -> Term | None:
        if not (isinstance(whole, Number) and whole.is_whole):
            return None
        if self._next == "\\frac":
            at = self._at
            fraction = self._atom()
            is_proper = is_fraction(fraction) and self._next not in ("^", "!")
            if is_proper:
                return Call("+", whole, fraction) if isinstance(fraction, Term) else None
            self._at = at
            return None
        tokens = self._tokens[self._at : self._at + 3]
        if len(tokens) == 3 and tokens[0].spaced and [t.kind for t in tokens] == ["number", "sign", "number"]:
            top, bottom = tokens[0], tokens[2]
            if tokens[1].written == "/" and top.is_whole and bottom.is_whole and bottom.value:
                self._at += 3
                assert top.value is not None
                if top.value >= bottom.value:
                    raise NotRead("no mixed number")
                return Number(whole.exact + top.value / bottom.value)
        return None

    def _begins_factor(self) -> bool:
        if self._at >= len(self._tokens):
            return False
        token, written = self._tokens[self._at], self._next
        if token.kind in ("number", "word"):
            return written not in LISTS
        if written == "|":
            return not self._in_bars
        if token.kind == "command":
            closes = written in CLOSING.values() or written in RELATIONS or written in JOINS or written in LISTS
            return not closes and written not in ("\\pm", "\\mp", *TIMES, *OVER, "\\%", "\\ldots")
        return written in "([{" and bool(written)

    def _power(self) -> Reading:
        base = self._postfix(self._atom())
        if self._next not in ("^", "**"):
            return base
        sign = self._token().written
        if sign == "^" and self._degrees():
            return self._postfix(Call("degrees", as_term(base)))
        return self._postfix(Call("^", as_term(base), self._exponent()))

    def _degrees(self) -> bool:
        for written in (("\\circ",), ("{", "\\circ", "}")):
            if tuple(self._written(k) for k in range(len(written))) == written:
                self._at += len(written)
                return True
        return False

    def _exponent(self) -> Term:
        if self._next in ("-", "+"):
            sign = self._token().written
            inner = self._exponent()
            return Call("neg", inner) if sign == "-" else inner
        base = as_term(self._postfix(self._atom()))
        if self._takes("^", "**"):
            return Call("^", base, self._exponent())
        return base

    def _postfix(self, operand: Reading) -> Reading:
        while self._next == "!":
            self._at += 1
            operand = Call("!", as_term(operand))
        return operand
