"""One spelling of each thing: Markdown, Unicode, dollars, boxes, fonts and spaces of an answer become plain LaTeX.

**$\\dfrac{1}{2}$**  ─▶  \\frac{1}{2}        √2 · 10⁻³  ─▶  \\sqrt 2 \\times  10^{-3}        \\text{\\$18}  ─▶  \\dollar 18
"""

import re
import unicodedata

_SIGNS = {
    **dict.fromkeys("−–—‒―﹣－‐‑", "-"),
    **dict.fromkeys("×✕✖", r"\times "),
    **dict.fromkeys("⋅·∙•‧", r"\cdot "),
    **dict.fromkeys("÷", r"\div "),
    **dict.fromkeys("⁄∕", "/"),
    **dict.fromkeys("∗＊", "*"),
    **dict.fromkeys("∶：", ":"),
    **dict.fromkeys("∼～", "~"),
    **dict.fromkeys("\u00a0\u2002\u2003\u2004\u2005\u2007\u2008\u3000\t\n\r", " "),
    **dict.fromkeys("\u2009\u200a\u202f\u2006", r"\,"),
    **dict.fromkeys("\u200b\u200c\u200d\u2060\ufeff\u00ad", ""),
    **dict.fromkeys("′‘’", "'"),
    **dict.fromkeys("“”″", '"'),
    **dict.fromkeys("，、", ","),
    **dict.fromkeys("（", "("),
    **dict.fromkeys("）", ")"),
    "√": r"\sqrt ", "∛": r"\sqrt[3]", "∜": r"\sqrt[4]", "∞": r"\infty ", "π": r"\pi ", "∅": r"\emptyset ", "±": r"\pm ",
    "∓": r"\mp ", "≤": r"\le ", "≥": r"\ge ", "⩽": r"\le ", "⩾": r"\ge ", "≠": r"\ne ", "≈": r"\approx ", "≅": r"\approx ",
    "∪": r"\cup ", "∩": r"\cap ", "∈": r"\in ", "∖": r"\setminus ", "°": r"^{\circ}", "º": r"^{\circ}", "…": r"\ldots ",
    "ℝ": r"\R ", "ℤ": r"\Z ", "ℕ": r"\N ", "ℚ": r"\Q ", "ℂ": r"\C ", "ℯ": "e", "ⅈ": "i", "ⅇ": "e", "⟨": r"\langle ",
    "⟩": r"\rangle ", "⌊": r"\lfloor ", "⌋": r"\rfloor ", "⌈": r"\lceil ", "⌉": r"\rceil ", "∧": r"\wedge ", "∨": r"\vee ",
    "％": "%", "€": r"\euro ", "£": r"\pound ", "₤": r"\pound ", "¥": r"\yen ", "₹": r"\rupee ", "＄": r"\$", "|": "|",
    "α": r"\alpha ", "β": r"\beta ", "γ": r"\gamma ", "δ": r"\delta ", "ε": r"\epsilon ", "θ": r"\theta ", "λ": r"\lambda ",
    "μ": r"\mu ", "µ": r"\mu ", "ρ": r"\rho ", "σ": r"\sigma ", "τ": r"\tau ", "φ": r"\phi ", "ω": r"\omega ", "ϕ": r"\phi ",
    "Ω": r"\Omega ", "Δ": r"\Delta ", "₂": "_{2}",
}  # fmt: skip
_RAISED = dict(zip("⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻ⁿˣ", "0123456789+-nx", strict=True))
_LOWERED = dict(zip("₀₁₂₃₄₅₆₇₈₉", "0123456789", strict=True))
_RAISED_RUN = re.compile(f"[{''.join(_RAISED)}]+")
_LOWERED_RUN = re.compile(f"[{''.join(_LOWERED)}]+")
_PERCENT = re.compile(r"\\?%")
_STRONG = re.compile(r"(?<![\w)}])(\*\*|__)(?=\S)(.+?)(?<=\S)\1(?![\w({])", re.DOTALL)
_EMPHASIS = re.compile(r"\A([*_])(?=[^\s*_])([^*_]+)\1\.?\Z")
_CODE = re.compile(r"```(?:[a-z]*\n)?|`")
_BULLET = re.compile(r"\A(?:[*>]\s+|[-+]\s+(?=[A-Za-z*])|#{1,6}\s+)+(?=\S)")
_FONTS = re.compile(
    r"\\(?:displaystyle|textstyle|scriptstyle|limits|nolimits|left|right|middle|[bB]igg?[lrm]?|rm|bf|it|sf|tt|boldmath|"
    r"phantom\{[^{}]*\}|hspace\{[^{}]*\}|label\{[^{}]*\}|nobreak|mathstrut|strut)(?![A-Za-z])\s*"
)
_WRAPPED = re.compile(
    r"\\(text|textbf|textit|textrm|textnormal|textsf|texttt|mbox|hbox|mathrm|mathbf|mathit|mathsf|mathtt|boldsymbol|bm|"
    r"operatorname\*?|ensuremath|mathop|emph|underline|unit|mathbb)\s*\{([^{}]*)\}"
)
_OVER = re.compile(r"\{([^{}]*)\\over(?![A-Za-z])([^{}]*)\}")
_SETS = {"R": r"\R ", "Z": r"\Z ", "N": r"\N ", "Q": r"\Q ", "C": r"\C "}
_DELIMITERS = re.compile(r"(?<!\\)\\[()\[\]]")
_BOX = re.compile(r"\\(?:boxed|fbox)\s*\{")
_GROUPED = re.compile(r"(?<=\d)(?:\\,|\{,\}|\\ |\\!,|,\\!)(?=\d{3}(?!\d))")
_MOST_WRAPS = 40


