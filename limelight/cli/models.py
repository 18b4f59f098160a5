"""`limelight models`: what is in the cache, whether it would run here, and what memory it needs."""

import argparse
import shutil
import sys
import tempfile
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from limelight.cli.loading_progress import LoadingProgress
from limelight.cli.settings import engine_config
from limelight.cli.terminal import as_options, printable, say
from limelight.config import EngineConfig
from limelight.errors import ConfigError
from limelight.models.hub import DEFAULT_REPOSITORY, embedded_model, model_name
from limelight.models.hub.names import HubName, parse_name
from limelight.models.inspection import Inspection, inspect_model
from limelight.models.wording import as_size

if TYPE_CHECKING:  # what they import includes torch, which `limelight doctor` does without
    from limelight.models.hub.cached import CachedModel
    from limelight.models.supported import Table

NARROWEST = 40
WIDEST = 100
LISTED_LENGTH = 4096
"""Context length whose memory the list tells."""


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """One model, as it is printed and as `--json` has it.

    Attributes:
        name: what to call it on the command line; None: the default model.
        revision: of a hub model.
        path: on this machine; None: it is not here.
        download_bytes: what fetching it would take.
        is_adapter: it is a LoRA adapter, which runs with its base model.
    """

    name: str | None
    inspection: Inspection
    revision: str | None = None
    path: str | None = None
    download_bytes: int = 0
    is_adapter: bool = False


def models(options: argparse.Namespace) -> int:
    """Prints one model, all that are here, or what is supported; returns 1 if the one that was named does not run.

    Raises:
        ConfigError: options that do not go together.
        ModelError: the named model cannot be found.
    """
    if options.supported:
        _print_supported(as_json=options.json)
        return 0
    progress = LoadingProgress()
    if options.model is None:
        if options.revision is not None:
            raise ConfigError("--revision is given without a MODEL; name one, or leave it out")
        known = _all_known(engine_config(options))
        if options.json:
            _print_json(known)
        else:
            _print_list(known)
        return 0
    config = engine_config(options)
    model = look_at_model(options.model, options.revision, config, progress)
    progress.close()
    if options.json:
        _print_json(model)
    else:
        _print_details(model)
    return 0 if model.inspection.problem is None else 1


def _all_known(config: EngineConfig) -> list[Known]:
    from limelight.models.hub.cached import cached_models

    known = []
    embedded = embedded_model()
    if embedded is not None:
        known.append(Known(name=None, path=str(embedded), inspection=inspect_model(embedded, config)))
    known.extend(_inspected(model, config) for model in cached_models())
    return known


def _inspected(model: "CachedModel", config: EngineConfig) -> Known:
    if model.is_adapter:
        inspection = Inspection(problem=None, format="LoRA adapter", stored_bytes=model.num_bytes)
    else:
        inspection = inspect_model(model.path, config)
    return Known(
        name=model.name,
        revision=model.revision,
        path=str(model.path),
        inspection=inspection,
        is_adapter=model.is_adapter,
    )


def look_at_model(model: str, revision: str | None, config: EngineConfig, progress: LoadingProgress) -> Known:
    """What is known of one model; of one that is not here, the headers are fetched.

    Raises:
        ConfigError: a revision of something local.
        ModelError: it cannot be found.
    """
    name = parse_name(model)
    if isinstance(name, Path):
        if revision is not None:
            raise ConfigError(f"--revision is {revision!r}, but {name} is a local path; leave it out")
        return Known(name=model, path=str(name), inspection=inspect_model(name, config))
    return _one_of_hub(name, revision, config, progress)


def _one_of_hub(name: HubName, revision: str | None, config: EngineConfig, progress: LoadingProgress) -> Known:
    from limelight.models.hub.download import HubFiles

    files = HubFiles(name, revision, progress)
    path = files.cached_model()
    if path is not None:
        return Known(name=str(name), revision=revision, path=str(path), inspection=inspect_model(path, config))
    # Maps of the stand-ins may outlive the inspection for a moment, which Windows minds.
    with tempfile.TemporaryDirectory(prefix="limelight-", ignore_cleanup_errors=True) as folder:
        progress(f"reading the headers of {name}", None)
        try:
            stand_in, download_bytes = files.preview(Path(folder))
        finally:
            progress.close()
        inspection = inspect_model(stand_in, config)
        if inspection.problem is not None:
            told = inspection.problem.replace(f"{folder}/", "").replace(folder, str(name))
            inspection = msgspec.structs.replace(inspection, problem=told)
    return Known(name=str(name), revision=revision, inspection=inspection, download_bytes=download_bytes)


