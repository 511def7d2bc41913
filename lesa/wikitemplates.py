"""What the MediaWiki templates that stand inside sentences say, where that can be read off their arguments."""

import re
from calendar import month_name
from collections.abc import Callable
from typing import Any

from mwparserfromhell.nodes import Template

Render = Callable[[Any], str]

SUPERSCRIPT = str.maketrans("0123456789+-−=()n", "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁻⁼⁽⁾ⁿ")
SUBSCRIPT = str.maketrans("0123456789+-−=()", "₀₁₂₃₄₅₆₇₈₉₊₋₋₌₍₎")

_SILENT = re.compile(  # references, requests to editors, small pictures, marks that show nothing
    r"(v?cite\b.*|citation.*|cn|fact|sfn[pm]?|harv.*|rp|efn.*|refn|#tag:ref|note|ref label|clarify.*|when|who|whom|"
    r"by whom|which|where|why|how|pages? needed|dubious.*|vague|better source|flagicon|anchor|.* icon|dead link|"
    r"wayback|webarchive|according to whom|update.*|(failed )?verif.*|not in (citation|source).*|unreliable.*|"
    r"full citation.*|original research.*|or|sic|clear.*|pov.*|weasel.*|specify|examples?|expand.*|primary source.*|"
    r"synthesis.*|medical citation.*|disputed.*|peacock.*|year needed|relevance.*|undue.*|copy ?edit.*|"
    r"self-published.*|third-party.*|listen|audio|-|shy|wbr|zwj|zwnj|inflation[ -]?fn|rf|ref|attribution needed|"
    r"quantify|time needed|ambiguous|elucidate)",
    re.IGNORECASE,
)
_FIXED = {
    "'": "'",
    "'s": "'s",
    "' \"": "' \"",
    "\" '": "\" '",
    "!": "|",
    "=": "=",
    "nbsp": " ",
    "thinsp": " ",
    "spaces": " ",
    "hair space": " ",
    "snd": " – ",
    "spaced ndash": " – ",
    "ndash": "–",
    "mdash": "—",
    "mdashb": "—",
    "break": " ",
    "br": " ",
}
_FIRST = re.compile(
    r"nowrap|nobr|smaller|small|big|smallcaps|vanchor|abbr|tooltip|nobold|noitalic|flag|flagcountry|flagu|math|mvar|ill|"
    r"linktext|unicode|not a typo|proper name|vr|pre2|key press|em|strong|interlanguage link|visible anchor"
)
_SECOND = ("lang", "script", "rtl-lang", "wikt-lang", "wt")
_QUOTES = ("quote", "bquote", "blockquote", "cquote", "quotation", "quote box", "centered pull quote")
_UNITS = {
    "mi": ("mile", "miles"),
    "km": ("kilometre", "kilometres"),
    "m": ("metre", "metres"),
    "ft": ("foot", "feet"),
    "in": ("inch", "inches"),
    "yd": ("yard", "yards"),
    "cm": ("centimetre", "centimetres"),
    "mm": ("millimetre", "millimetres"),
    "nmi": ("nautical mile", "nautical miles"),
    "kg": ("kilogram", "kilograms"),
    "g": ("gram", "grams"),
    "lb": ("pound", "pounds"),
    "oz": ("ounce", "ounces"),
    "t": ("tonne", "tonnes"),
    "acre": ("acre", "acres"),
    "ha": ("hectare", "hectares"),
    "sqmi": ("square mile", "square miles"),
    "sqft": ("square foot", "square feet"),
    "sqkm": ("square kilometre", "square kilometres"),
    "km2": ("square kilometre", "square kilometres"),
    "m2": ("square metre", "square metres"),
    "m3": ("cubic metre", "cubic metres"),
    "km3": ("cubic kilometre", "cubic kilometres"),
    "mph": ("mile per hour", "miles per hour"),
    "km/h": ("kilometre per hour", "kilometres per hour"),
    "C": ("°C", "°C"),
    "F": ("°F", "°F"),
    "sqyd": ("square yard", "square yards"),
}
_BETWEEN = {
    "-": "–",
    "–": "–",
    "to": " to ",
    "and": " and ",
    "or": " or ",
    "by": " by ",
    "x": " by ",
    "×": " by ",
    "+/-": " ± ",
}
_NUMBER = re.compile(r"[-−+]?[\d,]*\.?\d+(?:/\d+)?")


