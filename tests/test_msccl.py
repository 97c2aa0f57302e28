"""MSCCL XML: what is written is read again as it was, and what is wrong is named by its place."""

import dataclasses
import re
from pathlib import Path

import numpy as np
import pytest
from collemu_kernels import kinds
from hypothesis import given, settings
from hypothesis import strategies as st

import collemu as ce
from collemu.builders.assembly import Assembler, steps
from collemu.interop import elements
from collemu.interop.msccl import msccl_text, read_layouts, read_msccl, write_msccl
from collemu.interop.publishing import publish_what_is_final
from collemu.schedule import Schedule
from tests.built_in import BUILT_IN, PLAIN

# Their tables have gaps in the numbers of threads, or numbers in fields that nothing reads; files keep neither.
RENUMBERED = (
    "recursive_doubling",
    "recursive_halving",
    "bruck",
    "pat",
    "binomial",
    "scatter_allgather",
    "hierarchical",
)
KEPT = [pair for pair in BUILT_IN if pair[1] not in RENUMBERED]

# One rank sends from scratch what another thread has copied there; GPUs, thread blocks and attributes are shuffled.
GOOD = """<!-- comment -->
<algo name="two &amp; two" proto="LL128" nchannels="2" nchunksperloop="4" ngpus="2" coll="allgather" inplace="0" x="1">
  <gpu id="1" i_chunks="2" o_chunks="4" s_chunks="0">
    <tb id="0" send="0" recv="0" chan="1">
      <step s="0" type="s" srcbuf="i" srcoff="0" dstbuf="o" dstoff="99" cnt="2" depid="-1" deps="-1" hasdep="0"/>
      <step s="1" type="r" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="0" cnt="2" depid="-1" deps="-1" hasdep="0"/>
      <step s="2" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="2" cnt="2" depid="-1" deps="-1" hasdep="0"/>
    </tb>
  </gpu>
  <note><tb id="0"/><step/></note>
  <gpu s_chunks="2" o_chunks="4" i_chunks="2" id="0">
    <tb id="1" send="1" recv="1" chan="1">
      <step s="0" type="nop" srcbuf="i" srcoff="-1" dstbuf="o" dstoff="-1" cnt="0" depid="0" deps="0" hasdep="0"/>
      <step s="1" type="s" srcbuf="s" srcoff="0" dstbuf="s" dstoff="0" cnt="2" depid="0" deps="1" hasdep="0"/>
      <step s="2" type="r" srcbuf="o" srcoff="2" dstbuf="o" dstoff="2" cnt="2" depid="-1" deps="-1" hasdep="0"/>
    </tb>
    <tb id="0" send="-1" recv="-1" chan="-1">
      <step s="0" type="cpy" srcbuf="i" srcoff="0" dstbuf="o" dstoff="0" cnt="2" depid="-1" deps="-1" hasdep="1"/>
      <step s="1" type="cpy" srcbuf="i" srcoff="0" dstbuf="s" dstoff="0" cnt="2" depid="-1" deps="-1" hasdep="1"/>
    </tb>
  </gpu>
</algo>
"""


def algorithm(tmp_path: Path, body: str, **changes: object) -> Path:
    """A file with two ranks; ``body`` holds their elements, or is all there is."""
    given = {
        "name": "by_hand",
        "proto": "Simple",
        "nchannels": 1,
        "nchunksperloop": 2,
        "ngpus": 2,
        "coll": "allreduce",
        "inplace": 1,
    } | changes
    attributes = " ".join(f'{name}="{value}"' for name, value in given.items() if value is not None)
    path = tmp_path / "hand.xml"
    path.write_text(body if "<algo" in body else f"<algo {attributes}>{body}</algo>")
    return path


def step(kind: str, src: str = "i0", dst: str = "i0", count: int = 1, dep: str = "-1 -1", hasdep: int = 0) -> str:
    depid, deps = dep.split()
    return (
        f'<step s="0" type="{kind}" srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" dstoff="{dst[1:]}" '
        f'cnt="{count}" depid="{depid}" deps="{deps}" hasdep="{hasdep}"/>'
    )


def gpu(rank: int, *blocks: str, chunks: str = "2 2 2") -> str:
    i, o, s = chunks.split()
    return f'<gpu id="{rank}" i_chunks="{i}" o_chunks="{o}" s_chunks="{s}">{"".join(blocks)}</gpu>'