def _print_json(value: object) -> None:
    print(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def _print_list(known: list[Known]) -> None:
    for model in known:
        found = model.inspection
        revision = f"  ({model.revision})" if model.revision else ""
        shown = f"{DEFAULT_REPOSITORY.partition('/')[2]}  (the default model)" if model.name is None else model.name
        print(printable(f"{shown}{revision}"))
        size = None if found.stored_bytes is None else as_size(found.stored_bytes)
        _print_indented(", ".join(part for part in (size, found.format, found.family) if part))
        _print_indented(in_short(model))
    if not known:
        say("there is no model in the cache; `limelight serve ORGANISATION/NAME` fetches one")


def in_short(model: Known) -> str:
    """Whether it runs, and in what memory, as one sentence."""
    found = model.inspection
    if model.is_adapter:
        return "runs with the model that it was made for"
    if found.problem is not None:
        return f"does not run: {as_options(found.problem)}"
    need = max((need for need in found.lengths if need.num_tokens <= LISTED_LENGTH), key=lambda need: need.num_tokens)
    return (
        f"runs: {as_size(need.total_bytes)} of memory with {need.num_tokens:,} tokens, {need.num_at_once:,} such "
        "sequences at once"
    )


def _print_details(model: Known) -> None:
    found = model.inspection
    place = model.path or f"not in the cache; {as_size(model.download_bytes)} to download"
    rows = [
        ("model", model.name or model_name(None)),
        ("place", place),
        ("format", found.format),
        ("family", found.family),
        ("context", None if found.context_length is None else f"{found.context_length:,} tokens"),
        ("stored", None if found.stored_bytes is None else as_size(found.stored_bytes)),
        ("weights", None if found.weights_bytes is None else f"{as_size(found.weights_bytes)} {found.weights_kept}"),
        ("KV cache", None if found.kv_bytes_per_token is None else f"{as_size(found.kv_bytes_per_token)} a token"),
    ]
    for label, value in rows:
        if value:
            print(f"{label:<9} {printable(value)}")
    for note in found.notes:
        print(f"note      {printable(note)}")
    if found.lengths:
        print(f"\n{'tokens':>10}  {'KV':>10}  {'in all':>10}  at once")
    for need in found.lengths:
        at_once = "-" if need.num_at_once is None else f"{need.num_at_once:,}"
        print(f"{need.num_tokens:>10,}  {as_size(need.kv_bytes):>10}  {as_size(need.total_bytes):>10}  {at_once:>7}")
    if found.memory_plan:
        print(f"\nAs `limelight serve` would divide this machine's memory now:\n{as_options(found.memory_plan)}")
    print()
    print("runs here" if found.problem is None else printable(f"does not run: {as_options(found.problem)}"))


def _print_supported(*, as_json: bool) -> None:
    from limelight.models.supported import supported_tables

    tables = supported_tables()
    if as_json:
        _print_json(tables)
        return
    for number, table in enumerate(tables):
        print(f"{'' if number == 0 else chr(10)}{table.title}")
        _print_table(table)


def _print_table(table: "Table") -> None:
    for row in table.rows:
        label, *cells = (cell.replace("`", "") for cell in row)
        named = [f"{column.replace('`', '')} {cell}" for column, cell in zip(table.columns[1:], cells, strict=True)]
        _print_indented(f"{label}: {'; '.join(named if len(named) > 1 else cells)}", margin="  ")


def _print_indented(text: str, margin: str = "    ") -> None:
    width = min(max(shutil.get_terminal_size().columns, NARROWEST), WIDEST) if sys.stdout.isatty() else WIDEST
    lines = textwrap.wrap(
        printable(text), width, initial_indent=margin, subsequent_indent=f"{margin}  ", break_on_hyphens=False
    )
    print("\n".join(lines))
