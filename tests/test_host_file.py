"""The system file of a measured machine: what was measured comes back, bounds hold, and faults are named."""

from dataclasses import replace
from random import Random

import pytest

import collemu as ce
from collemu.catalogue.host_file import host_text
from collemu.catalogue.system import SystemFileError
from collemu.ranks.calibrate import Measurements, Spread

COLLECTIVES = (
    *("all_reduce", "reduce_scatter", "all_gather", "broadcast", "reduce"),
    *("alltoall", "sendrecv", "gather", "scatter"),
)
WIRES = ("mxfp4", "bfloat16")


def around(value: float) -> Spread:
    return Spread(value, value * 0.9, value * 1.1)


def measured(seed: int) -> Measurements:
    """Something that may have been measured."""
    rng = Random(seed)
    sizes = tuple(sorted(rng.sample(range(1, 100_000), rng.randint(1, 5))))

    def seconds() -> Spread:
        return around(rng.choice([0.0, 1e-7, rng.uniform(0, 1e-5)]))

    def table() -> tuple[Spread, ...]:
        rate = 10 ** rng.uniform(7, 10)
        return tuple(around(size / rate * rng.uniform(0.8, 1.2)) for size in sizes)

    def rates(names: tuple[str, ...]) -> dict[str, Spread]:
        return {name: around(10 ** rng.uniform(6, 10)) for name in names}

    return Measurements(
        processes=2,
        cores=rng.choice([1, 2, 4]),
        launch_s=seconds(),
        operation_s=seconds(),
        send_s=seconds(),
        notice_s=seconds(),
        wake_s=seconds(),
        eager_bytes=rng.choice([0, 4096]),
        sizes_bytes=sizes,
        copy_s=table(),
        reduce_s=table(),
        transfer_s=table(),
        encode_bytes_per_s=rates(WIRES),
        decode_bytes_per_s=rates(WIRES),
        reduce_bytes_per_s=rates(("float32", "float64", "int8")),
    )


def text_of(found: Measurements) -> str:
    return host_text(found, name="host", library='a "library"', machine="a machine")


@pytest.fixture
def load(tmp_path):
    """Load a text as a system file."""

    def load_text(text: str) -> ce.System:
        path = tmp_path / "host.toml"
        path.write_text(text, encoding="utf-8")
        return ce.load_system(path)

    return load_text


@pytest.mark.parametrize("seed", range(20))
def test_what_was_measured_comes_back(seed, load) -> None:
    found = measured(seed)
    system = load(text_of(found))
    own = system.processes
    assert system.title == f'a machine, {found.cores} cores, a "library"'
    assert (own.cores, own.eager_bytes, own.sizes_bytes) == (found.cores, found.eager_bytes, found.sizes_bytes)
    assert system.endpoint.launch_s == pytest.approx(found.launch_s.value, rel=1e-3)
    for name in ("operation_s", "send_s", "notice_s", "wake_s"):
        assert getattr(own, name) == pytest.approx(getattr(found, name).value, rel=1e-3)
    for name in ("copy_s", "reduce_s", "transfer_s"):
        medians = [spread.value for spread in getattr(found, name)]
        assert list(getattr(own, name)) == pytest.approx(medians, rel=1e-3)
    for name in WIRES:
        conversion = system.conversions[name]
        assert conversion.encode_bytes_per_s == pytest.approx(found.encode_bytes_per_s[name].value, rel=1e-3)
        assert conversion.decode_bytes_per_s == pytest.approx(found.decode_bytes_per_s[name].value, rel=1e-3)
    assert set(system.reductions) == {"float64", "int8"}  # float32 has a table
    for name, reduction in system.reductions.items():
        assert reduction.reduce_bytes_per_s == pytest.approx(found.reduce_bytes_per_s[name].value, rel=1e-3)


def test_no_time_is_below_the_bound(load) -> None:
    """Also of a scatter, whose root may copy faster than anybody takes, and of encoded bytes."""
    pairs = [(each, name) for each in COLLECTIVES for name in ce.algorithms(each, ce.load_system("trainium4_nvl72"))]
    for seed in range(len(pairs) * 4):
        rng = Random(seed)
        system = load(text_of(measured(seed)))
        collective, algorithm = pairs[seed % len(pairs)]
        schedule = ce.build_schedule(collective, algorithm, rng.randint(2, 8))
        count = rng.choice([1, rng.randint(1, 300), rng.randint(1, 10**6)])
        wire = rng.choice(["none", *WIRES])
        result = ce.emulate(schedule, system, count=count, wire=wire, timeline=False)
        assert result.header["fidelity"] == "processes"
        assert result.time_fs >= result.bounds.total_fs, f"seed {seed}: {collective} {algorithm}"


