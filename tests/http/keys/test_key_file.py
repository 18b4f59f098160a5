"""The file of keys: written whole, readable by its owner alone, refused with a reason, read anew when it changes."""

import json
import logging
import stat
import sys
from pathlib import Path

import pytest

from limelight.errors import ConfigError, Unauthorized
from limelight.http import HttpSettings, create_app
from limelight.http.auth import Authenticator
from limelight.http.keys import key_ring
from limelight.http.keys.key_file import KeyEntry, KeyFile, digest_of, new_key, read_keys, write_keys
from limelight.http.keys.key_ring import KeyRing
from limelight.testing import scripted_engine


def write(path: Path, **keys: dict[str, object]) -> None:
    write_keys(path, KeyFile(keys=tuple(KeyEntry(name=name, **fields) for name, fields in keys.items())))


def bearer(key: str) -> dict[bytes, bytes]:
    return {b"authorization": f"Bearer {key}".encode()}


def test_keys_are_long_random_and_not_in_the_file(tmp_path):
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("ll-") and len(key) >= 40 for key in keys)
    path = tmp_path / "keys.json"
    write(path, ada={"sha256": digest_of("ll-secret")})
    assert "ll-secret" not in path.read_text()
    assert read_keys(path).keys[0].scopes == ("infer",)
    if sys.platform != "win32":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [each.name for each in tmp_path.iterdir()] == ["keys.json"]


DIGEST = "0" * 64


def entries(*each: str) -> str:
    """A file with these entries, DIGEST for `#` and another digest for `%`."""
    return f'{{"keys": [{", ".join(each)}]}}'.replace("#", DIGEST).replace("%", "1" * 64)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("", "is no key file"),
        ("[]", "is no key file"),
        ('{"version": 2, "keys": []}', "version"),
        (entries('{"name": "a"}'), "sha256"),
        (entries('{"name": "a", "sha256": "secret"}'), r"\$.keys\[0\].sha256"),
        (entries('{"name": "a", "sha256": "#", "scopes": ["root"]}'), "root"),
        (entries('{"name": "a", "sha256": "#", "scopes": []}'), "no scopes"),
        (entries('{"name": "a", "sha256": "#", "scope": ["infer"]}'), "scope"),
        (entries('{"name": "", "sha256": "#"}'), "1 to"),
        (entries('{"name": "a", "sha256": "#", "max_num_requests": 0}'), "max_num_requests"),
        (entries('{"name": "a", "sha256": "#"}', '{"name": "b", "sha256": "#"}'), "twice"),
        (entries('{"name": "a", "sha256": "#"}', '{"name": "a", "sha256": "%"}'), "twice"),
    ],
)
def test_a_file_that_is_none_is_refused_with_its_place(tmp_path, content, says):
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=says) as refused:
        read_keys(path)
    assert str(path) in refused.value.message
    with pytest.raises(ConfigError):
        create_app(scripted_engine(), settings=HttpSettings(key_file=str(path)))


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read_keys(tmp_path / "none.json")
    with pytest.raises(ConfigError, match="cannot be written"):
        write_keys(tmp_path / "no" / "keys.json", KeyFile())


def test_keys_come_and_go_while_the_server_runs_and_a_broken_file_changes_nothing(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(key_ring, "SECONDS_BETWEEN_LOOKS", 0.0)
    path = tmp_path / "keys.json"
    write(path, ada={"sha256": digest_of("a")})
    authenticator = Authenticator({}, {}, KeyRing(path))
    assert authenticator.principal(bearer("a")).name == "ada"
    for headers in (bearer("b"), {}):
        with pytest.raises(Unauthorized):
            authenticator.principal(headers)
    write(path, bob={"sha256": digest_of("b"), "scopes": ("infer", "admin"), "max_num_requests": 3})
    bob = authenticator.principal(bearer("b"))
    assert (bob.scopes, bob.max_num_requests) == ({"infer", "admin"}, 3)
    with pytest.raises(Unauthorized):
        authenticator.principal(bearer("a"))
    with caplog.at_level(logging.INFO, "limelight"):
        for broken in ("{", None):
            if broken is None:
                path.unlink()
            else:
                path.write_text(broken)
            for _ in range(3):
                assert authenticator.principal(bearer("b")).name == "bob"
    messages = [record.getMessage() for record in caplog.records]
    assert sum("the keys stay as they were" in message for message in messages) == 2
    write(path)
    with pytest.raises(Unauthorized):
        authenticator.principal(bearer("b"))


def test_the_file_is_looked_at_once_a_second_at_most(tmp_path):
    path = tmp_path / "keys.json"
    write(path, ada={"sha256": digest_of("a")})
    ring = KeyRing(path)
    write(path)
    assert len(ring.principals()) == 1  # what has changed just now is seen by the next look


def test_the_file_is_plain_json(tmp_path):
    path = tmp_path / "keys.json"
    write(path, ada={"sha256": DIGEST, "models": ("m",)})
    assert json.loads(path.read_text()) == {
        "version": 1,
        "keys": [{"name": "ada", "sha256": DIGEST, "models": ["m"]}],
    }
