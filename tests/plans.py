"""Execution plans of MSCCL++ in the shapes that its language writes, for tests."""

import json
from pathlib import Path
from typing import Any

Run = tuple[int, str, int, int]  # rank, buffer, first chunk, chunks


class Plan:
    """A plan that grows a thread block at a time."""

    def __init__(self, collective: str, ranks: int, chunks: tuple[int, int, int], *, in_place: bool, protocol="Simple"):
        self.content: dict[str, Any] = {
            "name": f"{collective}_by_hand",
            "collective": collective,
            "protocol": protocol,
            "inplace": in_place,
            "reuse_resources": False,
            "gpus": [
                {
                    "id": rank,
                    "input_chunks": chunks[0],
                    "output_chunks": chunks[1],
                    "scratch_chunks": chunks[2],
                    "threadblocks": [],
                    "channels": [{"channel_type": "memory", "connected_to": []}],
                    "remote_buffers": [],
                    "semaphores": [],
                }
                for rank in range(ranks)
            ],
            "num_threads_per_block": 1024,
            "use_double_scratch_buffer": False,
            "buffer_alignment": 16,
        }
        self.ranks = range(ranks)

    def block(self, rank: int) -> "Block":
        return Block(self.content["gpus"][rank])

    def others(self, rank: int) -> list[int]:
        return [(rank + 1 + each) % len(self.ranks) for each in range(len(self.ranks) - 1)]

    def save(self, folder: Path) -> Path:
        path = folder / "plan.json"
        path.write_text(json.dumps(self.content, indent=2))
        return path


class Block:
    """A thread block; channels and remote buffers appear as operations need them."""

    def __init__(self, gpu: dict[str, Any]) -> None:
        self.gpu = gpu
        self.content: dict[str, Any] = {
            "id": len(gpu["threadblocks"]),
            "ops": [],
            "channels": [{"channel_type": "memory", "channel_ids": []}],
            "remote_buffer_refs": [{"access_channel_type": "memory", "remote_buffer_ids": []}],
        }
        gpu["threadblocks"].append(self.content)
        self._channels: dict[int, int] = {}

    def add(self, name: str, src: list[Run] | None = None, dst: list[Run] | None = None, to=(), part=(0, 1), **more):
        op: dict[str, Any] = {"name": name, **more}
        if src is not None and dst is not None:
            op |= {"src_buff": [self._buffer(run) for run in src], "dst_buff": [self._buffer(run) for run in dst]}
        op |= {"channel_ids": [self._channel(peer) for peer in to], "channel_type": "memory"}
        if part[1] > 1:
            op["tbg_info"] = {"tb_id": part[0], "tbg_size": part[1]}
        self.content["ops"] += [op, {"name": "nop"}]
        return self

    def tell(self, peers: list[int], name: str = "") -> "Block":
        """Signal all, and wait for all."""
        return self.add(f"{name}signal", to=peers).add(f"{name}wait", to=peers)

    def switch(self, name: str, src: dict[str, Any], dst: dict[str, Any], buffer: str = "i") -> "Block":
        ranks = list(range(len(set(self.gpu["channels"][0]["connected_to"])) + 1))
        groups = [{"size": len(ranks), "ranks": ranks}]
        self.gpu["channels"].append({"channel_type": "switch", "buffer_type": buffer, "rank_groups": groups})
        self.content["channels"].append({"channel_type": "switch", "channel_ids": [0]})
        op = {"name": name, "src_buff": [src], "dst_buff": [dst], "channel_type": "switch", "reduce_op": "sum"}
        context = {"unit_size": 1 << 20, "num_chunks": 1}
        self.content["ops"].append({"name": "pipeline", "iter_context": context, "ops": [op]})
        return self

    def _channel(self, peer: int) -> int:
        if peer not in self._channels:
            connected, ids = self.gpu["channels"][0]["connected_to"], self.content["channels"][0]["channel_ids"]
            connected.append(peer)
            ids.append(len(connected) - 1)
            self._channels[peer] = len(ids) - 1
        return self._channels[peer]

    def _buffer(self, run: Run) -> dict[str, Any]:
        rank, buffer, index, size = run
        if rank == self.gpu["id"]:
            return {"type": buffer, "index": index, "size": size}
        entry = {"rank": rank, "type": buffer, "access_channel_types": ["memory"]}
        known, ids = self.gpu["remote_buffers"], self.content["remote_buffer_refs"][0]["remote_buffer_ids"]
        if entry not in known:
            known.append(entry)
        if (number := known.index(entry)) not in ids:
            ids.append(number)
        return {"buffer_id": ids.index(number), "index": index, "size": size}


