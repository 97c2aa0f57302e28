"""In-switch operations through `emulate`: bits against plain NumPy, times against closed forms, and what is refused."""

from dataclasses import dataclass, replace
from itertools import permutations

import ml_dtypes
import numpy as np
import pytest
from collemu_kernels import kinds

import collemu as ce
from collemu.builders.assembly import Assembler, steps
from collemu.schedule import Schedule, build_schedule
from tests.oracles.hand_messages import femtoseconds, moving
from tests.oracles.hard_numbers import hard_numbers

COLLECTIVES = ("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce")
REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")
ADDING = ("b200_hgx", "b300_hgx", "gb200_nvl72", "gb300_nvl72", "h100_hgx", "h200_hgx", "vera_rubin_nvl72")
GB200 = ce.load_system("gb200_nvl72")
BOTH = ("packet", "flow")
ACCUMULATED_IN = {
    "float16": np.float32,
    "bfloat16": np.float32,
    "float8_e4m3fn": np.float16,
    "float8_e5m2": np.float16,
    "float32": np.float32,
    "float64": np.float64,
    "int32": np.int32,
    "int64": np.int64,
}
NARROW = ("float16", "bfloat16", "float8_e4m3fn", "float8_e5m2")
COMPARED = (*NARROW, "int32", "int64")


def operators(dtype: str) -> tuple[str, ...]:
    return ("sum", "avg", "min", "max") if dtype in COMPARED else ("sum", "avg")


def type_of(dtype: str) -> np.dtype:
    return np.dtype(getattr(ml_dtypes, dtype, dtype))


# Arithmetic, a second time


def rounded(values: np.ndarray, dtype: str) -> np.ndarray:
    """To the dtype, where 8-bit floats end at their largest number."""
    target = type_of(dtype)
    with np.errstate(all="ignore"):
        if target.itemsize == 1:
            largest = float(ml_dtypes.finfo(target).max)
            values = np.clip(values, -largest, largest)
        return values.astype(target)


def in_order(terms: list[np.ndarray], dtype: str, op: str = "sum") -> np.ndarray:
    """What a switch makes of terms, one after the other, in the type in which it adds; rounded once at the end."""
    wide = ACCUMULATED_IN[dtype]
    total = terms[0].astype(wide)
    with np.errstate(all="ignore"):
        for term in terms[1:]:
            other = term.astype(wide)
            if op in ("sum", "avg"):
                total = total + other  # float16 rounds here
                assert total.dtype == wide
                continue
            take = other < total if op == "min" else other > total
            if np.issubdtype(wide, np.floating):
                sign = np.signbit(other) & ~np.signbit(total)
                take |= np.isnan(other) | ((other == total) & (sign if op == "min" else np.signbit(total)))
                take &= ~np.isnan(total)
            total = np.where(take, other, total)
    return rounded(total, dtype)


