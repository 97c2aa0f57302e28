"""``collemu sweep FILE.toml``: many points, on one process or many, that go on where they were interrupted."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from collemu.cli.measure import measure
from collemu.cli.outputs import try_output
from collemu.cli.progress import Progress
from collemu.cli.sweep_journal import Finished, Journal
from collemu.cli.sweep_plan import Plan, Task, load_data, read_plan
from collemu.cli.sweep_table import check_output, columns_of, row_of, whole_table, write_table
from collemu.cli.table import lines_of
from collemu.cli.together import run_together
from collemu.cli.words import seconds

if TYPE_CHECKING:
    from collemu.ranks.part import Communicator

START = "mpirun -n 4 collemu sweep FILE.toml"
FAULTS_SHOWN = 5

DESCRIPTION = """\
Emulate all points of a sweep file: tables of perf's flags, whose values may be
lists. Writes a table with one tidy row a point, which holds what it depends on
and is the same whoever shares the work. Finished points are on disk at once:
the same command goes on where it was interrupted or killed. A point that fails
is a row with its error. Exit code 1 if one failed or came out wrong."""

EPILOG = """\
example of a sweep file:
  name = "fp8 on the wire"

  [[sweep]]
  collective = ["all_reduce", "all_gather"]
  algorithm = ["ring", "auto"]
  wire = ["none", "mxfp8_e4m3"]
  ranks = [8, 72]
  minbytes = "64K"
  maxbytes = "64M"
  stepfactor = 4

examples:
  collemu sweep fp8.toml --dry-run
  collemu sweep fp8.toml -o fp8.parquet
  mpirun -n 4 collemu sweep fp8.toml"""


def add_parser(subparsers: Any) -> None:
    """Add the command and its flags."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "sweep", description=DESCRIPTION, epilog=EPILOG, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("file", metavar="FILE", help="the sweep file (.toml)")
    add("-o", "--output", metavar="FILE", help="the table, .csv or .parquet (default: the sweep file's name, .csv)")
    add("--dry-run", action="store_true", help="say how many points there are, and run none")
    add("--retry", action="store_true", help="run again what has failed")
    add("--restart", action="store_true", help="begin anew: throw away what is done, and replace a table that is there")
    add("--timeout", metavar="S", help="under mpirun: end all where a process does no point in S seconds, and name it")


def run(arguments: argparse.Namespace) -> int:
    """Run what has not run yet, and write the table."""
    return run_together(arguments, lambda comm: _run(comm, arguments), start=START, alone=True)


def _run(comm: "Communicator", arguments: argparse.Namespace) -> int:
    from collemu.ranks.agreement import agree, agree_on_start

    first = comm.rank == 0
    agree_on_start(comm, arguments.words)
    timeout = agree(comm, lambda: seconds(arguments.timeout, "--timeout"))
    plan: Plan = comm.bcast(agree(comm, lambda: read_plan(arguments.file) if first else None))
    if arguments.dry_run:
        if first:
            print(_counted(plan))
        return 0
    record = agree(comm, lambda: _Record(plan, arguments) if first else None)
    left: list[int] = comm.bcast(record.left() if record else None)
    try:
        if left:
            _do(comm, plan, left, record, timeout)
        agree(comm, lambda: record.write() if record else None)
        return comm.bcast(record.tell() if record else None)
    except BaseException:
        if record:
            record.tell_partial()
        raise
    finally:
        if record:
            record.close()


def _counted(plan: Plan) -> str:
    """How many points there are, of what."""
    lines = lines_of(("system", "collective", "points"), plan.counted(), "<<>")
    notes = [f"# note: {text}" for text in plan.left_out]
    return "\n".join([f"# sweep {plan.name}: {len(plan.tasks)} points, none of them run", *lines, *notes])


