from collections import Counter

import pytest

from lesa import initializers
from lesa.errors import LesaError
from lesa.plan import Placement, Plan, between, check_range, overlap, repeat


def as_pairs(plan: Plan) -> list[tuple[tuple[int, ...], bool]]:
    return [(planned.sources, planned.new) for planned in plan]


def gaps(placement: Placement, n_layers: int) -> list[int]:
    """The left neighbour of each new layer, in order."""
    return sorted(Counter(dict(enumerate(placement.counts(n_layers)))).elements())


def test_between_by_hand() -> None:
    assert as_pairs(between(Placement(first=1, last=3).counts(5))) == [
        ((0,), False),
        ((1,), False),
        ((1, 2), True),
        ((2,), False),
        ((2, 3), True),
        ((3,), False),
        ((4,), False),
    ]


def test_several_in_a_gap_lie_evenly_between_the_neighbours() -> None:
    plan = between([0, 3, 1])
    assert [planned.to_json() for planned in plan] == [
        {"from": [0], "new": False},
        {"from": [1], "new": False},
        {"from": [1, 2], "new": True, "fraction": 0.25},
        {"from": [1, 2], "new": True},
        {"from": [1, 2], "new": True, "fraction": 0.75},
        {"from": [2], "new": False},
        {"from": [2, 3], "new": True},
        {"from": [3], "new": False},
    ]


@pytest.mark.parametrize(
    ("placement", "n_layers", "expected"),
    [
        # 8 layers have the gaps 0..6; half the layers are 4
        (Placement(), 8, [0, 1, 2, 3, 4, 5, 6]),
        (Placement("top"), 8, [3, 4, 5, 6]),
        (Placement("bottom"), 8, [0, 1, 2, 3]),
        (Placement("middle"), 8, [1, 2, 3, 4]),
        (Placement("middle", 3), 8, [2, 3, 4]),
        (Placement("spread", 3), 8, [1, 3, 5]),
        (Placement("spread", 1), 8, [3]),
        (Placement("top", 7), 8, [0, 1, 2, 3, 4, 5, 6]),
        (Placement("top", 1), 8, [6]),
        # first and last do not matter here
        (Placement("top", 1, first=5, last=2), 8, [6]),
        # more than the 3 gaps of 4 layers
        (Placement("top", 4), 4, [0, 1, 2, 2]),
        (Placement("bottom", 5), 4, [0, 0, 1, 1, 2]),
        (Placement("middle", 4), 4, [0, 1, 1, 2]),
        (Placement("spread", 8), 4, [0, 0, 0, 1, 1, 2, 2, 2]),
        # within a range of 4 gaps
        (Placement("range", 2, first=2, last=6), 8, [3, 5]),
        (Placement("range", 6, first=2, last=6), 8, [2, 3, 3, 4, 5, 5]),
        (Placement((5, 2, 2)), 8, [2, 2, 5]),
        (Placement((5, 2, 2), 3), 8, [2, 2, 5]),
        (Placement("top"), 3, [1]),
        # every fourth gap of 32 layers, every second of 30
        (Placement("spread", 8), 32, [1, 5, 9, 13, 17, 21, 25, 29]),
        (Placement("spread"), 30, list(range(0, 30, 2))),
    ],
)
def test_places_by_hand(placement: Placement, n_layers: int, expected: list[int]) -> None:
    assert gaps(placement, n_layers) == expected


@pytest.mark.parametrize("where", ["range", "top", "middle", "bottom", "spread"])
@pytest.mark.parametrize("n_layers", [2, 3, 7, 8])
def test_any_number_up_to_three_times_the_depth(where: str, n_layers: int) -> None:
    for new in range(1, 2 * n_layers + 1):
        counts = Placement(where, new).counts(n_layers)
        assert sum(counts) == new
        assert max(counts) - min(counts) <= 1
    with pytest.raises(
        LesaError, match=rf"right would be at most {2 * n_layers}, which makes the model 3 times as deep"
    ):
        Placement(where, 2 * n_layers + 1).counts(n_layers)


