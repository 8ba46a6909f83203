"""Numbers, names, commands, functions and brackets: the smallest parts of an expression."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from fractions import Fraction

from sampler.bundled_scorers.maths.lexing import Lexeme, NotRead
from sampler.bundled_scorers.maths.readings import Collection, NamedSet, Reading, as_term, grouped
from sampler.bundled_scorers.maths.symbols import (
    CLOSING,
    CONSTANTS,
    FUNCTION_NAMES,
    INVERSES,
    NAMED_SETS,
    OF_SEVERAL,
    SAME_BRACKETS,
    is_product,
)
from sampler.bundled_scorers.maths.terms import Call, Constant, Number, Term, Variable
from sampler.bundled_scorers.maths.vocabulary import GREEK

MOST_DEPTH = 60


class Cursor:
    """The place in the tokens."""

    def __init__(self, tokens: Sequence[Lexeme], matrices: Sequence[Reading]) -> None:
        self._tokens, self._at, self._depth, self._matrices = tokens, 0, 0, matrices
        self._in_bars = 0

    # ------------------------------------------------------------------ tokens

    @property
    def _next(self) -> str:
        return self._written(0)

    def _written(self, ahead: int) -> str:
        at = self._at + ahead
        if at >= len(self._tokens):
            return ""
        token = self._tokens[at]
        return SAME_BRACKETS.get(token.written, token.written) if token.kind != "number" else "0"

    def _token(self) -> Lexeme:
        if self._at >= len(self._tokens):
            raise NotRead("it ends too early")
        self._at += 1
        return self._tokens[self._at - 1]

    def _takes(self, *written: str) -> bool:
        if self._next in written and self._next:
            self._at += 1
            return True
        return False

    def _expect(self, written: str) -> None:
        if not self._takes(written):
            raise NotRead(f"no {written}")

    def require_end(self) -> None:
        if self._at < len(self._tokens):
            raise NotRead(f"{self._next} is left")


class AtomReader(Cursor, ABC):
    """Reads an atom. What stands in brackets is read by the grammar, which inherits from this."""

    @abstractmethod
    def listed(self, ends: tuple[str, ...]) -> Reading:
        """A list up to one of `ends`."""

    @abstractmethod
    def sum(self) -> Reading:
        """Terms with plus and minus between them."""

    @abstractmethod
    def _power(self) -> Reading:
        """An atom with its exponent."""

    @abstractmethod
    def _exponent(self) -> Term:
        """What stands behind ^."""

    @abstractmethod
    def _mixed(self, integer: Term) -> Term | None:
        """The number of which `integer` is the whole part; None: no fraction follows."""

    @abstractmethod
    def _begins_factor(self) -> bool:
        """Whether a factor without a sign of multiplication follows."""

    def _atom(self) -> Reading:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise NotRead("nested too deeply")
        token = self._token()
        written = SAME_BRACKETS.get(token.written, token.written)
        if token.kind == "number":
            atom: Reading = self._numbered(token)
        elif token.kind == "word":
            atom = self._word(token)
        elif written in CLOSING:
            atom = self._bracketed(written)
        elif token.kind == "command":
            atom = self._command(written)
        else:
            raise NotRead(f"{written} is no beginning")
        self._depth -= 1
        return atom

    def _numbered(self, token: Lexeme) -> Term:
        assert token.value is not None
        if self._next != "_":
            return Number(token.value, token.is_whole)
        self._at += 1
        base = self._argument()
        if not token.is_whole or not isinstance(base, Number) or not 2 <= base.exact <= 36:
            raise NotRead("no number of a base")
        try:
            return Call("+", Number(Fraction(int(token.written, int(base.exact)))), Number(Fraction(0)))
        except ValueError as exc:
            raise NotRead("a digit beyond the base") from exc

    def _word(self, token: Lexeme) -> Reading:
        word = token.written
        if word in CONSTANTS:
            return Constant(CONSTANTS[word])
        if word in FUNCTION_NAMES and len(word) > 1:
            return self._function(FUNCTION_NAMES[word])
        if len(word) == 1:
            return self._named(word)
        if not is_product(word, beside=not token.spaced and self._at > 1):
            raise NotRead(f"the word {word}")
        names = [Constant(CONSTANTS[c]) if c in ("e", "i") else Variable(c) for c in word[:-1]]
        product: Term = names[0]
        for name in names[1:]:
            product = Call("*", product, name)
        last = Constant(CONSTANTS[word[-1]]) if word[-1] in ("e", "i") else self._named(word[-1])
        if self._next in ("^", "**"):
            self._at += 1
            last = Call("^", last, self._exponent())
        return Call("*", product, last)

    def _named(self, name: str) -> Term:
        """With its subscript, and primes."""
        if self._takes("_"):
            inner = self._raw_argument()
            name = f"{name}_{inner}"
        while self._takes("'"):
            name += "'"
        return Variable(name)

    def _command(self, written: str) -> Reading:
        name = written[1:]
        if name == "matrixnumber":
            number = self._token().value
            assert number is not None
            return self._matrices[int(number)]
        if written in NAMED_SETS:
            return NamedSet(NAMED_SETS[written])
        if name in ("frac", "binom", "dbinom", "tbinom"):
            top, bottom = as_term(self._argument()), as_term(self._argument())
            return Call("/" if name == "frac" else "binom", top, bottom)
        if name in ("pmod", "bmod", "mod"):
            raise NotRead(name)
        if name == "sqrt":
            return self._root()
        if name in CONSTANTS and name not in ("e", "i"):
            return Constant(CONSTANTS[name])
        if name in GREEK:
            return self._named(name)
        if name in FUNCTION_NAMES:
            return self._function(FUNCTION_NAMES[name])
        if name == "overline" or name == "bar" or name == "vec" or name == "hat":
            raise NotRead(name)
        raise NotRead(f"the command {written}")

    def _root(self) -> Term:
        degree: Term | None = None
        if self._takes("["):
            degree = as_term(self.listed(("]",)))
            self._expect("]")
        inner = as_term(self._argument())
        return Call("sqrt", inner) if degree is None else Call("root", degree, inner)

    def _argument(self) -> Reading:
        """{…}, or one digit, letter or command. Unlike LaTeX, `\\sqrt(2)` and `\\sqrt 12` take what a reader takes."""
        if self._takes("{"):
            inner = self.listed(("}",))
            self._expect("}")
            return inner
        token = self._tokens[self._at] if self._at < len(self._tokens) else None
        if token is not None and token.kind == "number" and len(token.written) > 1 and not self._is_root_argument():
            digits = token.written
            if not digits.isdigit():
                raise NotRead("an argument without braces")
            rest = Lexeme("number", digits[1:], False, Fraction(int(digits[1:])), True)
            self._tokens = [*self._tokens[: self._at], rest, *self._tokens[self._at + 1 :]]
            return Number(Fraction(int(digits[0])), True)
        return self._atom()

    def _is_root_argument(self) -> bool:
        return self._at > 0 and self._tokens[self._at - 1].written in ("\\sqrt", "]", "_")

    def _raw_argument(self) -> str:
        if not self._takes("{"):
            return self._token().written
        parts = []
        while self._next != "}":
            parts.append(self._token().written)
        self._at += 1
        return "".join(parts)

    def _function(self, name: str) -> Term:
        if not name:
            raise NotRead("a function that is not known")
        base: Term | None = None
        exponent: Term | None = None
        for _ in range(2):
            if name == "log" and base is None and self._takes("_"):
                base = as_term(self._argument())
            elif exponent is None and self._next == "^":
                self._at += 1
                exponent = self._exponent()
        if isinstance(exponent, Call) and exponent.name == "neg" and name in INVERSES:
            name, exponent = INVERSES[name], None
        inner = self._function_argument(name)
        if name == "log" and base is not None:
            call: Term = Call("logb", base, *inner)
        elif name == "lg":
            call = Call("logb", Number(Fraction(10)), *inner)
        else:
            call = Call(name, *inner)
        return call if exponent is None else Call("^", call, exponent)

    def _function_argument(self, name: str) -> tuple[Term, ...]:
        if self._next in ("(", "{", "["):
            closing = CLOSING[self._token().written]
            argument = self.listed((closing,))
            self._expect(closing)
            items = argument.items if isinstance(argument, Collection) and argument.kind == "list" else (argument,)
            if len(items) > 1 and name not in OF_SEVERAL:
                raise NotRead("a function of several")
            return tuple(as_term(item) for item in items)
        factors = [as_term(self._power())]  # sin 2x, but sin x cos x
        while self._begins_factor() and not self._is_function_next():
            mixed = self._mixed(factors[-1])
            factors.append(mixed if mixed is not None else as_term(self._power()))
        argument = factors[0]
        for factor in factors[1:]:
            argument = Call("*", argument, factor)
        return (argument,)

    def _is_function_next(self) -> bool:
        return self._next.lstrip("\\") in FUNCTION_NAMES or self._next in ("(", "|")

    def _bracketed(self, opening: str) -> Reading:
        closing = CLOSING[opening]
        if opening in ("|", "\\lvert"):
            self._in_bars += 1
            absolute = as_term(self.sum())
            self._in_bars -= 1
            self._expect(closing)
            return Call("abs", absolute)
        bars, self._in_bars = self._in_bars, 0
        if self._takes(closing):
            if opening != "\\{":
                raise NotRead("empty brackets")
            return NamedSet("empty")
        inner = self.listed((")", "]", "}", closing))
        self._in_bars = bars
        ended = self._next
        if opening in ("(", "[") and ended in (")", "]"):
            self._at += 1
        else:
            self._expect(closing)
            ended = closing
        return grouped(opening, ended, inner)
