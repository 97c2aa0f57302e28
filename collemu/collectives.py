"""What is true of a collective whatever the algorithm."""

REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")  # they add
ROOTED = ("broadcast", "reduce", "gather", "scatter")
REPLICATED = ("all_reduce", "all_gather", "broadcast")  # all ranks end with the same

# A rank's input, or output, is a block of `count` elements for, or from, each rank; else it is one block.
INPUT_PER_RANK = ("reduce_scatter", "alltoall", "alltoallv", "scatter")
OUTPUT_PER_RANK = ("all_gather", "alltoall", "alltoallv", "gather")

# Ranks give, or get, different amounts: data and outputs are lists of arrays.
UNEVEN = ("alltoallv", "gather", "scatter")
