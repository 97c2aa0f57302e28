"""The points of a sweep file: tables of perf's flags, each spelled out as perf does it."""

import argparse
import dataclasses
import json
import tomllib
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from collemu.arguments import refuse_unknown
from collemu.cli import options
from collemu.cli.files import is_file
from collemu.cli.fits import Fit
from collemu.cli.measure import add_measure_flags
from collemu.cli.options import Point
from collemu.cli.outputs import reason

if TYPE_CHECKING:
    from collemu.tensors import Tensor

TOP = ("name", "seed", "defaults", "sweep")
WITHOUT_EFFECT = ("--iters", "--warmup_iters")
MOST_POINTS = 10_000_000


@dataclass(frozen=True)
class Task:
    """A point to run, and how.

    Attributes
    ----------
    point : Point
    check : int
        As `collemu.cli.measure.measure` takes it.
    data : str or None
        File of the tensor that stands for the size.
    """

    point: Point
    check: int
    data: str | None

    def __str__(self) -> str:
        """What errors and progress call it."""
        return f"{self.point} on {self.point.system}" + (f" with {self.data}" if self.data else "")


@dataclass(frozen=True)
class Plan:
    """What a sweep file asks for.

    Attributes
    ----------
    name : str
    seed : int
        As `collemu.emulate` takes it.
    tasks : tuple of Task
        Each once, in the order of the file.
    left_out : tuple of str
        Why some of what was asked for is no point.
    """

    name: str
    seed: int
    tasks: tuple[Task, ...]
    left_out: tuple[str, ...]

    def fingerprint(self) -> str:
        """Twelve hexadecimal digits of all that the numbers depend on, beside versions and sources."""
        from collemu.cli.points import load

        systems = {task.point.system: load(task.point.system).fingerprint for task in self.tasks}
        names = {name for task in self.tasks for name in _files(task)}
        files = {name: sha256(Path(name).read_bytes()).hexdigest() for name in sorted(names)}
        tasks = [dataclasses.asdict(task) for task in self.tasks]
        return sha256(json.dumps([self.seed, tasks, systems, files]).encode()).hexdigest()[:12]

    def counted(self) -> list[tuple[str, str, int]]:
        """System, collective, and how many points of them."""
        counts = Counter((task.point.system, task.point.collective) for task in self.tasks)
        return [(*key, count) for key, count in counts.items()]


def _files(task: Task) -> Iterator[str]:
    if is_file(task.point.algorithm):
        yield task.point.algorithm
    if task.point.counts:
        yield task.point.counts
    if task.data:
        yield _path(task.data)


@lru_cache
def load_data(name: str) -> "Tensor":
    """The tensor of FILE or FILE:NAME, read once."""
    from collemu.tensors import load_tensor

    return load_tensor(name)


def _path(data: str) -> str:
    """The file of FILE:NAME."""
    return data if Path(data).exists() else data.rpartition(":")[0]


def read_plan(path: str) -> Plan:
    """Read a sweep file.

    Raises
    ------
    ValueError
        If it cannot be read, or asks for what there is not; the text names the file and the key.
    """
    content = _content(path)
    _refuse_unknown(path, content, TOP)
    name, seed = content.get("name", Path(path).stem), content.get("seed", 0)
    if not isinstance(name, str) or not name:
        raise ValueError(f"{path}: name is {name!r}; give it some letters")
    if type(seed) is not int or seed < 0:
        raise ValueError(f"{path}: seed is {seed!r}; give a whole number, 0 or more")
    defaults = _table(f"{path}: [defaults]", content.get("defaults", {}))
    tables = content.get("sweep")
    if not isinstance(tables, list) or not tables:
        raise ValueError(f"{path}: no [[sweep]]; give one table of perf's flags or more")
    tasks: dict[Task, None] = {}
    left_out: dict[str, None] = {}
    for number, given in enumerate(cast("list[object]", tables), 1):
        where = f"{path}: [[sweep]] {number}"
        table = _table(where, given)
        try:
            more, why = _spelled_out(defaults | table)
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None
        tasks |= dict.fromkeys(more)
        left_out |= dict.fromkeys(why)
        if len(tasks) > MOST_POINTS:
            raise ValueError(f"{where}: more than {MOST_POINTS} points; make several sweeps of it")
    return Plan(name, seed, tuple(tasks), tuple(left_out))


def _refuse_unknown(where: str, given: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in given:
        try:
            refuse_unknown(key, known, "key")
        except ValueError as error:
            raise ValueError(f"{where}: {error}") from None


def _table(where: str, given: object) -> dict[str, Any]:
    """A table of perf's flags."""
    if not isinstance(given, dict):
        raise ValueError(f"{where} is {given!r}; give a table of perf's flags")
    table = cast("dict[str, Any]", given)
    _refuse_unknown(where, table, _flags())
    return table


def _content(path: str) -> dict[str, Any]:
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"cannot read {path}: {reason(error)}") from None
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ValueError(f"{path} is no TOML: {error}") from None


def _spelled_out(table: Mapping[str, Any]) -> tuple[list[Task], list[str]]:
    """The tasks of a table, and what is left out of it."""
    if "collective" not in table:
        raise ValueError("no collective; give one of perf's, or a list of them")
    words = [_text("collective", table["collective"])]
    for key, value in table.items():
        if key != "collective":
            words.append(f"--{key}={_text(key, value)}")  # as one word: a value may begin with a dash
    arguments = _parser().parse_args(words)
    check = options.whole(arguments.check, "check", least=0, most=2)
    data: str | None = arguments.data
    fit = Fit(None if data is None else load_data(data))
    if data is not None:
        if not {"minbytes", "maxbytes"}.isdisjoint(table):
            raise ValueError("minbytes and maxbytes have no meaning beside data, whose size is its own")
        arguments.minbytes = arguments.maxbytes = "0"
    points = options.resolve_points(arguments, fits=fit)
    return [Task(point, check, data) for point in points], fit.left_out


def _text(key: str, value: object) -> str:
    """A value, or several, as perf's flags take them."""
    several = cast("list[object]", value) if isinstance(value, list) else [value]
    if not several or not all(isinstance(each, str | int) and not isinstance(each, bool) for each in several):
        raise ValueError(f"{key} is {value!r}; give words or whole numbers, or a list of them")
    return ",".join(map(str, several))


class _Parser(argparse.ArgumentParser):
    """An argument parser that raises."""

    def error(self, message: str) -> NoReturn:
        raise ValueError(message)


@lru_cache
def _parser() -> _Parser:
    parser = _Parser(add_help=False, allow_abbrev=False)
    options.add_collective_flags(parser)
    add_measure_flags(parser, parser)
    return parser


@lru_cache
def _flags() -> tuple[str, ...]:
    """What a table may hold: the collective, and the long flags of perf that change what is emulated."""
    words = [word for action in _parser()._actions for word in action.option_strings]  # pyright: ignore[reportPrivateUsage]
    return ("collective", *(word[2:] for word in words if word.startswith("--") and word not in WITHOUT_EFFECT))
