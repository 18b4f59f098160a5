"""What a user is told when the hub, or the way to it, refuses."""

import re
from pathlib import Path

import httpx2
import pytest

from limelight.errors import ModelError
from limelight.models.hub import resolve
from limelight.models.hub.refusals import refusal
from tests.models.hub.hub_server import Hub, Reported


class TestRefusals:
    @pytest.mark.parametrize(
        ("refusal", "message"),
        [
            ((403, "GatedRepo"), "maker/model is gated: ask for access at .*, then log in with `hf auth login`"),
            ((401, "GatedRepo"), "maker/model is gated"),
            ((401, ""), "log in with `hf auth login` or set HF_TOKEN"),
            ((403, ""), r"refuses maker/model \(HTTP 403\); log in"),
            ((404, "RepoNotFound"), "has no model maker/model"),
            ((501, ""), "answered HTTP 501 for maker/model; try again later"),
            ((429, ""), r"limits the rate of requests \(HTTP 429\); try again later, or log in"),
        ],
    )
    def test_a_refusal_is_explained(
        self, tmp_path: Path, hub: Hub, reported: Reported, refusal: tuple[int, str], message: str
    ) -> None:
        hub.refusal = refusal
        with pytest.raises(ModelError, match=message) as caught:
            resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert "\n" not in str(caught.value)

    def test_a_limited_rate_says_for_how_long(self, tmp_path: Path, hub: Hub, reported: Reported) -> None:
        hub.refusal, hub.refused_headers = (429, ""), {"Retry-After": "300"}
        with pytest.raises(ModelError, match="try again in 300 seconds"):
            resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)

    def test_a_token_that_is_not_accepted_is_named(
        self, tmp_path: Path, hub: Hub, reported: Reported, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_old")
        hub.refusal = (401, "")
        hub.refused_headers = {"X-Error-Message": "Invalid credentials in Authorization header"}
        with pytest.raises(ModelError, match="does not accept the token; log in") as caught:
            resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)
        assert "hf_old" not in str(caught.value)

    def test_a_gated_model_whose_list_is_public_is_explained(
        self, tmp_path: Path, hub: Hub, reported: Reported
    ) -> None:
        hub.gated = True
        with pytest.raises(ModelError, match="maker/model is gated: ask for access"):
            resolve("maker/model", None, reported, endpoint=hub.endpoint, cache=tmp_path)

    @pytest.mark.parametrize(
        ("error", "advice"),
        [
            (httpx2.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] self-signed"), "set SSL_CERT_FILE"),
            (httpx2.ProxyError("407 Proxy Authentication Required"), r"check the proxy \(HTTPS_PROXY\)"),
            (httpx2.ReadTimeout("timed out"), "too slow to answer"),
            (httpx2.ConnectError("Name or service not known"), "check the network"),
            (OSError("No space left on device"), "what has arrived is kept"),
        ],
    )
    def test_the_way_to_the_hub_has_its_own_advice(self, error: Exception, advice: str) -> None:
        told = refusal(error, "maker/model", None, "https://hub.example")
        assert re.search(advice, str(told))
        assert str(error) in str(told)
