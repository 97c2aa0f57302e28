"""Plans as MSCCL++'s tools wrote them first: channels by the buffers that they join, camelCase names."""

from __future__ import annotations

from collemu.interop.msccl.words import BUFFERS
from collemu.interop.mscclpp import plan
from collemu.interop.mscclpp.fields import Fields, at
from collemu.interop.mscclpp.layout import Layout
from collemu.interop.mscclpp.plan import Chunks, Gpu, Op, Words

CHUNKS = ("inputChunks", "outputChunks", "scratchChunks")
_TYPES = ("sm", "proxy", "nvls", "none")

NAMES = {
    "copy": Words(plan.MOVE),
    "put": Words(plan.MOVE),
    "pws": Words(plan.MOVE, signals=True),
    "pwsf": Words(plan.MOVE, signals=True),
    "get": Words(plan.MOVE),
    "ppkt": Words(plan.MOVE, packets_written=0),
    "tpkt": Words(plan.MOVE, packets_written=0),
    "cpkt": Words(plan.MOVE, packets_read=0),
    "re": Words(plan.SUM),
    "reduce": Words(plan.SUM),
    "rs": Words(plan.SUM),
    "rrc": Words(plan.SUM),
    "rrcs": Words(plan.SUM),
    "rpkt": Words(plan.SUM, packets_read=1),
    "rspkt": Words(plan.SUM, packets_read=1, packets_written=1),
    "glres": Words(plan.SWITCH_SUM),
    "signal": Words(plan.SIGNAL),
    "wait": Words(plan.WAIT),
    "barrier": Words(plan.BARRIER),
    "nop": Words(plan.AFTER),
}
_NOTHING = ("flush",)  # a thread block goes on when what it sent is away

_Key = tuple[str, str, str]  # buffer here, buffer there, type


