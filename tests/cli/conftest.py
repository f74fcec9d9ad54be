"""The command line, called in the tests' own process."""

import sys

import pytest

from cofal.cli import main


@pytest.fixture
def cofal(monkeypatch, capsys):
    """Call it: (exit status, stdout, stderr)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["cofal", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "120")
        with pytest.raises(SystemExit) as exit_:
            main()
        out, err = capsys.readouterr()
        return exit_.value.code or 0, out, err

    return call
