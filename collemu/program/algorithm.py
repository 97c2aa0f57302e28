"""From a user's function to a schedule; what goes wrong in it is told by the line where it was written."""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any

import numpy as np
from collemu_kernels import kinds

from collemu.arguments import flag, one_of, shown, whole
from collemu.collectives import ROOTED
from collemu.program.recording import PUBLISH, Program, ProgramError
from collemu.schedule import Schedule

Function = Callable[..., Any]
_OPEN = PUBLISH[None] & 255  # publish, where nobody has said
_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


def algorithm(collective: str, *, name: str | None = None, in_place: bool = False) -> Callable[[Function], Algorithm]:
    """Make an algorithm of a function: a decorator.

    Parameters
    ----------
    collective : str
        What the algorithm does: any but alltoallv, which has no chunks without counts.
    name : str, optional
        What it is called; the function's name when left out.
    in_place : bool
        Input and output share memory.

    Returns
    -------
    decorator
        Of a function that takes a `Program`, and may take ``root``, ``channels`` and ``chunks``.

    Raises
    ------
    ValueError
        For another collective; the text lists them.
    """
    from collemu.builders import BUILDERS

    one_of(collective, [name for name in BUILDERS if name != "alltoallv"], "algorithm: collective")
    flag(in_place, "algorithm: in_place")
    if name is not None and not isinstance(name, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ValueError(f"algorithm: name is {shown(name)}; give a text")

    def decorate(function: Function) -> Algorithm:
        if not inspect.isfunction(function):
            raise ValueError(f"algorithm: {shown(function)} is no function; put it above a def")
        _refuse_parameters(function)
        return Algorithm(collective, name or function.__name__, function, in_place)

    return decorate


@dataclass(frozen=True)
class Algorithm:
    """A user's algorithm; `schedule` writes it out.

    Attributes
    ----------
    collective, name : str
    function : callable
    in_place : bool
    """

    collective: str
    name: str
    function: Function
    in_place: bool = False

    def schedule(
        self,
        ranks: int,
        *,
        root: int = 0,
        channels: int | None = None,
        chunks: int | None = None,
        in_place: bool | None = None,
    ) -> Schedule:
        """Write the algorithm out for a number of ranks.

        Parameters
        ----------
        ranks : int
            With one rank every algorithm copies input to output, and the function is not called.
        root : int
            Root of a broadcast, reduce, gather or scatter; must name a rank, and is ignored elsewhere.
        channels, chunks : int, optional
            For a function that takes them.
        in_place : bool, optional
            In place of what the decorator says.

        Returns
        -------
        Schedule
            `collemu.verify` proves it, and names lines of the function where it cannot.

        Raises
        ------
        ProgramError
            For whatever goes wrong in the function; the text begins with file and line.
        ValueError
            For numbers that are out of range or that the function does not take.
        """
        from collemu.builders.single import single_rank

        ranks = whole(ranks, "ranks", least=1)
        root = whole(root, "root")
        if root >= ranks:
            raise ValueError(f"root {root} is not one of the {ranks} ranks; choose 0 to {ranks - 1}")
        arguments = self._arguments(root, channels, chunks)
        shared = self.in_place if in_place is None else flag(in_place, "in_place")
        if ranks == 1:
            return replace(single_rank(self.collective, self.name), in_place=shared)
        program = Program(self.collective, ranks, root if self.collective in ROOTED else 0, shared)
        with UsersCode(self.function.__code__.co_filename, self.defined_at, f" ({ranks} ranks)"):
            self.function(program, **arguments)
            return _lowered(program, self)

    @property
    def defined_at(self) -> str:
        """File and line of the function."""
        return _line_of(self.function)

    def _arguments(self, root: int, channels: int | None, chunks: int | None) -> dict[str, int]:
        """What the function takes of what there is; 1 for what it must have and nobody gives."""
        takes = inspect.signature(self.function).parameters
        found: dict[str, int] = {"root": root} if "root" in takes else {}
        for name, given in (("channels", channels), ("chunks", chunks)):
            if given is not None:
                found[name] = whole(given, name, least=1)
                if name not in takes:
                    raise ValueError(
                        f"{self.defined_at}: {self.name} takes no {name}, and {name} is {given}; "
                        f"write def {self.function.__name__}(p, {name}=1), or leave it out"
                    )
            elif name in takes and takes[name].default is inspect.Parameter.empty:
                found[name] = 1
        return found


class UsersCode:
    """A context in which a user's code runs.

    The folder of its file is importable, and errors come out as `ProgramError`, with the user's line.
    """

    def __init__(self, file: str, otherwise: str | None = None, addition: str = "") -> None:
        self._file, self._otherwise, self._addition = file, otherwise or file, addition
        self._folder = os.path.dirname(os.path.abspath(file))

    def __enter__(self) -> None:
        sys.path.insert(0, self._folder)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        if self._folder in sys.path:
            sys.path.remove(self._folder)
        if error is None or not isinstance(error, (Exception, SystemExit)) or isinstance(error, ProgramError):
            return
        ours = isinstance(error, ValueError) and _raised_here(error)
        text = str(error) if ours else f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
        if isinstance(error, SystemExit):
            text = "the file ends the program; leave out exit()"
        if isinstance(error, SyntaxError) and error.filename is not None:
            where, text = f"{error.filename}:{error.lineno or 1}", f"{type(error).__name__}: {error.msg}"
        else:
            where = self._where(error)
        raise ProgramError(f"{where}: {' '.join(text.split())}{self._addition}") from error

    def _where(self, error: BaseException) -> str:
        """The innermost line in the user's file, or in one that lies beside it."""
        folder = self._folder + os.sep
        where = self._otherwise
        step = error.__traceback__
        while step is not None:
            file = step.tb_frame.f_code.co_filename
            path = os.path.abspath(file)
            beside = path.startswith(folder) and not path.startswith(_PACKAGE) and "site-packages" not in path
            if file == self._file or beside:
                where = f"{file}:{step.tb_lineno}"
            step = step.tb_next
        return where


def _raised_here(error: BaseException) -> bool:
    """Whether this package has raised an error, and not the user."""
    step = error.__traceback__
    while step is not None and step.tb_next is not None:
        step = step.tb_next
    return step is not None and step.tb_frame.f_code.co_filename.startswith(_PACKAGE)


def _line_of(function: Function) -> str:
    return f"{function.__code__.co_filename}:{function.__code__.co_firstlineno}"


def _refuse_parameters(function: Function) -> None:
    kinds_of = inspect.Parameter
    parameters = list(inspect.signature(function).parameters.values())
    if not parameters or parameters[0].kind not in (kinds_of.POSITIONAL_ONLY, kinds_of.POSITIONAL_OR_KEYWORD):
        raise ValueError(f"algorithm: {function.__name__} must take the program; write def {function.__name__}(p)")
    for parameter in parameters[1:]:
        can_be_named = parameter.kind in (kinds_of.KEYWORD_ONLY, kinds_of.POSITIONAL_OR_KEYWORD)
        known = parameter.name in ("root", "channels", "chunks") and can_be_named
        if not known and parameter.default is kinds_of.empty:
            raise ValueError(
                f"algorithm: {function.__name__} takes {parameter.name!r}; there are p, root, channels and chunks, "
                "and others need a default"
            )


def _lowered(program: Program, made: Algorithm) -> Schedule:
    from collemu.interop.publishing import publish_what_is_final
    from collemu.program.lowering import lower_statements, lower_threads

    if program.threads:
        schedule = lower_threads(program, made.defined_at)
    elif program.statements:
        schedule = lower_statements(program, made.defined_at)
    else:
        raise ValueError(f"{made.name} does nothing for {program.ranks} ranks; copy chunks, or make threads")
    asked = schedule.ops["publish"].copy()
    schedule.ops["publish"][asked == _OPEN] = kinds.KEEP
    found = publish_what_is_final(schedule)
    publish = np.where(asked == _OPEN, found.ops["publish"], asked)
    schedule.ops["publish"] = publish
    return replace(schedule, algorithm=made.name)
