"""The Dockerfile, read and not built: what it copies is there, and what it starts is a valid command."""

import json
import re
import subprocess
import sys
from pathlib import Path

import anyio.to_thread
import pytest

from limelight.cli.options import build_parser
from limelight.http import create_app
from limelight.testing import scripted_engine
from tests.http.wire import client_of

ROOT = Path(__file__).parents[1]


def instructions(text: str) -> list[tuple[str, str]]:
    """Name and arguments of each instruction, continued lines joined."""
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in joined.splitlines() if line.strip()]


DOCKERFILE = instructions((ROOT / "Dockerfile").read_text())
LAST_STAGE = DOCKERFILE[max(i for i, (name, _) in enumerate(DOCKERFILE) if name == "FROM") :]


def only(name: str) -> str:
    """The arguments of the one instruction of that name in the stage that runs."""
    [arguments] = [arguments for found, arguments in LAST_STAGE if found == name]
    return arguments


def probe() -> list[str]:
    """The command of the health check; exec form, or this raises."""
    command: list[str] = json.loads(only("HEALTHCHECK").split("CMD ", 1)[1])
    return command


def test_what_is_copied_exists_and_is_not_ignored() -> None:
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [a.split()[:-1] for name, a in DOCKERFILE if name == "COPY" and not a.startswith("--from")]
    sources = {source for group in copied for source in group}
    assert sources == kept
    assert all((ROOT / source).exists() for source in sources)


def test_the_server_is_the_first_process_and_its_options_are_valid() -> None:
    program, *arguments = json.loads(only("ENTRYPOINT"))  # exec form: a shell would keep the signals
    parsed = build_parser({}).parse_args(arguments)
    assert (program, parsed.host, str(parsed.port)) == ("limelight", "0.0.0.0", only("EXPOSE"))


def test_it_runs_as_nobody_special_and_keeps_models_in_a_volume() -> None:
    assert int(only("USER")) > 0
    variables = dict(pair.split("=", 1) for pair in only("ENV").split())
    assert {variables[name].split("/")[1] for name in ("HF_HOME", "XDG_CACHE_HOME")} == {only("VOLUME").strip("/")}


@pytest.mark.anyio
@pytest.mark.parametrize(("loaded", "status"), [(True, 0), (False, 1)])
async def test_the_health_check_tells_ready_from_not_ready(loaded: bool, status: int) -> None:
    engine = scripted_engine()
    async with client_of(create_app(engine)) as client:
        port = str(client.base_url.port)
        _, flag, code = probe()
        command = [sys.executable, flag, code.replace(only("EXPOSE"), port)]
        if loaded:
            async with engine:
                ended = await anyio.to_thread.run_sync(lambda: subprocess.run(command, check=False, timeout=30))
        else:
            ended = await anyio.to_thread.run_sync(lambda: subprocess.run(command, check=False, timeout=30))
    assert ended.returncode == status
