"""Numbers that orchestration and kernels share: operation kinds, buffers, and when a chunk is published."""

# Operations of a schedule. The fused forms receive first, then do the rest in one pass.
NOP = 0
SEND = 1
RECV = 2
COPY = 3
REDUCE = 4
RECV_COPY_SEND = 5
RECV_REDUCE = 6
RECV_REDUCE_SEND = 7
RECV_REDUCE_COPY = 8
RECV_REDUCE_COPY_SEND = 9
MULTIMEM_REDUCE = 10
MULTIMEM_STORE = 11

# Buffers of a rank.
INPUT = 0
OUTPUT = 1
SCRATCH = 2

# What an operation does to its destination beside writing it.
# A published chunk is encoded to the wire format once; later sends copy those bytes.
KEEP = 0  # nothing: the destination keeps the value
PUBLISH_FINAL = 1  # the destination keeps the decoded copy, so that every replica holds the same bits
PUBLISH_OWN = 2  # as PUBLISH_FINAL when the recipe rounds a rank's own term, else the value stays exact

# Reduction operators.
SUM = 0
PROD = 1
MIN = 2
MAX = 3
AVG = 4
