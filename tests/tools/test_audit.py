"""What a report of vulnerabilities means."""

import pytest

from tools import audit

FLAW = {"id": "PYSEC-1", "fix_versions": ["2.0"]}
CLEAN = {"name": "a", "version": "1.0", "vulns": []}
FLAWED = {"name": "b", "version": "1.0", "vulns": [FLAW]}
UNKNOWN = {"name": "c", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("packages", "code", "told"),
    [
        ([CLEAN, UNKNOWN], 0, "1 of 2 packages audited, 0 vulnerabilities"),
        ([CLEAN, FLAWED], 1, "b 1.0: PYSEC-1, fixed in 2.0"),
        ([UNKNOWN], 0, "nothing was audited"),
    ],
)
def test_verdicts(packages: list[object], code: int, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit.verdict({"dependencies": packages}) == code
    printed = capsys.readouterr()
    assert told in printed.out + printed.err


def test_what_is_accepted_has_a_reason(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(audit.ACCEPTED, "PYSEC-1", "only its server is at fault")
    assert audit.verdict({"dependencies": [FLAWED]}) == 0
    assert "accepted: only its server is at fault" in capsys.readouterr().out


def test_advisories_out_of_reach_are_said_to_be(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Done:
        stdout, stderr = "", "ConnectionError: no route"

    monkeypatch.setattr(audit.subprocess, "run", lambda *_, **__: Done)
    assert audit.main() == 0
    assert "cannot be reached (ConnectionError: no route)" in capsys.readouterr().out