def block(number: int, *body: str, peer: int = -1, chan: int = 0) -> str:
    return f'<tb id="{number}" send="{peer}" recv="{peer}" chan="{chan}">{"".join(body)}</tb>'


def assert_same(one: Schedule, other: Schedule) -> None:
    for name in (field.name for field in dataclasses.fields(Schedule)):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


@pytest.mark.parametrize(("collective", "name"), KEPT)
@pytest.mark.parametrize(
    ("ranks", "channels", "chunks"), [(1, 1, None), (2, 1, None), (3, 2, 3), (5, 1, 2), (8, 4, None)]
)
def test_what_is_written_is_read(tmp_path, collective, name, ranks, channels, chunks):
    schedule = ce.build_schedule(collective, name, ranks, root=ranks - 1, channels=channels, chunks=chunks)
    path = tmp_path / "a.xml"
    ce.save_schedule(schedule, path)
    read = ce.load_schedule(path, collective=collective)
    assert_same(schedule, read)
    assert msccl_text(read) == path.read_text()


@settings(deadline=None, max_examples=30)
@given(
    st.sampled_from([pair for pair in KEPT if pair[0] != "sendrecv"]),
    st.integers(2, 9),
    st.integers(1, 3),
    st.integers(1, 3),
    st.booleans(),
    st.sampled_from(["Simple", "LL", "LL128"]),
)
def test_round_trip(tmp_path_factory, pair, ranks, channels, chunks, in_place, proto):
    schedule = ce.build_schedule(*pair, ranks, channels=channels, chunks=chunks)
    schedule = dataclasses.replace(schedule, in_place=in_place, protocol=proto.lower())
    path = tmp_path_factory.mktemp("msccl") / "a.xml"
    write_msccl(schedule, path)
    assert_same(schedule, read_msccl(path))
    assert f'proto="{proto}"' in path.read_text()


@pytest.mark.parametrize(("collective", "name"), BUILT_IN)
@pytest.mark.parametrize("ranks", [2, 5, 8])
def test_what_is_read_does_and_takes_the_same(tmp_path, collective, name, ranks):
    schedule = ce.build_schedule(collective, name, ranks)
    ce.save_schedule(schedule, tmp_path / "a.xml")
    read = ce.load_schedule(tmp_path / "a.xml", collective=collective)
    ce.verify(read)
    data = np.random.default_rng(0).standard_normal((ranks, 60 * schedule.input_regions)).astype(np.float32)
    results = [ce.emulate(each, PLAIN, count=60, data=data) for each in (schedule, read)]
    assert results[0].time_fs == results[1].time_fs
    counts = [schedule.root] if collective == "reduce" else range(ranks)
    assert np.array_equal(*(result.outputs[counts] for result in results))


@pytest.mark.parametrize("channels", [1, 2, 4, 8])
def test_runs_as_before(tmp_path, channels):
    schedule = ce.build_schedule("all_reduce", "ring", 8, channels=channels)
    ce.save_schedule(schedule, tmp_path / "r.xml")
    read = ce.load_schedule(tmp_path / "r.xml")
    assert read.channels == channels
    assert ce.verify(read) == ce.verify(schedule)
    data = np.random.default_rng(0).standard_normal((8, 100)).astype(np.float32)
    for count in (3, 100):
        for wire in ("none", "mxfp4"):
            one, other = (
                ce.emulate(each, PLAIN, count=count, data=data[:, :count], wire=wire) for each in (schedule, read)
            )
            assert one.time_fs == other.time_fs
            assert one.wire_bytes == other.wire_bytes
            assert np.array_equal(one.outputs, other.outputs)


def test_any_order_comments_and_what_is_unknown(tmp_path):
    schedule = read_msccl(algorithm(tmp_path, GOOD))
    assert (schedule.collective, schedule.algorithm, schedule.channels) == ("all_gather", "two & two", 2)
    assert (schedule.input_chunks, schedule.output_chunks, schedule.scratch_chunks) == (2, 4, 2)
    assert schedule.threads["channel"].tolist() == [0, 1, 1]
    assert schedule.ops["dep"].tolist() == [-1, -1, 0, 1, -1, -1, -1, -1]
    report = ce.verify(schedule)
    assert (report.messages, report.chunks_sent) == (2, 4)
    data = np.arange(6, dtype=np.float32).reshape(2, 3)  # chunks of 2 and 1
    assert np.array_equal(ce.emulate(schedule, PLAIN, count=3, data=data).outputs, [range(6)] * 2)


