"""Execution plans of MSCCL++: what they do is what their schedules do, and what is wrong is named by its place."""

import copy
import json
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from collemu_kernels import kinds
from hypothesis import given, settings
from hypothesis import strategies as st

import collemu as ce
from collemu.interop.mscclpp import fields, read_mscclpp
from collemu.ranks.launch import run_under_mpi
from tests import plans
from tests.oracles.plan_interpreter import run_plan

PLANS: dict[str, Callable[[], plans.Plan]] = {
    "packets 2": lambda: plans.packets(2),
    "packets 3 in parts": lambda: plans.packets(3, parts=2),
    "packets 8": lambda: plans.packets(8),
    "gathering 2": lambda: plans.gathering(2, in_place=False),
    "gathering 3 in place": lambda: plans.gathering(3, in_place=True),
    "gathering 5, 2 blocks": lambda: plans.gathering(5, in_place=False, blocks=2),
    "gathering 4 in place, 3 blocks": lambda: plans.gathering(4, in_place=True, blocks=3),
    "reading 2": lambda: plans.reading(2),
    "reading 7": lambda: plans.reading(7),
    "switching 2": lambda: plans.switching(2),
    "switching 4": lambda: plans.switching(4),
    "storing 4": lambda: plans.storing(4),
    "forwarding 2": lambda: plans.forwarding(2),
    "forwarding 5": lambda: plans.forwarding(5),
    "keeping": plans.keeping,
    "networked": plans.networked,
    "halves": plans.halves,
    "semaphores": plans.semaphores,
}


def older(*gpus: dict[str, Any], collective: str = "allreduce", protocol: str = "Simple", in_place: bool = True) -> Any:
    """A plan of the format that MSCCL++ had first, its misspelling included."""
    return {
        "name": "by_hand",
        "colletive" if collective == "allreduce" else "collective": collective,
        "protocol": protocol,
        "inplace": in_place,
        "gpus": list(gpus),
    }


def older_gpu(rank: int, chunks: tuple[int, int, int], kind: str, joins: str, *blocks: list[Any]) -> dict[str, Any]:
    """One of two GPUs; every thread block has a channel of its own to the other."""
    src, dst = joins
    return {
        "id": rank,
        "inputChunks": chunks[0],
        "outputChunks": chunks[1],
        "scratchChunks": chunks[2],
        "chunkGroups": 1,
        "threadblocks": [
            {"id": number, "ops": ops, "channels": [{"src": src, "dst": dst, "ctype": kind, "cids": [number]}]}
            for number, ops in enumerate(blocks)
        ],
        "channels": [{"srcbuff": src, "dstbuff": dst, "type": kind, "connectedTo": [1 - rank] * len(blocks)}],
    }


def pairs() -> Any:
    """All_reduce: each reads, adds and writes its half."""

    def block(rank: int) -> list[Any]:
        buffers, at = {"src": "i", "dst": "i"}, [{"id": 0, "off": rank}]
        tell = {"name": "signal", "o_buff": buffers, "o_cids": [{"id": 0, "off": 0}], "ctype": "sm", "cnt": 1}
        hear = {"name": "wait", "i_buff": buffers, "i_cids": [{"id": 0, "off": 0}], "ctype": "sm", "cnt": 1}
        here = {"srcbuff": "i", "srcoff": rank, "dstbuff": "i", "dstoff": rank}
        add = {"name": "rrcs", "i_buff": buffers, "i_cids": at, "o_buff": buffers, "o_cids": at, "ctype": "sm", **here}
        return [tell, hear, {"name": "nop", "deps": [{"tb": 0, "step": 1}]}, add, {"name": "nop"}, tell, hear]

    return older(*(older_gpu(rank, (2, 0, 0), "sm", "ii", block(rank)) for rank in range(2)))


