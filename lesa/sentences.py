"""Where sentences end, by rule."""

import re

_END = re.compile(r"[.!?…][\"'”’)\]]*\s+(?=[\"'“‘(\[]*[A-Z0-9À-Þ])")
_ABBREVIATION = re.compile(
    r"(?:^|[\s(\"'“‘\[])(?:[A-Z]|[A-Za-z]\.[A-Za-z]|(?:[A-Z]\.)+[A-Z]|Mr|Mrs|Ms|Dr|Prof|St|Ste|Jr|Sr|Gen|Col|Capt|Lt|Maj|Sgt|"
    r"Rev|Hon|Gov|Sen|Rep|Pres|Mt|Ft|No|Nos|Vol|vol|pp?|cf|vs|ca?|fl|approx|etc|al|viz|Inc|Ltd|Co|Corp|Bros|Op|op|"
    r"Jan|Feb|Mar|Apr|Jun|Jul|Aug|Sept?|Oct|Nov|Dec|Fig|fig|Ch|ch|Ph\.D|lit|trans|ed|eds|b|d|r)\.$"
)


def split_sentences(paragraph: str) -> list[str]:
    """The sentences of one paragraph, in order, without the space between them.

    A mark that ends a known abbreviation or an initial ends no sentence: two sentences are rather taken for one
    than one for two.
    """
    sentences = []
    start = 0
    for match in _END.finditer(paragraph):
        mark = paragraph[start : match.start() + 1]
        if paragraph[match.start()] == "." and _ABBREVIATION.search(mark):
            continue
        sentences.append(paragraph[start : match.end()].strip())
        start = match.end()
    rest = paragraph[start:].strip()
    return [*sentences, rest] if rest else sentences
