"""The XML in which NCCL writes down a machine (``NCCL_TOPO_DUMP_FILE``), as the content of a system's file.

The file says how many GPUs there are, which NVLinks join them to what, and what their network adapters do. It says no
latencies, no rates of links and nothing of endpoints: those are taken from the system of the catalogue with the same
GPU, as estimates. Links there have fitted rates, close to those with which NCCL plans.
"""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from dataclasses import dataclass, field
from os import fspath
from pathlib import Path
from typing import Any, NoReturn

from collemu.interop.elements import read_elements

_MOST_BYTES = 2**24
_MOST = 2**31 - 1
_MOST_GPUS = 2**10  # whose pairs are looked at
_SWITCH = "0x068000"  # the PCI class of NVSwitches; bridges to CPUs have another
_HIDDEN = "fffffff:"  # the bus of switches that a machine, such as a virtual one, does not see
_SOURCE = "TOPOLOGY"
_EXAMPLE = "let NCCL write what it found: NCCL_TOPO_DUMP_FILE=FILE.xml"

#: The system of the catalogue that has a GPU: by its architecture, and by whether switches or links alone join it.
_LIKE = {
    (80, "switched"): "a100_hgx",
    (80, "mesh"): "a100_quad",
    (90, "switched"): "h100_hgx",
    (90, "mesh"): "gh200_quad",
    (100, "switched"): "b200_hgx",
    (103, "switched"): "b300_hgx",
    (107, "switched"): "vera_rubin_nvl72",
}
#: The same where GPU and CPU share a board.
_LIKE_GRACE = {(100, "switched"): "gb200_nvl72", (103, "switched"): "gb300_nvl72"}
_LIKE_DEVICE = {("0x2335", "switched"): "h200_hgx"}  # GPUs that differ within an architecture
_NETWORKS = {"mlx5": "ib_ndr_400g_per_gpu"}  # by how names of adapters begin; else the system's own


@dataclass
class _Gpu:
    name: str
    host: str
    bus: str
    device: str
    sm: int
    arm: bool
    links: Counter[str] = field(default_factory=Counter[str])  # by target
    switches: set[str] = field(default_factory=set[str])  # targets that are switches