def older_packets() -> Any:
    """All_reduce by packets, one thread block waiting for a step of another."""

    def blocks(rank: int) -> list[list[Any]]:
        its, buffers = 1 - rank, {"src": "i", "dst": "s"}
        put = {"name": "ppkt", "o_buff": buffers, "o_cids": [{"id": 0, "off": its}], "ctype": "sm"}
        put["srcs"] = [{"buff": "i", "off": its}]
        here = {"srcbuff": "i", "srcoff": rank, "dstbuff": "i", "dstoff": rank}
        add = {"name": "rspkt", "o_buff": buffers, "o_cids": [{"id": 0, "off": 2 + rank}], "ctype": "sm", **here}
        add["srcs"] = [{"buff": "s", "off": rank}]
        take = {"name": "cpkt", "srcbuff": "s", "srcoff": 2 + its, "dstbuff": "i", "dstoff": its, "ctype": "none"}
        return [[put], [{"name": "nop", "deps": [{"tb": 0, "step": 0}]}, add, take]]

    return older(*(older_gpu(rank, (2, 0, 4), "sm", "is", *blocks(rank)) for rank in range(2)), protocol="LL")


def exchange() -> Any:
    """Sendrecv of two ranks, over the network."""
    buffers, at = {"src": "i", "dst": "s"}, [{"id": 0, "off": 1}]
    ops = [
        {
            "name": "pwsf",
            "o_buff": buffers,
            "o_cids": at,
            "srcs": [{"buff": "i", "off": 0}],
            "ctype": "proxy",
            "cnt": 1,
        },
        {"name": "flush"},
        {"name": "wait", "i_buff": buffers, "i_cids": at, "ctype": "proxy", "cnt": 1},
        {"name": "nop", "deps": [{"tb": 0, "step": 2}]},
        {"name": "copy", "srcbuff": "s", "srcoff": 1, "dstbuff": "o", "dstoff": 0, "ctype": "none", "cnt": 1},
    ]
    gpus = [older_gpu(rank, (1, 1, 2), "proxy", "is", copy.deepcopy(ops)) for rank in range(2)]
    return older(*gpus, collective="sendrecv", in_place=False)


OLDER = {"pairs": pairs, "older packets": older_packets, "exchange": exchange}
CONTENTS: dict[str, Callable[[], Any]] = {
    **{name: lambda build=build: build().content for name, build in PLANS.items()},
    **OLDER,
}


def saved(folder: Path, content: Any) -> Path:
    path = folder / "plan.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


@pytest.mark.parametrize("name", CONTENTS)
def test_a_plan_does_what_its_collective_promises(tmp_path, name):
    content = CONTENTS[name]()
    schedule = ce.load_schedule(saved(tmp_path, content))
    assert ce.verify(schedule).least_slots == 1
    assert (schedule.ranks, schedule.in_place) == (len(content["gpus"]), content["inplace"])
    assert schedule.protocol == content["protocol"].lower()
    for count in (0, 1, 5, 64):
        if count % schedule.region_chunks == 0 or ce.verify(schedule).any_count:
            data = np.arange(schedule.ranks * count * schedule.input_regions).reshape(schedule.ranks, -1) % 7
            result = ce.emulate(schedule, ce.load_system("h100_hgx"), count=count, data=data.astype(np.float32))
            if schedule.collective == "all_reduce":
                assert np.array_equal(result.outputs, np.tile(data.sum(axis=0), (schedule.ranks, 1)))


@pytest.mark.parametrize("name", PLANS)
@settings(deadline=None, max_examples=5)
@given(seed=st.integers(0, 2**32))
def test_memory_ends_as_a_plain_interpreter_leaves_it(tmp_path_factory, name, seed):
    plan = PLANS[name]()
    schedule = read_mscclpp(plan.save(tmp_path_factory.mktemp("plan")))
    chunks, width = plan.content["gpus"][0]["input_chunks"], 6
    data = np.random.default_rng(seed).integers(-8, 8, (schedule.ranks, chunks, width))
    memory = run_plan(plan.content, data.astype(np.float64), random.Random(seed))
    wanted = np.stack([each["o"].reshape(-1) for each in memory])
    flat = data.reshape(schedule.ranks, -1).astype(np.float32)
    result = ce.emulate(schedule, ce.load_system("h100_hgx"), count=flat.shape[1], data=flat)
    assert np.array_equal(result.outputs, wanted)


