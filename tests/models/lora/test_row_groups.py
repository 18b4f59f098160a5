"""Rows grouped by adapter."""

from hypothesis import given
from hypothesis import strategies as st

from limelight.models.lora.row_groups import group_rows
from limelight.step import Chunk

cuts = st.lists(st.tuples(st.integers(1, 5), st.sampled_from([None, 1, 2, 3])), min_size=1, max_size=8)


def chunks_of(sizes: list[int]) -> list[Chunk]:
    return [Chunk(seat=seat, start=0, num_tokens=size, token_ids=(0,) * size) for seat, size in enumerate(sizes)]


@given(cuts=cuts, drawn=st.data())
def test_every_row_is_in_the_group_of_its_adapter_and_in_no_other(
    cuts: list[tuple[int, int | None]], drawn: st.DataObject
) -> None:
    owner = [adapter for size, adapter in cuts for _ in range(size)]
    sample_rows = sorted(drawn.draw(st.sets(st.sampled_from(range(len(owner))))))
    groups = group_rows(chunks_of([size for size, _ in cuts]), [adapter for _, adapter in cuts], sample_rows)
    assert [group.adapter for group in groups] == list(dict.fromkeys(adapter for adapter in owner if adapter))
    for group in groups:
        rows = range(len(owner)) if group.rows is None else group.rows
        assert list(rows) == [row for row, adapter in enumerate(owner) if adapter == group.adapter]
        places = range(len(sample_rows)) if group.sampled is None else group.sampled
        assert [sample_rows[place] for place in places] == [row for row in sample_rows if owner[row] == group.adapter]


def test_a_batch_of_one_adapter_needs_no_index() -> None:
    (group,) = group_rows(chunks_of([3, 1]), [4, 4], [2, 3])
    assert (group.rows, group.sampled) == (None, None)


def test_a_batch_of_the_base_model_has_no_groups() -> None:
    assert group_rows(chunks_of([3, 1]), [None, None], [3]) == ()
