"""Fuzzing that is guided by the coverage of the code, by atheris.

    python -m tests.fuzz                          # every target for a minute
    python -m tests.fuzz http_body schema --seconds 600
    python -m tests.fuzz http_body --input FILE   # what was found once more

What is found is written below `.fuzz/TARGET/`, beside the corpus that it grew from. Ends with 1 if anything was.
"""

import argparse
import subprocess
import sys
from pathlib import Path

FOLDER = Path(".fuzz")


def main() -> int:
    """Each target in a process of its own."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", help="default: all")
    parser.add_argument("--seconds", type=int, default=60, help="for each target (default: 60)")
    parser.add_argument("--input", type=Path, help="one input, without fuzzing")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        _fuzz(options.targets[0], options.seconds)
        return 0
    from tests.fuzz.targets import TARGETS, run

    names = options.targets or list(TARGETS)
    if unknown := [name for name in names if name not in TARGETS]:
        parser.error(f"there is no target {unknown[0]}; there are {', '.join(TARGETS)}")
    if options.input is not None:
        run(names[0], options.input.read_bytes())
        return 0
    found = []
    for name in names:
        print(f"==== {name}, {options.seconds} s", flush=True)
        command = [sys.executable, "-m", "tests.fuzz", name, "--seconds", str(options.seconds), "--child"]
        if subprocess.run(command, check=False).returncode:
            found.append(name)
    print(f"found something: {', '.join(found)} (below {FOLDER})" if found else "found nothing")
    return bool(found)


def _fuzz(name: str, seconds: int) -> None:
    try:
        import atheris
    except ImportError:
        raise SystemExit("atheris is not installed: pip install atheris (CPython on Linux)") from None
    with atheris.instrument_imports(include=["limelight", "jinja2", "msgspec"]):
        from tests.fuzz.targets import run
    from tests.fuzz.seeds import seeds

    folder = FOLDER / name
    corpus = folder / "corpus"
    corpus.mkdir(parents=True, exist_ok=True)
    for number, data in enumerate(seeds(name)):
        (corpus / f"seed-{number}").write_bytes(data)
    arguments = [
        sys.argv[0],
        str(corpus),
        f"-max_total_time={seconds}",
        f"-artifact_prefix={folder}/",
        "-timeout=60",
        "-rss_limit_mb=4096",
        "-max_len=65536",
        "-verbosity=0",
        "-print_final_stats=1",
    ]
    atheris.Setup(arguments, lambda data: run(name, data))
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
