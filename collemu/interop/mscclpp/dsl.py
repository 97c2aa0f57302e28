"""Plans as MSCCL++'s language writes them today: buffers and channels by number, snake_case names."""

from __future__ import annotations

from math import lcm

from collemu.interop.msccl.words import BUFFERS
from collemu.interop.mscclpp import plan
from collemu.interop.mscclpp.fields import Fields, at
from collemu.interop.mscclpp.layout import MOST_PARTS, Layout
from collemu.interop.mscclpp.plan import Chunks, Gpu, Op, Words

CHUNKS = ("input_chunks", "output_chunks", "scratch_chunks")
_TYPES = ("memory", "port", "switch", "none")

NAMES = {
    "copy": Words(plan.MOVE),
    "put": Words(plan.MOVE),
    "pws": Words(plan.MOVE, signals=True),
    "pwsf": Words(plan.MOVE, signals=True),
    "get": Words(plan.MOVE),
    "ppkt": Words(plan.MOVE, packets_written=0),
    "rppkt": Words(plan.MOVE, packets_read=0, packets_written=0),
    "cpkt": Words(plan.MOVE, packets_written=0),
    "upkt": Words(plan.MOVE, packets_read=0),
    "re": Words(plan.SUM),
    "res": Words(plan.SUM),
    "rre": Words(plan.SUM),
    "rres": Words(plan.SUM),
    "repkt": Words(plan.SUM, packets_read=1),
    "respkt": Words(plan.SUM, packets_read=1, packets_written=1),
    "recpkt": Words(plan.SUM, packets_read=1, packets_written=1),
    "recspkt": Words(plan.SUM, packets_read=1, packets_written=1),
    "glres": Words(plan.SWITCH_SUM),
    "gstore": Words(plan.SWITCH_STORE),
    "signal": Words(plan.SIGNAL),
    "rlxsignal": Words(plan.SIGNAL),
    "wait": Words(plan.WAIT),
    "rlxwait": Words(plan.WAIT),
    "sem_acquire": Words(plan.ACQUIRE),
    "sem_release": Words(plan.RELEASE),
    "barrier": Words(plan.BARRIER),
}
_NOTHING = ("nop", "flush")  # thread blocks go on when all their threads are there, and when what they sent is away


def parts(gpus: list[Fields]) -> int:
    """Into how many parts groups of thread blocks divide a chunk."""
    found = 1
    for gpu in gpus:
        for block in gpu.rows("threadblocks", "threadblock"):
            for op in _flat(block):
                if "tbg_info" in op:
                    found = lcm(found, _part(op)[1])
                    if found > MOST_PARTS:
                        raise ValueError(f"{op.place}: tbg_size divides chunks into more than {MOST_PARTS} parts")
    return found


