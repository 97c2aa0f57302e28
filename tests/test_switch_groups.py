"""Where switches add and copy, and where that is refused: in one line that says what to change."""

from dataclasses import replace

import numpy as np
import pytest
from collemu_kernels import kinds

import collemu as ce
from collemu.builders.assembly import Assembler, steps
from collemu.schedule import Schedule, ScheduleError, build_schedule

H100 = ce.load_system("h100_hgx")


def groups_of(size: int, ranks: int) -> Schedule:
    return replace(build_schedule("all_reduce", "nvls", ranks), group_ranks=size)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"wire": "mxfp4"}, "nvls over wire mxfp4"),
        ({"dtype": "int8"}, "form no sum of int8, only of float16"),
        ({"dtype": "float8_e4m3fn"}, "form no sum of float8_e4m3fn"),
        ({"op": "max"}, "form no max of float32"),
        ({"op": "prod"}, "no switch forms a prod"),
        ({"accumulate": "float16"}, "types of their own, not in float16"),
    ],
)
def test_what_switches_do_not_add_is_refused(change, reason):
    with pytest.raises(ScheduleError, match=reason) as caught:
        ce.emulate(build_schedule("all_reduce", "nvls", 3), H100, count=4, **change)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("dtype", ["int8", "uint8", "float8_e4m3fn", "float8_e3m4"])
@pytest.mark.parametrize("collective", ["all_gather", "broadcast"])
def test_what_is_only_copied_may_be_anything(collective, dtype):
    assert ce.emulate(build_schedule(collective, "nvls", 3), H100, count=4, dtype=dtype).time_fs > 0


@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_switch_groups_fit_where_their_ranks_share_a_domain(fidelity):
    """In one domain any will do; in several, no group may lie in two. More than there are ranks are all of them."""
    whole = ce.emulate(groups_of(0, 6), H100, count=60, fidelity=fidelity).time_fs
    for size in (6, 7, 2**40):
        assert ce.emulate(groups_of(size, 6), H100, count=60, fidelity=fidelity).time_fs == whole
    for size in (1, 3, 4, 5):
        assert ce.emulate(groups_of(size, 6), H100, count=60, fidelity=fidelity).time_fs > 0
    joined = ce.load_system("h100_hgx@efa_p5en")
    for size in (1, 2, 4, 8):
        assert ce.emulate(groups_of(size, 16), joined, count=60, fidelity=fidelity).time_fs > 0
    for size in (0, 3, 5, 9, 16):
        with pytest.raises(ScheduleError, match=f"switch groups of {size or 16} ranks, which do not fit"):
            ce.emulate(groups_of(size, 16), joined, count=60, fidelity=fidelity)
    for size in (-1, -8):
        with pytest.raises(ValueError, match=f"group_ranks is {size}; give a whole number"):
            ce.emulate(groups_of(size, 6), H100, count=60, fidelity=fidelity)


@pytest.mark.parametrize("fidelity", ["packet", "flow"])
def test_scratch_of_others_is_as_long_as_what_a_switch_stored_there(fidelity):
    tell, hear = steps(kinds.SEND, count=0), steps(kinds.RECV, count=0)
    store = steps(kinds.MULTIMEM_STORE, src=(kinds.INPUT, 0), dst=(kinds.SCRATCH, 0))
    hop = steps(kinds.COPY, src=(kinds.SCRATCH, 0), dst=(kinds.SCRATCH, 1))
    out = steps(kinds.COPY, src=(kinds.SCRATCH, 1), dst=(kinds.OUTPUT, 0))
    assembler = Assembler()
    assembler.add(0, 0, hear, store, tell, hop, out, send_peer=1, recv_peer=1)
    assembler.add(1, 0, tell, hear, hop, out, send_peer=0, recv_peer=0)
    schedule = assembler.schedule("broadcast", "by_way", 2, input_chunks=1, output_chunks=1, scratch_chunks=2)
    ce.verify(schedule)
    data = np.arange(1, 13, dtype=np.float32).reshape(2, 6)
    result = ce.emulate(schedule, H100, count=6, data=data, fidelity=fidelity)
    assert (result.outputs == data[0]).all()


def test_what_takes_longer_than_the_clock_is_refused():
    slow = H100.with_(**{"domain.link_bytes_per_s": 2e6})
    for collective in ("broadcast", "reduce"):
        with pytest.raises(ValueError, match="longer than the clock"):
            ce.emulate(build_schedule(collective, "nvls", 2), slow, count=2**40, fidelity="flow", dtype="float16")