@pytest.mark.parametrize(
    ("plan", "like", "ranks", "protocol"),
    [(plans.switching, "nvls", 4, "simple"), (plans.packets, "two_shot", 8, "ll")],
)
def test_a_plan_takes_as_long_as_the_algorithm_that_it_is(tmp_path, plan, like, ranks, protocol):
    system = ce.load_system("h100_hgx")
    schedule = ce.load_schedule(plan(ranks).save(tmp_path))
    own = ce.build_schedule("all_reduce", like, ranks)
    for count, near in ((4096, 0.02), (2**20, 0.2)):  # the order of what waits for a link differs
        took = ce.emulate(schedule, system, count=count)
        wanted = ce.emulate(own, system, count=count, protocol=protocol)
        assert took.header["protocol"] == protocol
        assert took.time_s == pytest.approx(wanted.time_s, rel=near)


@pytest.mark.parametrize(
    "name", ["packets 3 in parts", "gathering 4 in place, 3 blocks", "gathering 5, 2 blocks", "reading 7"]
)
def test_replicas_are_identical_with_a_wire_format(tmp_path, name):
    schedule = ce.load_schedule(saved(tmp_path, CONTENTS[name]()))
    count = 96 * schedule.region_chunks
    data = np.random.default_rng(1).normal(size=(schedule.ranks, count)).astype(np.float32)
    result = ce.emulate(schedule, ce.load_system("h100_hgx"), count=count, data=data, wire="mxfp8_e4m3")
    assert result.replicas_identical == (name != "gathering 4 in place, 3 blocks")  # its own part is never written


def test_flags_become_empty_messages_only_where_no_data_tell(tmp_path):
    schedule = read_mscclpp(plans.gathering(3, in_place=False).save(tmp_path))
    sends = schedule.ops[schedule.ops["kind"] == kinds.SEND]
    assert np.count_nonzero(sends["count"] == 0) == 6  # before; afterwards the data are what is waited for
    assert np.count_nonzero(sends["count"]) == 6


def test_a_race_of_a_plan_is_one_of_its_schedule(tmp_path):
    plan = plans.halves()
    wait = plan.content["gpus"][1]["threadblocks"][0]["ops"][4]
    assert wait.pop("channel_ids") == [0]
    wait["name"] = "nop"  # what it then reads of the other may not be there yet
    with pytest.raises(ce.ScheduleError, match=r"race on rank 0 scratch\[2\]: nothing orders rank 0 "):
        ce.verify(read_mscclpp(plan.save(tmp_path)))


def test_a_custom_plan_does_what_is_asked(tmp_path):
    content = plans.packets(2).content | {"collective": "custom"}
    path = saved(tmp_path, content)
    assert ce.load_schedule(path, collective="all_reduce").collective == "all_reduce"
    with pytest.raises(
        ValueError, match=r"plan\.json: plan: collective is 'custom', which promises nothing: say which"
    ):
        ce.load_schedule(path)
    with pytest.raises(ValueError, match="it does all_reduce, not all_gather"):
        ce.load_schedule(saved(tmp_path, plans.packets(2).content), collective="all_gather")


def test_plans_are_written_as_msccl_xml_with_their_protocol(tmp_path):
    schedule = read_mscclpp(saved(tmp_path, older_packets()))
    ce.save_schedule(schedule, tmp_path / "a.xml")
    assert 'proto="LL"' in (tmp_path / "a.xml").read_text()
    again = ce.load_schedule(tmp_path / "a.xml")
    assert (again.protocol, ce.verify(again).messages) == ("ll", ce.verify(schedule).messages)


