"""`limelight run-batch`: a file of requests in, a file of answers out, going on where an earlier run stopped."""

import argparse
import os
from pathlib import Path

from limelight.batch.input_file import Remaining, check_input, unanswered_lines
from limelight.batch.output_file import OutputFile, OutputLine
from limelight.batch.run import run_lines
from limelight.cli.batch_progress import BatchProgress
from limelight.cli.event_loop import run
from limelight.cli.loading_progress import LoadingProgress
from limelight.cli.settings import engine_config
from limelight.cli.telemetry import ExportSettings, export_settings, export_warnings, exporting, observed_engine
from limelight.cli.terminal import interruptible_by_the_system, say
from limelight.engine import Engine, ModelLoader
from limelight.errors import ConfigError

OUTPUT_SUFFIX = ".output.jsonl"


def run_batch(options: argparse.Namespace, loader: ModelLoader | None) -> int:
    """Answers what the output has no answers to yet; 1 if none of them is good.

    Raises:
        ConfigError: an option is wrong, or the files do not go together.
        InvalidRequest: the input has no lines, or a `custom_id` twice.
        LimelightError: the model cannot be loaded, or the engine failed.
    """
    engine_config(options)  # a wrong value is told before a large file is read
    exports = export_settings(options.otlp_endpoint, os.environ)
    source = _input_path(options)
    target = _output_path(options, source)
    with OutputFile(target) as output:
        remaining = check_input(source, output.answers)
        output.repair()
        num_before = remaining.num_answered
        if options.retry_failed and remaining.num_failed:
            output.drop_failed()
            num_before -= remaining.num_failed
        if num_before == remaining.num_lines:
            say(f"all {remaining.num_lines} lines are answered in {target}{_about_failed(remaining, options)}")
            return 0
        if num_before:
            say(f"going on: {num_before} of {remaining.num_lines} lines are answered in {target}")
        return run(_observed(options, loader, source, output, remaining.num_lines, num_before, exports))


async def _observed(
    options: argparse.Namespace,
    loader: ModelLoader | None,
    source: Path,
    output: OutputFile,
    num_lines: int,
    num_before: int,
    exports: ExportSettings | None,
) -> int:
    """Answer, with traces and metrics exported if they are to be."""
    content = bool(options.trace_content)
    for line in export_warnings(options.otlp_endpoint, trace_content=content, settings=exports):
        say(line)
    async with exporting(exports, say) as exporter:
        loading = LoadingProgress()
        engine = observed_engine(engine_config(options), loader, loading, exporter)
        return await _answer_all(engine, loading, source, output, num_lines, num_before)


async def _answer_all(
    engine: Engine, loading: LoadingProgress, source: Path, output: OutputFile, num_lines: int, num_before: int
) -> int:
    with interruptible_by_the_system():
        try:
            await engine.start()
        finally:
            loading.close()
    say(f"answering {num_lines - num_before} lines of {source} with {engine.model_name}")
    progress = BatchProgress(num_lines, num_before)

    def write(line: OutputLine) -> None:
        output.write(line)
        progress.count(line)

    try:
        await run_lines(engine, unanswered_lines(source, output.answers), write)
    finally:
        await engine.stop()
        progress.close()
        say(f"{progress.summary()}: {output.path}")
        progress.tell_errors()
        missing = num_lines - num_before - progress.num_answered
        if missing:
            say(f"stopped: {missing} of {num_lines} lines have no answer yet; the same command goes on with them")
    return 0 if progress.num_failed < progress.num_answered else 1


def _about_failed(remaining: Remaining, options: argparse.Namespace) -> str:
    if not remaining.num_failed or options.retry_failed:
        return ""
    return f", {remaining.num_failed} of them have failed: --retry-failed tries those again"


def _input_path(options: argparse.Namespace) -> Path:
    if options.file is not None and options.input_file is not None:
        raise ConfigError(f"there are two inputs, {options.file} and --input-file {options.input_file}; give one")
    given = options.file if options.file is not None else options.input_file
    if given is None:
        raise ConfigError("there is no input; give a file of requests: limelight run-batch FILE")
    path = Path(given)
    if not path.is_file():
        what = "is no plain file, and it is read twice" if path.exists() else "does not exist"
        raise ConfigError(f"the input {path} {what}; give a file of requests")
    return path


def _output_path(options: argparse.Namespace, source: Path) -> Path:
    path = source.with_suffix(OUTPUT_SUFFIX) if options.output_file is None else Path(options.output_file)
    if path.exists() and path.samefile(source):
        raise ConfigError(f"the output {path} is the input; give another --output-file")
    if path.exists() and not path.is_file():
        raise ConfigError(f"the output {path} is no plain file; give another --output-file")
    return path