def value(template: Template, render: Render) -> str | None:
    """The text that a template shows; empty where it shows none, None where that cannot be told.

    Args:
        template: the parsed template.
        render: turns an argument's markup to text.
    """
    name = " ".join(str(template.name).replace("_", " ").split())
    name = name[:1].lower() + name[1:]
    low = name.lower()
    arguments = [render(p.value).strip() for p in template.params if not p.showkey]
    named = {str(p.name).strip(): render(p.value).strip() for p in template.params if p.showkey}
    arguments = arguments or [named[key] for key in ("1", "2", "3") if key in named]
    if low in _FIXED:
        return _FIXED[low]
    if _SILENT.fullmatch(low):
        return ""
    if low in _QUOTES:
        quoted = named.get("text") or named.get("quote") or "".join(arguments[:1])
        return f"\n\n{quoted}\n\n"
    if low == "coord" and named.get("display") == "title":
        return ""
    if not arguments:
        return None
    if _FIRST.fullmatch(low):
        return arguments[0]
    if low in _SECOND and len(arguments) > 1:
        return arguments[1]
    if low.startswith("lang-"):
        return arguments[0]
    if low in ("transl", "transliteration"):
        return arguments[-1]
    special = _SPECIAL.get(low)
    return special(arguments, named) if special else None


def shifted(text: str, table: dict[int, int]) -> str:
    """``text`` in the small letters of ``table`` where it has all of them, else as it is."""
    return text.translate(table) if all(ord(character) in table for character in text) else text


def _convert(arguments: list[str], named: dict[str, str]) -> str | None:
    if len(arguments) < 2 or not _NUMBER.fullmatch(arguments[0]):
        return None
    amount = last = _grouped(arguments[0])
    rest = arguments[1:]
    while len(rest) > 2 and rest[0] in _BETWEEN and _NUMBER.fullmatch(rest[1]):
        last = _grouped(rest[1])
        amount += _BETWEEN[rest[0]] + last
        rest = rest[2:]
    unit = rest[0]
    one, many = _UNITS.get(unit, (unit, unit))
    if named.get("adj", "") in ("on", "mid", "pre"):
        return f"{amount}-{one}"
    said = f"{amount} {unit if named.get('abbr') == 'on' else one if last == '1' else many}"
    if len(rest) > 2 and (unit, rest[2]) in (("ft", "in"), ("lb", "oz")) and _NUMBER.fullmatch(rest[1]):
        said += " " + str(_convert(rest[1:3], named))
    return said


def _grouped(number: str) -> str:
    whole = re.fullmatch(r"\d{4,}", number)
    return f"{int(number):,}" if whole else number


def _as_of(arguments: list[str], named: dict[str, str]) -> str:
    if "alt" in named:
        return named["alt"]
    year, *others = arguments
    month = others[0] if others else ""
    if month.isdigit() and 1 <= int(month) <= 12:
        month = month_name[int(month)]
    first = "since" if named.get("since") else "as of"
    first = first if named.get("lc") else first.capitalize()
    return " ".join([first, *others[1:2], *([month] if month else []), year])


def _fraction(arguments: list[str], named: dict[str, str]) -> str:
    if len(arguments) == 1:
        return f"1/{arguments[0]}"
    return " ".join([*arguments[:-2], "/".join(arguments[-2:])])


def _measure(arguments: list[str], named: dict[str, str]) -> str | None:
    power = f" × 10{named['e'].translate(SUPERSCRIPT)}" if "e" in named else ""
    unit = f" {named['u']}" if "u" in named else ""
    return f"{arguments[0]}{power}{unit}" if len(arguments) == 1 else None


def _nihongo(arguments: list[str], named: dict[str, str]) -> str:
    said = ", ".join(filter(None, arguments[1:3]))
    return f"{arguments[0]} ({said})" if said else arguments[0]


_SPECIAL: dict[str, Callable[[list[str], dict[str, str]], str | None]] = {
    "convert": _convert,
    "cvt": _convert,
    "as of": _as_of,
    "frac": _fraction,
    "sfrac": _fraction,
    "fraction": _fraction,
    "val": _measure,
    "nihongo": _nihongo,
    "angbr": lambda arguments, named: f"⟨{arguments[0]}⟩",
    "sc": lambda arguments, named: arguments[0].upper(),
    "c.": lambda arguments, named: f"c. {arguments[0]}",
    "circa": lambda arguments, named: f"c. {arguments[0]}",
    "e": lambda arguments, named: f" × 10{arguments[0].translate(SUPERSCRIPT)}",
    "chem": lambda arguments, named: "".join(shifted(part, SUBSCRIPT) for part in arguments),
    "chem2": lambda arguments, named: "".join(shifted(part, SUBSCRIPT) for part in arguments),
    "uss": lambda arguments, named: f"USS {arguments[0]}",
    "hms": lambda arguments, named: f"HMS {arguments[0]}",
    "ss": lambda arguments, named: f"SS {arguments[0]}",
    "us$": lambda arguments, named: f"US${arguments[0]}",
    "bibleverse": lambda arguments, named: " ".join(arguments[:2]),
    "music": lambda arguments, named: {"flat": "♭", "sharp": "♯", "natural": "♮"}.get(arguments[0]),
}
