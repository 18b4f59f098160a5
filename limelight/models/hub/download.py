"""A model or an adapter of the hub, complete in the cache: what is needed, whether it fits, and fetching it.

Cache folder, token, endpoint and offline mode are huggingface_hub's own settings, and the cache's layout is its own.
"""

import glob
import shutil
import threading
from collections.abc import Callable, Collection
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

from limelight.errors import ModelError
from limelight.models.hub.byte_progress import ByteProgress
from limelight.models.hub.listing import AGENT, COMMIT, Listing, list_cached, list_remote, remember
from limelight.models.hub.names import HubName
from limelight.models.hub.needed_files import Needed, needed_adapter_files, needed_files
from limelight.models.hub.preview import HeaderSource
from limelight.models.hub.refusals import explained, is_unreachable, why_unreachable
from limelight.models.hub.transfer import LARGE_BYTES, MAX_HTTP_BYTES, LargeFile, TransferStopped, fetch_large
from limelight.models.safetensors.checkpoint import INDEX, read_weight_map
from limelight.models.wording import as_size, listed
from limelight.progress import Note, Report

NUM_AT_ONCE = 4
"""Large files fetched at the same time."""
TELL_SECONDS = 0.5
"""A download that brings nothing still reports this often: a report may raise, which ends it."""


