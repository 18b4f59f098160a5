"""`limelight keys`, and a server that reads its file."""

import pytest

from limelight.cli import main
from limelight.cli.options import build_parser
from limelight.cli.serve import http_settings
from limelight.http.keys.key_file import digest_of, read_keys


def test_keys_are_made_listed_and_removed(tmp_path, capsys):
    file = str(tmp_path / "keys.json")
    assert main(["keys", "add", file, "team-a"]) == 0
    key = capsys.readouterr().out.strip()
    [entry] = read_keys(tmp_path / "keys.json").keys
    assert (entry.name, entry.sha256, entry.scopes) == ("team-a", digest_of(key), ("infer",))
    options = (
        "--scope observe --scope admin --model m --max-num-requests 4 --best-priority -2 --weight 2.5 --private-cache "
        "--tokens-per-minute 6000 --burst-tokens 500"
    )
    assert main(["keys", "add", file, "ops", *options.split()]) == 0
    assert key not in capsys.readouterr().out
    assert main(["keys", "list", file]) == 0
    team, ops = capsys.readouterr().out.splitlines()
    assert team == "team-a: infer"
    limits = "at most 4; best priority -2; models m; weight 2.5; 6000 tokens per minute; 500 at once; private cache"
    assert ops == f"ops: observe, admin; {limits}"
    assert main(["keys", "remove", file, "team-a"]) == 0
    assert [entry.name for entry in read_keys(tmp_path / "keys.json").keys] == ["ops"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["list", "none.json"], "cannot be read"),
        (["remove", "keys.json", "nobody"], "no key named 'nobody'; it has ada"),
        (["add", "keys.json", "ada"], "has a key named 'ada'"),
        (["add", "keys.json", "bob", "--max-num-requests", "0"], "at least 1"),
        (["add", "keys.json", "bob", "--weight", "0"], "above 0"),
        (["add", "keys.json", "bob", "--tokens-per-minute", "nan"], "from 1 to 1000000000"),
        (["add", "keys.json", "bob", "--tokens-per-minute", "5", "--burst-tokens", "0"], "from 1 to 1000000000"),
        (["add", "keys.json", "bob", "--burst-tokens", "5"], "burst_tokens without tokens_per_minute"),
        (["add", "keys.json", ""], "1 to"),
    ],
)
def test_what_cannot_be_done_is_told_in_a_line_and_changes_nothing(tmp_path, monkeypatch, capsys, arguments, says):
    monkeypatch.chdir(tmp_path)
    assert main(["keys", "add", "keys.json", "ada"]) == 0
    before = (tmp_path / "keys.json").read_bytes()
    capsys.readouterr()
    assert main(["keys", *arguments]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    assert output.err.count("\n") == 1
    assert says in output.err
    assert (tmp_path / "keys.json").read_bytes() == before


def test_slips_are_told_by_the_command_that_they_belong_to(capsys):
    for arguments in (["keys"], ["keys", "add", "f"], ["keys", "add", "f", "n", "--scopes", "infer"], ["keys", "list"]):
        with pytest.raises(SystemExit):
            main(arguments)
    assert "--scope" in capsys.readouterr().err


def test_serve_takes_a_key_file(tmp_path):
    parser = build_parser({})
    options = parser.parse_args(["serve", "--key-file", str(tmp_path / "k"), "--private-caches", "--metrics-port", "0"])
    settings = http_settings(options)
    assert (settings.key_file, settings.private_caches) == (str(tmp_path / "k"), True)
    assert options.metrics_port == 0