ERRORS = [
    ('name="two &amp; two" ', "", "algo: attribute name is missing"),
    ('ngpus="2" ', "", "algo: attribute ngpus is missing"),
    ('ngpus="2"', 'ngpus="4"', "gpu 1: i_chunks is 2; it must be 0 to 1"),
    ('ngpus="2"', 'ngpus="two"', "algo: ngpus is 'two', no whole number"),
    ('ngpus="2"', 'ngpus="1_0"', "algo: ngpus is '1_0', no whole number"),
    ('ngpus="2"', f'ngpus="{"9" * 5000}"', "no whole number"),
    ('ngpus="2"', 'ngpus="0"', "algo: ngpus is 0; it must be 1 to"),
    ('proto="LL128"', 'proto="LL256"', "algo: proto is 'LL256'; choose Simple, LL, LL128"),
    ('coll="allgather"', 'coll="gather"', "algo: coll is 'gather'; choose allreduce, "),
    ('coll="allgather"', 'coll="custom"', "algo: coll is 'custom', which promises nothing: say which"),
    ('nchunksperloop="4"', 'nchunksperloop="5"', "algo: nchunksperloop is 5, no multiple of the 2 ranks' parts"),
    ('nchunksperloop="4"', 'nchunksperloop="2"', "gpu 1: i_chunks is 2; it must be 0 to 1"),
    ('nchannels="2"', 'nchannels="1"', "gpu 1 tb 0: chan is 1; it must be 0 to 0"),
    ('inplace="0"', 'inplace="0" outofplace="0"', "algo: inplace and outofplace are both 0"),
    ('inplace="0"', 'inplace="0" minBytes="8" maxBytes="4"', "algo: minBytes is 8, more than maxBytes, 4"),
    ('s_chunks="2" o_chunks="4" i_chunks="2" id="0"', 'id="1"', "gpu 1: there are two"),
    ('gpu id="1"', 'gpu id="2"', "gpu number 0: id is 2; it must be 0 to 1"),
    ('gpu id="1"', "gpu", "gpu number 0: attribute id is missing"),
    (' s_chunks="0"', "", "gpu 1: attribute s_chunks is missing"),
    ('tb id="1"', 'tb id="0"', "gpu 0 tb 0: there are two"),
    ('tb id="1"', 'tb id="2"', "gpu 0: tb 1 is missing; ids count from 0 without a gap"),
    ('send="0" recv="0"', 'send="1" recv="0"', "gpu 1 tb 0: send is 1, the gpu itself"),
    ('send="0" recv="0"', 'send="0" recv="2"', "gpu 1 tb 0: recv is 2; it must be -1 to 1"),
    ('send="0" recv="0"', 'send="0"', "gpu 1 tb 0: attribute recv is missing"),
    ('send="0" recv="0"', 'send="-1" recv="0"', "gpu 1 tb 0 step 0: type 's' needs a peer, and send of its tb is -1"),
    ('type="s" srcbuf="s"', 'type="x" srcbuf="s"', "gpu 0 tb 1 step 1: type is 'x'; choose nop, s, r"),
    ('type="s" srcbuf="s"', 'type="ra" srcbuf="s"', "gpu 0 tb 1 step 1: type 'ra' adds a tensor from outside"),
    ('type="s" srcbuf="s"', 'type="s" srcbuf="q"', "gpu 0 tb 1 step 1: srcbuf is 'q'; choose i, o, s"),
    ('type="s" srcbuf="s"', 'type="s"', "gpu 0 tb 1 step 1: attribute srcbuf is missing"),
    ('srcbuf="s" srcoff="0"', 'srcbuf="s" srcoff="1"', "srcoff is 1 and cnt 2, and srcbuf s has 2 chunks"),
    ('dstbuf="o" dstoff="0" cnt="2"', 'dstbuf="o" dstoff="-1" cnt="2"', "dstoff is -1 and cnt 2"),
    ('dstoff="99" cnt="2"', 'dstoff="99" cnt="0"', "gpu 1 tb 0 step 0: cnt is 0; it must be 1 to"),
    ('dstoff="99" cnt="2"', 'dstoff="99"', "gpu 1 tb 0 step 0: attribute cnt is missing"),
    ('s="2" type="r"', 'type="r"', "gpu 0 tb 1 step 2: attribute s is missing"),
    ('depid="0" deps="1"', 'depid="2" deps="1"', "gpu 0 tb 1 step 1: depid is 2, and its gpu has 2 tb"),
    ('depid="0" deps="1"', 'depid="0" deps="2"', "gpu 0 tb 1 step 1 would wait for ever: neither step 2 of tb 0"),
    ('depid="0" deps="1"', 'depid="0" deps="-1"', "gpu 0 tb 1 step 1: deps is -1; it must be 0 to"),
    ('cnt="2" depid="-1" deps="-1" hasdep="1"', 'cnt="2" depid="-1" deps="-1" hasdep="2"', "hasdep is 2; it must be 0"),
]