def _do(comm: "Communicator", plan: Plan, left: list[int], record: "_Record | None", timeout: float | None) -> None:
    """Run the points that are left, in all processes; the first keeps what comes out."""
    from collemu.ranks.crosscheck import load_kernels
    from collemu.ranks.sharing import share
    from collemu.ranks.watchdog import Watchdog

    total = len(plan.tasks)
    with Progress(total, done=total - len(left)) as progress:
        progress.say("loading kernels")
        load_kernels(comm)
        with Watchdog(comm, timeout, "collemu sweep", each="process") as watchdog:

            def work(place: int) -> Finished:
                task = plan.tasks[left[place]]
                progress.say(str(task))
                watchdog.begin(lambda: f"is at {task}")
                finished = _finished(task, plan.seed)
                watchdog.end()
                return finished

            def keep(place: int, finished: Finished) -> None:
                assert record is not None
                record.journal.add(left[place], finished)
                progress.count()

            share(comm, len(left), work, keep)


def _finished(task: Task, seed: int) -> Finished:
    """Run a point; whatever it fails of is its result, and no reason to stop."""
    try:
        tensor = load_data(task.data) if task.data else None
        return Finished(columns_of(measure(task.point, task.check, tensor, seed)), None)
    except Exception as error:
        return Finished({}, " ".join(f"{error}".split()) or type(error).__name__)


class _Record:
    """What the first process knows of the sweep: its plan, what is done, and where that is kept."""

    def __init__(self, plan: Plan, arguments: argparse.Namespace) -> None:
        from collemu.provenance import sources_fingerprint, versions

        self._plan = plan
        self._output: str = arguments.output or Path(arguments.file).with_suffix(".csv").name
        check_output(self._output)
        try_output("-o", self._output)
        self._provenance = {"plan": plan.fingerprint(), "sources": sources_fingerprint(), **versions()}
        path = Path(f"{self._output}.journal")
        self._whole = None if arguments.restart or path.exists() else whole_table(self._output)
        if self._whole:
            self._whole.refuse_other(self._output, self._provenance, len(plan.tasks))
            if arguments.retry and self._whole.failed:
                raise ValueError(f"{self._output}: its journal is gone, so all would run again; say so with --restart")
        self.journal = Journal(path, self._provenance | {"points": len(plan.tasks)}, restart=arguments.restart)
        if arguments.retry:
            self.journal.forget_failures()

    def left(self) -> list[int]:
        """Numbers of the points that are to run."""
        if self._whole:
            return []
        return [number for number in range(len(self._plan.tasks)) if number not in self.journal.finished]

    def write(self) -> None:
        """Write the table, unless it is there; without failures the journal has served."""
        if self._whole is None:
            finished = self.journal.finished
            rows = [row_of(number, self._plan, finished[number], self._provenance) for number in sorted(finished)]
            write_table(self._output, rows)
        if not self._failed():
            self.journal.remove()

    def tell(self) -> int:
        """Say what has come out; 1 if something failed or is wrong."""
        numbers = self._failed()
        for number in numbers[:FAULTS_SHOWN]:
            print(f"# point {number} failed: {self.journal.finished[number].error}")
        if len(numbers) > FAULTS_SHOWN:
            print(f"# and {len(numbers) - FAULTS_SHOWN} more: column error")
        for text in self._plan.left_out:
            print(f"# note: {text}")
        wrong = sum(each.columns.get("nwrong") or 0 for each in self.journal.finished.values())
        failed, wrong = (self._whole.failed, self._whole.wrong) if self._whole else (len(numbers), wrong)
        again = "; --retry runs them again" if numbers else ""
        before = ", all done before" if self._whole else ""
        outcome = f"{len(self._plan.tasks)} points{before}, {failed} failed, {wrong} wrong elements"
        print(f"# sweep {self._plan.name}: {outcome}: {self._output}{again}", flush=True)
        return int(failed > 0 or wrong > 0)

    def tell_partial(self) -> None:
        """Say what is kept where not all could be done."""
        done, points = len(self.journal.finished), len(self._plan.tasks)
        text = f"{done} of {points} points are done, and kept in {self.journal.path}: the same command goes on"
        print(f"collemu sweep: {text}", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Let others have the journal."""
        self.journal.close()

    def _failed(self) -> list[int]:
        return [number for number, each in sorted(self.journal.finished.items()) if each.error is not None]
