"""all_reduce around a ring, as `collemu verify examples/my_ring.py` and `--algorithm examples/my_ring.py` take it."""

from collemu.program import algorithm


@algorithm("all_reduce")
def my_ring(p):
    n = p.ranks
    p.chunks(n)
    for block in range(n):
        around = [(block + step) % n for step in range(1, n + 1)]  # the last one, rank `block`, has the sum
        chunk = p.input(around[0], block)
        for rank in around[1:]:
            chunk = chunk.reduce_to(p.input(rank, block), into=p.output(rank, block))
        for rank in around[:-1]:
            chunk = chunk.copy_to(p.output(rank, block))
