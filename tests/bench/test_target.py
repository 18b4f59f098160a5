"""Addresses, and what a server says of its models."""

import pytest

from limelight.bench.target import BenchmarkFailed, Target, chosen_model
from limelight.errors import ConfigError


@pytest.mark.parametrize(
    ("url", "target"),
    [
        ("http://127.0.0.1:8000", Target("127.0.0.1", 8000)),
        ("http://h:1/v1", Target("h", 1)),
        ("https://h/llm/v1/", Target("h", 443, "/llm", secure=True)),
        ("http://[::1]:8000", Target("::1", 8000)),
    ],
)
def test_a_base_url_is_read_with_or_without_v1(url: str, target: Target) -> None:
    assert Target.parse(url) == target
    assert Target.parse(target.url) == target


@pytest.mark.parametrize("url", ["nonsense", "localhost:8000", "ftp://h", "http://", "http://h:99999", "http://h:x"])
def test_what_is_no_address_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ConfigError, match="write http://"):
        Target.parse(url)


def test_the_model_is_the_first_one_listed(scripted_server: str) -> None:
    assert chosen_model(Target.parse(scripted_server), None) == "scripted"
    assert chosen_model(Target.parse(scripted_server), "scripted") == "scripted"


def test_a_model_that_is_not_there_is_told_with_those_that_are(scripted_server: str) -> None:
    with pytest.raises(BenchmarkFailed, match="has no model 'other'; it has scripted"):
        chosen_model(Target.parse(scripted_server), "other")


def test_an_address_where_nothing_answers_is_told_with_the_fix() -> None:
    with pytest.raises(BenchmarkFailed, match=r"nothing answers at http://127\.0\.0\.1:9 .*--start-server"):
        chosen_model(Target.parse("http://127.0.0.1:9"), None)
