"""Tests of `limelight.kernels.cpu.weight_memory`."""

import gc
import weakref

from limelight.kernels.cpu.weight_memory import ALIGNMENT, CHUNK_BYTES, PAGE_BYTES, WeightMemory


def test_pieces_are_aligned_and_do_not_overlap() -> None:
    memory = WeightMemory()
    pieces = [memory.allocate(size) for size in (1, 64, 65, CHUNK_BYTES, 1000, CHUNK_BYTES + 1, 3)]
    for number, piece in enumerate(pieces):
        piece.fill(number)
    for number, piece in enumerate(pieces):
        assert piece.ctypes.data % ALIGNMENT == 0
        assert (piece == number).all()
    assert pieces[0].ctypes.data % PAGE_BYTES == 0
    assert pieces[1].ctypes.data == pieces[0].ctypes.data + ALIGNMENT


def test_memory_lives_as_long_as_its_pieces() -> None:
    memory = WeightMemory()
    piece = memory.allocate(10)
    chunk = memory._chunk.base
    while not isinstance(chunk, memoryview):
        chunk = chunk.base
    mapped = weakref.ref(chunk.obj)
    del chunk, memory
    piece.fill(7)
    assert mapped() is not None
    del piece
    gc.collect()
    assert mapped() is None
