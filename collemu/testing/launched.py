"""Tests that run in MPI processes of their own: one mpirun for all that follow each other and want equally many."""

import json
import subprocess
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from collemu.ranks.launch import start_under_mpi
from collemu.testing.plugin import JOB, Wanted, wanted

START_S = 60.0  # that processes may take before the first report
POLL_S = 0.02
SAID = 30  # last lines of what processes that died have said
PLUGIN = "collemu.testing.plugin"
# Lines of tracebacks that nobody needs.
MACHINERY = (
    "/_pytest/",
    "/pluggy/",
    "/pytest/__main__.py",
    "<frozen runpy>",
    "/threading.py",
    "/ranks/watchdog.py",
    "/numba/",
)
TIMED_OUT = "Timeout ("  # as Python's faulthandler says it

_launch: "pytest.StashKey[Launch]" = pytest.StashKey()


class Launch:
    """Processes that run some tests one after the other, and what they have reported so far."""

    def __init__(self, items: list[pytest.Item], limits: list[Wanted]) -> None:
        self.config = items[0].config
        self._folder = TemporaryDirectory(prefix="collemu-")
        folder = Path(self._folder.name)
        self.tests = [item.nodeid for item in items]
        self._reports, self._read = folder / "reports", 0
        self._found: dict[str, list[Any]] = {}
        self._reports.touch()
        job = folder / "job.json"
        job.write_text(json.dumps({"tests": self.tests, "reports": str(self._reports)}))
        self._said = folder / "said"
        try:
            with self._said.open("w") as said:
                self._process = start_under_mpi(
                    limits[0].ranks,
                    ["-m", "pytest", *_arguments(items)],
                    START_S + sum(2 * each.timeout_s for each in limits),
                    stdout=said,
                    stderr=subprocess.STDOUT,
                    **{JOB: str(job)},
                )
        except ValueError:
            self._folder.cleanup()
            raise

    def reports_of(self, test: str, timeout_s: float) -> list[Any]:
        """Wait for the reports of a test: of setup, call and teardown.

        Raises
        ------
        pytest.fail.Exception
            If the processes die before they have all, or do not send them in time.
        """
        __tracebackhide__ = True
        limit = time.monotonic() + timeout_s + START_S
        while True:
            ended = self._process.poll() is not None  # before reading: what comes between is read
            self._read_reports()
            reports = self._found.get(test, [])
            if reports and reports[-1].when == "teardown":
                return reports
            said = self._said.read_text(errors="replace")
            words = last_words(said)
            if ended and TIMED_OUT in said:
                cold = " (compiling kernels: run `collemu warm` once)" if "load_kernels" in said else ""
                pytest.fail(f"not done in {timeout_s:g} s{cold}; what its processes were at:\n{words}", pytrace=False)
            if ended:
                pytest.fail(f"its processes ended with code {self._process.returncode}:\n{words}", pytrace=False)
            if time.monotonic() > limit:
                pytest.fail(f"nothing from its processes in {timeout_s + START_S:g} s:\n{words}", pytrace=False)
            time.sleep(POLL_S)

    def end(self) -> None:
        """End the processes, if they have not."""
        if self._process.poll() is None:
            try:
                self._process.wait(timeout=5)  # they are about to end by themselves, most likely
            except subprocess.TimeoutExpired:
                self._process.terminate()
                self._process.wait(timeout=10)
        self._folder.cleanup()

    def kill(self) -> None:
        """End the processes at once."""
        self._process.terminate()
        self.end()

    def _read_reports(self) -> None:
        with self._reports.open(encoding="utf-8") as file:
            file.seek(self._read)
            text = file.read()
        whole = text[: text.rfind("\n") + 1]
        self._read += len(whole.encode())
        for line in whole.splitlines():
            data = json.loads(line)
            for name in ("location", "longrepr"):  # JSON has no tuples; the second is one of a skipped test
                data[name] = tuple(data[name]) if isinstance(data[name], list) else data[name]
            report: Any = self.config.hook.pytest_report_from_serializable(config=self.config, data=data)
            self._found.setdefault(report.nodeid, []).append(report)


def last_words(said: str) -> str:
    """The end of what processes have said, without the lines of tracebacks that are in none of their tests."""
    lines = [line for line in said.splitlines() if not any(part in line for part in MACHINERY)]
    return "\n".join(lines[-SAID:])


def run_launched(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Run a marked test in its processes, and log what they report as if it had run here."""
    limits = wanted(item)
    assert limits is not None
    hook = item.ihook
    hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
    reports: list[Any] = []
    call = pytest.CallInfo[None].from_call(
        lambda: reports.extend(_reports(item, limits)), "call", reraise=(KeyboardInterrupt,)
    )
    if call.excinfo is not None:
        end_launch(item.session, at_once=True)
        reports = [hook.pytest_runtest_makereport(item=item, call=call)]
    following = wanted(nextitem) if nextitem is not None else None
    if following is None or following.ranks != limits.ranks:
        end_launch(item.session)
    # nothing of this test was set up here, but what the one before has left may have to go
    left: Any = item.session._setupstate  # pyright: ignore[reportPrivateUsage]
    cleanup = pytest.CallInfo[None].from_call(lambda: left.teardown_exact(nextitem), "teardown")
    if cleanup.excinfo is not None:
        reports.append(hook.pytest_runtest_makereport(item=item, call=cleanup))
    for report in reports:
        hook.pytest_runtest_logreport(report=report)
    hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def end_launch(session: pytest.Session, *, at_once: bool = False) -> None:
    """End the processes of a session, if there are any."""
    launch = session.stash.get(_launch, None)
    if launch is not None:
        del session.stash[_launch]
        launch.kill() if at_once else launch.end()


def _reports(item: pytest.Item, limits: Wanted) -> list[Any]:
    __tracebackhide__ = True
    session = item.session
    launch = session.stash.get(_launch, None)
    if launch is None or item.nodeid not in launch.tests:
        end_launch(session)
        try:
            launch = session.stash[_launch] = Launch(*_following(item, limits))
        except ValueError as error:
            pytest.skip(str(error))
    return launch.reports_of(item.nodeid, limits.timeout_s)


def _following(item: pytest.Item, limits: Wanted) -> tuple[list[pytest.Item], list[Wanted]]:
    """A test, and those after it that want as many processes; alone where others may run those."""
    if hasattr(item.config, "workerinput"):  # of pytest-xdist
        return [item], [limits]
    items = item.session.items
    found: list[tuple[pytest.Item, Wanted]] = []
    for each in items[items.index(item) :]:
        asked = wanted(each)
        if asked is None or asked.ranks != limits.ranks:
            break
        found.append((each, asked))
    return [each for each, _ in found], [asked for _, asked in found]


def _arguments(items: list[pytest.Item]) -> list[str]:
    """What pytest is called with in the processes: the files, and of this one's options what decides how tests run."""
    config = items[0].config

    def given(option: str) -> list[str]:
        return list(getattr(config.option, option) or ())

    files = dict.fromkeys(str(item.path) for item in items)
    plugins = [name for name in given("plugins") if name != PLUGIN]
    settings = [setting for setting in given("override_ini") if not setting.startswith("addopts=")]
    return [
        f"--rootdir={config.rootpath}",
        *(("-c", str(config.inipath)) if config.inipath else ()),
        f"--import-mode={config.option.importmode}",
        *(word for setting in (*settings, "addopts=") for word in ("-o", setting)),
        *(word for rule in given("pythonwarnings") for word in ("-W", rule)),
        *(word for name in (*plugins, "no:cacheprovider", PLUGIN) for word in ("-p", name)),
        "--quiet",
        *files,
    ]
