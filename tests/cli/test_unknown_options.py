"""What a person reads who types an option that there is not."""

import pytest

from limelight.cli.options import build_parser
from limelight.cli.unknown_options import INSTEAD, SHORT, complaint

COMMANDS = ("serve", "chat", "generate", "models")


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    with pytest.raises(SystemExit) as ended:
        build_parser({}).parse_args(arguments)
    assert ended.value.code == 2
    return capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "told"),
    [
        (["serve", "--lora-modules", "a=b"], "use --lora NAME=PATH"),
        (["serve", "--mem-fraction-static=0.9"], "use --gpu-memory-utilization SHARE, or --kv-cache-memory SIZE"),
        (["serve", "m", "-c", "5"], "use --max-model-len TOKENS"),
        (["serve", "--max-model", "4"], "did you mean --max-model-len?"),
        (["models", "--suported"], "did you mean --supported?"),
    ],
)
def test_it_says_what_to_type_instead(typed: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert f"; {told} (see limelight {typed[0]} --help)\n" in refused(capsys, *typed)


def test_what_resembles_nothing_is_only_named() -> None:
    assert complaint(["--frobnicate", "4"], ["--model", "--lora"]) == "unrecognized arguments: --frobnicate 4"


def test_no_option_of_ours_is_explained_away() -> None:
    commands = build_parser({})._commands
    ours = {option for parser in commands.values() for option in parser._option_string_actions}
    assert not ours & {*INSTEAD, *SHORT}
    assert set(SHORT.values()) <= set(INSTEAD)


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--model", "-m"])
def test_the_model_may_be_an_option(command: str, option: str) -> None:
    assert build_parser({}).parse_args([command, option, "org/name"]).model == "org/name"


def test_two_models_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert "there are two models, one and --model two; give one" in refused(capsys, "serve", "one", "--model", "two")
