"""Running the command in this process."""

from collections.abc import Callable
from typing import NamedTuple

import pytest

from collemu.cli.main import main


class Outcome(NamedTuple):
    """What a command left: exit code, stdout, stderr."""

    code: int
    out: str
    err: str

    def rows(self) -> list[list[str]]:
        """Words of the lines that are no comments."""
        return [line.split() for line in self.out.splitlines() if line and not line.startswith("#")]


@pytest.fixture
def collemu(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """``collemu("perf", "all_reduce", ...)`` runs the command with those words."""

    def run(*words: object) -> Outcome:
        code = main([str(word) for word in words])
        return Outcome(code, *capfd.readouterr())

    return run
