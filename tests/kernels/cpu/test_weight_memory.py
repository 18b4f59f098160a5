"""Tests of `limelight.kernels.cpu.weight_memory`."""

import gc
import weakref

from limelight.kernels.cpu.weight_memory import ALIGNMENT, CHUNK_BYTES, PAGE_BYTES, WeightMemory


def test_pieces_are_aligned_and_do_not_overlap() -> None:
    memory = WeightMemory()
    pieces = [memory.allocate(size) for size in (1, 64, 65, CHUNK_BYTES, 1000, CHUNK_BYTES + 1, 3)]
    for number, piece in enumerate(pieces):
        piece.fill_(number)
    for number, piece in enumerate(pieces):
        assert piece.data_ptr() % ALIGNMENT == 0
        assert piece.eq(number).all()
    assert pieces[0].data_ptr() % PAGE_BYTES == 0
    assert pieces[1].data_ptr() == pieces[0].data_ptr() + ALIGNMENT


def test_memory_lives_as_long_as_its_pieces() -> None:
    memory = WeightMemory()
    piece = memory.allocate(10)
    chunk = memory._chunk.base
    while not isinstance(chunk, memoryview):
        chunk = chunk.base
    mapped = weakref.ref(chunk.obj)
    del chunk, memory
    piece.fill_(7)
    assert mapped() is not None
    del piece
    gc.collect()
    assert mapped() is None
