"""Commands of `sojourn`, run in this process."""

import json

import pytest

from sojourn.cli import main


@pytest.fixture
def refused(capsys):
    """Run a command that must fail as user errors do; return its only line."""

    def run(*arguments):
        assert main([*map(str, arguments)]) == 2
        out, error = capsys.readouterr()
        assert out == ""
        (line,) = error.splitlines()
        return line

    return run


@pytest.fixture
def as_json(capsys):
    """Run a command with --json; return what it prints."""

    def run(*arguments):
        assert main([*map(str, arguments), "--json"]) == 0
        return json.loads(capsys.readouterr().out)

    return run