class Reader:
    """Reads the GPUs of a plan, all their channels before the first operation."""

    def __init__(self, rows: list[Fields], gpus: list[Gpu], layout: Layout) -> None:
        self._layout = layout
        self._numbers: list[dict[_Key, list[int]]] = []  # of each GPU: its channels by what they join
        self._groups: list[dict[str, list[list[int]]]] = []  # of each GPU: ranks by buffer
        most = layout.ranks - 1
        for row, gpu in zip(rows, gpus, strict=True):
            numbers: dict[_Key, list[int]] = {}
            groups: dict[str, list[list[int]]] = {}
            for channel in row.rows("channels", "channel"):
                kind = channel.choice("type", _TYPES)
                if kind == "nvls":
                    ranks = [group.numbers("ranks", most) for group in channel.rows("rankGroups")]
                    groups.setdefault(channel.choice("buff", BUFFERS), []).extend(ranks)
                    continue
                peers = gpu.peers.setdefault(kind, [])
                new = channel.numbers("connectedTo", most)
                key = (channel.choice("srcbuff", BUFFERS), channel.choice("dstbuff", BUFFERS), kind)
                numbers.setdefault(key, []).extend(range(len(peers), len(peers) + len(new)))
                peers += new
            self._numbers.append(numbers)
            self._groups.append(groups)
        self._mailboxes = plan.mailboxes(gpus)

    def block(self, row: Fields, gpu: Gpu) -> list[Op]:
        """The operations of a thread block."""
        channels: dict[_Key, list[int]] = {}
        for each in row.rows("channels", "channel"):
            key = (each.choice("src", BUFFERS), each.choice("dst", BUFFERS), each.choice("ctype", _TYPES))
            there = (
                list(range(len(self._groups[gpu.rank].get(key[0], []))))
                if key[2] == "nvls"
                else self._numbers[gpu.rank].get(key, [])
            )
            channels.setdefault(key, []).extend(at(there, one, f"{each.place}: cids") for one in each.numbers("cids"))
        found: list[Op] = []
        for step, op in enumerate(row.rows("ops", "op", needed=True)):
            found += (each._replace(step=step) for each in self._op(op, gpu, channels))
        return found

    def _op(self, op: Fields, gpu: Gpu, channels: dict[_Key, list[int]]) -> list[Op]:
        name = op.choice("name", (*NAMES, *_NOTHING))
        op.place += f" ({name})"
        if name in _NOTHING:
            return [Op(op.place, plan.AFTER)]  # counted by `deps`
        words = NAMES[name]
        if words.verb == plan.AFTER:
            deps = tuple((each.whole("tb"), each.whole("step")) for each in op.rows("deps", "dep"))
            return [Op(op.place, plan.AFTER, steps=deps)]
        if words.verb == plan.BARRIER:
            count = op.whole("nthread_blocks", "num_threadblocks")
            return [Op(op.place, plan.BARRIER, keys=(op.whole("barrier_id"),), blocks=count)]
        if words.verb == plan.SWITCH_SUM:
            reads, writes = (self._group(op, gpu, channels, side) for side in (("i_cids", "src"), ("o_cids", "dst")))
            return [Op(op.place, words.verb, (reads,), (writes,))]
        if words.verb == plan.WAIT:
            ends = self._ends(op, gpu, channels, "i")
            return [Op(op.place, plan.WAIT, keys=tuple((gpu.rank, kind, number) for _, kind, number, _ in ends))]
        outputs = self._ends(op, gpu, channels, "o")
        signals = tuple((peer, self._mailboxes.get((gpu.rank, kind, number))) for peer, kind, number, _ in outputs)
        signal = Op(op.place, plan.SIGNAL, signals=signals)
        if words.verb == plan.SIGNAL:
            return [signal]
        count = op.whole("cnt", least=1, default=1)

        def here(letter: str, first: int) -> Chunks:
            return self._layout.chunks(op.place, gpu.rank, BUFFERS[letter], first, count)

        def there(side: str) -> list[Chunks]:
            return [
                self._layout.chunks(op.place, peer, buffer, row.whole("off"), count)
                for row, (peer, _, _, buffer) in zip(
                    op.rows(f"{side}_cids"), self._ends(op, gpu, channels, side), strict=True
                )
            ]

        reads = [here(op.choice("srcbuff", BUFFERS), op.whole("srcoff"))] if "srcoff" in op else []
        reads += [here(each.choice("buff", BUFFERS), each.whole("off")) for each in op.rows("srcs")] + there("i")
        writes = [here(op.choice("dstbuff", BUFFERS), op.whole("dstoff"))] if "dstoff" in op else []
        writes += [here(each.choice("buff", BUFFERS), each.whole("off")) for each in op.rows("dsts")] + there("o")
        deed = Op(op.place, words.verb, tuple(reads), tuple(writes), words.packets_read, words.packets_written)
        return [deed, signal] if words.signals else [deed]

    def _ends(
        self, op: Fields, gpu: Gpu, channels: dict[_Key, list[int]], side: str
    ) -> list[tuple[int, str, int, int]]:
        """Peer, type and number of each channel of a side, and the buffer at its other end."""
        rows = op.rows(f"{side}_cids")
        if not rows:
            return []
        kind = op.choice("ctype", _TYPES)
        joins = Fields(op.value(f"{side}_buff"), f"{op.place} {side}_buff")
        key = (joins.choice("src", BUFFERS), joins.choice("dst", BUFFERS), kind)
        numbers = [at(channels.get(key, []), row.whole("id"), f"{row.place}: id") for row in rows]
        peers = gpu.peers.get(kind, [])
        return [(peers[number], kind, number, BUFFERS[key[1]]) for number in numbers]

    def _group(self, op: Fields, gpu: Gpu, channels: dict[_Key, list[int]], names: tuple[str, str]) -> Chunks:
        """The chunks of a switch group that an operation reads or writes."""
        ids, side = names
        letter = op.choice(f"{side}buff", BUFFERS)
        groups = self._groups[gpu.rank].get(letter, [])
        for row in op.rows(ids, needed=True):
            number = at(channels.get((letter, letter, "nvls"), []), row.whole("id"), f"{row.place}: id")
            self._layout.refuse_other_groups(op.place, gpu.rank, groups[number], BUFFERS[letter])
        first, count = op.whole(f"{side}off"), op.whole("cnt", least=1, default=1)
        return self._layout.chunks(op.place, gpu.rank, BUFFERS[letter], first, count)