def divided(values: np.ndarray, dtype: str, ranks: int) -> np.ndarray:
    if dtype.startswith("int"):
        return np.array([int(v) // ranks if v >= 0 else -(-int(v) // ranks) for v in values], values.dtype)
    with np.errstate(all="ignore"):
        if dtype in NARROW:
            return rounded(values.astype(np.float32) / np.float32(ranks), dtype)
        return values / type_of(dtype).type(ranks)


def expected_outputs(schedule: Schedule, data: np.ndarray, dtype: str, op: str) -> dict[int, np.ndarray]:
    """By rank. Narrow averages divide the contributions, which then cannot overflow, others the sum."""
    ranks = schedule.ranks
    rows = list(data)
    if schedule.collective == "all_gather":
        return dict.fromkeys(range(ranks), np.concatenate(rows))
    if schedule.collective == "broadcast":
        return dict.fromkeys(range(ranks), rows[schedule.root])
    if op == "avg" and dtype in NARROW:
        rows = [divided(row, dtype, ranks) for row in rows]
    total = in_order(rows, dtype, op) if ranks > 1 else rows[0]
    if op == "avg" and dtype not in NARROW:
        total = divided(total, dtype, ranks)
    if schedule.collective == "reduce":
        return {schedule.root: total}
    if schedule.collective == "all_reduce":
        return dict.fromkeys(range(ranks), total)
    return dict(enumerate(np.split(total, ranks)))


def hard_data(seed: int, shape: tuple[int, int], dtype: str) -> np.ndarray:
    """Every other seed without NaN and infinities, which would hide what else goes wrong."""
    random = np.random.default_rng(seed)
    if dtype.startswith("int"):
        info = np.iinfo(dtype)
        small = random.integers(-1000, 1000, shape)
        return np.where(random.random(shape) < 0.5, small, random.integers(info.min, info.max, shape)).astype(dtype)
    values = hard_numbers(seed, shape, "not_finite" if seed % 2 else "mixed").astype(np.float64)
    if dtype == "float64":
        return values * (1 + random.random(shape) * 2.0**-30)
    if dtype != "float32" and seed % 4 < 2:  # most of the wide ones are far from a narrow type's middle
        values = random.standard_normal(shape) * float(ml_dtypes.finfo(type_of(dtype)).max) / 4
    with np.errstate(all="ignore"):
        return rounded(values, dtype) if seed % 2 == 0 else values.astype(np.float32).astype(type_of(dtype))


def bits(array: np.ndarray) -> np.ndarray:
    """A NaN is as good as any other."""
    array = np.ascontiguousarray(array)
    codes = array.view(f"u{array.dtype.itemsize}").copy()
    if array.dtype.kind not in "iu":
        codes[np.isnan(array)] = np.iinfo(codes.dtype).max
    return codes


def assert_gives(result: ce.Result, expected: dict[int, np.ndarray], dtype: str, what: object = "") -> None:
    for rank, row in expected.items():
        assert row.dtype == type_of(dtype)
        np.testing.assert_array_equal(bits(result.outputs[rank].view(row.dtype)), bits(row), f"rank {rank}: {what}")


SIZES = (0, 1, 2, 5, 13, 67, 331)
LANES = ({}, {"channels": 2}, {"chunks": 3}, {"channels": 3, "chunks": 2})


@pytest.mark.parametrize("dtype", ACCUMULATED_IN)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_outputs_are_those_of_numpy(collective, dtype):
    """Out of place and in place, packet by packet and by messages, whatever the pieces."""
    for ranks in range(1, 10):
        for turn, op in enumerate(operators(dtype)):
            case = 5 * ranks + turn
            lanes, count = LANES[(ranks + turn) % 4], SIZES[case % len(SIZES)]
            schedule = build_schedule(collective, "nvls", ranks, root=case % ranks, **lanes)
            shape = (ranks, schedule.input_regions * count)
            data = hard_data(case, shape, dtype)
            expected = expected_outputs(schedule, data, dtype, op)
            before = data.tobytes()
            for number, fidelity in enumerate(BOTH):
                each = replace(schedule, in_place=(case + number) % 2 == 1)
                how = {"count": count, "dtype": dtype, "op": op, "fidelity": fidelity, "timeline": False}
                result = ce.emulate(each, GB200, data=data, **how)
                assert_gives(result, expected, dtype, f"{ranks} ranks, {lanes}, {how}, in place {each.in_place}")
                assert result.replicas_identical is not False
                assert result.header["fidelity"] == fidelity
            assert data.tobytes() == before


@pytest.mark.parametrize("collective", ["all_gather", "broadcast"])
@pytest.mark.parametrize("dtype", ["uint8", "int8", "float8_e4m3fnuz"])
def test_what_is_only_copied_may_be_of_any_type(collective, dtype):
    schedule = build_schedule(collective, "nvls", 3)
    codes = np.random.default_rng(0).integers(0, 16, (3, 20)).astype(np.uint8)
    data = codes.astype(dtype) if dtype in ("uint8", "int8") else codes
    system = ce.load_system("h100_hgx")
    result = ce.emulate(schedule, system, count=20, dtype=dtype, data=data)
    row = data.reshape(-1) if collective == "all_gather" else data[0]
    assert all((result.outputs[rank] == row).all() for rank in range(3))


def sum_of(rows: list[list[float]], dtype: str, op: str = "sum") -> np.ndarray:
    """What nvls makes of a row of numbers a rank, the same at all of them."""
    with np.errstate(all="ignore"):
        data = np.array(rows, np.float64).astype(type_of(dtype))
    schedule = build_schedule("all_reduce", "nvls", len(rows))
    result = ce.emulate(schedule, GB200, count=data.shape[1], dtype=dtype, op=op, data=data)
    assert result.replicas_identical
    return result.outputs[0].view(type_of(dtype)).astype(np.float64)


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("dtype", "rows", "total"),
    [
        # float16 and bfloat16 in float32: nothing is lost before the end, nor does it overflow on the way
        ("float16", [[2048.0], [1.0], [1.0]], [2050.0]),
        ("float16", [[65504.0], [65504.0], [-65504.0]], [65504.0]),
        ("float16", [[65504.0], [16.0], [-1.0]], [65504.0]),  # 65519
        ("float16", [[65504.0], [16.0], [0.0]], [INF]),
        ("float16", [[2.0**-24], [2.0**-24], [2.0**-24]], [3 * 2.0**-24]),
        ("bfloat16", [[256.0], [1.0], [1.0]], [258.0]),
        ("bfloat16", [[256.0], [1.0], [0.0]], [256.0]),  # a tie, to even
        ("bfloat16", [[2.0**24], [1.0], [-(2.0**24)]], [0.0]),  # float32 is not exact either
        ("bfloat16", [[-(2.0**24)], [2.0**24], [1.0]], [1.0]),
        # 8 bits in float16: 11 bits of mantissa, rounded each time, and infinite beyond 65504
        ("float8_e4m3fn", [[16.0], [2.0**-9], [-16.0]], [0.0]),  # 16 + 2**-9 is a third of a step above 16
        ("float8_e4m3fn", [[2.0], [2.0**-9], [-2.0]], [2.0**-9]),
        ("float8_e4m3fn", [[448.0], [448.0], [-448.0]], [448.0]),
        ("float8_e4m3fn", [[448.0], [448.0], [0.0]], [448.0]),
        ("float8_e4m3fn", [[-448.0], [-448.0], [1.0]], [-448.0]),
        ("float8_e4m3fn", [[1.0], [0.0625], [0.0]], [1.0]),  # a tie, to even
        ("float8_e4m3fn", [[1.0], [0.0625], [2.0**-9]], [1.125]),
        ("float8_e5m2", [[57344.0], [57344.0], [-57344.0]], [57344.0]),  # infinity in float16, and then the largest
        ("float8_e5m2", [[57344.0], [-57344.0], [57344.0]], [57344.0]),
        ("float8_e5m2", [[57344.0], [1.0], [-57344.0]], [0.0]),
        ("float8_e5m2", [[57344.0], [57344.0], [-INF]], [NAN]),
        ("float8_e5m2", [[2.0**-16], [2.0**-16], [0.0]], [2.0**-15]),
        # wide types in themselves
        ("float32", [[2.0**24], [1.0], [1.0]], [2.0**24]),
        ("float32", [[1.0], [1.0], [2.0**24]], [2.0**24 + 2]),
        ("float32", [[3e38], [3e38], [-3e38]], [INF]),
        ("float64", [[2.0**53], [1.0], [1.0]], [2.0**53]),
        ("float64", [[1.0], [1.0], [2.0**53]], [2.0**53 + 2]),
    ],
)
def test_sums_by_hand(dtype, rows, total):
    np.testing.assert_array_equal(sum_of(rows, dtype), total)


@pytest.mark.parametrize("dtype", [*NARROW, "float32", "float64"])
def test_hard_values_by_hand(dtype):
    """Zeros keep a sign that all have, what is not finite stays it, but in 8 bits."""
    last = 448.0 if dtype == "float8_e4m3fn" else 57344.0 if dtype == "float8_e5m2" else INF
    rows = [[-0.0, -0.0, NAN, 1.0, 1.0], [-0.0, 0.0, 1.0, NAN, 1.0]]
    if dtype != "float8_e4m3fn":  # which has no infinity
        rows = [[*rows[0], INF, INF, -INF], [*rows[1], 1.0, -INF, -INF]]
    found = sum_of(rows, dtype)
    expected = np.array([-0.0, 0.0, NAN, NAN, 2.0, last, NAN, -last][: len(found)])
    np.testing.assert_array_equal(found, expected)
    assert np.signbit(found[:2]).tolist() == [True, False]
    if dtype in NARROW:
        least, most = sum_of(rows, dtype, "min"), sum_of(rows, dtype, "max")
        np.testing.assert_array_equal(least, np.array([-0.0, -0.0, NAN, NAN, 1.0, 1.0, -last, -last][: len(found)]))
        np.testing.assert_array_equal(most, np.array([-0.0, 0.0, NAN, NAN, 1.0, last, last, -last][: len(found)]))
        assert np.signbit(least[:2]).tolist() == [True, True]
        assert np.signbit(most[:2]).tolist() == [True, False]


def test_integers_wrap_and_their_averages_truncate():
    most = np.iinfo(np.int32).max
    data = np.array([[most, 7, -7], [1, 1, -1], [0, 0, 0]], np.int32)
    schedule = build_schedule("all_reduce", "nvls", 3)
    for op, expected in (("sum", [-most - 1, 8, -8]), ("avg", [-((most + 1) // 3), 2, -2])):
        result = ce.emulate(schedule, GB200, count=3, dtype="int32", op=op, data=data)
        assert result.outputs.tolist() == [expected] * 3


# Seeds


def by_block(schedule: Schedule, count: int, row: np.ndarray) -> list[np.ndarray]:
    return np.split(row, schedule.chunk_starts(kinds.OUTPUT, count)[1:-1])


LARGE = {"float32": 2.0**12, "float64": 2.0**12, "bfloat16": 2.0**20, "float16": 2.0**15, "float8_e4m3fn": 256.0}


@pytest.mark.parametrize("dtype", LARGE)
@pytest.mark.parametrize("ranks", [3, 4])
def test_a_seed_is_an_order_for_every_operation(ranks, dtype):
    """Each block is the sum of its terms in some order, one for all of it, and in time all orders are met."""
    schedule = build_schedule("all_reduce", "nvls", ranks)
    count = 48 * ranks + 1
    random = np.random.default_rng(ranks)
    values = random.standard_normal((ranks, count)) / 4
    column = np.arange(count)
    two = random.permuted(np.tile(np.arange(ranks), (count, 1)), axis=1)[:, :2]
    large = LARGE[dtype] * (1 + random.random(count) / 2)
    values[two[:, 0], column], values[two[:, 1], column] = large, -large  # they cancel, but take from what is between
    data = rounded(values, dtype)
    sums = {
        order: [bits(part).tobytes() for part in by_block(schedule, count, in_order([data[r] for r in order], dtype))]
        for order in permutations(range(ranks))
    }
    how = {"count": count, "dtype": dtype, "data": data, "timeline": False}
    several = [len({all_of[i] for all_of in sums.values()}) for i in range(ranks)]
    assert min(several) == len(sums) // 2  # the first two terms of an order may change places, and nothing else
    met, mixed = set(), False
    for seed in range(40):
        one, again = (ce.emulate(schedule, GB200, seed=seed, fidelity=BOTH[seed % 2], **how) for _ in range(2))
        flow = ce.emulate(schedule, GB200, seed=seed, fidelity="flow", **how) if seed < 4 else one
        assert one.replicas_identical
        assert one.outputs.tobytes() == again.outputs.tobytes() == flow.outputs.tobytes()
        assert one.header["seed"] == seed
        parts = [bits(part).tobytes() for part in by_block(schedule, count, one.outputs[0].view(data.dtype))]
        orders = [
            frozenset(order for order, all_of in sums.items() if all_of[i] == part) for i, part in enumerate(parts)
        ]
        assert all(orders), f"seed {seed}: a block is the sum of no order"
        assert seed or all(tuple(range(ranks)) in each for each in orders)
        met |= set(orders)
        mixed |= len(set(orders)) > 1
    assert set().union(*met) == set(sums)
    assert mixed  # every operation has its own


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_a_seed_changes_nothing_but_the_order_of_sums(collective):
    """Nor time, nor what does not depend on an order: copies, integers, the least and the greatest."""
    schedule = build_schedule(collective, "nvls", 5, channels=2, chunks=2)
    count = 101
    shape = (5, schedule.input_regions * count)
    for dtype, op in (("int32", "sum"), ("bfloat16", "max"), ("float16", "min"), ("float32", "sum")):
        data = hard_data(0, shape, dtype)
        results = [
            ce.emulate(schedule, GB200, count=count, dtype=dtype, op=op, data=data, seed=seed) for seed in (0, 1, 2)
        ]
        assert len({result.time_fs for result in results}) == 1
        assert len({result.timeline.operations.tobytes() for result in results}) == 1
        rows = range(5) if collective != "reduce" else range(1)
        outputs = {result.outputs[list(rows)].tobytes() for result in results}
        depends = dtype == "float32" and collective in REDUCTIONS
        assert (len(outputs) > 1) == depends, (dtype, op)


# What is refused


def refusal(schedule: Schedule, system: ce.System, **how: object) -> str:
    with pytest.raises(ce.ScheduleError) as caught:
        ce.emulate(schedule, system, count=8, **how)
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_switches_that_only_switch(collective):
    schedule = build_schedule(collective, "nvls", 4)
    for name in set(ce.systems()) - set(ADDING):
        assert refusal(schedule, ce.load_system(name)) == (
            f"nvls needs switches that add and copy; those of {name} do not, or nobody knows: choose another "
            f"algorithm, or set domain.in_switch_reduction"
        )
        ce.emulate(build_schedule(collective, "nvls", 1), ce.load_system(name), count=8)  # has them do nothing
    on = ce.load_system("trainium4_nvl72").with_(**{"domain.in_switch_reduction": True})
    data = np.ones((4, schedule.input_regions * 8), np.float32)
    assert ce.emulate(schedule, on, count=8, data=data).outputs[0].max() == (4 if collective in REDUCTIONS else 1)


@pytest.mark.parametrize("wire", ["mxfp8_e4m3", "float8_e4m3fn", "bfloat16"])
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_wire_formats_are_refused(collective, wire):
    assert refusal(build_schedule(collective, "nvls", 4), GB200, wire=wire) == (
        f"nvls over wire {wire}: switches add and copy what memory holds; use wire none, and an 8-bit dtype if that is "
        f"what should travel"
    )


WIDE = "float16, bfloat16, float32, float64, int32, int64"


@pytest.mark.parametrize("collective", REDUCTIONS)
def test_types_that_switches_do_not_add_are_refused(collective):
    schedule, h100 = build_schedule(collective, "nvls", 4), ce.load_system("h100_hgx")
    for dtype in ("int8", "uint8", "float8_e4m3fnuz", "float8_e4m3fn", "float8_e5m2"):
        for op in ("sum", "avg"):
            assert refusal(schedule, h100, dtype=dtype, op=op) == (
                f"nvls: the switches of h100_hgx form no {op} of {dtype}, only of {WIDE}; use one of these, or another "
                f"algorithm"
            )
    assert f"only of {WIDE}, float8_e4m3fn, float8_e5m2; use" in refusal(schedule, GB200, dtype="uint8")
    for system in (h100, GB200):
        eight = ", float8_e4m3fn, float8_e5m2" if system is GB200 else ""
        for dtype in ("float32", "float64"):
            for op in ("min", "max"):
                assert refusal(schedule, system, dtype=dtype, op=op) == (
                    f"nvls: the switches of {system.name} form no {op} of {dtype}, only of float16, bfloat16, int32, "
                    f"int64{eight}; use one of these, or another algorithm"
                )
    with_8_bits = h100.with_(**{"domain.in_switch_float8": True})
    ce.emulate(schedule, with_8_bits, count=8, dtype="float8_e4m3fn")


@pytest.mark.parametrize("collective", REDUCTIONS)
def test_operators_that_switches_do_not_know_are_refused(collective):
    schedule = build_schedule(collective, "nvls", 4)
    for dtype in ("float32", "int32"):
        message = refusal(schedule, GB200, op="prod", dtype=dtype)
        assert message == "nvls: no switch forms a prod; choose sum, avg, min, max"
    for accumulate in ("float16", "bfloat16"):
        assert refusal(schedule, GB200, accumulate=accumulate) == (
            f"nvls: switches add in types of their own, not in {accumulate}; leave accumulate at float32, or use "
            f"another algorithm"
        )
    for collective_that_copies in ("all_gather", "broadcast"):
        ce.emulate(build_schedule(collective_that_copies, "nvls", 4), GB200, count=8, op="prod", accumulate="bfloat16")


def test_groups_stay_in_their_domain():
    h100, text = ce.load_system("h100_hgx"), "nvls has switch groups of {} ranks, which do not fit into domains of 8"
    for ranks, group in ((9, 0), (9, 16), (12, 12), (16, 3), (9, 5), (16, 0)):
        schedule = replace(build_schedule("all_reduce", "nvls", ranks), group_ranks=group)
        expected = text.format(min(group or ranks, ranks)) + " chips; use fewer ranks"
        assert refusal(schedule, h100) == expected
    for ranks, group in ((8, 0), (8, 8), (8, 16), (8, 4), (8, 3), (6, 4), (5, 5), (16, 4), (16, 8), (24, 2), (9, 1)):
        schedule = replace(build_schedule("all_reduce", "nvls", ranks), group_ranks=group)
        for fidelity in BOTH:
            assert ce.emulate(schedule, h100, count=8, fidelity=fidelity).time_fs > 0


# Time


@dataclass(frozen=True)
class Hand:
    """The numbers of a system with idle links and credits enough; times in femtoseconds."""

    system: ce.System
    ranks: int

    @property
    def lanes(self) -> int:
        return self.system.domain.links

    @property
    def latency(self) -> int:
        return femtoseconds(self.system.domain.hop_latency_s)

    @property
    def header(self) -> int:
        return self.ser(0)

    @property
    def full(self) -> int:
        return self.ser(256)

    @property
    def step(self) -> int:
        return femtoseconds(self.system.protocols["simple"].step_latency_s)

    @property
    def launch(self) -> int:
        return femtoseconds(self.system.endpoint.launch_s)

    @property
    def answer(self) -> int:
        return 2 * (self.latency + self.header)

    def ser(self, payload: int) -> int:
        """Of a packet, its header of 16 bytes and its payload in flits of 16."""
        return moving(16 + -(-payload // 16) * 16, self.system.domain.link_bytes_per_s)

    def copy(self, nbytes: int) -> int:
        """Of a store: its thread's time, or the memory's that is read if that is longer."""
        rates = self.system.endpoint.copy_bytes_per_s, self.system.chip.hbm_bytes_per_s
        return max(moving(nbytes, rate) for rate in rates)

    def to_one(self) -> int:
        """Everybody tells one rank, who hears all: its only lane zero serves them one after the other."""
        return self.step + self.header + self.latency + (self.ranks - 1) * self.header + self.latency

    def to_all(self) -> int:
        """One rank, or every rank, tells all others: the i-th message to the i-th next, so no two meet."""
        on_lane = -(-(self.ranks - 1) // self.lanes)
        return self.step + (on_lane + 1) * self.header + 2 * self.latency

    def reduce(self, arrival: int) -> int:
        """From start to finish; the arrival is of the last packet, after ready."""
        return self.step + arrival + self.answer

    def store(self, arrival: int, nbytes: int) -> int:
        pacing = self.copy(nbytes) + 2 * (self.ser(min(nbytes, 256)) + self.latency)
        return self.step + max(arrival, pacing) + self.answer


def hand(ranks: int, lanes: int, **changes: object) -> Hand:
    """Rates of few digits: whole femtoseconds a byte."""
    plain = {"domain.planes": lanes, "domain.credits": 4096, "domain.link_efficiency": 1.0}
    return Hand(GB200.with_(**plain | changes), ranks)


def emulated(by: Hand, collective: str, nbytes: int, root: int = 0, fidelity: str = "packet") -> ce.Result:
    """Bytes of a rank's share."""
    schedule = build_schedule(collective, "nvls", by.ranks, root=root)
    count = nbytes // 4 * (by.ranks if collective == "all_reduce" else 1)
    return ce.emulate(schedule, by.system, count=count, fidelity=fidelity, timeline=False)


each_shape = pytest.mark.parametrize(("ranks", "lanes"), [(2, 1), (3, 1), (5, 1), (3, 3), (5, 3), (8, 3), (8, 18)])
SLOW_COPY = {"endpoint.copy_bytes_per_s": 5e9}
SLOW_MEMORY = {"chip.hbm_bytes_per_s": 8e9}


def one_way(by: Hand, nbytes: int) -> int:
    """Of packets that meet no others: those of the busiest lane up, and the last of them down."""
    packets = max(1, -(-nbytes // 256))
    last = nbytes - 256 * (packets - 1)
    if packets == 1:
        return 2 * (by.ser(last) + by.latency)
    assert last == 256, "full ones alone"
    return (-(-packets // by.lanes) + 1) * by.full + 2 * by.latency


@each_shape
@pytest.mark.parametrize(
    "changes", [{}, SLOW_COPY, SLOW_MEMORY, {"domain.hop_latency_s": 1.7e-8}], ids=["", "copy", "memory", "near"]
)
@pytest.mark.parametrize("nbytes", [0, 100, 256, 7 * 256, 1000 * 256])
def test_broadcast_and_reduce_by_hand(ranks, lanes, nbytes, changes):
    """All tell the root, it has the switch copy or add, and tells all."""
    by = hand(ranks, lanes, **changes)
    arrival = one_way(by, nbytes)
    for root in (0, ranks - 1):
        around = by.launch + by.to_one() + by.to_all()
        assert emulated(by, "broadcast", nbytes, root).time_fs == around + by.store(arrival, nbytes)
        assert emulated(by, "reduce", nbytes, root).time_fs == around + by.reduce(arrival)


@each_shape
@pytest.mark.parametrize("changes", [{}, SLOW_COPY], ids=["", "slow_copy"])
@pytest.mark.parametrize("each_lane", [1, 2, 40])
def test_all_gather_by_hand(ranks, lanes, each_lane, changes):
    """All store at once, the same from every lane: outputs are busy from the first packet on, and end with all."""
    by = hand(ranks, lanes, **changes)
    nbytes = each_lane * lanes * 256
    arrival = by.full + by.latency + ranks * each_lane * by.full + by.latency
    expected = by.launch + by.to_all() + by.store(arrival, nbytes) + by.to_all()
    assert emulated(by, "all_gather", nbytes).time_fs == expected


@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_one_packet_goes_to_the_lane_of_its_address(ranks):
    """Eight ranks' packets on eighteen lanes never meet; on ranks - 1 lanes the last meets the first."""
    by = hand(ranks, 18)
    around = by.launch + by.to_all() + by.to_all()
    alone = 2 * (by.full + by.latency)
    assert emulated(by, "all_gather", 256).time_fs == around + by.store(alone, 256)
    assert emulated(by, "reduce_scatter", 256).time_fs == around + by.reduce(alone)
    few = hand(ranks, ranks - 1)
    around = by.launch + few.to_all() + few.to_all()
    assert emulated(few, "all_gather", 256).time_fs == around + few.store(alone + few.full, 256)


@each_shape
@pytest.mark.parametrize("each_lane", [1, 2, 20])
def test_reduce_scatter_by_hand(ranks, lanes, each_lane):
    """Every port sends the terms of rank 0, then those of rank 1: the last rank has its sum when all are out."""
    by = hand(ranks, lanes)
    last = by.reduce((ranks * each_lane + 1) * by.full + 2 * by.latency)
    expected = by.launch + by.to_all() + last + by.to_all()
    assert emulated(by, "reduce_scatter", each_lane * lanes * 256).time_fs == expected


@each_shape
@pytest.mark.parametrize("each_lane", [1, 3])
def test_all_reduce_by_hand(ranks, lanes, each_lane):
    """Latency is longer than all terms, so stores begin behind them, and follow each other as the sums did."""
    by = hand(ranks, lanes)
    nbytes = each_lane * lanes * 256
    assert 2 * by.latency > ranks * each_lane * by.full
    last = by.reduce((ranks * each_lane + 1) * by.full + 2 * by.latency)
    stored = by.store((each_lane + 1) * by.full + 2 * by.latency, nbytes)
    assert emulated(by, "all_reduce", nbytes).time_fs == by.launch + by.to_all() + last + stored + by.to_all()


@pytest.mark.parametrize("fidelity", BOTH)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_latency_counts_once_a_hop(collective, fidelity):
    """Two hops a round of signals, four an operation: there, and to know of it."""
    hops = 12 if collective == "all_reduce" else 8
    times = [
        emulated(hand(4, 18, **{"domain.hop_latency_s": seconds}), collective, 256, fidelity=fidelity).time_fs
        for seconds in (1e-7, 2e-7, 4e-7)
    ]
    assert times[1] - times[0] == hops * 10**8
    assert times[2] - times[1] == 2 * hops * 10**8


@pytest.mark.parametrize("fidelity", BOTH)
@pytest.mark.parametrize(
    ("collective", "each_lane", "shares"),
    [
        ("broadcast", 400, 1),
        ("reduce", 400, 1),
        ("all_gather", 100, 4),
        ("reduce_scatter", 100, 4),
        ("all_reduce", 100, 5),  # all sums one after the other, and the last rank's store
        ("all_reduce", 2000, 8),  # terms for longer than a store takes to begin, and behind all of them all stores
    ],
)
def test_links_at_half_the_rate(collective, each_lane, shares, fidelity):
    """What the busiest port carries takes twice as long, and nothing else but two packets' way and the signals'."""
    by, half = (hand(4, 18, **{"domain.link_bytes_per_s": rate}) for rate in (50e9, 25e9))
    nbytes = 18 * 256 * each_lane
    fast, slow = (emulated(each, collective, nbytes, fidelity=fidelity).time_fs for each in (by, half))
    carried = shares * each_lane * by.full
    assert carried < slow - fast < carried * 1.03


@pytest.mark.parametrize("ranks", [4, 8])
@pytest.mark.parametrize("pieces", [2, 8, 32])
def test_pieces_hide_stores_behind_terms(ranks, pieces):
    """In pieces an all_reduce comes near to S (1 + 1/n): only the last piece is stored with no terms under way."""
    by = hand(ranks, 18)
    schedule = build_schedule("all_reduce", "nvls", ranks, chunks=pieces)
    sizes = 2**30, 2**31
    times = [
        ce.emulate(schedule, by.system, count=size // 4, fidelity="flow", timeline=False).time_fs for size in sizes
    ]
    shares = (times[1] - times[0]) / ((sizes[1] - sizes[0]) / 18 / 256 * by.full)
    assert 1 + 1 / ranks + (1 - 1 / ranks) / pieces < shares < (1 + 1 / ranks + 1 / pieces) * 1.001


def carried(nbytes: int) -> int:
    """On a link, headers and flits included."""
    whole, rest = divmod(nbytes, 256)
    return whole * 272 + (16 + -(-rest // 16) * 16 if rest or not whole else 0)


@pytest.mark.parametrize("fidelity", BOTH)
@pytest.mark.parametrize("name", ADDING)
@pytest.mark.parametrize("count", [0, 1, 1000, 100_003, 8 * 64 * 5000])
def test_an_all_reduce_carries_s_and_an_nth_each_way(name, count, fidelity):
    """Every rank's terms of all blocks, and what is stored of its own; its sum, and copies of all blocks; signals."""
    system = ce.load_system(name)
    for ranks in (2, 3, 8):
        schedule = build_schedule("all_reduce", "nvls", ranks)
        links = ce.emulate(schedule, system, count=count, fidelity=fidelity, timeline=False).links
        blocks = [carried(4 * (count // ranks + (block < count % ranks))) for block in range(ranks)]
        expected = [sum(blocks) + own + 2 * (ranks - 1) * 16 for own in blocks]
        assert links.up_bytes.sum(axis=1).tolist() == expected
        assert links.down_bytes.sum(axis=1).tolist() == expected
        if count % (64 * ranks) == 0 and count:
            payload = (expected[0] - 2 * (ranks - 1) * 16) * 256 // 272
            assert payload * ranks == 4 * count * (ranks + 1)


@pytest.mark.parametrize("fidelity", BOTH)
@pytest.mark.parametrize("name", ADDING)
def test_nothing_is_below_its_bound(name, fidelity):
    system = ce.load_system(name)
    for collective in COLLECTIVES:
        for ranks in (2, 3, 8):
            for lanes in LANES[::3]:
                schedule = build_schedule(collective, "nvls", ranks, **lanes)
                for count in (0, 1, 40_000):
                    result = ce.emulate(schedule, system, count=count, fidelity=fidelity, timeline=False)
                    assert result.time_fs >= result.bounds.total_fs > 0, (collective, ranks, lanes, count)


@pytest.mark.parametrize("fidelity", BOTH)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_more_takes_no_less_time(collective, fidelity):
    """Where every piece has as many packets on each lane: the anomaly below is of others."""
    for lanes in LANES:
        schedule = build_schedule(collective, "nvls", 4, **lanes)
        times = [
            ce.emulate(schedule, GB200, count=18 * 64 * 24 * size, fidelity=fidelity, timeline=False).time_fs
            for size in (0, 1, 2, 3, 5, 8, 13)
        ]
        assert times == sorted(times)


def test_anomaly_more_bytes_may_find_their_lanes_free():
    """Eight ranks' 256 bytes are on lanes of their own; of 400, the second packet is where the next rank's first is."""
    by = hand(8, 18)
    around = by.launch + 2 * by.to_all()
    alone, behind = 2 * (by.full + by.latency), by.full + 2 * (by.full + by.latency)
    times = [emulated(by, "reduce_scatter", nbytes).time_fs - around for nbytes in (256, 400, 512)]
    assert times[0] == times[2] == by.reduce(alone) < times[1] <= by.reduce(behind)


@pytest.mark.parametrize("collective", COLLECTIVES)
def test_data_takes_no_time(collective):
    schedule = build_schedule(collective, "nvls", 5, chunks=2)
    data = np.ones((5, schedule.input_regions * 333), np.float32)
    for fidelity in BOTH:
        silent, moving_data = (
            ce.emulate(schedule, GB200, count=333, fidelity=fidelity, **more) for more in ({}, {"data": data})
        )
        np.testing.assert_array_equal(silent.timeline.operations, moving_data.timeline.operations)
        assert silent.time_fs == moving_data.time_fs == silent.timeline.operations["finish_fs"].max()


# Groups

IN, OUT = kinds.INPUT, kinds.OUTPUT
GROUP = 4


def with_signals(ranks: int, group: int, last: int) -> Assembler:
    """Threads 0 to group - 2 tell and hear each of the group's others, before and after step `last` of the next.

    All have been heard after step 1 of thread group - 2.
    """
    rank, offset = (each.reshape(-1) for each in np.meshgrid(np.arange(ranks), np.arange(group - 1), indexing="ij"))
    peer = rank // group * group + (rank + 1 + offset) % group
    tell, hear = steps(kinds.SEND, count=0), steps(kinds.RECV, count=0)
    heard = steps(kinds.RECV, count=0, dep=(offset[:, None] - 1, 1))
    told = steps(kinds.SEND, count=0, dep=(group - 1, last))
    assembler = Assembler()
    assembler.add(rank, offset, tell, heard, told, hear, send_peer=peer, recv_peer=peer)
    return assembler


def two_groups() -> Schedule:
    """An all_reduce over two switch groups of four: within each, across between pairs, and within each again.

    Rank r cares for block r mod 4.
    """
    assembler = with_signals(8, GROUP, 3)
    every = np.arange(8)
    block = (OUT, (every % GROUP)[:, None])
    assembler.add(
        every,
        GROUP - 1,
        steps(kinds.MULTIMEM_REDUCE, src=(IN, block[1]), dst=block, dep=(GROUP - 2, 1)),
        steps(kinds.SEND, src=block),
        steps(kinds.RECV_REDUCE, dst=block),
        steps(kinds.MULTIMEM_STORE, src=block, dst=block),
        send_peer=every ^ GROUP,
        recv_peer=every ^ GROUP,
        channel=1,
    )
    schedule = assembler.schedule("all_reduce", "two_groups", 8, channels=2, input_chunks=GROUP, output_chunks=GROUP)
    return replace(schedule, group_ranks=GROUP)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "bfloat16", "float8_e4m3fn"])
def test_every_rank_may_have_the_same_added(dtype):
    """What is read stays as it is. With a seed each has its own order, so that replicas need not be identical."""
    assembler = with_signals(4, 4, 0)
    whole = steps(kinds.MULTIMEM_REDUCE, src=(IN, 0), dst=(OUT, 0), count=2, dep=(2, 1))
    assembler.add(np.arange(4), 3, whole)
    schedule = assembler.schedule("all_reduce", "all_read", 4, input_chunks=2, output_chunks=2)
    ce.verify(schedule)
    data = hard_data(4, (4, 101), dtype)
    expected = dict.fromkeys(range(4), in_order(list(data), dtype))
    how = {"count": 101, "dtype": dtype, "data": data}
    for fidelity in BOTH:
        result = ce.emulate(schedule, GB200, fidelity=fidelity, **how)
        assert_gives(result, expected, dtype)
        assert result.replicas_identical
    identical = {ce.emulate(schedule, GB200, seed=seed, **how).replicas_identical for seed in range(1, 9)}
    assert (False in identical) == (dtype in ("float32", "float64", "bfloat16"))  # these data show no order in 8 bits


def test_two_groups_in_a_domain_add_up():
    schedule = two_groups()
    assert ce.verify(schedule).least_slots == 1
    assert [schedule.group_of(rank) for rank in (0, 3, 4, 7)] == [range(4), range(4), range(4, 8), range(4, 8)]
    for count in (0, 1, 3, 67, 400):
        for dtype in ("float32", "int64", "bfloat16", "float8_e5m2"):
            data = hard_data(4, (8, count), dtype)
            low, high = in_order(list(data[:4]), dtype), in_order(list(data[4:]), dtype)
            if dtype == "float8_e5m2":  # at the endpoint, added in float32
                total = rounded(low.astype(np.float32) + high.astype(np.float32), dtype)
            else:
                total = in_order([low, high], dtype)
            for fidelity in BOTH:
                result = ce.emulate(schedule, GB200, count=count, dtype=dtype, data=data, fidelity=fidelity)
                assert_gives(result, dict.fromkeys(range(8), total), dtype, (count, dtype))
                assert result.replicas_identical


@pytest.mark.parametrize("chips", [8, 4])
def test_two_groups_carry_their_own(chips):
    """The same bits and link bytes, whether they share a domain or each has its own: what crosses is a quarter."""
    schedule = two_groups()
    system = GB200.with_(**{"domain.chips": chips})
    count = GROUP * 64 * 18
    block = carried(64 * 18 * 4)
    across = block if chips == 8 else 0
    for fidelity in BOTH:
        result = ce.emulate(schedule, system, count=count, fidelity=fidelity)
        assert result.time_fs >= result.bounds.total_fs
        links = result.links
        inside = 18 if fidelity == "packet" else 1
        for table in (links.up_bytes, links.down_bytes):
            assert table[:, :inside].sum(axis=1).tolist() == [5 * block + across + 6 * 16] * 8
    other_group = replace(schedule, group_ranks=8)
    with pytest.raises(ce.ScheduleError):
        ce.verify(other_group)