def packets(ranks: int, parts: int = 1) -> Plan:
    """All_reduce in two steps through scratch: packets whose flags tell that they are there."""
    plan = Plan("allreduce", ranks, (ranks, ranks, 2 * ranks), in_place=True, protocol="LL")
    for rank in plan.ranks:
        peers = plan.others(rank)
        for part in range(parts):
            more = {"part": (part, parts)}
            block = plan.block(rank)
            block.add("ppkt", [(rank, "i", peer, 1) for peer in peers], [(p, "s", rank, 1) for p in peers], **more)
            sources = [(rank, "i", rank, 1), *((rank, "s", peer, 1) for peer in peers)]
            block.add("respkt", sources, [(rank, "i", rank, 1), *((p, "s", ranks + rank, 1) for p in peers)], **more)
            for peer in peers:
                block.add("upkt", [(rank, "s", ranks + peer, 1)], [(rank, "i", peer, 1)], **more)
    return plan


def gathering(ranks: int, *, in_place: bool, blocks: int = 1) -> Plan:
    """All_gather by writes; thread blocks share the work, and the first of them signals for all."""
    plan = Plan("allgather", ranks, (1, ranks, 0), in_place=in_place)
    for rank in plan.ranks:
        peers, own = plan.others(rank), (rank, "o", rank, 1)
        for number in range(blocks):
            part, block = (number, blocks), plan.block(rank)
            if number == 0:
                block.tell(peers, "rlx")
            block.add("barrier", barrier_id=0, num_threadblocks=blocks)
            if not in_place:
                block.add("copy", [(rank, "i", 0, 1)], [own], part=part)
            block.add("put", [own] * len(peers), [(peer, *own[1:]) for peer in peers], part=part)
            block.add("barrier", barrier_id=1, num_threadblocks=blocks)
            if number == 0:
                block.tell(peers)
    return plan


def reading(ranks: int) -> Plan:
    """All_reduce: each rank reads its part from all and adds it, then writes the sum to all."""
    plan = Plan("allreduce", ranks, (ranks, 0, 0), in_place=True)
    for rank in plan.ranks:
        everywhere = [(each, "i", rank, 1) for each in (rank, *plan.others(rank))]
        block = plan.block(rank).tell(plan.others(rank))
        block.add("rres", everywhere, everywhere, reduce_op="sum").tell(plan.others(rank))
    return plan


def switching(ranks: int) -> Plan:
    """All_reduce in the switch."""
    plan = Plan("allreduce", ranks, (ranks, ranks, 0), in_place=True)
    for rank in plan.ranks:
        part = {"switch_channel_id": 0, "index": rank, "size": 1}
        block = plan.block(rank).tell(plan.others(rank), "rlx")
        block.switch("glres", part, part).tell(plan.others(rank), "rlx")
    return plan


def storing(ranks: int) -> Plan:
    """All_gather in the switch."""
    plan = Plan("allgather", ranks, (1, ranks, 0), in_place=False)
    for rank in plan.ranks:
        block = plan.block(rank).tell(plan.others(rank), "rlx")
        own, part = {"type": "i", "index": 0, "size": 1}, {"switch_channel_id": 0, "index": rank, "size": 1}
        block.switch("gstore", own, part, "o").tell(plan.others(rank))
    return plan


def forwarding(ranks: int) -> Plan:
    """All_gather around a ring by packets, which go on as they came; the last copies its own into packets first."""
    plan = Plan("allgather", ranks, (1, ranks, ranks), in_place=False, protocol="LL")
    for rank in plan.ranks:
        block, peer = plan.block(rank), (rank + 1) % ranks
        block.add("copy", [(rank, "i", 0, 1)], [(rank, "o", rank, 1)])
        if rank == ranks - 1:
            block.add("cpkt", [(rank, "i", 0, 1)], [(rank, "s", rank, 1)])
            block.add("rppkt", [(rank, "s", rank, 1)], [(peer, "s", rank, 1)])
        else:
            block.add("ppkt", [(rank, "i", 0, 1)], [(peer, "s", rank, 1)])
        for step in range(1, ranks):
            part = (rank - step) % ranks
            if step < ranks - 1:
                block.add("rppkt", [(rank, "s", part, 1)], [(peer, "s", part, 1)])
            block.add("upkt", [(rank, "s", part, 1)], [(rank, "o", part, 1)])
    return plan


