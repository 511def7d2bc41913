"""MediaWiki markup to clean prose, by way of mwparserfromhell.

Choices: paragraphs of running text are kept; headings, lists of links, tables, pictures, references and the sections
that hold only those go. A template whose value can be read off it is replaced by that value. One that stands for a
word of the sentence and cannot be read leaves a hole: the part of a parenthesis that has it goes, or the sentence.
"""

import re
from collections.abc import Callable
from html import unescape
from itertools import zip_longest
from typing import Any

import mwparserfromhell
from mwparserfromhell.nodes import ExternalLink, Heading, HTMLEntity, Tag, Template, Text, Wikilink

from lesa.sentences import split_sentences
from lesa.wikitemplates import SUBSCRIPT, SUPERSCRIPT, shifted, value

HOLE = "\x01"
ITEM = "\x02"
HEADING = "\x03"
TERM = "\x04"

_REFERENCE = re.compile(r"<ref\b[^>]*?/>|<ref\b[^>]*>.*?</ref\s*>|<!--.*?-->|__[A-Z]+__", re.DOTALL | re.IGNORECASE)
_BACK_MATTER = re.compile(
    r"see also|references?|notes?|foot ?notes?|end ?notes?|citations?|external links?|links|further reading|literature|"
    r"works cited|general references|.*notes and references|references and notes|related (pages|articles|topics)|"
    r"gallery|image gallery|lists?|list of .*|other websites|resources|"
    r"(.* )?(bibliograph(y|ies)|sources|readings?|publications|filmography|discography)|track listing|"
    r"(selected )?works",
    re.IGNORECASE,
)
_DROPPED = re.compile(
    r"ref|references|gallery|timeline|imagemap|score|graph|templatestyles|del|s|strike|noinclude|includeonly"
)
_SHOWN = ("table", "source", "syntaxhighlight", "pre")
_LISTS = {"li": ITEM, "dd": ITEM, "dt": TERM}
_UNREADABLE = ("math", "hiero", "chem", "ce")
_BLOCKS = ("blockquote", "p", "div", "center", "poem", "ul", "ol", "dl")
_VERB = re.compile(r"\b(is|are|was|were|be|been|has|have|had|can|could|may|might|must|will|would|do|does|did)\b")
_LEFTOVER = re.compile(r"\[\[|\]\]|\{\{|\}\}|\{\||\||</?[a-zA-Z][^>]*>|https?://|\bwww\.|==|" + HOLE)
_HATNOTE = re.compile(r"(see also|main articles?|further information|see|for .*, see)\b", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?…:][\"'”’)\]]*$")


def prose(markup: str) -> str:
    """The running text of an article, paragraphs separated by an empty line; empty where there is none."""
    parsed = mwparserfromhell.parse(_REFERENCE.sub("", markup))
    blocks = _blocks(_render(parsed))
    kept = []
    for block, following in zip_longest(blocks, blocks[1:]):
        sentences = split_sentences(block) if block else []
        if sentences and sentences[-1].endswith(":") and not following:  # what it announces is gone
            sentences.pop()
        if sentences:
            kept.append(" ".join(sentences))
    return "\n\n".join(kept)


def _render(code: Any) -> str:
    return "".join(_node(node) for node in code.nodes) if code is not None else ""


def _node(node: Any) -> str:
    for kind, render in _NODES:
        if isinstance(node, kind):
            return render(node)
    return ""  # comments and template arguments


def _wikilink(link: Wikilink) -> str:
    title = str(link.title).strip()
    space, colon, _ = title.partition(":")
    if colon and space.strip().lower() in ("file", "image", "media", "category"):
        return ""
    if link.text is not None:
        return _render(link.text)
    if colon and re.fullmatch(r"[a-z]{2,3}|simple", space):  # the same article in another language
        return ""
    return title.removeprefix(":").partition("#")[0].replace("_", " ")


def _external(link: ExternalLink) -> str:
    if link.title is not None:
        return _render(link.title)
    return "" if link.brackets else HOLE


def _template(template: Template) -> str:
    said = value(template, _render)
    return HOLE if said is None else said


def _tag(tag: Tag) -> str:
    name = str(tag.tag).strip().lower()
    if _DROPPED.fullmatch(name):
        return ""
    if name in _SHOWN:
        return f"\n{HOLE}\n"
    if name in _UNREADABLE:
        return HOLE
    if name == "br":
        return " "
    if name in _LISTS:
        return _LISTS[name] if tag.wiki_markup else f"\n{_LISTS[name]}{_render(tag.contents)}\n"
    inner = _render(tag.contents)
    if name in ("sub", "sup"):
        return shifted(inner, SUBSCRIPT if name == "sub" else SUPERSCRIPT)
    return f"\n\n{inner}\n\n" if name in _BLOCKS else inner


