"""Collectives, and the algorithms that run on every system; those with switches that add are tested by themselves."""

import collemu

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce", "alltoall", "sendrecv")
PLAIN = collemu.load_system("trainium4_nvl72")


def anywhere(collective: str) -> tuple[str, ...]:
    """Algorithms of a collective that ask nothing of switches."""
    return collemu.algorithms(collective, PLAIN)


BUILT_IN = [(collective, name) for collective in COLLECTIVES for name in anywhere(collective)]
