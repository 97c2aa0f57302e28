"""Tables of crossovers: what they choose is the fastest, and they cover every size once."""

import itertools

import pytest

import collemu as ce
from collemu.model.choose import Choice, Task, fastest, time_s
from collemu.model.libraries import LIBRARIES, choices_of
from collemu.model.tuning import SAME, count_of, tune

H100 = ce.load_system("h100_hgx")
TRAINIUM = ce.load_system("trainium4_nvl72")
SIZES = [2**k for k in range(10, 27, 2)]


@pytest.mark.parametrize(
    ("collective", "ranks", "system", "library"),
    [
        ("all_reduce", 8, H100, "nccl"),
        ("all_reduce", 6, TRAINIUM, "custom"),
        ("all_gather", 5, TRAINIUM, "all"),
        ("broadcast", 7, H100, "all"),
        ("alltoall", 4, TRAINIUM, "all"),
    ],
)
def test_every_size_is_run_about_as_fast_as_by_the_best_of_all(collective, ranks, system, library):
    choices = choices_of(LIBRARIES[library], collective, system, (system.default_protocol,), (1, 4))
    task = Task(collective, ranks, system, fidelity="flow")
    ranges = tune(task, choices, SIZES)
    for size in SIZES:
        (mine,) = [each for each in ranges if each.min_bytes <= size <= each.max_bytes]
        best = min(time_s(task, choice, count_of(task, size)) for choice in choices)
        assert time_s(task, mine.choice, count_of(task, size)) <= 1.05 * best


def test_ranges_touch_and_neighbours_differ():
    task = Task("all_reduce", 8, H100, fidelity="flow")
    ranges = tune(task, choices_of(LIBRARIES["nccl"], "all_reduce", H100, ("simple", "ll128"), (1, 8)), SIZES)
    assert len(ranges) > 1
    assert ranges[0].min_bytes == SIZES[0]
    assert ranges[-1].max_bytes == SIZES[-1]
    for before, after in itertools.pairwise(ranges):
        assert after.min_bytes == before.max_bytes + 1
        assert after.choice != before.choice


def test_at_a_boundary_the_later_choice_takes_over():
    task = Task("all_reduce", 16, TRAINIUM, fidelity="flow")
    choices = [Choice("one_shot", "dma"), Choice("two_shot", "dma"), Choice("ring", "dma")]
    first, *rest = tune(task, choices, SIZES)
    assert first.choice.algorithm == "one_shot"
    assert rest
    for before, after in itertools.pairwise([first, *rest]):
        for size, sooner, later in (
            (before.min_bytes, before.choice, after.choice),
            (after.max_bytes, after.choice, before.choice),
        ):
            count = count_of(task, size)
            assert time_s(task, sooner, count) <= SAME * time_s(task, later, count)


def test_one_size_is_one_range():
    (only,) = tune(Task("reduce", 3, TRAINIUM), [Choice("ring"), Choice("tree")], [4096])
    assert (only.min_bytes, only.max_bytes) == (4096, 4096)
    assert only.first_s == only.last_s


def test_no_more_channels_than_help():
    choices = [Choice("two_shot", "dma", channels) for channels in (8, 4, 2, 1)]
    (small, *_) = tune(Task("all_reduce", 4, TRAINIUM, fidelity="flow"), choices, [1024])
    count = count_of(Task("all_reduce", 4, TRAINIUM), 1024)
    times = {
        choice.channels: time_s(Task("all_reduce", 4, TRAINIUM, fidelity="flow"), choice, count) for choice in choices
    }
    assert times[small.choice.channels] <= SAME * min(times.values())
    assert all(times[fewer] > SAME * min(times.values()) for fewer in times if fewer < small.choice.channels)


def test_switches_speak_no_protocol_of_lines():
    choices = choices_of(LIBRARIES["nccl"], "all_reduce", H100, tuple(H100.protocols))
    assert {each.protocol for each in choices if each.algorithm == "nvls"} == {"simple"}
    assert {each.protocol for each in choices if each.algorithm == "ring"} == {"simple", "ll", "ll128"}


def test_libraries_have_only_algorithms_that_there_are():
    for library in LIBRARIES.values():
        for collective, names in (library.algorithms or {}).items():
            assert set(names) <= set(ce.algorithms(collective)), (library.name, collective)


def test_what_a_library_cannot_do_is_told():
    with pytest.raises(ValueError, match="custom has no algorithm for broadcast on trainium4_nvl72; try --like all"):
        choices_of(LIBRARIES["custom"], "broadcast", TRAINIUM, ("dma",))
    with pytest.raises(ValueError, match="nvls needs switches"):
        fastest(Task("all_reduce", 4, TRAINIUM), [Choice("nvls")], 64)