def _entity(entity: HTMLEntity) -> str:
    try:
        return entity.normalize()
    except ValueError:
        return ""


_NODES: list[tuple[type, Callable[[Any], str]]] = [
    (Text, lambda text: str(text.value)),
    (Wikilink, _wikilink),
    (ExternalLink, _external),
    (Template, _template),
    (Tag, _tag),
    (Heading, lambda heading: f"\n{HEADING}{heading.level}{_render(heading.title).strip()}\n"),
    (HTMLEntity, _entity),
]


def _blocks(text: str) -> list[str | None]:
    """Clean paragraphs in order; None stands for something that was there and is dropped."""
    blocks: list[str | None] = []
    lines: list[str] = []
    dropped_level = 0

    def close() -> None:
        if lines and not dropped_level:
            blocks.append(_repaired(" ".join(lines)))
        lines.clear()

    for raw in text.replace("\xa0", " ").split("\n"):
        line = raw.strip()
        if line.startswith(HEADING):
            close()
            level, title = int(line[1]), line[2:]
            if not dropped_level or level <= dropped_level:
                dropped_level = level if _BACK_MATTER.fullmatch(title.strip()) else 0
            blocks.append(None)
        elif line.startswith((ITEM, TERM)):
            close()
            if not dropped_level:
                blocks.append(_item(line.lstrip(ITEM + " ") if line[0] == ITEM else line.partition(ITEM)[2]))
        elif not line.strip(HOLE + " "):
            close()
            if HOLE in line and dropped_level == 0 and blocks and blocks[-1] and blocks[-1].endswith(":"):
                blocks.append(None)
        else:
            lines.append(line)
    close()
    return blocks


def _item(line: str) -> str | None:
    """A list item where it is a sentence, not a name, a link or the description of a book."""
    text = _repaired(line)
    if not text or len(text.split()) < 10 or "ISBN" in text or _HATNOTE.match(text):
        return None
    return text if _VERB.search(text) and _SENTENCE_END.search(text) else None


def _repaired(paragraph: str) -> str | None:
    """A paragraph without holes: parts of parentheses and sentences that have one are left out."""
    text = re.sub(r"'{2,}", "", unescape(paragraph)).replace(ITEM, " ").replace(TERM, " ")
    text = re.sub(rf"^{HOLE}+\s*(?=[A-Z\"“À-Þ])", "", text)  # a box beside the text
    text = re.sub(rf"(?<=[\w.,;:!?)\"”’'%]){HOLE}+", "", text)  # a note at the end of a word
    text = re.sub(rf"([.!?][\"'”)]*)\s*{HOLE}+(?=\s*(?:$|[A-Z\"“]))", r"\1", text)
    before = None
    while before != text:
        before = text
        text = re.sub(r"\s*\(([^()]*)\)", _parenthesis, text)
    text = re.sub(r"\s+", " ", text)
    text = re.sub(r"\s+([,;.!?)\]])(?!\d)", r"\1", text)
    text = re.sub(r"([(\[])\s+", r"\1", text)
    text = re.sub(r",(\s*,)+", ",", text)
    sentences = [sentence for sentence in split_sentences(text.strip()) if not _LEFTOVER.search(sentence)]
    if sentences and re.match(r"[\"'“‘(]*[a-zà-þ]", sentences[0]):  # goes on from a formula or a list
        sentences.pop(0)
    joined = " ".join(sentences)
    if len(joined.split()) < 3 or not _SENTENCE_END.search(joined) or (_HATNOTE.match(joined) and len(sentences) == 1):
        return None
    return joined


def _parenthesis(match: re.Match[str]) -> str:
    inner = match[1]
    if HOLE not in inner and re.match(r"\s*[\w\"'“‘$£€+−–⟨\[/.,#*=&<>%°…-]", inner) and not re.match(r"\s*[,;]", inner):
        return match[0]
    parts = re.split(r"([;,])", inner)
    kept = [
        part for part in zip([" ", *parts[1::2]], parts[::2], strict=True) if HOLE not in part[1] and part[1].strip()
    ]
    said = "".join(mark + part for mark, part in kept)[1:].strip()
    lead = match[0][: match[0].index("(")]
    if not re.search(r"\w{2}|\d", said) or re.fullmatch(r"(or|and|also|from|pronounced|IPA|in|born|listen|\W)+", said):
        return ""
    return f"{lead}({said})"