def keeping() -> Plan:
    """All_reduce of two ranks by packets; one keeps its sum as packets too, from which another block takes it."""
    plan = Plan("allreduce", 2, (2, 2, 4), in_place=False, protocol="LL")
    for rank in plan.ranks:
        its = 1 - rank
        block = plan.block(rank).add("ppkt", [(rank, "i", its, 1)], [(its, "s", its, 1)])
        sums = [(rank, "s", 2, 1), (rank, "s", 3, 1)]
        block.add("recpkt", [(rank, "i", rank, 1), (rank, "s", rank, 1)], sums)
        other = plan.block(rank).add("upkt", [(rank, "s", 3, 1)], [(rank, "o", rank, 1)])
        other.add("put", [(rank, "o", rank, 1)], [(its, "o", rank, 1)], to=[its]).tell([its])
    return plan


def networked() -> Plan:
    """All_gather in place of two ranks over the network: two thread blocks put one half each, one both at once."""
    plan = Plan("allgather", 2, (2, 4, 0), in_place=True)
    first = plan.block(0).tell([1]).add("put", [(0, "o", 0, 1)], [(1, "o", 0, 1)], to=[1])
    first.add("signal", to=[1]).add("flush", to=[1]).add("wait", to=[1])
    plan.block(0).tell([1]).add("pws", [(0, "o", 1, 1)], [(1, "o", 1, 1)], to=[1]).add("flush", to=[1])
    plan.block(1).tell([0]).add("pwsf", [(1, "o", 2, 2)], [(0, "o", 2, 2)], to=[0]).add("wait", to=[0])
    plan.block(1).tell([0]).add("wait", to=[0])
    plan.content = json.loads(json.dumps(plan.content).replace('"memory"', '"port"'))
    return plan


def halves(own: str = "rre") -> Plan:
    """All_reduce of two ranks: one pulls and adds, one has a scratch copy, and results go by put and by get."""
    plan = Plan("allreduce", 2, (4, 4, 4), in_place=True)
    first = plan.block(0).add("copy", [(0, "i", 2, 2)], [(0, "s", 2, 2)]).tell([1])
    first.add("rres", [(0, "i", 0, 1), (1, "s", 0, 1)], [(0, "i", 0, 1), (1, "i", 0, 1)], reduce_op="sum")
    first.add("get", [(1, "s", 1, 1)], [(0, "s", 1, 1)], to=[1])
    first.add("res", [(0, "i", 1, 1), (0, "s", 1, 1)], [(0, "i", 1, 1), (1, "i", 1, 1)], reduce_op="sum").tell([1])
    second = plan.block(1).add("copy", [(1, "i", 0, 2)], [(1, "s", 0, 2)]).tell([0])
    second.add(own, [(1, "i", 2, 2), (0, "s", 2, 2)], [(1, "i", 2, 2)], reduce_op="sum")
    second.add("copy", [(1, "i", 2, 2)], [(1, "s", 2, 2)]).add("put", [(1, "s", 2, 2)], [(0, "i", 2, 2)]).tell([0])
    return plan


def semaphores() -> Plan:
    """All_gather of two ranks: one thread block copies, another waits for it and sends."""
    plan = Plan("allgather", 2, (1, 2, 0), in_place=False)
    for rank in plan.ranks:
        plan.content["gpus"][rank]["semaphores"] = [{"init_value": 0}]
        copier, sender = plan.block(rank), plan.block(rank)
        copier.add("copy", [(rank, "i", 0, 1)], [(rank, "o", rank, 1)]).add("sem_release", semaphore_ids=[0])
        sender.add("sem_acquire", semaphore_ids=[0])
        sender.add("put", [(rank, "o", rank, 1)], [(1 - rank, "o", rank, 1)], to=[1 - rank]).tell([1 - rank])
    return plan
