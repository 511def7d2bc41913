import pytest

from lesa.sentences import split_sentences
from lesa.wikitext import prose

ARTICLE = """{{Infobox settlement
| name = Ada
| population = {{formatnum:1234}}
}}
{{Use dmy dates|date=June 2015}}
[[File:Ada.jpg|thumb|A view of [[Ada (town)|Ada]]]]
'''Ada''' ({{IPAc-en|eɪ|d|ə}}; {{lang-la|Adda}}) is a [[town]] on the [[Adda (river)|Adda]] river.<ref>{{cite
web|url=http://x.y|title=Z}}</ref> It is {{convert|1300|mi|km}}
from the sea,{{citation needed|date=May 2016}} and lies at {{coord|1|N|2|E}} on a hill.
Its water is H<sub>2</sub>O at 10<sup>6</sup>&nbsp;Pa.<ref name="a" />

It is old {{as of|2014|lc=y}}. Clocks showed 20:18 UTC ({{age in years|1}} years ago) that day.

== History ==
{{Main|History of Ada}}
The mayor said:
{{quote|We shall ''build'' a wall.}}

The formula is as follows:
:<math>a^2</math>
where a is small. Nothing else of note happened there.

{| class="wikitable"
! Year !! People
|-
| 1900 || 12
|}

* [[Adam]]
* [[Eve]] – a person
* The old bridge, which was built by the Romans, is still in use by carts and walkers today.
; Term
: short

== See also ==
* [[Bridge]]
A paragraph that belongs to the links is gone as well.
=== Deeper ===
This one is in a part of it.

== Culture ==
There is a theatre, see [http://example.org its page], and more at http://example.org/plays every day.
The theatre is large.

== References ==
{{reflist}}
* Smith, John (1990). ''Ada''. Press.
[[Category:Towns]]
[[fr:Ada]]
"""

PROSE = """Ada (Adda) is a town on the Adda river. Its water is H₂O at 10⁶ Pa.

It is old as of 2014. Clocks showed 20:18 UTC that day.

The mayor said:

We shall build a wall.

Nothing else of note happened there.

The old bridge, which was built by the Romans, is still in use by carts and walkers today.

The theatre is large."""


def test_an_article_becomes_clean_prose() -> None:
    assert prose(ARTICLE) == PROSE


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("It is {{convert|5|ft|11|in}} tall.", "It is 5 feet 11 inches tall."),
        ("It is a {{convert|3|mi|km|adj=on}} walk home.", "It is a 3-mile walk home."),
        ("It is {{convert|10|to|20|kg|abbr=on}} in weight.", "It is 10 to 20 kg in weight."),
        ("The word {{lang|de|Haus}} is a German noun.", "The word Haus is a German noun."),
        (
            "He learned {{nihongo|'''Aikido'''|合気道|Aikidō|lead=yes}} in youth.",
            "He learned Aikido (合気道, Aikidō) in youth.",
        ),
        ("Sugar is {{chem|C|6|H|12|O|6}} in short form.", "Sugar is C₆H₁₂O₆ in short form."),
        ("About {{val|6.241|e=18}} charges pass by here.", "About 6.241 × 10¹⁸ charges pass by here."),
        ("{{As of|2015|4}}, there are ten of them.", "As of April 2015, there are ten of them."),
        ("It costs {{unknown thing|7}} a day. It is good value.", "It is good value."),
        ("The ''[[Foo#Bar|old]]'' and '''new''' [[house]]s stand.", "The old and new houses stand."),
        ("One two three.<!-- hidden --> Four five six.", "One two three. Four five six."),
        ("A stray }} mark is in here. This one is clean.", "This one is clean."),
        ("See also: [[Other thing]] and this one.", ""),
        ("Only a caption without an end", ""),
        ("", ""),
    ],
)
def test_small_pieces(markup: str, text: str) -> None:
    assert prose(markup) == text


def test_split_sentences_keeps_abbreviations_and_initials_whole() -> None:
    text = 'Dr. J. R. Smith left the U.S. Army in Jan. 1950. "Was it cold?" It was! See p. 5. End'
    assert split_sentences(text) == [
        "Dr. J. R. Smith left the U.S. Army in Jan. 1950.",
        '"Was it cold?"',
        "It was!",
        "See p. 5.",
        "End",
    ]
    assert split_sentences("") == []
