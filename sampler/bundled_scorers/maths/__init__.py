"""A reading of answers as mathematics, exact, that stands before math-verify.

    text ─cleaning─▶ plain LaTeX ─lexing─▶ tokens ─grammar─▶ a reading ─comparing─▶ equal, not equal, or unknown

cleaning     Markdown, Unicode, dollars, boxes, spaces: one spelling of each thing
lexing       numbers, words, commands, signs
terms        the tree of an expression, and its value: a fraction where it is rational, else hundreds of digits
grammar      tokens to scalars, tuples, intervals, sets, lists, matrices, relations
prose        numbers in sentences, with their units; numbers in words
units        units, money, percent, time
comparing    two readings; real_sets: of unions and inequalities
by_math_verify   what is beyond: integrals, sums, limits

Promise: a text that is not read whole has no reading: no number is taken out of LaTeX that failed. `decide` says unknown (None)
where one of the texts has none.
"""

from sampler.bundled_scorers.maths.comparing import decide, unusable
from sampler.bundled_scorers.maths.terms import TooHard

__all__ = ["TooHard", "decide", "unusable"]
