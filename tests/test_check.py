"""The check behind #wrong: nothing is wrong with right schedules, and broken ones are found."""

import dataclasses

import numpy as np
import pytest
from collemu_kernels import kinds

import collemu as ce
from collemu.check import BUDGET_BYTES, affordable_count, check
from collemu.number_formats import BLOCK_FORMATS, LANE_FORMATS
from collemu.recipe import Recipe
from collemu.schedule import Schedule
from tests.built_in import COLLECTIVES, anywhere

WIRES = ("none", "bfloat16", "float16", "float8_e4m3fn", "float6_e2m3fn", "float4_e2m1fn")
BLOCK_WIRES = (*BLOCK_FORMATS, *LANE_FORMATS)
ROUNDED_CONSTANTS = ("fp8_lanes32", "fp4_lanes32")  # 1/240 and 1/6 in float16
OPERATORS = ("sum", "prod", "min", "max", "avg")


@pytest.fixture(scope="module")
def system() -> ce.System:
    return ce.load_system("trainium4_nvl72")


@pytest.mark.parametrize("wire", WIRES + BLOCK_WIRES)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_every_algorithm_is_exact_over_every_wire(system: ce.System, collective: str, wire: str) -> None:
    for algorithm in anywhere(collective):
        for ranks, count in ((1, 5), (3, 37), (5, 131)):
            outcome = check(
                ce.build_schedule(collective, algorithm, ranks), system, count=count, recipe=Recipe(wire=wire)
            )
            assert outcome.wrong == 0, (algorithm, ranks, count)
            assert outcome.exact or wire in ROUNDED_CONSTANTS


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize("wire", WIRES + BLOCK_WIRES)
def test_every_operator(system: ce.System, wire: str, op: str) -> None:
    for algorithm in anywhere("all_reduce"):
        outcome = check(
            ce.build_schedule("all_reduce", algorithm, 7), system, count=99, recipe=Recipe(wire=wire), op=op
        )
        assert outcome.wrong == 0, algorithm
        powers_of_two = wire in WIRES or wire.startswith("mx")
        if wire in ROUNDED_CONSTANTS:
            continue
        assert outcome.exact == (op != "avg" and (op != "prod" or powers_of_two))


@pytest.mark.parametrize("op", OPERATORS)
@pytest.mark.parametrize(
    "dtype",
    [
        "float64",
        "float16",
        "bfloat16",
        "int8",
        "uint8",
        "int32",
        "int64",
        "float8_e4m3fn",
        "float8_e5m2",
        "float8_e3m4",
    ],
)
def test_every_dtype(system: ce.System, dtype: str, op: str) -> None:
    for ranks in (3, 72):
        outcome = check(ce.build_schedule("all_reduce", "two_shot", ranks), system, count=80, dtype=dtype, op=op)
        assert outcome.wrong == 0


@pytest.mark.parametrize("wire", ["none", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("op", ["sum", "prod", "max", "min"])
def test_a_lost_contribution_is_found(system: ce.System, wire: str, op: str) -> None:
    schedule = ce.build_schedule("all_reduce", "two_shot", 4)
    adds = np.flatnonzero(schedule.ops["kind"] == kinds.REDUCE)
    broken = _changed(schedule, int(adds[-1]), kind=kinds.NOP)
    outcome = check(broken, system, count=64, recipe=Recipe(wire=wire), op=op)
    assert 0 < outcome.wrong <= outcome.elements


def test_a_large_count_is_cut_to_the_budget_with_the_same_remainder(system: ce.System) -> None:
    schedule = ce.build_schedule("all_reduce", "ring", 72)
    for count in (10**7, 10**7 + 5, 123_456_789):
        smaller = affordable_count(schedule, count, 4)
        assert smaller * 72 * 2 * 4 <= BUDGET_BYTES
        assert smaller > 10**4
        assert smaller % (72 * 64) == count % (72 * 64)
    assert affordable_count(schedule, 1000, 4) == 1000


def _changed(schedule: Schedule, op: int, **columns: int) -> Schedule:
    ops = schedule.ops.copy()
    for column, value in columns.items():
        ops[column][op] = value
    return dataclasses.replace(schedule, ops=ops)