@pytest.mark.parametrize(("old", "new", "text"), ERRORS)
def test_errors_name_the_place(tmp_path, old, new, text):
    assert old in GOOD
    path = algorithm(tmp_path, GOOD.replace(old, new, 1))
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        ce.load_schedule(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < len(str(path)) + 250


@pytest.mark.parametrize("element", ["algo", "gpu", "tb", "step"])
def test_every_attribute_that_a_runtime_wants_is_wanted(tmp_path, element):
    tag = re.search(rf"<{element} [^>]*>", GOOD)
    assert tag
    names = set(re.findall(r'(\w+)="', tag[0])) - {"x"}
    assert len(names) >= 4
    for name in names:
        shorter = re.sub(rf' {name}="[^"]*"', "", tag[0])
        with pytest.raises(ValueError, match=f"attribute {name} is missing"):
            read_msccl(algorithm(tmp_path, GOOD.replace(tag[0], shorter, 1)))


BOMB = '<!DOCTYPE algo [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
NO_MSCCL = [
    ("", "no XML: line 1: no element found"),
    ("hello", "no XML: line 1: syntax error"),
    ('{"name": "plan"}', "no XML: line 1"),
    (GOOD[:300], "no XML: line 5: unclosed token"),
    (GOOD.replace("</tb>", "", 1), "no XML: line 9: mismatched tag"),
    (GOOD + GOOD, "no XML: line 24: junk after document element"),
    ('<system version="1"><cpu numaid="0"/></system>', "no MSCCL XML: the root element is 'system', not 'algo'"),
    (BOMB + GOOD.replace("two &amp; two", "&b;"), "declares a document type"),
    ('<!DOCTYPE algo [<!ENTITY a SYSTEM "file:///etc/passwd">]><algo name="&a;"/>', "declares a document type"),
    ('<!DOCTYPE algo SYSTEM "http://localhost/a.dtd"><algo/>', "declares a document type"),
    ('<algo name="&a;"/>', "no XML: line 1: undefined entity"),
]


@pytest.mark.parametrize(("body", "text"), NO_MSCCL)
def test_what_is_no_schedule_is_refused(tmp_path, body, text):
    path = tmp_path / "other.xml"
    path.write_text(body)
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        ce.load_schedule(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def test_huge_files_are_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(elements, "MOST_BYTES", 3 * 2**20)
    path = tmp_path / "huge.xml"
    path.write_bytes(b"<!--" + b" " * 2**22 + b"-->" + GOOD.encode())
    with pytest.raises(ValueError, match="more than 3 MiB, which MSCCL XML has not"):
        read_msccl(path)


def test_a_missing_gpu_is_named(tmp_path):
    with pytest.raises(ValueError, match="gpu 1 is missing; ngpus is 2"):
        read_msccl(algorithm(tmp_path, gpu(0)))


def test_small_files_cannot_ask_for_much(tmp_path):
    big = 2**31 - 1
    path = algorithm(tmp_path, gpu(0, chunks="1 0 0") + gpu(1, chunks="1 0 0"), nchunksperloop=big)
    with pytest.raises(ValueError, match="chunks in all, over the limit"):
        read_msccl(path)
    copies = [step("cpy", "i0", "s0", 2**20)] * 17
    path = algorithm(tmp_path, gpu(0, block(0, *copies), chunks=f"{2**20} 0 {2**20}"), nchunksperloop=2**20, ngpus=1)
    with pytest.raises(ValueError, match="gpu 0 tb 0 step 16: more than 16,777,216 chunks in all steps"):
        read_msccl(path)


def exchange(tmp_path: Path, coll: str, own: str, **changes: object) -> Path:
    """Each of two ranks sends the other's half of its input, and adds what it gets; ``own`` is where it lies."""
    ranks = [
        gpu(rank, block(0, step("s", f"i{1 - rank}"), step("rrc", f"i{rank}", own.format(rank)), peer=1 - rank))
        for rank in (0, 1)
    ]
    return algorithm(tmp_path, "".join(ranks).replace('o_chunks="2"', 'o_chunks="1"'), coll=coll, **changes)


@pytest.mark.parametrize("coll", ["reduce_scatter", "reducescatter"])
def test_in_place_reduce_scatter_leaves_its_result_in_the_input(tmp_path, coll):
    schedule = read_msccl(exchange(tmp_path, coll, "i{}"))
    assert schedule.in_place
    ce.verify(schedule)
    outputs = ce.emulate(schedule, PLAIN, count=1, data=np.array([[1.0, 2], [10, 20]], np.float32)).outputs
    assert np.array_equal(outputs, [[11], [22]])


def test_the_same_out_of_place_is_wrong(tmp_path):
    path = exchange(tmp_path, "reducescatter", "i{}", inplace=0, outofplace=1)
    with pytest.raises(ce.ScheduleError, match=r"rank 0 output\[0\] is never written"):
        ce.verify(ce.load_schedule(path))


def test_both_layouts(tmp_path):
    """The output of an in-place reduce_scatter is the rank's own part of the input."""
    path = exchange(tmp_path, "reducescatter", "o0", outofplace=1)
    layouts = read_layouts(path)
    assert [each.in_place for each in layouts] == [False, True]
    for schedule in layouts:
        ce.verify(schedule)
    assert not ce.load_schedule(path).in_place
    assert read_msccl(path, in_place=True).in_place
    with pytest.raises(ValueError, match="outofplace is 0"):
        read_msccl(exchange(tmp_path, "reducescatter", "o0"), in_place=False)


def test_in_place_all_gather_has_its_input_in_the_output(tmp_path):
    ranks = [
        gpu(rank, block(0, step("s", f"o{rank}"), step("r", dst=f"o{1 - rank}"), peer=1 - rank), chunks="0 2 0")
        for rank in (0, 1)
    ]
    schedule = read_msccl(algorithm(tmp_path, "".join(ranks), coll="allgather"))
    ce.verify(schedule)
    data = np.random.default_rng(0).standard_normal((2, 40)).astype(np.float32)
    assert np.array_equal(ce.emulate(schedule, PLAIN, count=40, data=data).outputs, [data.ravel()] * 2)
    # No operation writes a rank's own part, so none can publish it: it stays exact, and the replicas differ.
    result = ce.emulate(schedule, PLAIN, count=40, data=data, wire="mxfp4")
    assert not result.replicas_identical
    assert np.array_equal(np.diagonal(result.outputs.reshape(2, 2, 40)).T, data)


def test_chunks_need_not_divide_by_ranks(tmp_path):
    swap = [
        gpu(rank, block(0, step("s", "i0", count=3), step("rrc", count=3, dep="-1 -1"), peer=1 - rank), chunks="3 3 0")
        for rank in (0, 1)
    ]
    schedule = read_msccl(algorithm(tmp_path, "".join(swap), nchunksperloop=3))
    assert schedule.ops["kind"].tolist() == [kinds.SEND, kinds.RECV_REDUCE] * 2
    assert ce.verify(schedule).chunks_sent == 6


def test_a_runtime_waits_for_the_next_step_that_reports(tmp_path):
    """Nops are counted by their dependency, and report nothing themselves."""
    waiting = block(1, step("cpy", "i1", "s1", dep="0 1"))
    for first, counted in ((step("nop", "i-1", "o-1", 0, hasdep=1), 1), (step("cpy", "i0", "s0"), 2)):
        body = gpu(0, block(0, first, *[step("cpy", "i0", "s0", hasdep=each) for each in (0, 0, 1)]), waiting)
        schedule = read_msccl(algorithm(tmp_path, body + gpu(1)))
        assert schedule.ops["dep"].tolist() == [-1, -1, -1, -1, 3], counted
    with pytest.raises(ce.ScheduleError, match="gpu 0 tb 1 step 0 would wait for ever"):
        read_msccl(algorithm(tmp_path, gpu(0, block(0, step("cpy", "i0", "s0")), waiting) + gpu(1)))


def test_a_rank_without_thread_blocks_is_for_verify_to_find(tmp_path):
    schedule = read_msccl(algorithm(tmp_path, gpu(0, block(0, step("cpy", "i0", "i1"))) + gpu(1)))
    with pytest.raises(ce.ScheduleError, match=r"rank 0 output\[0\] lacks rank 1 input\[0\]"):
        ce.verify(schedule)


def test_custom_needs_a_collective(tmp_path):
    path = tmp_path / "a.xml"
    ce.save_schedule(ce.build_schedule("sendrecv", "direct", 3), path)
    assert 'coll="custom"' in path.read_text()
    with pytest.raises(ValueError, match="say which collective"):
        ce.load_schedule(path)
    ce.verify(ce.load_schedule(path, collective="sendrecv"))
    with pytest.raises(ce.ScheduleError):
        ce.verify(ce.load_schedule(path, collective="broadcast"))
    with pytest.raises(ValueError, match="choose all_reduce, "):
        ce.load_schedule(path, collective="gossip")
    ce.save_schedule(ce.build_schedule("all_reduce", "ring", 3), path)
    with pytest.raises(ValueError, match="it does all_reduce, not reduce"):
        ce.load_schedule(path, collective="reduce")


# What is published


@pytest.mark.parametrize(("collective", "name"), KEPT)
@pytest.mark.parametrize("ranks", [1, 2, 3, 6])
def test_files_without_marks_publish_what_the_builders_do(tmp_path, collective, name, ranks):
    schedule = ce.build_schedule(collective, name, ranks, channels=2, chunks=2)
    schedule.ops["publish"][schedule.ops["publish"] == kinds.PUBLISH_OWN] = kinds.KEEP  # a choice of one_shot alone
    path = tmp_path / "a.xml"
    text = msccl_text(schedule)
    path.write_text(re.sub(r' publish="\w+"', "", text))
    assert_same(schedule, read_msccl(path, collective=collective))


def test_marks_are_kept_even_if_there_are_none(tmp_path):
    schedule = ce.build_schedule("all_gather", "ring", 4)
    schedule.ops["publish"] = kinds.KEEP
    ce.save_schedule(schedule, tmp_path / "a.xml")
    assert_same(schedule, ce.load_schedule(tmp_path / "a.xml"))


def test_what_cannot_run_publishes_nothing(tmp_path):
    both_receive = [gpu(rank, block(0, step("r"), step("s"), peer=1 - rank)) for rank in (0, 1)]
    unmatched = gpu(0, block(0, step("s"), peer=1)) + gpu(1)
    for body in ("".join(both_receive), unmatched):
        schedule = read_msccl(algorithm(tmp_path, body))
        assert publish_what_is_final(schedule) is schedule
        with pytest.raises(ce.ScheduleError):
            ce.verify(schedule)


def test_copies_pass_on_the_image_that_they_find(tmp_path):
    """Rank 1 receives into scratch, copies, and sends back from its output: no second rounding."""
    body = gpu(0, block(0, step("cpy", "i0", "o0", 2), step("s", "o0", count=2), peer=1)) + gpu(
        1, block(0, step("r", dst="s0", count=2), step("cpy", "s0", "o0", 2), peer=0)
    )
    schedule = read_msccl(algorithm(tmp_path, body, coll="broadcast", inplace=0))
    assert schedule.root == 0
    assert schedule.ops["publish"].tolist() == [kinds.PUBLISH_FINAL, 0, 0, 0]
    data = np.random.default_rng(0).standard_normal((2, 50)).astype(np.float32)
    assert ce.emulate(schedule, PLAIN, count=50, data=data, wire="nvfp4").replicas_identical


# What MSCCL cannot say


def test_in_switch_operations_cannot_be_said():
    with pytest.raises(ce.ScheduleError, match=r"rank 0 thread \d+ step 0 \(multimem.*\) is work of a switch"):
        msccl_text(ce.build_schedule("all_reduce", "nvls", 3))


@pytest.mark.parametrize(
    ("ranks", "channels", "chunks", "name", "text"),
    [
        (130, 1, None, "ring", "rank 0 thread 0 has more than the 256 steps"),
        (2, 33, None, "ring", "rank 0 thread 32 is beyond the 32 channels"),
        (2, 1100, None, "ring", "is beyond the 1024 thread blocks"),
        (34, 1, None, "one_shot", "33 threads of rank 0 send on channel 0; MSCCL takes 32"),
        (256, 1, None, "halving_doubling", "moves more than the 71 chunks"),
    ],
)
def test_limits_are_named(ranks, channels, chunks, name, text):
    with pytest.raises(ce.ScheduleError, match=re.escape(text)):
        msccl_text(ce.build_schedule("all_reduce", name, ranks, channels=channels, chunks=chunks))


def by_hand(*parts: object, **changes: object) -> Schedule:
    assembler = Assembler()
    assembler.add(0, 0, *parts, send_peer=1, recv_peer=1)  # pyright: ignore
    schedule = assembler.schedule("all_reduce", "by_hand", 2, input_chunks=2, output_chunks=2)
    return dataclasses.replace(schedule, **changes)  # pyright: ignore


def test_what_runtimes_would_refuse_is_named():
    copy = steps(kinds.COPY, dst=(kinds.OUTPUT, 0))
    nop = steps(kinds.NOP, dep=(0, 0))
    after_nop = steps(kinds.COPY, dst=(kinds.OUTPUT, 1), dep=(0, 1))
    for parts, text in (
        ([steps(kinds.SEND, count=0)], "step 0 (send nothing) is a signal without chunks"),
        ([copy, nop, copy], "step 1 (nop) and what follows it must wait"),
        (
            [copy, steps(kinds.NOP), steps(kinds.COPY, dst=(kinds.OUTPUT, 1), dep=(0, 0))],
            "step 1 (nop) and what follows",
        ),
        ([copy, nop, after_nop], "step 2 (copy input[0] to output[1]) waits for a nop"),
        ([steps(kinds.COPY, src=(kinds.INPUT, 2), dst=(kinds.OUTPUT, 0))], "reaches beyond the chunks of its buffer"),
    ):
        with pytest.raises(ce.ScheduleError, match=re.escape(f"rank 0 thread 0 {text}" if "step" in text else text)):
            msccl_text(by_hand(*parts))
    with pytest.raises(ce.ScheduleError, match="at most 255 characters"):
        msccl_text(by_hand(copy, algorithm="a" * 256))
    with pytest.raises(ce.ScheduleError, match="on a channel that the schedule does not count"):
        msccl_text(by_hand(copy, channels=0))


def test_ids_lose_their_gaps(tmp_path):
    assembler = Assembler()
    assembler.add(0, 3, steps(kinds.COPY, dst=(kinds.OUTPUT, 0)))
    assembler.add(0, 7, steps(kinds.COPY, dst=(kinds.OUTPUT, 0), dep=(3, 0)))
    schedule = assembler.schedule("all_reduce", "gaps", 1, input_chunks=1, output_chunks=1)
    ce.save_schedule(schedule, tmp_path / "a.xml")
    read = ce.load_schedule(tmp_path / "a.xml")
    assert read.threads["id"].tolist() == [0, 1]
    assert np.array_equal(read.ops, schedule.ops)


def test_names_with_any_characters(tmp_path):
    name = "a \"b\" <c> & 'd' \t\n µ"
    ce.save_schedule(by_hand(steps(kinds.COPY), algorithm=name), tmp_path / "a.xml")
    assert ce.load_schedule(tmp_path / "a.xml").algorithm == name


def test_other_endings_and_arguments(tmp_path):
    schedule = ce.build_schedule("all_reduce", "ring", 2)
    with pytest.raises(ValueError, match=r"plan\.toml: schedules are MSCCL XML, in files that end in \.xml, or exec"):
        ce.load_schedule(tmp_path / "plan.toml")
    with pytest.raises(ValueError, match=r"a\.toml: schedules are written as MSCCL XML, in files that end in \.xml$"):
        ce.save_schedule(schedule, tmp_path / "a.toml")
    with pytest.raises(ValueError, match=r"in \.xml; plans of MSCCL\+\+ are read, not written$"):
        ce.save_schedule(schedule, tmp_path / "a.json")
    with pytest.raises(TypeError, match="no Schedule; build_schedule makes one"):
        ce.save_schedule("ring", tmp_path / "a.xml")  # pyright: ignore
    with pytest.raises(ValueError, match="proto='ll' is not supported; choose Simple, LL, LL128"):
        write_msccl(schedule, tmp_path / "a.xml", proto="ll")
    with pytest.raises(FileNotFoundError):
        ce.load_schedule(tmp_path / "nowhere.xml")
    assert not (tmp_path / "a.xml").exists()
