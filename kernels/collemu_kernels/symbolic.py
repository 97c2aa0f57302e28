"""Run a schedule on symbols: in which order it can run, what every chunk then holds, what is ordered by what.

A chunk, in a buffer or in flight, is a cell. A cell holds a multiset of contributions as two sums of random
labels modulo a prime, and as a count; an operation adds the cells that it reads and stores the sum.
"""

import numpy as np
from numpy.typing import NDArray

from collemu_kernels._jit import jit

Int32s = NDArray[np.int32]
Int64s = NDArray[np.int64]

#: Labels and their sums are residues modulo this prime (a Mersenne prime: sums of two fit in 63 bits).
PRIME = (1 << 61) - 1
#: Counts of contributions stop growing here, above any count that a right schedule can reach.
MANY = 1 << 30

OK = 0
UNSET_READ = 1  # fault = operation, cell
MIXED_CHUNKS = 2  # fault = operation, cell
RACE = 3  # fault = later operation, cell, earlier operation
NOT_BEGUN = 4  # fault = operation, rank
ENDED = 5  # fault = operation, rank

WORD = 64  # ranks that a uint64 tells apart


@jit
def execution_order(
    first: Int64s,
    length: Int32s,
    dep: Int32s,
    arrival: Int32s,
    room: Int32s,
    order: Int32s,
    position: Int32s,
) -> int:
    """Find an order in which the operations can run; any such order gives the same values.

    Parameters
    ----------
    first, length : int64, int32 [threads]
        The operations of each thread.
    dep, arrival, room : int32 [operations]
        What each operation waits for beside its thread: its dependency, the sender of its message, and the
        receiver that frees its slot; -1 for nothing.
    order : int32 [operations], out
        Operations in the order found.
    position : int32 [operations], out
        Place of each operation in that order; must come in as -1, which is kept where it cannot run.

    Returns
    -------
    int
        Number of operations that can run.
    """
    threads = len(first)
    waiters = np.full(len(dep), -1, dtype=np.int32)
    next_waiter = np.full(threads, -1, dtype=np.int32)
    cursor = first.copy()
    stack = np.empty(threads, dtype=np.int32)
    for thread in range(threads):
        stack[thread] = threads - 1 - thread
    top = threads
    done = 0
    while top > 0:
        top -= 1
        thread = stack[top]
        op = cursor[thread]
        end = first[thread] + length[thread]
        while op < end:
            blocker = -1
            if dep[op] >= 0 and position[dep[op]] < 0:
                blocker = dep[op]
            elif arrival[op] >= 0 and position[arrival[op]] < 0:
                blocker = arrival[op]
            elif room[op] >= 0 and position[room[op]] < 0:
                blocker = room[op]
            if blocker >= 0:
                next_waiter[thread] = waiters[blocker]
                waiters[blocker] = thread
                break
            position[op] = done
            order[done] = op
            done += 1
            waiter = waiters[op]
            while waiter >= 0:
                stack[top] = waiter
                top += 1
                waiter = next_waiter[waiter]
            op += 1
        cursor[thread] = op
    return done


@jit
def _happens_before(a, b, first, thread_of, dep, arrival, position, reach, scanned, stamp, query, stack):
    """Whether ``a`` is before ``b`` by program order, dependencies and messages; ``a`` ran earlier.

    A search backward from ``b``. ``reach[t]`` is the last operation of thread t known to be before ``b``,
    ``scanned[t]`` how far back its predecessors have been looked at; nothing that ran before ``a`` matters.
    """
    home = thread_of[a]
    if a == b:
        return True
    start = position[a]
    # Dependencies alone settle nearly all.
    op = np.int64(b)
    while op >= 0 and position[op] >= start:
        if thread_of[op] == home:
            return True
        op = np.int64(dep[op])
    thread = thread_of[b]
    stamp[thread] = query
    reach[thread] = b
    scanned[thread] = -1
    stack[0] = thread
    top = 1
    while top > 0:
        top -= 1
        thread = stack[top]
        op = reach[thread]
        stop = scanned[thread]
        scanned[thread] = op
        while op > stop and op >= first[thread] and position[op] > start:
            for edge in range(2):
                before = dep[op] if edge == 0 else arrival[op]
                if before < 0 or position[before] < start:
                    continue
                other = thread_of[before]
                if other == home:
                    return True
                if stamp[other] != query:
                    stamp[other] = query
                    reach[other] = before
                    scanned[other] = -1
                    stack[top] = other
                    top += 1
                elif reach[other] < before:
                    # A thread whose reach has been scanned is no longer on the stack.
                    if scanned[other] == reach[other]:
                        stack[top] = other
                        top += 1
                    reach[other] = before
            op -= 1
    return False


