"""The two kinds of failure a person meets, each with the exit status the command line gives it."""

from __future__ import annotations


class CofalError(Exception):
    """A failure that is told in one line: what was wrong, with the value, and what to do."""

    exit_status = 1


class UserError(CofalError):
    """A mistake in what the user gave: a file, a value, an option. Exit status 2."""

    exit_status = 2


class EnvironmentFault(CofalError):
    """The machine failed, not the user: a full disk, an unreachable server. Exit status 1."""

    exit_status = 1
