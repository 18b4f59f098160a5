"""Messages about foreign files are one bounded line, whatever stands in the files."""

import pytest

from limelight.errors import MAX_MESSAGE_CHARACTERS, CheckpointError, OutOfMemory, UnsupportedModel


@pytest.mark.parametrize("kind", [CheckpointError, UnsupportedModel, OutOfMemory])
def test_a_name_in_a_file_can_neither_break_the_line_nor_write_to_the_terminal(kind):
    error = kind("the tensor модель\n\x1b[31m\u202e.x is 'unused'; it is in C:\\models")
    assert error.message == "the tensor модель\\n\\x1b[31m\\u202e.x is 'unused'; it is in C:\\models"
    assert str(error) == error.message


def test_a_very_long_name_leaves_room_for_the_fix():
    error = CheckpointError(f"model_type is {'x' * 10**6}; use another one")
    assert len(error.message) < MAX_MESSAGE_CHARACTERS + 10
    assert error.message.startswith("model_type is xxx")
    assert error.message.endswith("; use another one")
