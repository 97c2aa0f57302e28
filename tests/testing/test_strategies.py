"""What the strategies of `collemu.testing` draw: all of it runs, hard values are among it, and it shrinks."""

import pickle

import numpy as np
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

import collemu
from collemu import testing
from collemu.builders import BUILDERS, IN_SWITCH
from collemu.dtypes import DTYPES, find_dtype, to_values
from collemu.number_formats import ELEMENT_FORMATS, wire_formats
from collemu.payload import payload_of
from collemu.program import algorithm
from collemu.testing.drawn_values import lacks_nan
from tests.oracles.hard_numbers import TIES

some_dtype = st.sampled_from(tuple(DTYPES))
ANY = settings(max_examples=3000, deadline=None, database=None, phases=[Phase.generate])
LEAST = settings(max_examples=2000, deadline=None, database=None)


@algorithm("broadcast")
def mine(p, chunks=1):
    p.chunks(chunks)
    for chunk in range(chunks):
        p.input(p.root, chunk).copy_to(p.output(p.root, chunk))
        for rank in set(range(p.ranks)) - {p.root}:
            p.input(p.root, chunk).copy_to(p.output(rank, chunk))


def numbers(array, dtype="float32"):
    return to_values(array, find_dtype(dtype)).astype(np.float64)


# Runs


@given(run=testing.runs())
def test_everything_that_is_drawn_runs(run):
    result = collemu.emulate(**run)
    assert result.time_fs >= result.bounds.total_fs
    assert len(result.outputs) == run["schedule"].ranks


@given(run=testing.runs(testing.schedules(algorithms=mine), testing.systems("h100_hgx"), most=20, data=False))
def test_runs_of_what_is_given(run):
    assert run["schedule"].algorithm == "mine"
    assert run["system"].name == "h100_hgx"
    assert "data" not in run
    assert collemu.emulate(**run).lowered.count == run["count"] <= 20


@pytest.mark.slow
def test_a_run_shrinks_to_a_plain_one():
    """Which algorithm is left is a matter of luck: to shrink, Hypothesis would have to change much at once."""
    run = find(testing.runs(), lambda run: run["schedule"].ranks >= 3, settings=LEAST)
    assert (run["schedule"].ranks, run["schedule"].channels) == (3, 1)
    assert not run["system"].changed()
    assert (run["recipe"], run.get("count", 0)) == (collemu.Recipe(), 0)


def test_what_fails_is_shown_as_calls(capsys):
    @settings(database=None, deadline=None, derandomize=True)
    @given(schedule=testing.schedules("gather", ranks=3, algorithms="chain"), system=testing.systems())
    def fails(schedule, system):
        assert system.domain.credits > 3 or schedule.root != 2

    with pytest.raises(AssertionError) as error:
        fails()
    text = " ".join("".join(error.value.__notes__).split())
    assert "build_schedule( 'gather', 'chain', 3, root=2, channels=1, chunks=None, )" in text
    assert "changed_system('trainium4_nvl72', {'domain.credits': 1})" in text


# Schedules and systems


@given(schedule=testing.schedules(in_switch=True))
def test_schedules_are_right(schedule):
    collemu.verify(schedule)


def test_every_built_in_algorithm_can_be_drawn():
    for collective, table in BUILDERS.items():
        for name in table:
            found = find(testing.schedules(collective, name, ranks=2), lambda _: True, settings=ANY)
            assert (found.collective, found.algorithm) == (collective, name)
            if name in IN_SWITCH:
                assert name not in str(testing.schedules(collective))


@given(
    schedule=testing.schedules(algorithms=[mine, "examples/my_ring.py", "ring"], ranks=(2, 5), channels=1, chunks=(2,))
)
def test_algorithms_of_ones_own(schedule):
    collemu.verify(schedule)
    assert schedule.ranks in (2, 5)
    assert schedule.algorithm in ("mine", "my_ring", "ring")
    assert schedule.algorithm != "mine" or schedule.region_chunks == 2
    pickle.loads(pickle.dumps(schedule))  # it is sent to other processes


def test_an_own_algorithm_is_shown_by_its_name():
    @settings(database=None, deadline=None)
    @given(schedule=testing.schedules(algorithms=mine, ranks=2))
    def fails(schedule):
        raise AssertionError

    with pytest.raises(AssertionError) as error:
        fails()
    assert "mine.schedule( 2, root=0, chunks=None)" in " ".join("".join(error.value.__notes__).split())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("all_reduc",), "no collective 'all_reduc': did you mean all_reduce?"),
        (("gather", "ring"), "no algorithm of gather: 'ring'"),
        (("gather", "examples/my_ring.py"), "examples/my_ring.py: it does all_reduce, not gather"),
    ],
)
def test_what_there_is_not_is_refused(arguments, text):
    with pytest.raises(ValueError, match=text):
        testing.schedules(*arguments)


@given(ranks=st.integers(1, 200), in_switch=st.booleans(), data=st.data())
def test_systems_have_room(ranks, in_switch, data):
    in_switch = in_switch and ranks <= 72
    system = data.draw(testing.systems(ranks=ranks, in_switch=in_switch))
    assert system.max_ranks >= ranks
    assert not in_switch or (system.domain.in_switch_reduction and system.domain.chips >= ranks)


