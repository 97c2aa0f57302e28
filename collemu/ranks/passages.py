"""The messages of one rank as it sees them: peer, bytes, and the FIFO slot in which each lies."""

from typing import NamedTuple

import numpy as np
from collemu_kernels.dataplane import DataPlane

from collemu.lower import NONE, Lowered
from collemu.ranks.transport import Bytes


class Passage(NamedTuple):
    """One end of a message."""

    peer: int
    channel: int
    number: int  # on its connection, from 0
    nbytes: int
    slot: Bytes  # room for the largest message of the connection
    place: int  # of its transfer in the transport; NONE for a message to oneself, which does not travel
    operation: int
    successor: int  # message that takes over the slot, or NONE


class Passages(NamedTuple):
    """All messages that a rank receives and sends, by message number."""

    incoming: dict[int, Passage]
    outgoing: dict[int, Passage]
    places: int


def passages_of(lowered: Lowered, plane: DataPlane, rank: int, slots: int) -> Passages:
    """Gather both ends at a rank; receives and sends have places of their own, one a FIFO slot."""
    messages = lowered.messages
    connection = np.cumsum(messages.number == 0) - 1
    room = np.zeros(int(connection[-1]) + 1 if len(connection) else 0, np.int64)
    np.maximum.at(room, connection, messages.nbytes)
    successor = messages.slot_successor(slots)

    ends: list[dict[int, Passage]] = []
    places = 0
    for own, peer, operation in (
        (messages.destination, messages.source, messages.receiver),
        (messages.source, messages.destination, messages.sender),
    ):
        here = np.flatnonzero(own == rank)
        turn = connection[here] * slots + messages.number[here] % slots
        distinct, place = np.unique(turn, return_inverse=True)
        place = np.where(peer[here] == rank, NONE, places + place)
        places += len(distinct)
        columns = (peer, messages.channel, messages.number, messages.nbytes, plane.slot, room[connection])
        rows = zip(
            here.tolist(),
            *(column[here].tolist() for column in columns),
            place.tolist(),
            operation[here].tolist(),
            successor[here].tolist(),
            strict=True,
        )
        ends.append(
            {
                message: Passage(
                    peer=other,
                    channel=channel,
                    number=number,
                    nbytes=nbytes,
                    slot=plane.wire_bytes[start : start + size],
                    place=at,
                    operation=its_operation,
                    successor=following,
                )
                for message, other, channel, number, nbytes, start, size, at, its_operation, following in rows
            }
        )
    return Passages(incoming=ends[0], outgoing=ends[1], places=places)
