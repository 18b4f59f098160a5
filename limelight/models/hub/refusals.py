"""huggingface_hub's errors, and those of the network beneath it, as one line each with the way out."""

import contextlib
from collections.abc import Iterator, Mapping

from limelight.errors import ModelError
from limelight.quoting import explanation, quoted

LOG_IN = "log in with `hf auth login` or set HF_TOKEN"
CERTIFICATE = "CERTIFICATE_VERIFY_FAILED"


@contextlib.contextmanager
def explained(repository: str, revision: str | None, endpoint: str | None) -> Iterator[None]:
    """Inside, every failure of the hub or of the way to it becomes a `ModelError`.

    Raises:
        ModelError: names the repository, the reason and what to do.
    """
    from huggingface_hub import errors

    try:
        yield
    # The base class of the HTTP library that huggingface_hub uses (httpx or httpx2, by version).
    except (errors.HTTPError, errors.HFValidationError, OSError) as error:  # type: ignore[attr-defined]
        raise refusal(error, repository, revision, endpoint) from error


def refusal(error: Exception, repository: str, revision: str | None, endpoint: str | None) -> ModelError:
    """The line for one error."""
    from huggingface_hub import constants, errors

    hub = endpoint or constants.ENDPOINT
    if isinstance(error, errors.HFValidationError):
        return ModelError(f"{quoted(repository)} is not a valid hub id: {_first_line(error)}")
    if isinstance(error, errors.GatedRepoError):
        return ModelError(
            f"{repository} is gated: ask for access at {hub}/{repository}, then {LOG_IN}; or choose another model"
        )
    if isinstance(error, errors.RepositoryNotFoundError):
        return ModelError(f"{hub} has no model {repository}, or it is private; check the spelling, or {LOG_IN}")
    if isinstance(error, errors.RevisionNotFoundError):
        return ModelError(f"{repository} has no revision {quoted(revision)}; check the branch, tag or commit")
    if isinstance(error, errors.HfHubHTTPError):
        return _http_refusal(error.response.status_code, error.response.headers, repository, hub)
    if isinstance(error, errors.OfflineModeIsEnabled):
        return ModelError(f"{repository} is not in the cache and offline mode is on (HF_HUB_OFFLINE); unset it")
    if isinstance(error, errors.HTTPError):  # type: ignore[attr-defined]
        return ModelError(f"{hub} cannot be reached for {repository} ({_first_line(error)}); {network_advice(error)}")
    return ModelError(
        f"downloading {repository} from {hub} failed ({_first_line(error)}); try again, what has arrived is kept"
    )


def is_unreachable(error: Exception) -> bool:
    """Whether the hub gave no answer that says anything about the model: a complete cache may do then."""
    from huggingface_hub import errors

    if isinstance(error, errors.RevisionNotFoundError | errors.HFValidationError):
        return False
    return isinstance(error, errors.HTTPError | errors.OfflineModeIsEnabled)  # type: ignore[attr-defined]


def why_unreachable(error: Exception, endpoint: str | None) -> tuple[str, str]:
    """(what is in the way, what to do about it), for an error that `is_unreachable`."""
    from huggingface_hub import constants, errors

    hub = endpoint or constants.ENDPOINT
    if isinstance(error, errors.OfflineModeIsEnabled):
        return "offline mode is on (HF_HUB_OFFLINE)", "unset HF_HUB_OFFLINE"
    if isinstance(error, errors.HfHubHTTPError):
        return f"{hub} answers HTTP {error.response.status_code}", "try again later"
    return f"{hub} cannot be reached ({_first_line(error)})", network_advice(error)


def _http_refusal(status: int, headers: Mapping[str, str], repository: str, hub: str) -> ModelError:
    if status == 401 and "invalid" in headers.get("x-error-message", "").lower():
        return ModelError(f"{hub} does not accept the token; {LOG_IN} with a valid one, or unset HF_TOKEN")
    if status in (401, 403):
        return ModelError(f"{hub} refuses {repository} (HTTP {status}); {LOG_IN} with access to it")
    if status == 429:
        wait = headers.get("retry-after", "")
        when = f"in {wait} seconds" if wait.isdigit() else "later"
        return ModelError(
            f"{hub} limits the rate of requests (HTTP 429); try again {when}, or {LOG_IN} for a higher limit"
        )
    return ModelError(f"{hub} answered HTTP {status} for {repository}; try again later, or give a local folder")


def network_advice(error: Exception) -> str:
    """What to do about an error of the network, in a few words."""
    from huggingface_hub import errors

    text = str(error)
    if CERTIFICATE in text:
        return "its TLS certificate is not trusted here; set SSL_CERT_FILE to your network's certificates"
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "ProxyError" in kinds:
        return "check the proxy (HTTPS_PROXY)"
    if isinstance(error, errors.HTTPError) and "TimeoutException" in kinds:  # type: ignore[attr-defined]
        return "it is too slow to answer; try again"
    return "check the network"


def _first_line(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return explanation(lines[0].rstrip(".")) if lines else type(error).__name__