def topology_content(path: Path, systems: Path, networks: Path) -> dict[str, Any]:
    """What a system's TOML file would say of the machine.

    Parameters
    ----------
    path : Path
        NCCL's file.
    systems, networks : Path
        Folders of the catalogue.

    Returns
    -------
    dict
        As `tomllib` reads it.

    Raises
    ------
    ValueError
        For what is no such file, or a machine that no system can be; one line.
    OSError
        If it cannot be read.
    """
    reader = _Reader()
    read_elements(path, reader.begin, reader.end, what="NCCL's topology", most=_MOST_BYTES)
    gpus = reader.gpus
    topology, wiring = _wiring(gpus)
    first = gpus[0]
    like = _like(first, topology)
    base = _load(systems / f"{like}.toml")
    network = next((name for start, name in _NETWORKS.items() if reader.adapter.startswith(start)), base.get("network"))
    scaleout = _load(networks / f"{network}.toml") if network else base
    content: dict[str, Any] = {
        "name": path.name if path.name.isprintable() else "topology",
        "title": f"{len(gpus)} GPUs of sm_{first.sm} as NCCL found them; what it does not say is taken from {like}",
        "status": f"from a topology of NCCL; numbers of {like} and its network are estimates here",
        "topology": topology,
        "default_protocol": base["default_protocol"],
        "sources": {**base["sources"], **scaleout["sources"], _SOURCE: {"title": f"NCCL's topology {fspath(path)!r}"}},
        "protocol": {name: _inherited(table, like) for name, table in base["protocol"].items()},
    }
    for section in ("chip", "domain", "endpoint"):
        content[section] = _inherited(base[section], like)
    content["scaleout"] = _inherited(scaleout["scaleout"], network or like)
    domain = content["domain"]
    if wiring is None:
        if len(gpus) != base["domain"]["chips"]["value"]:
            raise ValueError(f"its {len(gpus)} GPUs have no NVLinks, and {like} has another number of GPUs; {_EXAMPLE}")
        note = f"the file leaves NVLinks to NCCL: taken from {like}"
        for key in ("planes", "links_per_plane"):
            domain[key] |= {"note": note}
    elif isinstance(wiring, int) and topology == "switched":  # links to switches that nobody sees
        if wiring != _links(base):
            domain["planes"] = _from_file(1, "switches that the machine does not see, taken as one", "estimate")
            domain["links_per_plane"] = _from_file(wiring, "all NVLinks of a GPU")
    else:
        for key in ("planes", "links_per_plane", "links_per_peer"):
            domain.pop(key, None)
        if isinstance(wiring, list):
            domain["planes"] = _from_file(len(wiring), "NVSwitches")
            domain["links_per_plane"] = _from_file(wiring, "NVLinks of a GPU to each NVSwitch")
        else:
            domain["links_per_peer"] = _from_file(wiring, "NVLinks of each pair of GPUs")
            for key in ("in_switch_reduction", "in_switch_float8"):
                domain[key] = _from_file(False, "no switches")
    domain["chips"] = _from_file(len(gpus), "GPUs")
    if reader.adapters:
        total, count = sum(reader.adapters.values()), len(reader.adapters)
        note = f"{count} adapters, {total} Mbit/s for {len(gpus)} GPUs"
        content["scaleout"]["bytes_per_s"] = _from_file(total * 1e6 / 8 / len(gpus), note)
        content["scaleout"]["rails"] = _from_file(max(1, count // len(gpus)), note)
    return content


def _wiring(gpus: list[_Gpu]) -> tuple[str, list[int] | int | None]:
    """How NVLinks join the GPUs, and how many: to each switch, to all hidden switches, or to each other GPU."""
    if not gpus:
        raise ValueError(f"it names no GPU, and leaves them to NCCL as it runs; {_EXAMPLE}")
    first = gpus[0]
    for gpu in gpus:
        if gpu.sm != first.sm or gpu.device != first.device:
            raise ValueError(f"{gpu.name} is another GPU than {first.name}; collemu's systems have one kind of chip")
        if bool(gpu.links) != bool(first.links):
            raise ValueError(f"{(gpu if first.links else first).name} has no NVLinks, and others have")
    if not first.links:
        if first.device:  # NCCL has been there, and would have found them
            raise ValueError("its GPUs have no NVLinks; collemu knows no machines of PCIe alone")
        return "switched", None
    if not any(gpu.switches for gpu in gpus):
        return "mesh", _mesh(gpus)
    for gpu in gpus:
        if set(gpu.links) != gpu.switches:
            other = min(set(gpu.links) - gpu.switches)
            raise ValueError(f"{gpu.name} has NVLinks to switches and to {other}; collemu knows one or the other")
        if sorted(gpu.links.values()) != sorted(first.links.values()):
            raise ValueError(
                f"{gpu.name} has {sorted(gpu.links.values())} NVLinks to its switches, and {first.name} "
                f"{sorted(first.links.values())}; chips of a system are alike"
            )
    if any(target.startswith(_HIDDEN) for target in first.links):
        return "switched", first.links.total()
    common = all(gpu.links == first.links for gpu in gpus)
    counts = first.links.values() if not common else [first.links[target] for target in sorted(first.links)]
    return "switched", sorted(counts) if not common else list(counts)


def _mesh(gpus: list[_Gpu]) -> int:
    """NVLinks of each pair of GPUs, which must be as many of each."""
    each = min(gpus[0].links.values())
    for gpu in gpus:
        for other in gpus:
            between = gpu.links[other.bus] if other.host == gpu.host else 0
            if other is not gpu and between != each:
                raise ValueError(
                    f"{gpu.name} has {between} NVLinks to {other.name}, and another pair has {each}; collemu knows "
                    f"GPUs that switches join, or that all have as many links to each other"
                )
        known = {other.bus for other in gpus}
        if (strange := next((target for target in gpu.links if target not in known), None)) is not None:
            raise ValueError(f"{gpu.name} has NVLinks to {strange[:40]!r}, which is neither a GPU nor an NVSwitch")
    if len(gpus) < 2:
        raise ValueError(f"{gpus[0].name} is alone and has no switch; a system has links between its chips")
    return each


def _like(gpu: _Gpu, topology: str) -> str:
    key = (gpu.sm, topology)
    like = _LIKE_DEVICE.get((gpu.device, topology)) or (_LIKE_GRACE.get(key) if gpu.arm else None) or _LIKE.get(key)
    if like is None:
        known = ", ".join(dict.fromkeys(f"sm {sm}" for sm, _ in _LIKE))
        joined = "joined by switches" if topology == "switched" else "linked to each other"
        raise ValueError(
            f"{gpu.name} is of sm {gpu.sm}, {joined}; the catalogue has none to take latencies from ({known})"
        )
    return like


def _links(base: dict[str, Any]) -> int:
    planes: int = base["domain"]["planes"]["value"]
    each: int | list[int] = base["domain"]["links_per_plane"]["value"]
    return sum(each) if isinstance(each, list) else planes * each


def _inherited(table: dict[str, Any], like: str) -> dict[str, Any]:
    return {
        key: entry | {"confidence": "estimate", "note": f"as {like}, where it is {entry['confidence']}"}
        for key, entry in table.items()
    }


def _from_file(value: Any, note: str, confidence: str = "derived") -> dict[str, Any]:
    return {"value": value, "source": _SOURCE, "confidence": confidence, "note": note}


def _load(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text(encoding="utf-8"))


class _Reader:
    """Takes elements as they come: GPUs with their NVLinks, and network adapters."""

    def __init__(self) -> None:
        self.gpus: list[_Gpu] = []
        self.adapters: dict[tuple[str, str, str], int] = {}  # Mbit/s by host, name and port
        self.adapter = ""  # the name of the first
        self._buses: set[tuple[str, str]] = set()
        self._open: list[tuple[str, dict[str, str]]] = []

    def begin(self, name: str, given: dict[str, str]) -> None:
        """An element begins."""
        if not self._open and name != "system":
            raise ValueError(f"no topology of NCCL: the root element is {name[:60]!r}, not 'system'")
        parent, around = self._open[-1] if self._open else ("", {})
        if name == "gpu" and parent == "pci":
            self._gpu(given, around)
        elif name == "nvlink" and parent == "gpu":
            self._nvlink(given)
        elif name == "net" and parent == "nic":
            self._net(given)
        self._open.append((name, given))

    def end(self, _: str) -> None:
        """An element ends."""
        self._open.pop()

    def _cpu(self) -> dict[str, str]:
        nothing: dict[str, str] = {}
        return next((given for name, given in self._open if name == "cpu"), nothing)

    def _gpu(self, given: dict[str, str], pci: dict[str, str]) -> None:
        name = f"gpu {given['dev'][:20]}" if "dev" in given else f"gpu number {len(self.gpus)}"
        if "mlopart" in given:
            raise ValueError(f"{name} is one part of a GPU; collemu knows whole ones")
        cpu = self._cpu()
        bus = pci.get("busid", "").lower()
        host = cpu.get("host_hash", "")
        if (host, bus) in self._buses:
            raise ValueError(f"{name} is at the PCI bus {bus[:40]!r}, where another is")
        if len(self._buses) == _MOST_GPUS:
            raise ValueError(f"it has more than {_MOST_GPUS} GPUs")
        self._buses.add((host, bus))
        self.gpus.append(
            _Gpu(name, host, bus, pci.get("device", ""), _whole(given, "sm", name), cpu.get("arch", "") == "arm64")
        )

    def _nvlink(self, given: dict[str, str]) -> None:
        gpu = self.gpus[-1] if self.gpus else _none("an nvlink")
        target = given.get("target", "").lower()
        gpu.links[target] += _whole(given, "count", f"{gpu.name} nvlink {target[:40]!r}", least=1)
        if given.get("tclass", "") == _SWITCH:
            gpu.switches.add(target)

    def _net(self, given: dict[str, str]) -> None:
        name = given.get("name", given.get("dev", ""))
        speed = _whole(given, "speed", f"net {name[:40]!r}", least=-_MOST)
        self.adapter = self.adapter or name
        key = (self._cpu().get("host_hash", ""), name, given.get("port", ""))
        self.adapters[key] = speed if speed > 0 else 10_000  # as NCCL counts one that does not know its speed


def _none(what: str) -> NoReturn:
    raise ValueError(f"{what} belongs to no gpu")


def _whole(given: dict[str, str], name: str, place: str, least: int = 0) -> int:
    value = given.get(name, "")
    if not re.fullmatch(r"[+-]?[0-9]{1,10}", value, re.ASCII):
        raise ValueError(f"{place}: {name} is {value[:60]!r}, no whole number")
    if not least <= int(value) <= _MOST:
        raise ValueError(f"{place}: {name} is {value}; it must be {least} to {_MOST}")
    return int(value)