def test_a_scatter_that_is_sent_faster_than_it_is_taken_is_above_the_bound(load) -> None:
    slow, fast = (around(1e-2),), (around(1e-3),)
    encoding = dict.fromkeys(WIRES, around(1e6))
    found = replace(
        measured(0), sizes_bytes=(2**20,), copy_s=fast, reduce_s=fast, transfer_s=slow, encode_bytes_per_s=encoding
    )
    result = ce.emulate(ce.build_schedule("scatter", "direct", 8), load(text_of(found)), count=2**18)
    assert result.time_fs >= result.bounds.total_fs


SIZES = "sizes_bytes = { value = "
FAULTS = {
    "shorter table": (
        "copy_s = { value = [",
        "copy_s = { value = [1.0, ",
        r"processes\.copy_s: \d numbers for \d sizes",
    ),
    "sizes that fall": (SIZES + "[", SIZES + "[2000000, ", r"processes\.sizes_bytes: .* must grow"),
    "text for a list": (
        SIZES,
        SIZES + '"64K", was = ',
        "sizes_bytes: must be a list of numbers, not '64K'",
    ),
    "number for a list": (SIZES, SIZES + "64, was = ", r"processes\.sizes_bytes: must be a list of numbers, not 64"),
    "empty list": (SIZES, SIZES + "[], was = ", r"processes\.sizes_bytes: must have at least one number"),
    "size of nothing": (SIZES + "[", SIZES + "[0, ", r"processes\.sizes_bytes: must be above zero, not 0"),
    "negative time": ("transfer_s = { value = [", "transfer_s = { value = [-1.0, ", "must be at least zero, not -1"),
    "negative wake": ("wake_s = { value = ", "wake_s = { value = -", r"processes\.wake_s: must be at least zero"),
    "no core": ("cores = { value = ", "cores = { value = 0, was = ", r"processes\.cores: must be above zero"),
    "unknown number": ("wake_s =", "wake_up_s =", r"processes\.wake_up_s: unknown, did you mean wake_s\?"),
    "unknown rate": ("encode_bytes_per_s", "encode_byte_per_s", r"conversion\.mxfp4\.encode_byte_per_s: unknown"),
    "no rate": ("decode_bytes_per_s", "# decode", r"conversion\.mxfp4\.decode_bytes_per_s: missing"),
    "unknown wire": ("[conversion.mxfp4]", "[conversion.mxfp44]", r"conversion\.mxfp44: unknown, did you mean mxfp4\?"),
    "unknown dtype": (
        "[reduction.float64]",
        "[reduction.float46]",
        r"reduction\.float46: unknown, did you mean float",
    ),
    "unknown family": ("[reduction.float64]", "[reductions.float64]", "reductions: unknown, did you mean reduction"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults_are_named_in_one_line(name, load) -> None:
    before, after, expected = FAULTS[name]
    text = text_of(measured(2))
    assert before in text
    head, processes, rest = text.partition("[processes]")
    with pytest.raises(SystemFileError, match=expected) as error:
        load(head + processes + rest.replace(before, after, 1))
    assert "\n" not in str(error.value)


def test_numbers_can_be_set_and_each_changes_the_fingerprint(load) -> None:
    system = load(text_of(measured(3)))
    names = [name for name in system.provenance if name.partition(".")[0] in ("processes", "conversion", "reduction")]
    assert len(names) == 11 + 2 * 2 + 2
    seen = {system.fingerprint}
    for name in names:
        value = system.provenance[name].value
        more = tuple(2 * each for each in value) if isinstance(value, tuple) else 2 * value or 1
        changed = system.with_(**{name: more})
        assert changed.changed() == (name,)
        assert changed.provenance[name].value == more
        seen.add(changed.fingerprint)
    assert len(seen) == 1 + len(names)
    assert system.with_(**{"processes.wake_s": 1e-5}).processes.wake_s == 1e-5
    assert system.with_(**{"conversion.mxfp4.encode_bytes_per_s": 5e8}).conversions["mxfp4"].encode_bytes_per_s == 5e8
    with pytest.raises(SystemFileError, match=r"processes\.copy_s: 9 numbers for \d sizes"):
        system.with_(**{"processes.copy_s": [1e-6] * 9})
