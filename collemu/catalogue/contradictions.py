"""What is wrong with the numbers of a system together, though each by itself is possible."""

from collections.abc import Mapping
from itertools import pairwise
from math import prod
from typing import Any, cast

from collemu.catalogue.quantity import MIN_RATE, TABLES, Quantity
from collemu.catalogue.sections import PROTOCOLS, WIRINGS


def contradictions(quantities: Mapping[str, Quantity], topology: str) -> list[str]:
    """Faults that no number has by itself."""
    faults: list[str] = []
    for name in PROTOCOLS:
        data, line = (quantities.get(f"protocol.{name}.{key}") for key in ("data_bytes", "line_bytes"))
        if data and line and cast(int, data.value) > cast(int, line.value):
            faults.append(f"protocol.{name}: data_bytes {data.value} exceeds line_bytes {line.value}")
    values = {key: quantity.value for key, quantity in quantities.items()}
    flit, payload = values.get("domain.packet_flit_bytes"), values.get("domain.packet_payload_bytes")
    if isinstance(flit, int) and isinstance(payload, int) and payload % flit:
        faults.append(f"domain.packet_payload_bytes: {payload} is not a multiple of packet_flit_bytes {flit}")
    link, share = values.get("domain.link_bytes_per_s"), values.get("domain.link_efficiency")
    if isinstance(link, float) and isinstance(share, float) and not link * share >= MIN_RATE:
        faults.append(f"domain.link_efficiency: {share:g} leaves less than {MIN_RATE:g} bytes/s of a link")
    rate, rails = values.get("scaleout.bytes_per_s"), values.get("scaleout.rails")
    if isinstance(rate, float) and isinstance(rails, int) and rate / rails < MIN_RATE:
        faults.append(f"scaleout.rails: {rails} leave each less than {MIN_RATE:g} bytes/s")
    chips, domains, most = (
        values.get(key) for key in ("domain.chips", "scaleout.domains", "scaleout.cluster_max_chips")
    )
    if isinstance(chips, int) and isinstance(domains, int) and isinstance(most, int) and 1 < domains * chips > most:
        faults += [f"scaleout.domains: {domains} of {chips} chips exceed cluster_max_chips {most}"] * (domains > 1)
    if values.get("domain.in_switch_reduction") is True and topology != "switched":
        faults.append(f"domain.in_switch_reduction: switches of topology {topology} cannot; set it to false")
    return faults + _wiring_faults(values, topology) + _table_faults(values)


def _table_faults(values: Mapping[str, Any]) -> list[str]:
    sizes: tuple[int, ...] | None = values.get("processes.sizes_bytes")
    if sizes is None:
        return []
    if any(after <= before for before, after in pairwise(sizes)):
        return [f"processes.sizes_bytes: {list(sizes)} must grow"]
    tables = [(name, values[name]) for name in (f"processes.{key}" for key in TABLES[1:]) if name in values]
    return [
        f"{name}: {len(table)} numbers for {len(sizes)} sizes" for name, table in tables if len(table) != len(sizes)
    ]


def _wiring_faults(values: Mapping[str, Any], topology: str) -> list[str]:
    chips = values.get("domain.chips")
    if any(f"domain.{key}" not in values for key in WIRINGS[topology]) or chips is None:
        return []  # named as missing
    per_plane = values.get("domain.links_per_plane")
    if topology == "switched" and isinstance(per_plane, tuple):
        given = len(cast(tuple[int, ...], per_plane))
        if given == values["domain.planes"]:
            return []
        return [f"domain.links_per_plane: {given} numbers for {values['domain.planes']} planes"]
    if topology == "mesh" and chips < 2:
        return ["domain.chips: a mesh has at least 2"]
    if topology == "torus":
        shape, links = values["domain.shape"], values["domain.links_per_direction"]
        if prod(shape) != chips:
            return [f"domain.shape: {' x '.join(map(str, shape))} is {prod(shape)} chips, not {chips}"]
        if len(shape) != len(links):
            return [f"domain.links_per_direction: {len(links)} numbers for {len(shape)} dimensions"]
        return ["domain.chips: a torus has at least 2"] if chips < 2 else []
    if topology == "nested":
        levels = [cast(tuple[int, ...], values[f"domain.{key}"]) for key in WIRINGS[topology]]
        if len({len(each) for each in levels}) != 1:
            return ["domain: chips_per_level, links_per_level and hops_per_level need as many numbers as each other"]
        sizes = levels[0]
        if sizes[-1] != chips or any(b % a or b <= a for a, b in pairwise(sizes)):
            return [f"domain.chips_per_level: {list(sizes)} must grow by whole factors to chips, {chips}"]
    return []
