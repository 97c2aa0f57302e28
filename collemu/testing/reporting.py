"""In processes that pytest started for tests: run those that it asked for, and send it their reports."""

import json
from pathlib import Path
from typing import Any

import pytest

from collemu.ranks.launch import launched_rank


class Reporter:
    """Plugin of the pytest in each process: a report a line, written by rank 0 as soon as there is one.

    Parameters
    ----------
    config : pytest.Config
    job : str
        Path of a JSON file with the ids of ``tests``, and the path ``reports``.
    """

    def __init__(self, config: pytest.Config, job: str) -> None:
        told = json.loads(Path(job).read_text())
        self._config = config
        self._tests: list[str] = told["tests"]
        self._reports = Path(told["reports"]) if launched_rank() == 0 else None

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        """Keep what was asked for, in that order."""
        found = {item.nodeid: item for item in items}
        items[:] = [found[name] for name in self._tests if name in found]

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Send a report."""
        if self._reports is not None:
            data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
            with self._reports.open("a", encoding="utf-8") as file:
                file.write(json.dumps(data) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Tests that failed are no failure of this process, which might end the others before they are done."""
        if session.exitstatus == pytest.ExitCode.TESTS_FAILED:
            session.exitstatus = pytest.ExitCode.OK