@jit
def execute(
    order: Int32s,
    position: Int32s,
    first: Int64s,
    thread_of: Int32s,
    dep: Int32s,
    arrival: Int32s,
    source: Int64s,
    target: Int64s,
    sources: Int32s,
    targets: Int32s,
    stride: Int64s,
    adds: NDArray[np.uint8],
    incoming: Int64s,
    outgoing: Int64s,
    count: Int32s,
    home: Int32s,
    place: Int32s,
    terms: Int64s,
    lane0: Int64s,
    lane1: Int64s,
    writer: Int32s,
    level: Int32s,
    fault: Int64s,
) -> int:
    """Run the operations on symbols and look for reads of unset cells and for accesses that nothing orders.

    Parameters
    ----------
    order, position : int32 [operations]
        From `execution_order`.
    first : int64 [threads]
    thread_of, dep, arrival, count : int32 [operations]
    source, target, incoming, outgoing : int64 [operations]
        First cell read, written, of the message received and of the message sent; -1 for no message.
    sources, targets : int32 [operations]
        Cells that each chunk is read from and written to: 0 or 1, or one a rank of a switch group.
    stride : int64 [operations]
        How far apart the cells of one chunk are.
    adds : uint8 [operations]
        1 where the target is read too.
    home : int32 [buffer cells]
        Place in its region of a cell of an input or output, -1 in scratch; cells after these are in flight.
    place : int32 [cells], in and out
        Which chunk of a region the cell's value belongs to.
    terms : int64 [cells], in and out
        How many contributions it is the sum of; 0 where nothing is.
    lane0, lane1 : int64 [cells], in and out
        Sums of the contributions' labels.
    writer : int32 [buffer cells], out
        Operation that wrote a cell last, -1 for none; must come in as -1.
    level : int32 [operations], out
        Messages on the longest chain that ends with the operation.
    fault : int64 [4], out
        What went wrong; ``fault[3]`` is the first operation that stores a value at another place of a
        region than its own, or -1.

    Returns
    -------
    int
        OK, UNSET_READ, MIXED_CHUNKS or RACE.
    """
    threads = len(first)
    buffer_cells = len(home)
    reach = np.zeros(threads, dtype=np.int64)
    scanned = np.zeros(threads, dtype=np.int64)
    stamp = np.full(threads, -1, dtype=np.int64)
    stack = np.empty(threads, dtype=np.int32)
    query = 0

    # Readers since the last write, a list for each cell.
    reads = 0
    for op in range(len(order)):
        reads += np.int64(count[op]) * (sources[op] + adds[op])
    reader = np.empty(reads, dtype=np.int32)
    reader_next = np.empty(reads, dtype=np.int64)
    reader_head = np.full(buffer_cells, -1, dtype=np.int64)
    recorded = 0

    fault[3] = -1
    for step in range(len(order)):
        op = order[step]
        thread = thread_of[op]

        depth = 0
        if op > first[thread]:
            depth = level[op - 1]
        if dep[op] >= 0:
            depth = max(depth, level[dep[op]])
        if arrival[op] >= 0:
            depth = max(depth, level[arrival[op]] + 1)
        level[op] = depth

        for j in range(count[op]):
            sum0 = np.int64(0)
            sum1 = np.int64(0)
            number = np.int64(0)
            chunk = np.int32(-1)
            for operand in range(sources[op] + 2):
                if operand < sources[op]:
                    cell = source[op] + operand * stride[op]
                elif operand == sources[op]:
                    cell = target[op] if adds[op] else np.int64(-1)
                else:
                    cell = incoming[op]
                if cell < 0:
                    continue
                cell += j
                if terms[cell] == 0:
                    fault[0] = op
                    fault[1] = cell
                    return UNSET_READ
                sum0 += lane0[cell]
                if sum0 >= PRIME:
                    sum0 -= PRIME
                sum1 += lane1[cell]
                if sum1 >= PRIME:
                    sum1 -= PRIME
                number = min(number + terms[cell], MANY)
                if chunk >= 0 and place[cell] != chunk:
                    fault[0] = op
                    fault[1] = cell
                    return MIXED_CHUNKS
                chunk = place[cell]
                if cell >= buffer_cells:
                    continue
                before = writer[cell]
                query += 1
                if before >= 0 and not _happens_before(
                    before, op, first, thread_of, dep, arrival, position, reach, scanned, stamp, query, stack
                ):
                    fault[0] = op
                    fault[1] = cell
                    fault[2] = before
                    return RACE
                # A reader that the next reader of its thread follows need not be remembered.
                head = reader_head[cell]
                if head >= 0 and thread_of[reader[head]] == thread:
                    reader[head] = op
                else:
                    reader[recorded] = op
                    reader_next[recorded] = head
                    reader_head[cell] = recorded
                    recorded += 1

            for member in range(targets[op]):
                cell = target[op] + member * stride[op] + j
                before = writer[cell]
                entry = reader_head[cell]
                if before < 0 and entry >= 0:
                    before = reader[entry]
                    entry = reader_next[entry]
                while before >= 0:
                    query += 1
                    if not _happens_before(
                        before,
                        op,
                        first,
                        thread_of,
                        dep,
                        arrival,
                        position,
                        reach,
                        scanned,
                        stamp,
                        query,
                        stack,
                    ):
                        fault[0] = op
                        fault[1] = cell
                        fault[2] = before
                        return RACE
                    before = np.int32(-1)
                    if entry >= 0:
                        before = reader[entry]
                        entry = reader_next[entry]
                reader_head[cell] = -1
                writer[cell] = op
                if home[cell] >= 0 and home[cell] != chunk and fault[3] < 0:
                    fault[3] = op
                lane0[cell] = sum0
                lane1[cell] = sum1
                terms[cell] = number
                place[cell] = chunk
            if outgoing[op] >= 0:
                cell = outgoing[op] + j
                lane0[cell] = sum0
                lane1[cell] = sum1
                terms[cell] = number
                place[cell] = chunk
    return OK


