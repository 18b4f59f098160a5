"""A wrong name is told before anything slow happens."""

import subprocess
import sys
from pathlib import Path

import pytest

from limelight.cli.names import check_names
from limelight.cli.options import build_parser
from limelight.errors import ConfigError, LimelightError
from limelight.models.fields import read_config

ROOT = Path(__file__).resolve().parents[2]


def check(*arguments: str) -> None:
    check_names(build_parser({}).parse_args(arguments))


@pytest.mark.parametrize("command", ["serve", "chat", "models"])
def test_a_path_that_does_not_exist(command: str) -> None:
    with pytest.raises(LimelightError, match=r"\./nowhere does not exist"):
        check(command, "./nowhere")


def test_an_adapter_that_does_not_exist_is_called_an_adapter() -> None:
    with pytest.raises(LimelightError, match=r"no adapter '\./nowhere'; give a folder that holds adapter_config\.json"):
        check("serve", "--lora", "x=./nowhere")


def test_a_revision_of_a_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--revision is 'main', but .* is a local path"):
        check("serve", str(tmp_path), "--revision", "main")


def test_names_of_the_hub_and_folders_pass(tmp_path: Path) -> None:
    check("serve", "org/name:Q4_K_M", "--revision", "main", "--lora", "x=org/adapter", "--lora", f"y={tmp_path}")
    check("generate", "Once", "--model", str(tmp_path))
    check("models")


def test_a_selection_of_something_local(tmp_path: Path) -> None:
    with pytest.raises(LimelightError, match="selects a file of a hub repository only"):
        check("serve", f"{tmp_path}:Q4_K_M")


def test_it_does_not_wait_for_torch() -> None:
    script = (
        "import sys; from limelight.cli import main; code = main(['serve', './nowhere']);"
        "print(code, sorted({'torch', 'transformers', 'huggingface_hub'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "1 []\n"


def test_a_folder_with_an_adapter_is_told_from_one_with_a_model(tmp_path: Path) -> None:
    (tmp_path / "adapter_config.json").touch()
    with pytest.raises(LimelightError, match=r"is a LoRA adapter, which runs with its base model; .*--lora NAME="):
        read_config(tmp_path)
