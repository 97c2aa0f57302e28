"""Times of measured cases by the emulator, on the systems of the catalogue: what nobody has fitted to these rows."""

from functools import cache

import numpy as np

from collemu.fidelity.measured import NO_NETWORK, Measured
from collemu.fidelity.predict import Predictions

MOST_BYTES = 64 * 2**20  # larger ones take long: the subset that this engine is for
MOST_RANKS = 72


def emulated(rows: Measured) -> Predictions:
    """Emulate each row with the algorithm that is fastest of those that NCCL has; only small enough ones."""
    time_us = np.full(len(rows), np.nan)
    reasons: dict[int, str] = {}
    for place in range(len(rows)):
        case = (rows.collective[place], rows.system[place], rows.network[place])
        amounts = (int(rows.ranks[place]), int(rows.size[place]), rows.dtype[place])
        if rows.size[place] > MOST_BYTES or rows.ranks[place] > MOST_RANKS:
            reasons[place] = f"--engine emulate is for sizes up to {MOST_BYTES // 2**20} MiB and {MOST_RANKS} ranks"
            continue
        try:
            time_us[place] = _time_us(*case, *amounts)
        except ValueError as error:
            reasons[place] = str(error)
    names = [f"emulated {system}" for system in rows.system.tolist()]
    return Predictions(time_us, np.where(np.isnan(time_us), "", names).astype(object), reasons)


@cache
def _time_us(collective: str, system_name: str, network: str, ranks: int, size: int, dtype: str) -> float:
    from collemu import build_schedule, emulate, load_system
    from collemu.dtypes import DTYPES, find_dtype
    from collemu.model.bandwidth import count_for_size
    from collemu.model.choose import Choice, Task, fastest
    from collemu.model.libraries import LIBRARIES, names_of
    from collemu.recipe import Recipe

    system = load_system(system_name if network == NO_NETWORK else f"{system_name}@{network}")
    held = find_dtype(dtype if dtype in DTYPES else "float32")
    names = names_of(LIBRARIES["nccl"], collective, system)
    if not names:
        raise ValueError(f"NCCL has no {collective} on {system_name}")
    count = count_for_size(collective, ranks, size, held.item_bytes)
    task = Task(collective, ranks, system, dtype=held.name, op="sum", recipe=Recipe(), root=0, counts=None)
    protocols = [name for name in ("ll", "ll128", "simple") if name in system.protocols] or ["auto"]
    choices = [Choice(name, protocol, 1, None) for name in names for protocol in protocols]
    best = fastest(task, choices, count)
    group = system.group_of(ranks)
    schedule = build_schedule(collective, best.algorithm, ranks, group=group)
    result = emulate(
        schedule, system, count=count, dtype=held.name, protocol=best.protocol, fidelity="flow", timeline=False
    )
    return result.time_s * 1e6
