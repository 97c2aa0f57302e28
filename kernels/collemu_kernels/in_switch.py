"""What switches do with the packets of in-switch operations: add terms, and copy (docs/timing-rules.md, 2 to 5)."""

from collemu_kernels._jit import jit_lean
from collemu_kernels.stage import (
    ADDS,
    DESTINATION,
    FIRST_MEMBER,
    FIRST_PART,
    LANES,
    LATENCY,
    LATEST,
    LEFT,
    MEMBERS,
    NEVER,
    WHOLE,
)
from collemu_kernels.trains import enqueue, enqueue_part, return_credits, take_train


@jit_lean
def pass_switch(stage, lane, messages, chip, destination, packet, arrival, count, size):
    """Let packets of a term or of a store come to the switch at a steady pace; returns when the first may leave.

    Parameters
    ----------
    chip, destination
        What sends them; and -1 - the row in `shared`.
    packet, arrival, count, size
        Number and arrival of the first; how many; bytes of each.
    """
    row = -1 - destination
    trains = stage.trains[lane]
    width = stage.lanes[lane, LANES]
    latency = stage.lanes[lane, LATENCY]
    spacing = stage.serialisation[size]
    part = stage.shared[row, FIRST_PART] + packet
    if stage.shared[row, ADDS] == 0:
        first = stage.shared[row, FIRST_MEMBER]
        for k in range(count):
            for output in range(first, first + stage.shared[row, MEMBERS]):
                join_queue(stage, lane, output, chip, arrival + k * spacing, size, -1 - part)
            part += width
        return arrival
    return_credits(stage.ports[lane], trains, chip, take_train(trains), arrival + latency, count, spacing)
    output = messages[stage.shared[row, WHOLE], DESTINATION]
    first_there = NEVER
    for k in range(count):
        stage.parts[part, LATEST] = max(stage.parts[part, LATEST], arrival + k * spacing)
        stage.parts[part, LEFT] -= 1
        if stage.parts[part, LEFT] == 0:
            there = stage.parts[part, LATEST]
            first_there = min(first_there, there)
            join_queue(stage, lane, output, output, there, size, -1 - part)
        part += width
    return first_there


@jit_lean
def join_queue(stage, lane, output, chip, arrival, size, code):
    """Queue one packet at an output, behind what came from the same chip."""
    if output == chip:
        enqueue_part(
            stage.reach,
            stage.outputs[lane],
            stage.expected[lane],
            stage.ready[lane],
            stage.queues[lane],
            stage.trains[lane],
            stage.active[lane],
            stage.active_counts[lane],
            output,
            arrival,
            size,
            code,
        )
        return
    enqueue(
        stage.serialisation,
        stage.reach,
        stage.outputs[lane],
        stage.expected[lane],
        stage.queues[lane],
        stage.trains[lane],
        stage.active[lane],
        stage.active_counts[lane],
        output,
        chip,
        arrival,
        1,
        size,
        code,
    )


@jit_lean
def leave_switch(parts, part, back):
    """A packet has left by an output, whose credit would be back then; returns when the credit is, or NEVER.

    Of copies the last one returns it; a sum, of which no term is left, holds none.
    """
    parts[part, LEFT] -= 1
    parts[part, LATEST] = max(parts[part, LATEST], back)
    return parts[part, LATEST] if parts[part, LEFT] == 0 else NEVER
