import pytest

from lesa.errors import LesaError
from lesa.plan import between, check_range, overlap


def as_pairs(plan: list) -> list[tuple[tuple[int, ...], bool]]:
    return [(planned.sources, planned.new) for planned in plan]


def test_between_by_hand() -> None:
    assert as_pairs(between(5, 1, 3)) == [
        ((0,), False),
        ((1,), False),
        ((1, 2), True),
        ((2,), False),
        ((2, 3), True),
        ((3,), False),
        ((4,), False),
    ]


def test_published_sizes() -> None:
    # Llama-3-8B: 32 -> 48 layers with new ones from layer 15 on (arXiv 2502.13794)
    plan = between(32, 15, 31)
    assert len(plan) == 48
    assert sum(planned.new for planned in plan) == 16
    # SOLAR: layers 0..23 and 8..31 of 32 make 48 (arXiv 2312.15166)
    plan = overlap(32, 16)
    assert [planned.sources[0] for planned in plan] == [*range(24), *range(8, 32)]
    assert [planned.sources[0] for planned in plan if planned.new] == list(range(8, 24))


def test_overlap_of_an_odd_number() -> None:
    plan = overlap(30, 15)
    assert [planned.sources[0] for planned in plan] == [*range(23), *range(8, 30)]
    assert sum(planned.new for planned in plan) == 15


@pytest.mark.parametrize(("first", "last"), [(0, 8), (3, 3), (5, 2), (-1, 4)])
def test_a_range_outside_the_model_is_refused(first: int, last: int) -> None:
    with pytest.raises(LesaError, match="8 layers; right would be 0 <= first < last <= 7"):
        check_range(8, first, last)


def test_one_layer_has_no_neighbours() -> None:
    with pytest.raises(LesaError, match="needs two neighbours"):
        check_range(1, 0, 0)


def test_overlap_cannot_repeat_more_than_there_is() -> None:
    with pytest.raises(LesaError, match="1 to 4 layers"):
        overlap(4, 5)
