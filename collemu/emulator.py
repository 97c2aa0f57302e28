"""Emulate a collective: its outputs to the last bit and its time to the femtosecond."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from collemu.arguments import instance_of, whole
from collemu.catalogue import Protocol, System
from collemu.collectives import REPLICATED, UNEVEN
from collemu.dtypes import to_user
from collemu.endpoint import memory_of_ranks
from collemu.fabric import routes_of, shared_of
from collemu.flow import simulate_flow
from collemu.in_switch import by_member, in_switch_of, refuse_in_switch, switch_adds
from collemu.lower import Lowered, lower
from collemu.memory import build_memory, no_data, replicas_identical
from collemu.model.bounds import Bounds, lower_bound
from collemu.payload import Payload, payload_of
from collemu.processes import simulate_processes
from collemu.provenance import versions
from collemu.published import find_recipe
from collemu.quantisations import Quantisations, quantisations_of
from collemu.recipe import Recipe, requantised
from collemu.rows import input_rows, listed, settled_count
from collemu.schedule import Schedule
from collemu.timeline import Timeline, timeline_of
from collemu.timing import Timing, simulate
from collemu.waiting import Waiting, waiting_of
from collemu.wire_parts import WireParts, wire_parts_of

FIDELITIES = ("auto", "packet", "flow", "processes")
QUICK_PACKETS = 2**28  # what `auto` emulates packet by packet: some seconds,
QUICK_PAIRS = 2**21  # and some 100 MB of queues
SWITCH_PACKETS = 4  # packets that take as long as one that a switch adds or copies
MOST_ELEMENTS = 2**40  # a rank: bytes of all ranks together then stay within int64


@dataclass(frozen=True)
class Links:
    """What every link carried. Arrays are (chips, lanes); bytes include packet headers.

    A lane is one link of every chip: those of the domain first, then, if several domains take part, the rails of the
    network. Under fidelity flow a column is a group of lanes that lead to the same chips, and busy time is that of one.

    Attributes
    ----------
    up_bytes, down_bytes : int64 arrays
        From chip to switch, and from switch to chip; where there is no switch, the same links twice: from, and to.
    up_busy_s, down_busy_s : float64 arrays
        How long each was sending, in seconds.
    up_stalled_s : float64 array
        How long each link from a chip was free and had a packet to send, but no credit: the switch was full. 0 under
        fidelity flow, which knows no credits.
    down_queued_s : float64 array
        How long a packet waited on average in the switch for its output; 0 without packets, and under flow.
    time_s : float
        Of the whole run.
    """

    up_bytes: NDArray[np.int64]
    down_bytes: NDArray[np.int64]
    up_busy_s: NDArray[np.float64]
    down_busy_s: NDArray[np.float64]
    up_stalled_s: NDArray[np.float64]
    down_queued_s: NDArray[np.float64]
    time_s: float

    @property
    def max_utilisation(self) -> float:
        """Share of the run for which the busiest link was sending, 0 to 1."""
        busiest = max(self.up_busy_s.max(initial=0.0), self.down_busy_s.max(initial=0.0))
        return float(busiest / self.time_s) if self.time_s else 0.0

    @property
    def total_bytes(self) -> int:
        """Bytes that chips put on links, headers included."""
        return int(self.up_bytes.sum())


@dataclass(frozen=True)
class Result:
    """What a collective did.

    Attributes
    ----------
    time_s, time_fs : float, int
        From the start to the last operation's finish, in seconds and in femtoseconds.
    outputs : array, list of arrays or None
        (ranks, elements), when data was given: numbers, or codes where codes came in. Of a reduce only the root's
        row counts. Of alltoallv, gather and scatter a list: what each rank gets, of a gather the root alone.
    replicas_identical : bool or None
        Whether all ranks hold the same bits; None where they need not, or without data.
    wire_bytes : int
        Bytes of all wire images sent: codes, scales and tensor scales, without lines and packet headers. What a switch
        reads counts as sent by each member, and what it copies once.
    wire_bytes_per_rank : int64 array
        The same by sending rank.
    links : Links
    timeline : Timeline or None
    bounds : Bounds
        No time can lie below ``bounds.total_s``.
    header : dict
        What the run depends on: versions, system and its fingerprint, fidelity, protocol, recipe, and which
        constants are estimates.
    lowered : Lowered
        What ran: ``lowered.messages`` has source, destination, channel, number and bytes of every message.
    payload : Payload
        What it carried: dtypes, recipe, operator.
    memory_bytes : int64 array
        Bytes read from and written to the memory of each rank's chip, by its operations and by switches.
    memory_utilisation : float
        Share of the run for which the busiest chip's memory was needed, at its full rate. Above 1, several threads,
        or what switches read and write, together had more of it than there is, which the model lets them: the time is
        too short.
    saturated : int or None
        Numbers that lay beyond the largest one of the wire format, or of a narrow dtype, when they were rounded to it,
        over all ranks; None without data.
    waiting : Waiting or None
        What every rank's threads did with their time, and what they waited for; None without a timeline.
    """

    time_s: float
    time_fs: int
    outputs: NDArray[Any] | list[NDArray[Any]] | None
    replicas_identical: bool | None
    wire_bytes: int
    wire_bytes_per_rank: NDArray[np.int64]
    links: Links
    timeline: Timeline | None
    bounds: Bounds
    header: dict[str, Any]
    lowered: Lowered
    payload: Payload
    memory_bytes: NDArray[np.int64]
    memory_utilisation: float
    waiting: Waiting | None
    saturated: int | None

    @cached_property
    def wire_parts(self) -> WireParts:
        """What the bytes of the messages are: codes, scales, padding."""
        return wire_parts_of(self.lowered, self.payload)

    @cached_property
    def quantisations(self) -> Quantisations:
        """How often numbers were rounded to a narrower type, from the contributions to the outputs."""
        return quantisations_of(self.lowered, self.payload)


def emulate(
    schedule: Schedule,
    system: System,
    *,
    count: int | None = None,
    dtype: DTypeLike = "float32",
    op: str = "sum",
    recipe: Recipe | str | None = None,
    wire: str | None = None,
    accumulate: str | None = None,
    data: Any = None,
    fidelity: str = "auto",
    protocol: str = "auto",
    timeline: bool = True,
    seed: int = 0,
) -> Result:
    """Run a schedule on a system: operations move bytes, bytes take time.

    Parameters
    ----------
    schedule : Schedule
    system : System
        Ranks fill its domains one after the other; what leaves a domain travels on the network.
    count : int
        Elements a rank, as nccl-tests counts them: of all_gather what a rank gives, of reduce_scatter what it gets,
        of alltoall what it sends to each; of gather what a rank gives, of scatter what it gets. An alltoallv has counts
        in place of it: leave it out.
    dtype : str or NumPy type
        float32, float64, float16, bfloat16, int8, int32, int64, uint8 or an 8-bit element format. Narrow floats are
        added in float32 and rounded at every addition; with a wire format, memory holds float32 until the end.
    op : str
        sum, prod, min, max or avg. Integer sums wrap; an integer avg truncates toward zero. A float avg divides the
        sum; but the contributions, where a narrow dtype, wire element format or accumulate type could overflow: on a
        wire of integers what is below one half then becomes 0.
    recipe : Recipe or str, optional
        How to quantise, or the name of a published recipe (`collemu.recipes`); ``wire`` and ``accumulate`` make one in
        short, or change the one given.
    data : array, optional
        (ranks, elements): what each rank contributes; of alltoallv, gather and scatter a list of arrays, one a rank,
        of scatter all empty but the root's, or the root's array alone. Without it only time and bytes are emulated.
    fidelity : str
        ``packet``: every packet, exact by the rules of docs/timing-rules.md. ``flow``: whole messages at shared ports,
        the same where no two messages meet at a port and none has more packets than credits. ``auto``: packet, but flow
        where there would be more than 2**28 packets or 2**21 queues, or a torus has to be crossed; the header says
        which. ``processes``: ranks are processes of one machine, as on a system that `collemu calibrate host` wrote,
        where ``auto`` takes it.
    protocol : str
        A protocol of the system, or ``auto``: the one that the schedule was written for, or else the system's default.
    timeline : bool
        Whether to keep the times of all operations and messages.
    seed : int
        Decides in which order switches add, which nobody knows: 0 for that of ranks. Nothing else is random.

    Returns
    -------
    Result

    Raises
    ------
    ValueError
        For an unknown name, a number out of range, a pair that does not go together, data of another shape, or more
        ranks than chips.
    TypeError
        If schedule, system or recipe is something else.
    ScheduleError
        If the schedule deadlocks or its messages do not match.
    """
    instance_of(schedule, Schedule, "emulate: schedule", "build_schedule makes one")
    instance_of(system, System, "emulate: system", "load_system makes one from a name or a file")
    recipe = chosen_recipe(recipe, wire, accumulate)
    count = whole(settled_count(schedule, count), "count", most=MOST_ELEMENTS)
    seed = whole(seed, "seed")
    if fidelity not in FIDELITIES:
        raise ValueError(f"no fidelity {fidelity!r}; choose {', '.join(FIDELITIES)}")
    if schedule.ranks > system.max_ranks:
        raise ValueError(
            f"{schedule.ranks} ranks are more than the {system.max_ranks} chips that {system.name} joins; choose at "
            f"most {system.max_ranks}"
        )
    chosen = find_protocol(system, protocol, schedule.protocol)
    payload = payload_of(schedule.collective, dtype, recipe, op)
    refuse_in_switch(schedule, system, payload)
    schedule = requantised(schedule, payload.recipe)
    lowered = lower(schedule, count, item_bytes=payload.held.item_bytes, wire=payload.wire)
    memory = None
    if data is not None:
        memory = build_memory(lowered, payload, slots=system.endpoint.fifo_slots, seed=seed)
        for rank, row in enumerate(input_rows(data, schedule, count, payload.dtype)):
            memory.write_input(rank, row)
    spoken = system.protocols[chosen]
    model = fidelity if fidelity != "auto" else choose_fidelity(lowered, system, spoken)
    plane = memory.plane if memory else no_data()
    if model == "processes":
        timing = simulate_processes(lowered, system, spoken, payload, plane)
    else:
        timing = (simulate if model == "packet" else simulate_flow)(lowered, system, spoken, plane)

    outputs, identical = None, None
    if memory:
        if schedule.collective in UNEVEN:
            like = listed(data, schedule)[schedule.root]
            outputs = [to_user(memory.read_output(rank), payload.dtype, like) for rank in range(schedule.ranks)]
        else:
            storage = memory.read_outputs()
            outputs = to_user(storage, payload.dtype, data)
            identical = replicas_identical(storage) if schedule.collective in REPLICATED else None
    memory_bytes = memory_of_ranks(lowered, spoken)
    memory_s = float(memory_bytes.max()) / system.chip.hbm_bytes_per_s
    sent = wire_bytes_of(lowered)
    return Result(
        time_s=timing.time / 1e15,
        time_fs=timing.time,
        outputs=outputs,
        replicas_identical=identical,
        wire_bytes=int(sent.sum()),
        wire_bytes_per_rank=sent,
        links=_links(timing),
        timeline=timeline_of(lowered, timing) if timeline else None,
        bounds=lower_bound(
            schedule.collective,
            schedule.ranks,
            count,
            payload.wire_bits,
            system,
            switch_adds=switch_adds(system, payload),
            counts=schedule.counts,
        ),
        header=header_of(schedule, system, payload, chosen, model, seed),
        lowered=lowered,
        payload=payload,
        memory_bytes=memory_bytes,
        memory_utilisation=memory_s * 1e15 / timing.time if timing.time else 0.0,
        waiting=waiting_of(lowered, timing, system, spoken) if timeline else None,
        saturated=int(memory.plane.saturated.sum()) if memory else None,
    )


def find_protocol(system: System, protocol: str, written_for: str = "auto") -> str:
    """Name of the protocol that a run uses.

    For ``auto`` it is the one that the schedule was written for, or else, as where the system has no such, the
    system's default.

    Raises
    ------
    ValueError
        If the system has no such protocol; the text lists those it has.
    """
    if protocol == "auto":
        return written_for if written_for in system.protocols else system.default_protocol
    if protocol not in tuple(system.protocols):
        raise ValueError(f"{system.name} has no protocol {protocol!r}; choose auto, {', '.join(system.protocols)}")
    return protocol


def choose_fidelity(lowered: Lowered, system: System, protocol: Protocol) -> str:
    """The model that ``auto`` stands for: processes, or packets where they can be emulated, and within seconds."""
    if system.processes is not None:
        return "processes"
    routes = routes_of(lowered.messages, system, protocol, far=True)
    ranks = lowered.schedule.ranks
    switched = system.domain.topology not in ("mesh", "torus")
    pairs = ranks * min(ranks, system.domain.chips) * system.domain.links if switched else 0
    if ranks > system.domain.chips:
        pairs += ranks * ranks * system.scaleout.rails
    shared = shared_of(in_switch_of(lowered), lowered.schedule.thread_of_op, system, protocol)
    packets = int(routes.packets.sum()) + SWITCH_PACKETS * int(((shared.members + 1) * shared.packets).sum())
    quick = pairs <= QUICK_PAIRS and packets <= QUICK_PACKETS
    return "packet" if quick and not (routes.group < 0).any() else "flow"


def header_of(
    schedule: Schedule, system: System, payload: Payload, protocol: str, fidelity: str, seed: int
) -> dict[str, Any]:
    """What a run depends on, and which of its constants are estimates."""

    return {
        **versions(),
        "system": system.name,
        "system_fingerprint": system.fingerprint,
        "fidelity": fidelity,
        "protocol": protocol,
        "collective": schedule.collective,
        "algorithm": schedule.algorithm,
        "ranks": schedule.ranks,
        "channels": schedule.channels,
        "dtype": payload.dtype.name,
        "op": payload.operator,
        "recipe": payload.recipe.name,
        "runs_in": payload.runs_in.name,
        **{name: value for name, value in vars(payload.recipe).items() if name not in ("name", "dtype")},
        "seed": seed,
        "estimates": list(system.estimates()),
    }


def wire_bytes_of(lowered: Lowered) -> NDArray[np.int64]:
    """Bytes that each rank puts on its links, without lines and headers."""
    ranks, messages, asked = lowered.schedule.ranks, lowered.messages, in_switch_of(lowered)
    sent = np.bincount(messages.source, weights=messages.nbytes, minlength=ranks)
    stored = np.bincount(asked.rank, weights=~asked.adds * asked.nbytes, minlength=ranks)
    return (sent + stored + by_member(asked, asked.adds * asked.nbytes, ranks)).astype(np.int64)


def chosen_recipe(recipe: Recipe | str | None, wire: str | None = None, accumulate: str | None = None) -> Recipe:
    """The recipe of a run: one that is given, or the published one of a name, with some of it changed."""
    chosen = find_recipe(recipe) if isinstance(recipe, str) else Recipe() if recipe is None else recipe
    instance_of(chosen, Recipe, "emulate: recipe", "make one, as Recipe(wire='mxfp8_e4m3'), or pass wire= alone")
    changes = {name: value for name, value in (("wire", wire), ("accumulate", accumulate)) if value is not None}
    changed = replace(chosen, **changes)
    return changed if changed == chosen else replace(changed, name="")  # no longer the published one


def _links(timing: Timing) -> Links:
    return Links(
        up_bytes=timing.up_bytes,
        down_bytes=timing.down_bytes,
        up_busy_s=timing.up_busy / 1e15,
        down_busy_s=timing.down_busy / 1e15,
        up_stalled_s=timing.up_stalled / 1e15,
        down_queued_s=timing.down_queued / np.maximum(timing.down_packets, 1) / 1e15,
        time_s=timing.time / 1e15,
    )
