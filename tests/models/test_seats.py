"""The seat table: deltas in, nothing left over from a previous tenant."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from limelight.models.seats import Seats
from limelight.step import Chunk

CPU = "cpu"


def chunk(seat: int, end: int, *new_pages: int) -> Chunk:
    return Chunk(seat=seat, start=end - 1, num_tokens=1, token_ids=(0,), new_pages=new_pages)


def test_pages_are_appended_in_order() -> None:
    seats = Seats(3, 4, 8, CPU)
    seats.append_pages((chunk(1, 9, 7, 5), chunk(2, 3, 6)))
    seats.append_pages((chunk(2, 4), chunk(1, 17, 9)))
    assert seats.page_table.tolist() == [[0, 0, 0, 0], [7, 5, 9, 0], [6, 0, 0, 0]]


def test_a_cleared_seat_starts_again_at_its_first_page() -> None:
    seats = Seats(2, 4, 8, CPU)
    seats.append_pages((chunk(0, 24, 7, 5, 3), chunk(1, 1, 9)))
    seats.last_tokens[:] = 42
    seats.clear([0])
    seats.append_pages((chunk(0, 1, 8),))
    assert seats.page_table.tolist() == [[8, 0, 0, 0], [9, 0, 0, 0]]
    assert seats.last_tokens.tolist() == [0, 42]


@pytest.mark.parametrize(
    ("faulty", "message"),
    [
        (chunk(1, 9, 4), r"seat 1 ends at position 9 and has 1 pages; it needs 2, and a seat holds at most 2"),
        (chunk(1, 2, 4, 5, 6), r"has 3 pages; it needs 1, and a seat holds at most 2"),
    ],
)
def test_a_chunk_that_its_pages_do_not_cover_is_refused_and_changes_nothing(faulty: Chunk, message: str) -> None:
    seats = Seats(2, 2, 8, CPU)
    with pytest.raises(ValueError, match=message):
        seats.append_pages((chunk(0, 1, 3), faulty))
    assert not bool(seats.page_table.any())
    seats.append_pages((chunk(0, 1, 3),))
    assert seats.page_table.tolist() == [[3, 0], [0, 0]]


@settings(max_examples=60)
@given(st.lists(st.tuples(st.integers(0, 3), st.one_of(st.none(), st.integers(0, 2))), max_size=40))
def test_the_table_equals_lists_kept_by_hand(changes: list[tuple[int, int | None]]) -> None:
    """Per change: a seat, and how many pages it gets; None clears it."""
    seats = Seats(4, 40, 8, CPU)
    expected: list[list[int]] = [[] for _ in range(4)]
    fresh = iter(range(1, 1000))
    for seat, num_pages in changes:
        if num_pages is None:
            seats.clear([seat])
            expected[seat] = []
            continue
        pages = [next(fresh) for _ in range(num_pages)]
        if len(expected[seat]) + num_pages > 40:
            continue
        expected[seat] += pages
        if expected[seat]:
            seats.append_pages((chunk(seat, len(expected[seat]) * 8, *pages),))
    assert seats.page_table.tolist() == [row + [0] * (40 - len(row)) for row in expected]
