"""`limelight replay`: what a bundle gives when it is run again, for people or as JSON, and as exit code."""

import argparse
import sys
from pathlib import Path

import msgspec
from tqdm import tqdm

from limelight.cli.loading_progress import LoadingProgress
from limelight.cli.terminal import as_options, interruptible_by_the_system, printable, say
from limelight.engine import ModelLoader
from limelight.errors import InvalidRequest, LimelightError
from limelight.replay.bundle import Bundle, decode
from limelight.replay.run import replay, replay_config
from limelight.replay.verdict import Difference, Verdict

SAME, DIFFERENT, CANNOT_RUN = 0, 1, 2
MAX_BYTES = 2**30
OPTIONS = (
    "model", "revision", "device", "dtype", "cpu_kernels", "num_threads", "quantize", "max_num_seqs", "kv_cache_bytes",
)  # fmt: skip
"""Fields of `EngineConfig` that an option sets."""


def replay_file(options: argparse.Namespace, loader: ModelLoader | None) -> int:
    """The exit code; the verdict goes to standard output, everything else to standard error."""
    try:
        bundle = _read(Path(options.file))
        verdict = _replay(options, bundle, loader)
    except LimelightError as error:
        print(f"limelight: cannot replay {options.file}: {as_options(str(error))}", file=sys.stderr)
        return CANNOT_RUN
    if options.json:
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(verdict)).decode() + "\n")
    else:
        print("\n".join(printable(line) for line in lines(verdict)))
    return SAME if verdict.same else DIFFERENT


def lines(verdict: Verdict) -> list[str]:
    """The verdict for people."""
    how = "with its neighbours" if verdict.with_neighbours else "alone"
    difference = verdict.first_difference
    if difference is None:
        told = [f"same: {verdict.num_compared} of {verdict.num_recorded} recorded tokens compared, {how}"]
    else:
        told = [f"different, {how}: {_where(difference)}", *_what(difference)]
    if verdict.largest_logprob_change is not None:
        told.append(f"log-probabilities of equal tokens changed by at most {verdict.largest_logprob_change:.3g}")
    if verdict.changes:
        told.append("not as it was:" if difference is None else "not as it was, and may explain it:")
        told += [f"  {change.what}: {change.recorded} -> {change.here}" for change in verdict.changes]
    elif difference is not None:
        told.append("model, settings, versions and machine are as they were")
    return told


def _where(difference: Difference) -> str:
    choice = f" of choice {difference.choice}" if difference.choice else ""
    return f"first at output token {difference.position}{choice} (step {difference.step})"


def _what(difference: Difference) -> list[str]:
    then, now = _number(difference.recorded_logprob), _number(difference.expected_logprob)
    told = [f"  expected {difference.expected} {difference.expected_text!r}: log-probability {then} then, {now} now"]
    if difference.got is None:
        return [*told, f"  got nothing: {difference.reason}"]
    told.append(
        f"  got {difference.got} {difference.got_text!r}: log-probability {_number(difference.got_logprob)} now"
    )
    if difference.logprob_gap is not None:
        told.append(f"  the gap between the two is {difference.logprob_gap:.3g}")
    return told


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.4f}"


def _read(path: Path) -> Bundle:
    """Raises InvalidRequest if it is no bundle."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidRequest(f"it has more than {MAX_BYTES:,} bytes, which no replay bundle has")
        return decode(path.read_bytes())
    except OSError as error:
        raise InvalidRequest(error.strerror or "it cannot be read") from error


def _replay(options: argparse.Namespace, bundle: Bundle, loader: ModelLoader | None) -> Verdict:
    given = {name: getattr(options, name) for name in OPTIONS if getattr(options, name) is not None}
    if "model" in given and "revision" not in given:
        given["revision"] = None
    config = replay_config(bundle, given)
    say(f"replaying {bundle.id}: {len(bundle.prompt_token_ids)} prompt tokens, {len(bundle.steps)} steps")
    loading = LoadingProgress()
    bar = tqdm(total=len(bundle.steps), desc="steps", disable=not sys.stderr.isatty(), delay=1.0)

    def progress(done: int, total: int) -> None:
        loading.close()
        bar.update(done - bar.n)

    with interruptible_by_the_system():
        try:
            return replay(
                bundle,
                config,
                load=loader,
                report=loading,
                progress=progress,
                with_neighbours=options.as_scheduled,
                adapter_path=options.adapter_path,
            )
        finally:
            loading.close()
            bar.close()