class HubFiles:
    """One repository at one revision, on its way into the cache.

    Args:
        name: which.
        revision: branch, tag or commit; None: the repository's main branch.
        report: called during a download, and with a sentence about what was chosen.
        endpoint: the hub's address; None: huggingface_hub's.
        cache: where downloads are kept; None: huggingface_hub's.
    """

    def __init__(
        self,
        name: HubName,
        revision: str | None,
        report: Report,
        endpoint: str | None = None,
        cache: Path | None = None,
    ) -> None:
        from huggingface_hub import constants

        self._name = name
        self._revision = revision
        self._report = report
        self._endpoint = endpoint
        self._cache = Path(cache or constants.HF_HUB_CACHE).expanduser().resolve()

    def model(self) -> Path:
        """The folder or `.gguf` file of the model, complete.

        Raises:
            CheckpointError: the repository has no such model.
            ModelError: the hub does not have it, does not give it, or cannot be reached; the disk is too small.
        """
        return self._complete(self._choose_model)

    def adapter(self) -> Path:
        """The folder of a LoRA adapter, complete.

        Raises:
            CheckpointError: the repository has none.
            ModelError: as for `model`.
        """
        return self._complete(lambda listing: needed_adapter_files(listing.sizes, self._name.repository))

    def cached_model(self) -> Path | None:
        """The model's folder or `.gguf` file if the cache has all of it, without asking the hub; else None."""
        cached = list_cached(self._name.repository, self._revision, self._cache)
        needed = None if cached is None else self._if_complete(self._choose_model, cached)
        if cached is None or needed is None:
            return None
        return cached.folder / needed.gguf if needed.gguf else cached.folder

    def preview(self, folder: Path) -> tuple[Path, int]:
        """The model without its weights, in `folder`: (what to open, bytes that a download would fetch).

        Raises:
            CheckpointError: the repository has no such model.
            ModelError: the hub does not have it, does not give it, or cannot be reached.
        """
        repository, revision, endpoint = self._name.repository, self._revision, self._endpoint
        with explained(repository, revision, endpoint):
            listing = list_remote(repository, revision, endpoint, self._cache)
            source = HeaderSource(listing, endpoint)
            needed = needed_files(
                listing.sizes,
                repository,
                self._name.selection,
                lambda: set(read_weight_map(source.fetch_text(INDEX, folder)).values()),
            )
            opened = source.write_stand_ins(needed, folder)
        return opened, sum(listing.files[path].num_bytes for path in listing.missing(needed.files))

    def _choose_model(self, listing: Listing) -> Needed:
        name = self._name
        return needed_files(listing.sizes, name.repository, name.selection, lambda: self._read_index(listing))

    def _complete(self, choose: Callable[[Listing], Needed]) -> Path:
        repository, revision, endpoint = self._name.repository, self._revision, self._endpoint
        cached = list_cached(repository, revision, self._cache)
        if cached is not None and COMMIT.fullmatch(revision or ""):
            # A commit never changes: if all of it is here, nobody needs to be asked.
            needed = self._if_complete(choose, cached)
            if needed is not None:
                return self._said(cached, needed)
        with explained(repository, revision, endpoint):
            try:
                listing = list_remote(repository, revision, endpoint, self._cache)
            except Exception as error:
                if not is_unreachable(error):
                    raise
                return self._without_hub(choose, cached, error)
            if listing.renamed_to:
                self._report(Note(f"{repository} is now called {listing.renamed_to}"), None)
            needed = choose(listing)
            opened = self._said(listing, needed)  # before the download, so that it can be stopped
            if listing.missing(needed.files) or cached is None or cached.commit != listing.commit:
                self._fetch(listing, needed)
        return opened

    def _said(self, listing: Listing, needed: Needed) -> Path:
        """What to open, after telling the user of a choice that was made."""
        if needed.note:
            self._report(Note(needed.note), None)
        return listing.folder / needed.gguf if needed.gguf else listing.folder

    def _if_complete(self, choose: Callable[[Listing], Needed], cached: Listing) -> Needed | None:
        try:
            needed = choose(cached)
        except (ModelError, _NotCached):
            return None
        return None if cached.missing(needed.files) else needed

    def _without_hub(self, choose: Callable[[Listing], Needed], cached: Listing | None, error: Exception) -> Path:
        """The cached model, if it is complete.

        Raises:
            ModelError: says what is missing and why it cannot be fetched; or `error` itself, which the hub gave.
        """
        from huggingface_hub import errors

        reason, fix = why_unreachable(error, self._endpoint)
        missing = ["everything"]
        if cached is not None:
            try:
                needed = choose(cached)
                missing = cached.missing(needed.files)
            except _NotCached:
                missing = [INDEX]
            except ModelError as refused:
                missing = [str(refused)]
            if not missing:
                self._report(Note(f"{reason}; using what is in the cache of {self._name}"), None)
                return self._said(cached, needed)
        if isinstance(error, errors.HfHubHTTPError):
            raise error
        raise ModelError(
            f"{self._name} is not complete in the cache ({self._cache}; missing: {listed(missing)}) and {reason}; "
            f"{fix}, or give a local folder"
        ) from error

    def _read_index(self, listing: Listing) -> Collection[str]:
        """The weight files that the index names; the index is fetched if it has to be."""
        path = listing.folder / INDEX
        if not path.is_file():
            if listing.from_cache:
                raise _NotCached(INDEX)
            from huggingface_hub import hf_hub_download

            fetched = hf_hub_download(
                self._name.repository,
                INDEX,
                revision=listing.commit,
                cache_dir=self._cache,
                endpoint=self._endpoint,
                **AGENT,
            )
            path = Path(fetched)
        return set(read_weight_map(path).values())

    def _fetch(self, listing: Listing, needed: Needed) -> None:
        missing = listing.missing(needed.files)
        large = self._large_files(listing, missing)
        arrived = {file.path: file.arrived_bytes for file in large}
        total_bytes = sum(listing.files[path].num_bytes for path in missing)
        found_bytes = sum(arrived.values())
        self._check_disk(total_bytes - found_bytes)
        progress = ByteProgress(self._report, f"downloading {self._name}", found_bytes, total_bytes)
        self._fetch_large(large, progress)
        self._fetch_with_library(listing, needed)
        progress.finish()

    def _large_files(self, listing: Listing, paths: list[str]) -> list[LargeFile]:
        from huggingface_hub import hf_hub_url

        repository = self._name.repository
        found = []
        for path in paths:
            file = listing.files[path]
            if file.sha256 is not None and LARGE_BYTES <= file.num_bytes <= MAX_HTTP_BYTES:
                url = hf_hub_url(repository, path, revision=listing.commit, endpoint=self._endpoint)
                found.append(LargeFile(path, url, file.num_bytes, file.sha256, listing.blobs / file.sha256))
        return found

    def _check_disk(self, needed_bytes: int) -> None:
        existing = next(folder for folder in (self._cache, *self._cache.parents) if folder.exists())
        free_bytes = shutil.disk_usage(existing).free
        if needed_bytes > free_bytes:
            raise ModelError(
                f"{self._name} needs {as_size(needed_bytes)} more on disk, but only {as_size(free_bytes)} is free for "
                f"the cache ({self._cache}); free {as_size(needed_bytes - free_bytes)}, or set HF_HUB_CACHE to a "
                "folder on a larger disk"
            )

    def _fetch_large(self, files: list[LargeFile], progress: ByteProgress) -> None:
        from huggingface_hub.utils import build_hf_headers  # type: ignore[attr-defined]

        if not files:
            return
        headers = build_hf_headers(**AGENT)
        locks = self._cache / ".locks" / files[0].blob.parent.parent.name
        stop = threading.Event()
        with ThreadPoolExecutor(NUM_AT_ONCE, thread_name_prefix="limelight-download") as pool:
            running = [
                pool.submit(fetch_large, file, headers, locks / f"{file.sha256}.lock", progress.add, stop)
                for file in files
            ]
            try:
                # One that fails ends the others at once: what they have is kept.
                waiting = set(running)
                while waiting:
                    done, waiting = wait(waiting, TELL_SECONDS, FIRST_EXCEPTION)
                    if any(future.exception() for future in done):
                        break
                    progress.tell()
            finally:
                stop.set()
                pool.shutdown(cancel_futures=True)
        errors = [future.exception() for future in running if not future.cancelled()]
        for error in sorted(filter(None, errors), key=lambda error: isinstance(error, TransferStopped)):
            raise error

    def _fetch_with_library(self, listing: Listing, needed: Needed) -> None:
        """The rest, and the links that make a snapshot out of contents.

        Of the commit that was listed: a branch may have moved since.
        """
        from huggingface_hub import snapshot_download

        snapshot_download(
            self._name.repository,
            revision=listing.commit,
            cache_dir=self._cache,
            endpoint=self._endpoint,
            allow_patterns=[glob.escape(path) for path in needed.files],
            tqdm_class=_silent_bar(),
            **AGENT,
        )
        remember(listing, self._revision)


class _NotCached(Exception):
    """A file that says what else is needed is not in the cache, and the hub is out of reach."""


def _silent_bar() -> type:
    """A progress-bar class for huggingface_hub that shows nothing."""
    from tqdm.std import tqdm

    class SilentBar(tqdm):  # type: ignore[misc]
        def __init__(self, *args: Any, **options: Any) -> None:
            options["disable"] = True
            options.pop("name", None)
            super().__init__(*args, **options)

    return SilentBar
