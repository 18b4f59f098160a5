"""Regular expressions of a file, bounded before they run."""

import time

import pytest

from limelight.errors import CheckpointError, UnsupportedModel
from limelight.models.lora.patterns import endings, safe_pattern

UNSLOTH = (
    r"(?:.*?(?:language|text).*?(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense).*?(?:k_proj|v_proj).*?)|"
    r"(?:\bmodel\.layers\.[\d]{1,}\.(?:self_attn|attention|attn|mlp|feed_forward|ffn|dense)\.(?:(?:k_proj|v_proj)))"
)


@pytest.mark.parametrize("expression", [r".*\.(q|v)_proj", r"model\.layers\.[0-3]\..*", "q_proj", UNSLOTH])
def test_ordinary_expressions_pass(expression: str) -> None:
    assert safe_pattern(expression, "here").pattern == expression


@pytest.mark.parametrize(
    "expression",
    ["(a+)+b", "(a|a)*b", "(?:a*)*", r"(a)\1", "(?=a)b", "(?P<x>a)", ".*" * 7, "a" * 4001, "(a){2,}", "[ab]*" * 7],
)
def test_expressions_that_may_take_for_ever_are_refused(expression: str) -> None:
    with pytest.raises(UnsupportedModel, match="here"):
        safe_pattern(expression, "here")


@pytest.mark.parametrize("expression", ["(", "[", "*a", "a{2,1}"])
def test_what_is_no_expression_is_refused(expression: str) -> None:
    with pytest.raises((CheckpointError, UnsupportedModel), match="here"):
        safe_pattern(expression, "here")


def test_the_worst_expression_that_passes_is_quick() -> None:
    pattern = safe_pattern(".*" * 6 + "!", "here")
    started = time.thread_time()  # of the processor: other programs of the machine do not count
    assert pattern.fullmatch("model.layers.31.self_attn.q_proj") is None
    assert time.thread_time() - started < 5


def test_what_may_stand_for_a_module() -> None:
    assert list(endings("a.b.c")) == ["a.b.c", "b.c", "c"]