def cleaned(text: str) -> str:
    """Linear, but for nested fonts, of which 40 levels are unwrapped."""
    text = _boxed(text.strip())
    text = unicodedata.normalize("NFC", text)
    text = _LOWERED_RUN.sub(lambda m: f"_{{{''.join(_LOWERED[c] for c in m[0])}}}", text)
    text = _RAISED_RUN.sub(lambda m: f"^{{{''.join(_RAISED[c] for c in m[0])}}}", text)
    text = _PERCENT.sub("%", text)
    text = "".join(_SIGNS.get(char) or _sign(char) for char in text)
    text = _dollars(_markdown(text))
    text = _GROUPED.sub("", text)
    text = _DELIMITERS.sub(" ", _FONTS.sub(" ", text))
    for _ in range(_MOST_WRAPS):
        text, count = _WRAPPED.subn(_unwrapped, text)
        if not count:
            break
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = re.sub(r"(?<=\d)\s*[xX]\s*(?=10\s*\^)", r"\\times ", text)
    text = _OVER.sub(r"\\frac{\1}{\2}", text)
    text = re.sub(r"\\!", "", text)
    text = re.sub(r"\\(?:quad|qquad|enspace|thinspace|space)(?![A-Za-z])|(?<!\\)\\[,;: >]|(?<!\\)~(?=\S)", " ", text)
    text = re.sub(r"\\([{}])", r"\\\1 ", text)
    text = re.sub(r"\s+", " ", text).strip()
    return _without_end(text)


def _sign(char: str) -> str:
    if char in _SIGNS:
        return _SIGNS[char]
    if unicodedata.category(char) == "No" and unicodedata.numeric(char, None) is not None and "⁄" in _compatible(char):
        return " " + _compatible(char).replace("⁄", "/")  # ½: behind a digit, a mixed number
    if (
        "\uff00" < char < "\uff5f" or "\U0001d400" <= char <= "\U0001d7ff"
    ):  # full width; letters and digits of mathematics
        return _compatible(char)
    return char


def _compatible(char: str) -> str:
    return unicodedata.normalize("NFKC", char)


def _boxed(text: str) -> str:
    """The content of the last box, if its braces balance."""
    boxes = list(_BOX.finditer(text))
    if not boxes:
        return text
    start, depth = boxes[-1].end(), 1
    for at in range(start, len(text)):
        if text[at] in "{}" and text[at - 1] != "\\":
            depth += 1 if text[at] == "{" else -1
            if not depth:
                return text[start:at]
    return text


def _markdown(text: str) -> str:
    text = _BULLET.sub("", _CODE.sub("", text).strip())
    for _ in range(3):
        text = _STRONG.sub(r"\2", text)
    return _EMPHASIS.sub(r"\2", text.strip())


def _dollars(text: str) -> str:
    """Pairs delimit mathematics; one alone, or an escaped one, is money."""
    text = text.replace("\\$", "\\dollar ").replace("$$", " ")
    return text.replace("$", " ") if text.count("$") % 2 == 0 else text.replace("$", "\\dollar ")


def _unwrapped(match: re.Match[str]) -> str:
    kind, inner = match[1], match[2]
    if kind == "mathbb":
        return _SETS.get(inner.strip(), f" {inner} ")
    if kind.startswith("operatorname") and inner.isalpha() and len(inner) > 1:
        return f"\\{inner} "
    if len(inner) == 1 and kind not in ("text", "mbox", "hbox"):
        return f" {inner}" if inner in "ei" else f" {inner} "
    return f" {inner} "


def _without_end(text: str) -> str:
    """Without the punctuation of a sentence."""
    while (
        text
        and (text[-1] in ".,;:" or text[-1:] == "?")
        and not text.endswith("\\ldots")
        and not re.search(r"\.\.\Z", text[:-1] + "x")
    ):
        if text.endswith(("...", "..")):
            break
        text = text[:-1].rstrip()
    if len(text) > 1 and text[0] == text[-1] and text[0] in "\"'":
        return _without_end(text[1:-1].strip())
    return text
