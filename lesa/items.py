"""Four-choice evaluation items made from real text, for the lm-eval tasks in ``tasks/`` that need no network.

An item is ``{"query", "choices", "answer"}``: the text before, four continuations, and the index of the true one. The
items are shuffled, so that the first so many are a fair sample, and the true one's place is drawn evenly.
"""

import random
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from lesa.errors import LesaError
from lesa.sentences import split_sentences

CHOICES = 4

ANALOGIES_SOURCE = "pypi://gensim==4.4.0/gensim/test/test_data/questions-words.txt"
ANALOGIES_SHA256 = "91a7fa5e814e7b1bad4b2dffa8d62c1e55410d5cbdf930714c1997ffb4404db8"
ANALOGY_SECTIONS = ("capital-common-countries", "capital-world", "currency", "city-in-state", "family")

MOST_ARTICLES = 500
"""Held-out articles that cloze items are made from, at most; which those are is as good as random."""

_WORD = re.compile(r"(?<![\w'’-])[^\W\d_]{5,}(?![\w'’-])")
_ENDINGS = ("ing", "ed", "ly", "ion", "ity", "ers", "es", "s", "al", "ous", "ive", "er", "ic", "an")

Item = dict[str, Any]


def analogies(text: str, seed: int) -> list[Item]:
    """Items "A is to B as C is to" from Google's word analogies (Mikolov et al., 2013; arXiv 1301.3781).

    Each pair C, D is asked for once; the wrong options answer other questions of the same section.

    Args:
        text: the lines of ``questions-words.txt``: ``: section`` or four words A B C D.
        seed: another one gives other items.

    Raises:
        LesaError: the text has none of ``ANALOGY_SECTIONS``.
    """
    rng = random.Random(f"analogies {seed}")
    sections: dict[str, list[list[str]]] = {}
    current: list[list[str]] = []
    for line in text.splitlines():
        if line.startswith(":"):
            current = sections.setdefault(line[1:].strip(), [])
        elif len(words := line.split()) == 4:
            current.append(words)
    items = []
    asked = set()
    for name in ANALOGY_SECTIONS:
        questions = sections.get(name, [])
        answers_to: dict[str, set[str]] = {}
        for a, b, c, d in questions:
            answers_to.setdefault(a, set()).add(b)
            answers_to.setdefault(c, set()).add(d)
        answers = sorted({answer for some in answers_to.values() for answer in some})
        for a, b, c, d in rng.sample(questions, len(questions)):
            wrong = [answer for answer in answers if answer not in answers_to[c] and answer != b]
            if (c, d) not in asked and len(wrong) >= CHOICES - 1:
                asked.add((c, d))
                items.append(_item(f"{a} is to {b} as {c} is to", d, rng.sample(wrong, CHOICES - 1), rng))
    return _shuffled(items, f"the word analogies hold none of the sections {', '.join(ANALOGY_SECTIONS)}", rng)


def cloze(texts: Iterable[str], seed: int, count: int = 400) -> list[Item]:
    """Items that take a word out of a sentence, with the two sentences before it; every option has the same rest.

    The wrong options are words of the same article like the true one in capital, ending, length and frequency, that
    occur neither in the sentence nor in those before. A word of an article is asked for once.

    Args:
        texts: held-out articles, paragraphs separated by an empty line; the first ``MOST_ARTICLES`` are used.
        seed: another one gives other items.
        count: about how many items, spread evenly over the articles; fewer where those do not give as many.

    Raises:
        LesaError: no article gives any item.
    """
    rng = random.Random(f"cloze {seed}")
    articles = list(islice(texts, MOST_ARTICLES))
    quota = -(-count // max(len(articles), 1))
    items = [item for article in articles for item in islice(_cloze_items(article, rng), quota)]
    reason = (
        f"the {len(articles)} held-out documents have no sentences that cloze items can be made from (three sentences "
        "and a dozen words alike are needed); use more text, or take wiki_cloze out of evaluate.tasks"
    )
    return _shuffled(items, reason, rng)


def _cloze_items(article: str, rng: random.Random) -> Iterator[Item]:
    sentences = [sentence for paragraph in article.split("\n\n") for sentence in split_sentences(paragraph)]
    frequency = Counter(match[0] for sentence in sentences for match in _WORD.finditer(sentence))
    places: dict[str, list[tuple[int, int, int]]] = {}
    for number, sentence in enumerate(sentences[2:], start=2):
        for match in _WORD.finditer(sentence):
            if match.start() >= 20 and len(sentence) - match.end() >= 10:
                places.setdefault(match[0], []).append((number, match.start(), match.end()))
    for word in rng.sample(sorted(places), len(places)):
        number, start, end = rng.choice(places[word])
        sentence = sentences[number]
        before = " ".join(sentences[number - 2 : number])
        near = {match[0].lower() for match in _WORD.finditer(f"{before} {sentence}")}
        wrong = [
            other
            for other in sorted(places)
            if other.lower() not in near
            and _kind(other) == _kind(word)
            and abs(len(other) - len(word)) <= 2
            and frequency[word] <= 2 * frequency[other] <= 4 * frequency[word]
        ]
        if len(wrong) >= CHOICES - 1:
            rest = sentence[end:]
            options = [other + rest for other in rng.sample(wrong, CHOICES - 1)]
            yield _item(f"{before} {sentence[:start].rstrip()}", word + rest, options, rng)


def _kind(word: str) -> tuple[bool, str]:
    ending = next((ending for ending in _ENDINGS if word.endswith(ending)), "")
    return word[0].isupper(), ending


def _item(query: str, true: str, wrong: list[str], rng: random.Random) -> Item:
    answer = rng.randrange(CHOICES)
    return {"query": query, "choices": [*wrong[:answer], true, *wrong[answer:]], "answer": answer}


def _shuffled(items: list[Item], reason_for_none: str, rng: random.Random) -> list[Item]:
    if not items:
        raise LesaError(reason_for_none)
    return rng.sample(items, len(items))
