"""Reads an execution plan of MSCCL++, of either of its formats, and names what is missing or wrong by its place."""

from __future__ import annotations

from os import PathLike, fspath

from collemu.arguments import one_of
from collemu.interop.msccl import words
from collemu.interop.mscclpp import dsl, older
from collemu.interop.mscclpp.fields import Fields, read_json
from collemu.interop.mscclpp.layout import MOST_CHUNKS, Layout
from collemu.interop.mscclpp.plan import Gpu
from collemu.interop.mscclpp.running import Running
from collemu.interop.publishing import publish_what_is_final
from collemu.interop.root import find_root
from collemu.schedule import Schedule, ScheduleError
from collemu.verification.structure import check_structure

PROTOCOLS = ("Simple", "LL")
COLLECTIVES = {**words.COLLECTIVES, "sendrecv": "sendrecv"}
_MOST_RANKS = 2**12
_MOST_BLOCKS = 2**10  # of a GPU


def read_mscclpp(path: str | PathLike[str], *, collective: str | None = None) -> Schedule:
    """Read a plan as a schedule.

    Writes to other GPUs become messages that threads of their own receive there, reads become messages that threads
    of their own send, signals without data become empty messages, and operations in the switch stay what they are.
    Operations of a thread block follow each other. The inner operations of a pipeline are done once, for a whole
    chunk; sums begin with the operand that is there already. Files say nothing of which values are final: see
    `collemu.interop.publishing`.

    Parameters
    ----------
    path : path of a file
    collective : str, optional
        What it does, where the file does not say (``custom``); others must agree.

    Returns
    -------
    Schedule
        In place if the file says so; of sound structure: `verify` proves the rest.

    Raises
    ------
    ValueError
        For what is no plan, or what schedules cannot say; the text names file, GPU, thread block and operation.
    ScheduleError
        For thread blocks that wait for ever.
    OSError
        If the file cannot be read.
    """
    if collective is not None:
        one_of(collective, words.PROMISES, "collective")
    try:
        return _schedule(read_json(path), collective)
    except ScheduleError as error:
        raise ScheduleError(f"{fspath(path)}: {error}") from None
    except ValueError as error:
        raise ValueError(f"{fspath(path)}: {error}") from None


def _schedule(plan: Fields, asked: str | None) -> Schedule:
    rows = plan.rows("gpus", "gpu", needed=True)
    if not rows or len(rows) > _MOST_RANKS:
        raise ValueError(f"plan: it has {len(rows)} gpus; it must have 1 to {_MOST_RANKS}")
    name = plan.text("name")
    collective = _find_collective(plan.text("collective", "colletive"), asked)
    protocol = plan.choice("protocol", PROTOCOLS)
    in_place = plan.truth("inplace")
    newer = "input_chunks" in rows[0]
    dialect = dsl if newer else older
    gpus: list[Gpu] = []
    for number, row in enumerate(rows):
        if (rank := row.whole("id")) != number:
            raise ValueError(f"{row.place}: id is {rank}; gpus come in order, from 0 on")
        inputs, outputs, scratch = (row.whole(each, most=MOST_CHUNKS) for each in dialect.CHUNKS)
        gpus.append(Gpu(rank, (inputs, outputs, scratch)))
    layout = Layout(
        collective, in_place, [gpu.chunks for gpu in gpus], dialect.CHUNKS[:2], dsl.parts(rows) if newer else 1
    )
    reader = dialect.Reader(rows, gpus, layout)
    for row, gpu in zip(rows, gpus, strict=True):
        blocks = row.rows("threadblocks", "threadblock", needed=True)
        if len(blocks) > _MOST_BLOCKS:
            raise ValueError(f"{row.place}: it has {len(blocks)} threadblocks; it must have at most {_MOST_BLOCKS}")
        for number, block in enumerate(blocks):
            if (found := block.whole("id")) != number:
                raise ValueError(f"{block.place}: id is {found}; threadblocks come in order, from 0 on")
            gpu.blocks.append(reader.block(block, gpu))

    threads, ops, channels = Running(gpus).run().finish()
    schedule = Schedule(
        collective,
        name,
        len(gpus),
        find_root(collective, threads, ops),
        channels,
        threads,
        ops,
        *layout.sizes,
        in_place=in_place,
        group_ranks=layout.group_ranks % len(gpus),
        protocol=protocol.lower(),
    )
    check_structure(schedule)
    return publish_what_is_final(schedule)


def _find_collective(word: str, asked: str | None) -> str:
    found = COLLECTIVES.get(word.lower(), asked if word == words.CUSTOM else None)
    if found is None:
        raise ValueError(
            "plan: collective is 'custom', which promises nothing: say which collective it is"
            if word == words.CUSTOM
            else f"plan: collective is {word[:60]!r}; choose {', '.join((*COLLECTIVES, words.CUSTOM))}"
        )
    if asked not in (None, found):
        raise ValueError(f"it does {found}, not {asked}")
    return found