@jit
def multiplicities(
    order: Int32s,
    source: Int64s,
    target: Int64s,
    sources: Int32s,
    targets: Int32s,
    stride: Int64s,
    adds: NDArray[np.uint8],
    incoming: Int64s,
    outgoing: Int64s,
    count: Int32s,
    weight: NDArray[np.float64],
) -> int:
    """How many times every initial cell went into one final cell: the run of `execute`, backward.

    Parameters
    ----------
    order, source, target, sources, targets, stride, adds, incoming, outgoing, count
        As in `execute`.
    weight : float64 [cells], in and out
        In: 1 at the cell in question, 0 elsewhere. Out: multiplicity of what each cell held at the start.
    """
    for step in range(len(order) - 1, -1, -1):
        op = order[step]
        for j in range(count[op]):
            total = 0.0
            for member in range(targets[op]):
                cell = target[op] + member * stride[op] + j
                total += weight[cell]
                weight[cell] = 0.0
            if outgoing[op] >= 0:
                total += weight[outgoing[op] + j]
                weight[outgoing[op] + j] = 0.0
            total = min(total, 1e9)  # far beyond any number that is worth telling
            if total == 0.0:
                continue
            for member in range(sources[op]):
                weight[source[op] + member * stride[op] + j] += total
            if adds[op]:
                weight[target[op] + j] += total
            if incoming[op] >= 0:
                weight[incoming[op] + j] += total
    return OK


@jit
def _absent(bits, base, begin, end):
    """First rank of ``[begin, end)`` that is of the word from ``base`` on and has no bit in it; -1 for none."""
    for rank in range(max(begin, base), min(end, base + WORD)):
        if (bits >> np.uint64(rank - base)) & np.uint64(1) == np.uint64(0):
            return rank
    return -1


@jit
def unattended_access(
    order: Int32s,
    first: Int64s,
    thread_of: Int32s,
    dep: Int32s,
    arrival: Int32s,
    rank: Int32s,
    group: Int32s,
    members: Int32s,
    ranks: int,
    fault: Int64s,
) -> int:
    """Find an operation on the memory of a rank that may not have begun, or may have ended, by then.

    Which ranks have an operation before, and which have one after, is handed on along the order, a word of ranks at a
    time: exact, and one word an operation is all it takes.

    Parameters
    ----------
    order, first, thread_of, dep, arrival
        As in `execute`.
    rank : int32 [operations]
        The rank of each operation.
    group, members : int32 [operations]
        First rank and number of ranks whose memory an operation reads or writes; 0 ranks for none but its own.
    ranks : int
    fault : int64 [2], out
        What went wrong.

    Returns
    -------
    int
        OK, NOT_BEGUN or ENDED.
    """
    met = np.empty(len(order), dtype=np.uint64)
    for base in range(0, ranks, WORD):
        for step in range(len(order)):
            op = order[step]
            bits = np.uint64(0)
            if base <= rank[op] < base + WORD:
                bits |= np.uint64(1) << np.uint64(rank[op] - base)
            if op > first[thread_of[op]]:
                bits |= met[op - 1]
            if dep[op] >= 0:
                bits |= met[dep[op]]
            if arrival[op] >= 0:
                bits |= met[arrival[op]]
            met[op] = bits
            absent = _absent(bits, base, group[op], group[op] + members[op])
            if absent >= 0:
                fault[0] = op
                fault[1] = absent
                return NOT_BEGUN

        met[:] = np.uint64(0)
        for step in range(len(order) - 1, -1, -1):
            op = order[step]
            bits = met[op]
            if base <= rank[op] < base + WORD:
                bits |= np.uint64(1) << np.uint64(rank[op] - base)
            if op > first[thread_of[op]]:
                met[op - 1] |= bits
            if dep[op] >= 0:
                met[dep[op]] |= bits
            if arrival[op] >= 0:
                met[arrival[op]] |= bits
            absent = _absent(bits, base, group[op], group[op] + members[op])
            if absent >= 0:
                fault[0] = op
                fault[1] = absent
                return ENDED
    return OK