def test_systems_are_the_catalogue_and_changed_ones():
    strategy = testing.systems()
    assert find(strategy, lambda _: True, settings=LEAST) == collemu.load_system("trainium4_nvl72")
    for name in collemu.systems():
        assert find(strategy, lambda system, name=name: system.name == name, settings=ANY).name == name
    for change in ("domain.chips", "domain.credits", "domain.hop_latency_s", "scaleout.bytes_per_s", "domain.planes"):
        found = find(strategy, lambda system, change=change: change in system.changed(), settings=LEAST)
        assert found.changed() == (change,)  # nothing else
    with pytest.raises(ValueError, match="none of a100_hgx has 9 ranks in a domain whose switches add and copy"):
        testing.systems("a100_hgx", ranks=9, in_switch=True)


def test_counts_lie_around_edges():
    for wanted in (0, 1, 31, 32, 33, 299, 300):
        assert find(testing.counts(), lambda count, wanted=wanted: count == wanted, settings=ANY) == wanted
    near = testing.counts(2000, near=(700,))
    for wanted in (699, 701, 1399, 1401):
        assert find(near, lambda count, wanted=wanted: count == wanted, settings=ANY) == wanted


@given(most=st.integers(0, 5000), data=st.data())
def test_counts_stay_within_their_limit(most, data):
    assert 0 <= data.draw(testing.counts(most, near=(3,))) <= most


# Numbers


@given(dtype=some_dtype, data=st.data())
def test_recipes_and_wires_go_with_their_dtype(dtype, data):
    recipe = data.draw(testing.recipes(dtype))
    payload_of("all_reduce", dtype, recipe, "sum")
    payload_of("all_reduce", dtype, collemu.Recipe(wire=data.draw(testing.wires(dtype))), "sum")


def test_every_wire_and_recipe_can_be_drawn():
    for name in ("none", "dtype", *wire_formats()):
        if name != "float8_e8m0fnu":
            assert find(testing.wires(), lambda wire, name=name: wire == name, settings=ANY) == name
    for name in collemu.recipes():
        assert find(testing.recipes(), lambda recipe, name=name: recipe.name == name, settings=ANY).name == name
    assert find(testing.recipes(), lambda recipe: recipe.scale_mode == "rceil", settings=LEAST).round_own


@pytest.mark.parametrize("wire", [name for name in wire_formats() if name != "float8_e8m0fnu"])
def test_wires_without_nan_are_known(wire):
    """Those through which the emulator refuses to send one."""
    schedule = collemu.build_schedule("sendrecv", "direct", 2)
    data = np.full((2, 3), np.nan, np.float32)
    try:
        collemu.emulate(schedule, collemu.load_system("trainium4_nvl72"), count=3, wire=wire, data=data)
        refused = False
    except ValueError as error:
        assert "NaN" in str(error)
        refused = True
    assert lacks_nan(collemu.Recipe(wire=wire)) == refused


@given(
    dtype=some_dtype,
    shape=st.sampled_from([0, 1, 40, (2, 0), (3, 70), ()]),
    wire=st.sampled_from(["none", "mxfp4", "nvfp4", "tfloat32", "int4_lanes32", "bfloat16"]),
    limit=st.sampled_from([None, 1.0, 8.0]),
    not_finite=st.booleans(),
    data=st.data(),
)
def test_tensors_are_what_was_asked_for(dtype, shape, wire, limit, not_finite, data):
    kind = find_dtype(dtype)
    array = data.draw(testing.tensors(dtype, shape, wire=wire, largest=limit, not_finite=not_finite))
    assert array.dtype == kind.storage
    assert array.shape == ((shape,) if isinstance(shape, int) else shape)
    if kind.kind != "floating":
        return
    values = numbers(array, dtype) if dtype != "float64" else array
    if not not_finite or limit is not None:
        assert np.isfinite(values).all()
    if limit is not None:
        assert (np.abs(values) <= limit).all()


@pytest.mark.parametrize(
    "hard",
    [
        lambda x: (x == 0).any() and np.signbit(x[x == 0]).any(),
        lambda x: np.isnan(x).any() and np.isposinf(x).any(),
        lambda x: ((x != 0) & (np.abs(x) < 2.0**-126)).any(),
        lambda x: (np.abs(x) == np.finfo(np.float32).max).any(),
        lambda x: len(set(x[:32])) == 1 and len(set(x)) > 1 and x[32] != x[0],
        lambda x: np.isin(np.abs(x), TIES[:5]).sum() > 1,
        lambda x: (np.abs(x) > 1e30).any() and ((x != 0) & (np.abs(x) < 1e-30)).any(),
    ],
)
def test_hard_values_are_among_them(hard):
    found = find(testing.tensors("float32", 70, wire="mxfp4"), lambda x: bool(hard(x)), settings=LEAST)
    assert len({found.tobytes()[i : i + 4] for i in range(0, 280, 4)}) <= 3  # it has shrunk to what matters


def test_a_tensor_shrinks_to_zeros():
    assert not find(testing.tensors("bfloat16", (3, 50)), lambda _: True, settings=LEAST).any()
    found = find(testing.tensors("float32", 4), lambda x: (x > 100).any(), settings=LEAST)
    assert len(set(found)) == 1


@given(name=st.sampled_from(tuple(ELEMENT_FORMATS)), shape=st.sampled_from([(), 7, (2, 300)]), data=st.data())
def test_codes_are_codes(name, shape, data):
    codes = data.draw(testing.codes(name, shape))
    assert collemu.decode(codes, name).shape == codes.shape == ((shape,) if isinstance(shape, int) else shape)


@pytest.mark.parametrize("name", ["float8_e5m2", "float4_e2m1fn", "bfloat16"])
def test_every_code_can_come_at_once(name):
    number = 2 ** ELEMENT_FORMATS[name].bits
    found = find(testing.codes(name, number), lambda codes: len(np.unique(codes)) == number, settings=ANY)
    assert len(found) == number
    assert not find(testing.codes(name), lambda _: True, settings=LEAST)
