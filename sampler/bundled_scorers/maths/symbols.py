"""The signs, commands and names of the language."""

from sampler.bundled_scorers.maths.units import UNITS
from sampler.bundled_scorers.maths.vocabulary import ENGLISH, PRODUCTS

FUNCTION_NAMES = {
    **{name: name for name in ("sin", "cos", "tan", "sec", "csc", "cot", "sinh", "cosh", "tanh", "coth", "ln", "exp", "log")},
    **{name: name for name in ("gcd", "lcm", "min", "max", "sqrt", "abs", "floor")},
    **{f"arc{name}": f"a{name}" for name in ("sin", "cos", "tan", "cot", "sec", "csc", "sinh", "cosh", "tanh")},
    **{f"a{name}": f"a{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")},
    "lg": "lg", "ceil": "ceil", "cosec": "csc", "Re": "", "tg": "tan", "ctg": "cot",
}  # fmt: skip
INVERSES = {name: f"a{name}" for name in ("sin", "cos", "tan", "sec", "csc", "cot", "sinh", "cosh", "tanh")}
OF_SEVERAL = ("gcd", "lcm", "min", "max")
CONSTANTS = {"pi": "pi", "e": "e", "i": "i", "infty": "oo", "infinity": "oo", "inf": "oo", "oo": "oo", "Infinity": "oo"}
CONSTANTS |= {"imath": "i", "PI": "pi", "Pi": "pi"}
RELATIONS = {
    "=": "=", "==": "=", "<": "<", ">": ">", "<=": "<=", ">=": ">=", "!=": "!=", "\\le": "<=", "\\leq": "<=", "\\leqslant": "<=",
    "\\ge": ">=", "\\geq": ">=", "\\geqslant": ">=", "\\lt": "<", "\\gt": ">", "\\ne": "!=", "\\neq": "!=", "\\in": "in",
    "\\equiv": "equiv", "\\approx": "approx", "\\sim": "approx", "\\simeq": "approx", "\\cong": "approx", "\\doteq": "approx",
}  # fmt: skip
JOINS = {"\\cup": "union", "\\cap": "intersection", "\\setminus": "difference", "\\backslash": "difference"}
CLOSING = {"(": ")", "[": "]", "{": "}", "\\{": "\\}", "|": "|", "\\langle": "\\rangle", "\\lvert": "\\rvert",
            "\\lfloor": "\\rfloor", "\\lceil": "\\rceil", "\\lbrace": "\\rbrace",
           "\\lparen": "\\rparen", "\\lbrack": "\\rbrack"}  # fmt: skip
SAME_BRACKETS = {"\\lparen": "(", "\\lbrack": "[", "\\lbrace": "\\{", "\\rparen": ")", "\\rbrack": "]", "\\rbrace": "\\}",
                 "\\vert": "|", "\\mid": "|"}  # fmt: skip
LISTS = {",", ";", "and", "or", "\\wedge", "\\vee", "\\land", "\\lor"}
NAMED_SETS = {
    "\\R": "R",
    "\\Z": "Z",
    "\\N": "N",
    "\\Q": "Q",
    "\\C": "C",
    "\\emptyset": "empty",
    "\\varnothing": "empty",
}
MATRICES = ("matrix", "pmatrix", "bmatrix", "Bmatrix", "smallmatrix", "array")
TIMES = ("*", "\\times", "\\cdot", "\\ast", "\\cdotp")
OVER = ("/", "\\div")
MOST_LETTERS = 3  # of a word that is a product of variables


def is_product(word: str, *, beside: bool) -> bool:
    """Whether a word is a product of variables. `beside`: a sign or a number stands right before it."""
    if len(word) > MOST_LETTERS or not (word.isascii() and word.isalpha()):
        return False
    is_usual = any(set(word) <= set(letters) for letters in ("abc", "xyz", "mnpq", "rst", "uv", "ABC", "XYZ"))
    return (
        word in PRODUCTS
        or (is_usual and len(set(word)) == len(word))
        or (beside and word.lower() not in ENGLISH and word not in UNITS)
    )
