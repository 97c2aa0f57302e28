"""What MSCCL calls things, and how much of them its runtimes take."""

from collemu_kernels import kinds

from collemu.collectives import INPUT_PER_RANK, OUTPUT_PER_RANK

#: Types of steps. A recv_reduce is an ``rrc`` that reads the chunk that it writes.
KINDS = {
    "nop": kinds.NOP,
    "s": kinds.SEND,
    "r": kinds.RECV,
    "cpy": kinds.COPY,
    "re": kinds.REDUCE,
    "rcs": kinds.RECV_COPY_SEND,
    "rrs": kinds.RECV_REDUCE_SEND,
    "rrc": kinds.RECV_REDUCE_COPY,
    "rrcs": kinds.RECV_REDUCE_COPY_SEND,
}
RESIDUAL_ADDS = ("ra", "res")  # add tensors from outside the collective; an early runtime had them

BUFFERS = {"i": kinds.INPUT, "o": kinds.OUTPUT, "s": kinds.SCRATCH}

#: Values of ``coll``; the runtimes do not agree on the name of a reduce_scatter.
COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "reduce_scatter": "reduce_scatter",
    "alltoall": "alltoall",
    "broadcast": "broadcast",
    "reduce": "reduce",
}
CUSTOM = "custom"  # promises nothing by itself
PROMISES = (*dict.fromkeys(COLLECTIVES.values()), "gather", "scatter", "sendrecv")  #: what a custom one may do

PROTOCOLS = {"Simple": "simple", "LL": "ll", "LL128": "ll128"}

#: An attribute of ours, which runtimes pass over: the protocol that a schedule was written for, where ``proto``, which
#: must be there, cannot say it.
WRITTEN_FOR = "protocol"

#: An attribute of ours, which runtimes pass over: of a step its `publish`, of the algorithm that its steps say so.
PUBLISH = "publish"
MARKED = "marked"
PUBLISHED = {"final": kinds.PUBLISH_FINAL, "own": kinds.PUBLISH_OWN}

# Limits of the runtimes that are in use.
MOST_STEPS = 256  # in a thread block
MOST_BLOCKS = 1024  # of a GPU
MOST_CHANNELS = 32
MOST_PEERS = 32  # to which the thread blocks of one channel send, or from which they receive
MOST_COUNT = 71  # chunks of one step
MOST_NAME = 255


def regions(collective: str, ranks: int) -> int:
    """Regions of ``count`` elements that ``nchunksperloop`` chunks are: those of the larger buffer."""
    return ranks if collective in (*INPUT_PER_RANK, *OUTPUT_PER_RANK) else 1