def first(content: Any, *way: Any) -> Any:
    """Something in the first GPU's first thread block."""
    found = content["gpus"][0]["threadblocks"][0]
    for key in way:
        found = found[key]
    return found


FAULTS: list[tuple[str, Callable[[Any], object], str]] = [
    ("gathering 2", lambda c: c.pop("gpus"), "plan: gpus is missing"),
    ("gathering 2", lambda c: c.update(gpus=[]), "plan: it has 0 gpus; it must have 1 to 4096"),
    ("gathering 2", lambda c: c.update(name="a\nb"), 'plan: name is "a\\nb", no line of 1 to 255 characters'),
    ("gathering 2", lambda c: c.update(protocol="LL256"), 'plan: protocol is "LL256"; choose Simple, LL'),
    ("gathering 2", lambda c: c.update(collective="gossip"), "plan: collective is 'gossip'; choose allreduce, "),
    ("gathering 2", lambda c: c.update(inplace=1), "plan: inplace is 1, neither true nor false"),
    ("gathering 2", lambda c: c["gpus"].reverse(), "plan gpu 0: id is 1; gpus come in order, from 0 on"),
    ("gathering 2", lambda c: c["gpus"][1].update(output_chunks=3), "output_chunks 3: all_gather of 2 ranks has a"),
    ("gathering 2", lambda c: c["gpus"][1].update(input_chunks=2), "plan: input_chunks is 2; all_gather of 2 ranks wi"),
    ("packets 2", lambda c: c["gpus"][0].update(scratch_chunks=2**22), "over the limit of 4,194,304"),
    (
        "gathering 2",
        lambda c: first(c, "ops", 0).update(name="put2"),
        'threadblock 0 op 0: name is "put2"; choose copy',
    ),
    (
        "gathering 2",
        lambda c: first(c, "ops", 0).update(channel_ids=[1]),
        "op 0 (rlxsignal): channel_ids is 1, and there",
    ),
    ("gathering 2", lambda c: c["gpus"][0]["channels"].clear(), "a memory channel of the gpu is 0, and there are 0"),
    (
        "gathering 2",
        lambda c: first(c, "ops", 8)["dst_buff"][0].update(index=2),
        "1 chunks from 2 on of buffer 'o' of gpu",
    ),
    ("gathering 2", lambda c: first(c, "ops", 8)["dst_buff"][0].update(buffer_id=7), "op 8 (put): buffer_id is 7, and"),
    ("gathering 2", lambda c: first(c, "ops", 8)["src_buff"].clear(), "op 8 (put): 0 sources and 1 destinations"),
    (
        "gathering 2",
        lambda c: first(c, "ops", 0).update(name="nop"),
        "gpu 1 threadblock 0 op 14 (wait) waits for ever",
    ),
    (
        "gathering 5, 2 blocks",
        lambda c: first(c, "ops", 4).update(num_threadblocks=3),
        "not all of 3 threadblocks come",
    ),
    ("semaphores", lambda c: first(c, "ops", 2).update(name="nop"), "(sem_acquire) waits for ever: nobody releases"),
    ("packets 2", lambda c: first(c, "ops", 0).update(name="put"), "(upkt) waits for ever: nobody puts the packets"),
    (
        "packets 2",
        lambda c: first(c, "ops", 4)["src_buff"][0].update(buffer_id=0),
        "(upkt): it reads packets of another",
    ),
    ("reading 2", lambda c: first(c, "ops", 4).update(reduce_op="max"), '(rres): reduce_op is "max"; choose sum'),
    (
        "switching 4",
        lambda c: c["gpus"][1]["channels"][1]["rank_groups"][0].update(ranks=[1, 0]),
        "switch group is [1, 0]",
    ),
    ("packets 3 in parts", lambda c: first(c, "ops", 0)["tbg_info"].update(tbg_size=1021), "into more than 1024 parts"),
    (
        "pairs",
        lambda c: first(c, "ops", 2)["deps"].append({"tb": 9, "step": 0}),
        "step 0 of threadblock 9, which is not",
    ),
    (
        "pairs",
        lambda c: first(c, "channels", 0).update(cids=[4]),
        "threadblock 0 channel 0: cids is 4, and there are 1",
    ),
]