def test_a_mistake_is_named() -> None:
    with pytest.raises(LesaError, match=r"expansion\.placement is 'up'; right would be range, top, middle"):
        Placement("up")
    with pytest.raises(LesaError, match=r"expansion\.placement is an empty list"):
        Placement(())
    with pytest.raises(LesaError, match=r"expansion\.new_layers is 2, and expansion\.placement lists 3 new layers"):
        Placement((1, 2, 3), 2)
    with pytest.raises(LesaError, match=r"expansion\.new_layers is 0; right would be 1 or more, or null"):
        Placement("top", 0)
    for layer in (-1, 7):
        with pytest.raises(LesaError, match=rf"lists {layer} as a left neighbour, .* 8 layers; right would be 0 to 6"):
            Placement((2, layer)).counts(8)
    with pytest.raises(LesaError, match=r"add 9 layers to the base's 4; right would be at most 8"):
        Placement((1,) * 9).counts(4)


def test_published_sizes() -> None:
    # Llama-3-8B: 32 -> 48 layers with new ones from layer 15 on (arXiv 2502.13794)
    plan = between(Placement(first=15, last=31).counts(32))
    assert len(plan) == 48
    assert sum(planned.new for planned in plan) == 16
    assert between(Placement("top").counts(32)) == plan
    # SOLAR: layers 0..23 and 8..31 of 32 make 48 (arXiv 2312.15166)
    plan = overlap(32, 16)
    assert [planned.sources[0] for planned in plan] == [*range(24), *range(8, 32)]
    assert [planned.sources[0] for planned in plan if planned.new] == list(range(8, 24))


def test_overlap_of_an_odd_number() -> None:
    plan = overlap(30, 15)
    assert [planned.sources[0] for planned in plan] == [*range(23), *range(8, 30)]
    assert sum(planned.new for planned in plan) == 15


def test_solar_takes_its_number_from_the_placement() -> None:
    arrange = initializers.get("solar").arrange
    assert arrange(30, Placement(first=14, last=29)) == overlap(30, 15)
    assert arrange(30, Placement("top", 10)) == arrange(30, Placement("range", 10, 14, 29)) == overlap(30, 10)
    assert arrange(30, Placement("middle")) == overlap(30, 15)


def test_stack_is_the_base_once_more_or_twice_more() -> None:
    arrange = initializers.get("stack").arrange
    assert (
        as_pairs(arrange(3, Placement("top")))
        == as_pairs(arrange(3, Placement(first=14, last=29)))
        == [
            *(((layer,), False) for layer in range(3)),
            *(((layer,), True) for layer in range(3)),
        ]
    )
    assert [planned.sources[0] for planned in arrange(3, Placement(new_layers=6))] == [0, 1, 2] * 3
    with pytest.raises(LesaError, match=r"expansion\.new_layers is 4, and stack repeats .* right would be 3 or 6"):
        arrange(3, Placement("top", 4))
    with pytest.raises(LesaError, match=r"right would be at most 6"):
        repeat(3, 9)


@pytest.mark.parametrize("method", ["solar", "stack"])
def test_a_list_is_not_for_methods_that_place_by_themselves(method: str) -> None:
    with pytest.raises(LesaError, match=rf"expansion\.placement is a list, and {method} places its layers by itself"):
        initializers.get(method).arrange(8, Placement((1, 2)))


@pytest.mark.parametrize(("first", "last"), [(0, 8), (3, 3), (5, 2), (-1, 4)])
def test_a_range_outside_the_model_is_refused(first: int, last: int) -> None:
    with pytest.raises(LesaError, match="8 layers; right would be 0 <= first < last <= 7"):
        check_range(8, first, last)


def test_one_layer_has_no_neighbours() -> None:
    with pytest.raises(LesaError, match="needs two neighbours"):
        Placement().counts(1)


def test_overlap_cannot_repeat_more_than_there_is() -> None:
    with pytest.raises(LesaError, match="1 to 4 layers"):
        overlap(4, 5)