class Reader:
    """Reads the GPUs of a plan, all their channels before the first operation."""

    def __init__(self, rows: list[Fields], gpus: list[Gpu], layout: Layout) -> None:
        self._layout = layout
        self._groups: list[list[tuple[int, list[int]]]] = []  # of each GPU: buffer, ranks
        self._remote: list[list[tuple[int, int]]] = []  # of each GPU: rank, buffer
        most = layout.ranks - 1
        for row, gpu in zip(rows, gpus, strict=True):
            groups: list[tuple[int, list[int]]] = []
            for channel in row.rows("channels", "channel"):
                kind = channel.choice("channel_type", _TYPES)
                if kind == "switch":
                    buffer = BUFFERS[channel.choice("buffer_type", BUFFERS)]
                    groups += [(buffer, group.numbers("ranks", most)) for group in channel.rows("rank_groups")]
                else:
                    gpu.peers.setdefault(kind, []).extend(channel.numbers("connected_to", most))
            self._groups.append(groups)
            self._remote.append(
                [
                    (buffer.whole("rank", most=most), BUFFERS[buffer.choice("type", BUFFERS)])
                    for buffer in row.rows("remote_buffers", "remote buffer")
                ]
            )
            gpu.semaphores = [each.whole("init_value", "init_value") for each in row.rows("semaphores", "semaphore")]
        self._mailboxes = plan.mailboxes(gpus)

    def block(self, row: Fields, gpu: Gpu) -> list[Op]:
        """The operations of a thread block."""
        channels: dict[str, list[int]] = {}
        for each in row.rows("channels", "channel"):
            channels.setdefault(each.choice("channel_type", _TYPES), []).extend(each.numbers("channel_ids"))
        buffers: dict[str, list[int]] = {}
        for each in row.rows("remote_buffer_refs", "remote_buffer_ref"):
            ids = each.numbers("remote_buffer_ids", len(self._remote[gpu.rank]) - 1)
            buffers.setdefault(each.choice("access_channel_type", _TYPES), []).extend(ids)
        found: list[Op] = []
        for op in _flat(row):
            found += self._op(op, gpu, channels, buffers)
        return found

    def _op(self, op: Fields, gpu: Gpu, channels: dict[str, list[int]], buffers: dict[str, list[int]]) -> list[Op]:
        name = op.choice("name", (*NAMES, *_NOTHING))
        op.place += f" ({name})"
        if name in _NOTHING:
            return []
        words = NAMES[name]
        kind = op.choice("channel_type", _TYPES) if "channel_type" in op else "none"
        if words.verb == plan.BARRIER:
            return [Op(op.place, plan.BARRIER, keys=(op.whole("barrier_id"),), blocks=op.whole("num_threadblocks"))]
        if words.verb in (plan.ACQUIRE, plan.RELEASE):
            return [Op(op.place, words.verb, keys=tuple(op.numbers("semaphore_ids", len(gpu.semaphores) - 1)))]
        mine = [at(channels.get(kind, []), number, f"{op.place}: channel_ids") for number in op.numbers("channel_ids")]
        for number in mine:
            at(gpu.peers.get(kind, []), number, f"{op.place}: a {kind} channel of the gpu")
        if words.verb == plan.WAIT:
            return [Op(op.place, plan.WAIT, keys=tuple((gpu.rank, kind, number) for number in mine))]
        signal = Op(
            op.place,
            plan.SIGNAL,
            signals=tuple((gpu.peers[kind][each], self._mailboxes.get((gpu.rank, kind, each))) for each in mine),
        )
        if words.verb == plan.SIGNAL:
            return [signal]
        if "reduce_op" in op:
            op.choice("reduce_op", ("sum",))
        part = _part(op)

        def chunks(side: str) -> tuple[Chunks, ...]:
            return tuple(
                self._chunks(each, op.place, gpu, part, buffers.get(kind, []), channels.get("switch", []))
                for each in op.rows(side, needed=True)
            )

        reads, writes = chunks("src_buff"), chunks("dst_buff")
        deed = Op(op.place, words.verb, reads, writes, words.packets_read, words.packets_written)
        return [deed, signal] if words.signals else [deed]

    def _chunks(
        self, row: Fields, place: str, gpu: Gpu, part: tuple[int, int], buffers: list[int], switches: list[int]
    ) -> Chunks:
        rank = gpu.rank
        if "buffer_id" in row:
            number = at(buffers, row.whole("buffer_id"), f"{place}: buffer_id")
            rank, buffer = self._remote[rank][number]
        elif "switch_channel_id" in row:
            number = at(switches, row.whole("switch_channel_id"), f"{place}: switch_channel_id")
            buffer, ranks = at(self._groups[rank], number, f"{place}: a switch channel of the gpu")
            self._layout.refuse_other_groups(place, rank, ranks, buffer)
        else:
            buffer = BUFFERS[row.choice("type", BUFFERS)]
        return self._layout.chunks(place, rank, buffer, row.whole("index"), row.whole("size"), part)


def _flat(block: Fields) -> list[Fields]:
    """Operations one after the other; those of a pipeline once, for a whole chunk, as small sizes have them."""
    found: list[Fields] = []
    for op in block.rows("ops", "op", needed=True):
        found += op.rows("ops", "op", needed=True) if op.value("name") == "pipeline" else [op]
    return found


def _part(op: Fields) -> tuple[int, int]:
    """Which of how many parts of its chunks an operation moves."""
    if "tbg_info" not in op:
        return (0, 1)
    group = Fields(op.value("tbg_info"), f"{op.place} tbg_info")
    size = group.whole("tbg_size", least=1, most=MOST_PARTS)
    return group.whole("tb_id", most=size - 1), size
