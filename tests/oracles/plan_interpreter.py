"""A plain interpreter of MSCCL++ plans: the memory of all GPUs, and thread blocks that touch it in any order.

It shares nothing with the package. An operation runs to its end, and which of those that could run is drawn at random;
writes to other GPUs are there at once, as the flags of a plan that is right make sure that nobody can tell.
"""

from random import Random
from typing import Any

import numpy as np


def run_plan(plan: dict[str, Any], inputs: np.ndarray, random: Random) -> list[dict[str, np.ndarray]]:
    """What all buffers hold at the end, a chunk a row; ``inputs`` has shape (ranks, chunks, elements)."""
    width, gpus = inputs.shape[2], plan["gpus"]
    memory, ready = [], set()
    signals: dict[tuple, int] = {}
    arrived: dict[tuple, set] = {}
    for gpu, own in zip(gpus, inputs, strict=True):
        buffers = {"s": np.full((gpu["scratch_chunks"], width), np.nan)}
        if plan["inplace"] and plan["collective"] == "allreduce":
            buffers["i"] = buffers["o"] = own.copy()
        else:
            buffers |= {"i": own.copy(), "o": np.full((gpu["output_chunks"], width), np.nan)}
            if plan["inplace"]:
                buffers["o"][gpu["id"] * len(own) : (gpu["id"] + 1) * len(own)] = own
        memory.append(buffers)
    todo = {(g["id"], b["id"]): list(flat(b["ops"])) for g in gpus for b in g["threadblocks"]}

    def place(rank, block, row, part):
        gpu = gpus[rank]
        if "buffer_id" in row:
            number = gpu["threadblocks"][block]["remote_buffer_refs"][0]["remote_buffer_ids"][row["buffer_id"]]
            rank, kind = gpu["remote_buffers"][number]["rank"], gpu["remote_buffers"][number]["type"]
        else:
            kind = row.get("type", "i")
        number, parts = part
        cells = memory[rank][kind][row["index"] : row["index"] + row["size"]].reshape(-1)
        size = len(cells) // parts
        name = (rank, kind, row["index"] * width + number * size)
        return cells[number * size : (number + 1) * size], name

    def mailbox(rank, block, number):
        channel = gpus[rank]["threadblocks"][block]["channels"][0]["channel_ids"][number]
        peers = gpus[rank]["channels"][0]["connected_to"]
        nth = peers[:channel].count(peers[channel])
        back = [each for each, peer in enumerate(gpus[peers[channel]]["channels"][0]["connected_to"]) if peer == rank]
        return (rank, channel), (peers[channel], back[nth])

    def attempt(rank, block, op):
        name = op["name"]
        boxes = [mailbox(rank, block, number) for number in op.get("channel_ids", ())]
        if name in ("signal", "rlxsignal"):
            for _, there in boxes:
                signals[there] = signals.get(there, 0) + 1
        elif name in ("wait", "rlxwait"):
            if any(signals.get(here, 0) == 0 for here, _ in boxes):
                return False
            for here, _ in boxes:
                signals[here] -= 1
        elif name == "barrier":
            met = arrived.setdefault((rank, op["barrier_id"]), set())
            met.add(block)
            return len(met) == op["num_threadblocks"]
        elif name == "sem_release":
            signals["semaphore", rank] = signals.get(("semaphore", rank), 0) + 1
        elif name == "sem_acquire":
            return signals.get(("semaphore", rank), 0) > 0
        elif name == "glres":
            row = op["src_buff"][0]["index"]
            total = sum(each["i"][row] for each in memory)
            for each in memory:
                each["i"][op["dst_buff"][0]["index"]] = total
        elif name == "gstore":
            for each in memory:
                each["o"][op["dst_buff"][0]["index"]] = memory[rank]["i"][op["src_buff"][0]["index"]]
        elif "src_buff" in op:
            part = (op["tbg_info"]["tb_id"], op["tbg_info"]["tbg_size"]) if "tbg_info" in op else (0, 1)
            reads = [place(rank, block, row, part) for row in op["src_buff"]]
            writes = [place(rank, block, row, part) for row in op["dst_buff"]]
            flagged = {"upkt": reads, "rppkt": reads, "respkt": reads[1:], "recpkt": reads[1:]}.get(name, [])
            if any(where not in ready for _, where in flagged):
                return False
            if name in ("rre", "rres", "re", "res", "respkt", "recpkt"):
                total = sum(cells.copy() for cells, _ in reads)
                reads = [(total, None)] * len(writes)
            for (source, _), (target, _) in zip(reads, writes, strict=True):
                target[:] = source
            for _, there in boxes if name in ("pws", "pwsf") else ():
                signals[there] = signals.get(there, 0) + 1
            if name in ("ppkt", "rppkt", "cpkt", "respkt", "recpkt"):
                ready.update(where for _, where in writes)
        return True

    while todo := {key: ops for key, ops in todo.items() if ops}:
        keys = list(todo)
        random.shuffle(keys)
        for key in keys:
            if attempt(*key, todo[key][0]):
                todo[key].pop(0)
                break
        else:
            raise AssertionError(f"stuck at {keys}")
    return memory


def flat(ops):
    """Operations one after the other, those of pipelines in place of them."""
    for op in ops:
        yield from op["ops"] if op["name"] == "pipeline" else [op]
