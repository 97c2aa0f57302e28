"""Random runs of processes, and what the slow engine is told of a schedule."""

from dataclasses import dataclass, replace
from random import Random

from collemu_kernels import kinds

import collemu as ce
from collemu.catalogue.quantity import femtoseconds, femtoseconds_per_byte
from collemu.catalogue.system import Conversion, Processes, Reduction
from collemu.collectives import ROOTED
from collemu.endpoint import conversions_of
from collemu.lower import Lowered
from tests.built_in import BUILT_IN
from tests.oracles.random_flows import random_operations, schedule_of
from tests.oracles.slow_processes import Machine, Operation

BASE = ce.load_system("trainium4_nvl72")


@dataclass(frozen=True)
class Case:
    """A schedule, a system of processes, and how much travels."""

    schedule: ce.Schedule
    system: ce.System
    count: int
    wire: str
    dtype: str = "float32"

    def emulate(self) -> ce.Result:
        """Run by collemu."""
        how = {"count": self.count, "wire": self.wire, "dtype": self.dtype}
        return ce.emulate(self.schedule, self.system, fidelity="processes", **how)


def random_system(rng: Random, wire: str = "none") -> ce.System:
    """A system of processes: half of them with times of zero or a microsecond, so that much happens at once."""
    alike = rng.random() < 0.5

    def seconds() -> float:
        return rng.choice([0.0, 0.0, 1e-6] if alike else [0.0, 1e-6, rng.uniform(0, 1e-5)])

    def table(sizes: list[int]) -> tuple[float, ...]:
        if alike or rng.random() < 0.2:
            return tuple(seconds() for _ in sizes)
        return tuple(sorted(seconds() * (1 + size / 500) for size in sizes))

    def rate() -> float:
        return rng.choice([1e9, 3e9, rng.uniform(1e6, 1e10)])

    sizes = [2**30] if alike else sorted(rng.sample(range(1, 20_000), rng.randint(1, 6)))
    processes = Processes(
        cores=rng.choice([1, 2, 2, 3, 64]),
        measured=2,
        operation_s=seconds(),
        send_s=seconds(),
        notice_s=seconds(),
        wake_s=seconds(),
        eager_bytes=rng.choice([0, rng.randint(1, 4000), 2**40]),
        sizes_bytes=tuple(sizes),
        copy_s=table(sizes),
        reduce_s=table(sizes),
        transfer_s=table(sizes),
    )
    changes = {
        "endpoint.fifo_slots": rng.choice([1, 2, 8]),
        "endpoint.launch_s": seconds(),
        "endpoint.quantize_bytes_per_s": rate(),
        "endpoint.dequantize_bytes_per_s": rate(),
    }
    return replace(
        BASE.with_(**changes),
        processes=processes,
        conversions={wire: Conversion(rate(), rate())} if rng.random() < 0.6 else {},
        reductions={name: Reduction(rate()) for name in ("float32", "uint8") if rng.random() < 0.3},
    )


def built_in(seed: int) -> Case:
    """A built-in schedule on a random system."""
    rng = Random(seed)
    collective, algorithm = rng.choice(BUILT_IN)
    ranks = rng.randint(1, 8)
    lanes = rng.choice([{}, {}, {"chunks": 2}, {"chunks": 3}, {"channels": 2}])
    root = rng.randrange(ranks) if collective in ROOTED else 0
    schedule = ce.build_schedule(collective, algorithm, ranks, root=root, **lanes)
    count = rng.choice([0, 1, rng.randrange(1, 300, 2), rng.randint(300, 20_000)])
    wire = rng.choice(["none", "mxfp4", "bfloat16"])
    in_place = rng.random() < 0.2 and schedule.input_regions <= schedule.output_regions
    return Case(replace(schedule, in_place=in_place), random_system(rng, wire), count, wire)


def random_schedule(seed: int) -> Case:
    """Random messages between random ranks, and in half of the cases to oneself, which may deadlock."""
    rng = Random(seed)
    ranks = rng.randint(2, 8)
    operations = random_operations(rng, ranks, to_oneself=rng.random() < 0.5)
    schedule = schedule_of(operations, ranks)
    return Case(schedule, random_system(rng), schedule.input_chunks, "none", "uint8")


def machine_of(system: ce.System, lowered: Lowered, *, wire: str, held: str) -> Machine:
    """What the rules ask of a system, for a run whose memory holds `held`."""
    own, endpoint = system.processes, system.endpoint
    assert own is not None
    rates = endpoint.quantize_bytes_per_s, endpoint.dequantize_bytes_per_s
    if conversion := system.conversions.get(wire):
        rates = conversion.encode_bytes_per_s, conversion.decode_bytes_per_s
    reduction = system.reductions.get(held)
    tables = (tuple(map(femtoseconds, times)) for times in (own.copy_s, own.reduce_s, own.transfer_s))
    copy, add, take = tables
    return Machine(
        cores=own.cores,
        launch=endpoint.launch_fs,
        operation=femtoseconds(own.operation_s),
        send=femtoseconds(own.send_s),
        notice=femtoseconds(own.notice_s),
        wake=femtoseconds(own.wake_s),
        eager=own.eager_bytes,
        slots=endpoint.fifo_slots,
        sizes=own.sizes_bytes,
        copy=copy,
        add=add,
        take=take,
        encode=femtoseconds_per_byte(rates[0]),
        decode=femtoseconds_per_byte(rates[1]),
        add_rate=femtoseconds_per_byte(reduction.reduce_bytes_per_s) if reduction else None,
        buffers=tuple(buffer_bytes(lowered)),
    )


def buffer_bytes(lowered: Lowered) -> list[int]:
    """Bytes of every buffer of every rank; in place, the smaller of input and output lies in the larger."""
    schedule = lowered.schedule
    ends = [
        [int(starts[-1]) * lowered.item_bytes for starts in schedule.chunk_starts_of_ranks(buffer, lowered.count)]
        for buffer in (kinds.INPUT, kinds.OUTPUT, kinds.SCRATCH)
    ]
    if schedule.in_place:
        ends = [[max(pair) for pair in zip(*ends[:2], strict=True)], ends[2]]
    return [size for sizes in ends for size in sizes]


def operations_of(lowered: Lowered) -> list[Operation]:
    """Operations as the slow engine takes them."""
    schedule = lowered.schedule
    encoded, decoded = (each * lowered.item_bytes for each in conversions_of(lowered))
    held = lowered.elements * lowered.item_bytes
    operations = []
    for index, op in enumerate(schedule.ops):
        thread = schedule.threads[schedule.thread_of_op[index]]
        operations.append(
            Operation(
                rank=int(thread["rank"]),
                thread=int(thread["id"]),
                kind=int(op["kind"]),
                send_peer=int(thread["send_peer"]),
                recv_peer=int(thread["recv_peer"]),
                channel=int(thread["channel"]),
                work_bytes=int(held[index]),
                message_bytes=int(lowered.nbytes[index]),
                dep=None if op["dep"] < 0 else int(op["dep"]),
                encoded=int(encoded[index]),
                decoded=int(decoded[index]),
            )
        )
    return operations
