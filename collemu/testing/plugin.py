"""Plugin of pytest: tests that MPI processes run together.

``@pytest.mark.ranks(N)`` runs a test in N processes, started by pytest itself. Under ``mpirun -n N python -m pytest``
all processes run the tests of this session together: what fails in one fails in all. The fixture ``comm`` is their
communicator. Nothing is imported that pytest has not, before a test needs it.
"""

import os
import sys
from collections.abc import Generator
from typing import TYPE_CHECKING, Any, NamedTuple

import pytest

if TYPE_CHECKING:
    from collemu.ranks.part import Communicator
    from collemu.testing.together import Together

DEFAULT_TIMEOUT_S = 120.0
JOB = "COLLEMU_TESTING_JOB"  # environment variable of processes that another pytest started

_together: "pytest.StashKey[Together]" = pytest.StashKey()
_stderr: "pytest.StashKey[int]" = pytest.StashKey()


class Wanted(NamedTuple):
    """What a test's marker says: how many processes, and for how long."""

    ranks: int
    timeout_s: float


def wanted(item: pytest.Item) -> Wanted | None:
    """What the marker of a test says; None without one.

    Raises
    ------
    UsageError
        If it says nothing that can be done.
    """
    marker = item.get_closest_marker("ranks")
    if marker is None:
        return None
    try:
        return _read(*marker.args, **marker.kwargs)
    except TypeError:
        written = ", ".join([*map(repr, marker.args), *(f"{name}={value!r}" for name, value in marker.kwargs.items())])
        what = f"{item.nodeid}: the marker ranks({written}) does not say how many processes"
        raise pytest.UsageError(f"{what}; write ranks(3), or ranks(3, timeout=60)") from None


def _read(n: Any, timeout: Any = DEFAULT_TIMEOUT_S) -> Wanted:
    """A marker's arguments, or a TypeError as for arguments that there are not."""
    if type(n) is not int or n < 1 or type(timeout) not in (int, float) or not timeout > 0:
        raise TypeError
    return Wanted(n, float(timeout))


@pytest.fixture(scope="session")
def comm(request: pytest.FixtureRequest) -> "Communicator":
    """Communicator of all processes under mpirun, for tests alone; of one process elsewhere, without MPI."""
    if _together in request.config.stash:
        return request.config.stash[_together].comm
    from collemu.ranks.alone import Alone

    return Alone()


def pytest_configure(config: pytest.Config) -> None:
    """Add the marker; where another pytest started this one, tell it what happens."""
    config.addinivalue_line("markers", "ranks(n, timeout=120): run the test in n MPI processes (collemu)")
    job = os.environ.pop(JOB, None)  # no test is to hand it on
    if job is not None:
        from collemu.testing.reporting import Reporter

        config.pluginmanager.register(Reporter(config, job), "collemu-reporter")


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests in processes come last, those of equally many after each other, so that they share their processes."""
    sizes = [found.ranks if (found := wanted(item)) else 0 for item in items]
    if any(sizes) and not _under_mpirun():
        items[:] = [items[place] for place in sorted(range(len(items)), key=sizes.__getitem__)]


def pytest_collection_finish(session: pytest.Session) -> None:
    """Under mpirun, where tests are for this, start MPI and see that all processes have the same tests."""
    config = session.config
    if config.option.collectonly or not _under_mpirun() or not any(map(_is_ours, session.items)):
        return
    from collemu.ranks.launch import launched_rank, start_mpi
    from collemu.testing.together import Together

    config.stash[_stderr] = os.dup(2)
    if launched_rank() > 0:  # what fails anywhere fails in rank 0, which says it
        silent = open(os.devnull, "w")  # noqa: SIM115 (until the process ends)
        config.get_terminal_writer()._file = silent  # pyright: ignore[reportPrivateUsage]
    together = Together(start_mpi()).__enter__()
    config.stash[_together] = together
    for item in session.items:
        limits = wanted(item)
        if limits is not None and limits.ranks != together.comm.size:
            reason = f"it is for {limits.ranks} processes, and mpirun started {together.comm.size}"
            item.add_marker(pytest.mark.skip(reason=reason))
    names = [item.nodeid for item in session.items]
    if not all(each == names for each in together.allgather(names)):
        raise pytest.UsageError("the processes of mpirun have collected different tests; they must all run the same")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item, nextitem: pytest.Item | None) -> bool | None:
    """Have a marked test run by processes of its own."""
    if _under_mpirun() or wanted(item) is None:
        return None
    from collemu.testing.launched import run_launched

    run_launched(item, nextitem)
    return True


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    """All processes together."""
    limits = wanted(item)
    if _together in item.config.stash and limits is not None:
        import faulthandler

        # Python's own limits would wait until MPI returns
        faulthandler.dump_traceback_later(limits.timeout_s, exit=True, file=item.config.stash[_stderr])
    return (yield from _shared(item, "the setup of"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    """All processes together."""
    return (yield from _shared(item, ""))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    """All processes together."""
    try:
        return (yield from _shared(item, "the teardown of"))
    finally:
        if _together in item.config.stash and wanted(item) is not None:
            import faulthandler

            faulthandler.cancel_dump_traceback_later()


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Let go of the other processes, when all have come to the end; take with it those that were started here."""
    together = session.config.stash.get(_together, None)
    if together is not None:
        if session.exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR):
            from collemu.ranks.launch import abort

            abort(together.comm, f"collemu.testing: pytest of rank {together.comm.rank} was interrupted")
        together.__exit__()
    if "collemu.testing.launched" in sys.modules:
        from collemu.testing.launched import end_launch

        end_launch(session, at_once=True)


def _shared(item: pytest.Item, phase: str) -> Generator[None, Any, Any]:
    """Run a phase of a test, and fail or skip where another process has."""
    __tracebackhide__ = True
    if _together not in item.config.stash:
        return (yield)
    from collemu.testing.together import FAILED, SKIPPED, RankError, failures, outcome_of

    result, raised = None, None
    try:
        result = yield
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raised = error
    own = outcome_of(raised)
    everybody = item.config.stash[_together].share(own, f"{phase} {item.nodeid}".strip())
    failed = [outcome for outcome in everybody if outcome.how == FAILED]
    if isinstance(raised, RankError):
        pytest.fail(own.text, pytrace=False)  # lines of this package would say nothing
    if failed and own.how != FAILED:
        pytest.fail(failures(everybody), pytrace=False)
    if raised is not None:
        if len(failed) > 1:
            raised.add_note(failures(everybody))
        raise raised
    if skipped := [outcome for outcome in everybody if outcome.how == SKIPPED]:
        pytest.skip(skipped[0].text)
    return result


def _is_ours(item: pytest.Item) -> bool:
    """Whether a test is marked, or uses the fixture ``comm`` of this plugin and not one of its own."""
    found = getattr(getattr(item, "_fixtureinfo", None), "name2fixturedefs", {}).get("comm")
    return wanted(item) is not None or (found is not None and found[-1].func.__module__ == __name__)


def _under_mpirun() -> bool:
    from collemu.ranks.launch import under_mpirun

    return under_mpirun()