@pytest.mark.parametrize(("name", "spoil", "text"), FAULTS)
def test_faults_are_named_in_one_line(tmp_path, name, spoil, text):
    content = copy.deepcopy(CONTENTS[name]())
    spoil(content)
    path = saved(tmp_path, content)
    with pytest.raises(ValueError) as caught:
        ce.load_schedule(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert text in str(caught.value)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("", "no JSON: line 1 column 1: Expecting value"),
        ("[]", "plan is a list, no object"),
        ("[" * 10**5, "no JSON that a plan could be: it nests too deeply"),
        ('{"gpus": ' + "9" * 10**5 + "}", "numbers of too many digits"),
        ('{"gpus": [' + "{}," * 70_000 + "{}]}", "plan: gpus has more than 65,536 entries"),
    ],
)
def test_what_is_no_plan(tmp_path, text, error):
    with pytest.raises(ValueError, match=error):
        ce.load_schedule(saved(tmp_path, text))


def test_files_have_bounds(tmp_path, monkeypatch):
    (tmp_path / "plan.json").write_bytes(b'{"name": "\xff"}')
    with pytest.raises(ValueError, match=r"no JSON: not UTF-8 text \(byte 10\)"):
        ce.load_schedule(tmp_path / "plan.json")
    monkeypatch.setattr(fields, "MOST_BYTES", 2**20)
    with pytest.raises(ValueError, match="more than 1 MiB, which no plan has"):
        ce.load_schedule(saved(tmp_path, " " * (2**20 + 1)))


ODD = [None, True, -1, 0, 1, 7, 2**31, 10**30, 1.5, "", "i", "x", "put", "wait", "nop", [], {}, [0], [{}], "\ud800"]


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(sorted(CONTENTS)), st.randoms(use_true_random=False))
def test_any_change_of_a_plan_is_read_or_refused(tmp_path_factory, name, chance):
    content = copy.deepcopy(CONTENTS[name]())
    for _ in range(chance.randint(1, 3)):
        ways: list[tuple[Any, Any]] = []
        heap: list[Any] = [content]
        while heap:
            each = heap.pop()
            keys = list(each) if isinstance(each, dict) else range(len(each)) if isinstance(each, list) else ()
            ways += [(each, key) for key in keys]
            heap += [each[key] for key in keys]
        holder, key = chance.choice(ways)
        if chance.random() < 0.3:
            del holder[key]
        elif isinstance(holder[key], int) and chance.random() < 0.5:
            holder[key] += chance.choice([-1, 1, 2, 100])
        else:
            holder[key] = chance.choice(ODD)
    began = time.monotonic()
    try:
        ce.verify(ce.load_schedule(saved(tmp_path_factory.mktemp("plan"), content)))
    except ValueError as error:
        assert str(error).isprintable()  # one line
    assert time.monotonic() - began < 10


@pytest.mark.mpi
@pytest.mark.parametrize(("ranks", "name"), [(2, "halves"), (3, "packets 3 in parts"), (4, "switching 4")])
def test_real_processes_run_plans(tmp_path, ranks, name):
    path = saved(tmp_path, CONTENTS[name]())
    words = ["-m", "collemu", "crosscheck", "all_reduce", "--algorithm", str(path), "--system", "h100_hgx", "-b", "48K"]
    done = run_under_mpi(ranks, words)
    assert done.returncode == 0, done.stderr
    assert "all identical" in done.stdout
