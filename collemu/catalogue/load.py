"""Systems from TOML: the catalogue by name, a user's file by path, and every fault of a file named at once.

A file holds ``name``, ``title`` and ``default_protocol``, and ``status`` and ``topology`` where there is one to tell;
the tables of ``SECTIONS``; ``[protocol.X]`` for one or more of dma, simple, ll and ll128; and ``[sources]``. A name of
a ``network`` of the catalogue stands for ``[scaleout]``. ``[processes]`` makes ranks the processes of one machine, with
``[conversion.X]`` for wire formats and ``[reduction.X]`` for dtypes. Each number is an inline table with ``value``,
``source`` (a key of ``[sources]``), ``confidence`` and, if useful, ``note``.
"""

import os
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

from collemu.catalogue.contradictions import contradictions
from collemu.catalogue.quantity import CONFIDENCES, Number, Quantity, checked, hint, shown, unit_of
from collemu.catalogue.sections import (
    FAMILIES,
    OPTIONAL_SECTIONS,
    PROTOCOLS,
    SECTIONS,
    WIRINGS,
    Protocol,
    Scaleout,
    kinds,
)
from collemu.catalogue.system import Source, System, SystemFileError, assemble
from collemu.dtypes import DTYPES
from collemu.number_formats import wire_formats

CATALOGUE = Path(__file__).parent / "systems"
NETWORKS = Path(__file__).parent / "networks"
ENDINGS = (".toml", ".xml")  # of files
TEXT_KEYS = ("name", "title", "default_protocol")
OPTIONAL_TEXT_KEYS = ("status", "topology", "network")
QUANTITY_KEYS = ("value", "source", "confidence", "note")
EXAMPLE = '{ value = ..., source = "...", confidence = "..." }'


def systems() -> tuple[str, ...]:
    """Names of the systems in the catalogue, sorted."""
    return tuple(sorted(path.stem for path in CATALOGUE.glob("*.toml")))


def networks() -> tuple[str, ...]:
    """Names of the networks in the catalogue, sorted."""
    return tuple(sorted(path.stem for path in NETWORKS.glob("*.toml")))


def load_system(name_or_path: str | os.PathLike[str], network: str | None = None) -> System:
    """A system of the catalogue by name, or of a file by path: TOML, or the XML in which NCCL writes down a machine.

    Parameters
    ----------
    name_or_path : str or path
        A path if it ends in ``.toml`` or ``.xml``, has a folder in it or is a path object; else a name of
        ``systems()``. A text may have a network behind it: ``h100_hgx@efa_p5en``. What an ``.xml`` of NCCL
        (``NCCL_TOPO_DUMP_FILE``) does not say is taken from the catalogue, as `collemu.interop.nccl_topology` tells.
    network : str, optional
        A name of ``networks()``: what joins domains, in place of the system's own. The system's name then ends with it.

    Raises
    ------
    SystemFileError
        A ValueError: no such system or file, not TOML, or faulty; one line that names every fault.
    """
    text = os.fspath(name_or_path)
    if isinstance(name_or_path, str) and "@" in os.path.basename(text) and not text.endswith(ENDINGS):
        text, _, behind = text.partition("@")
        if network is not None or "@" in behind:
            raise SystemFileError(f"system {shown(name_or_path)}: one network, not two; leave one out")
        return load_system(text, behind)
    if not isinstance(name_or_path, str) or text.endswith(ENDINGS) or os.path.basename(text) != text:
        return _read(Path(text), network)
    if text not in systems():
        raise SystemFileError(
            f"system {shown(text)}: no such system{hint(text, systems())}; there are: {', '.join(systems())} "
            f"(a file of your own is given by a path that ends in .toml, or in .xml if NCCL wrote it)"
        )
    return _read(CATALOGUE / f"{text}.toml", network)


def _read(path: Path, network: str | None) -> System:
    reader = _Reader()
    try:
        content = _content(path)
        if network is not None:
            content.pop("scaleout", None)
            content["network"] = network
            if isinstance(content.get("name"), str):
                content["name"] = f"{content['name']}@{network}"
        system = reader.system(content)
    except OSError as error:
        raise _error(path, error.strerror or str(error)) from None
    except SystemFileError:
        raise
    except UnicodeDecodeError as error:
        raise _error(path, f"not UTF-8 text (byte {error.start})") from None
    except (ValueError, RecursionError) as error:  # TOMLDecodeError, or an integer or nesting beyond any use
        raise _error(path, f"not valid TOML: {error}") from None
    if system is None:
        raise _error(path, "; ".join(reader.faults))
    return system


def _content(path: Path) -> dict[str, object]:
    if path.suffix != ".xml":
        return tomllib.loads(path.read_bytes().decode())
    from collemu.interop.nccl_topology import topology_content

    try:
        return topology_content(path, CATALOGUE, NETWORKS)
    except ValueError as error:
        raise _error(path, str(error)) from None


def _error(path: Path, text: str) -> SystemFileError:
    line = f"system file {path}: {text}"
    return SystemFileError("".join(each if each.isprintable() else " " for each in line))


class _Reader:
    """Turns parsed TOML into a system and collects what is wrong with it."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.quantities: dict[str, Quantity] = {}
        self.sources: dict[str, Source] = {}

    def system(self, content: Mapping[str, object]) -> System | None:
        """The system, or None with ``faults`` filled."""
        known = (*TEXT_KEYS, *OPTIONAL_TEXT_KEYS, *SECTIONS, *OPTIONAL_SECTIONS, *FAMILIES, "sources")
        self._unknown_keys("", content, known)
        name, title, default_protocol = (self._text("", key, content) for key in TEXT_KEYS)
        status, topology, network = (
            self._text("", key, content) if key in content else "" for key in OPTIONAL_TEXT_KEYS
        )
        topology = topology or "switched"
        if topology not in WIRINGS:
            self.faults.append(f"topology: {shown(topology)} is none of {', '.join(WIRINGS)}{hint(topology, WIRINGS)}")
            topology = "switched"
        for key, value in self._table("", "sources", content).items():
            self._source(key, value)
        for section, kind in SECTIONS.items():
            if section == "scaleout" and network:
                if section in content:
                    self.faults.append("network: stands for [scaleout], which is there too; leave one out")
                self._network(network)
            else:
                self._section(section, kinds(kind, topology), self._table("", section, content))
        for section, kind in OPTIONAL_SECTIONS.items():
            if section in content:
                self._section(section, kinds(kind), self._table("", section, content))
        for family, names in (("conversion", wire_formats()), ("reduction", tuple(DTYPES))):
            table = self._table("", family, content) if family in content else {}
            self._unknown_keys(f"{family}.", table, names)
            for member in table:
                self._section(f"{family}.{member}", kinds(FAMILIES[family]), self._table(f"{family}.", member, table))
        protocols = self._table("", "protocol", content)
        self._unknown_keys("protocol.", protocols, PROTOCOLS)
        for protocol in PROTOCOLS:
            if protocol in protocols:
                table = self._table("protocol.", protocol, protocols)
                self._section(f"protocol.{protocol}", kinds(Protocol), table)
        if default_protocol and protocols and default_protocol not in protocols:
            near = hint(default_protocol, protocols)
            self.faults.append(f"default_protocol: {shown(default_protocol)} is not in [protocol]{near}")
        self.faults = self.faults or contradictions(self.quantities, topology)
        if self.faults:
            return None
        return assemble(name, title, status, default_protocol, topology, self.quantities, self.sources)

    def _network(self, name: str) -> None:
        """The numbers of a network of the catalogue, and its sources."""
        if name not in networks():
            near = hint(name, networks())
            self.faults.append(f"network: {shown(name)}: no such network{near}; there are: {', '.join(networks())}")
            return
        content = tomllib.loads((NETWORKS / f"{name}.toml").read_text(encoding="utf-8"))
        for key, value in self._table("", "sources", content).items():
            self._source(key, value)
        self._section("scaleout", kinds(Scaleout), self._table("", "scaleout", content))

    def _section(self, section: str, fields: Mapping[str, type], table: Mapping[str, object]) -> None:
        if not table:
            return  # already named as missing or empty
        self._unknown_keys(f"{section}.", table, fields)
        for key, kind in fields.items():
            name = f"{section}.{key}"
            if key not in table:
                self.faults.append(f"{name}: missing")
            elif (quantity := self._quantity(name, kind, table[key])) is not None:
                self.quantities[name] = quantity

    def _quantity(self, name: str, kind: type, entry: object) -> Quantity | None:
        if not isinstance(entry, dict):
            self.faults.append(f"{name}: must be {EXAMPLE}, not {shown(entry)}")
            return None
        table = cast(dict[str, object], entry)
        key = name.rpartition(".")[2]
        self._unknown_keys(f"{name}.", table, QUANTITY_KEYS)
        value: Number | None = None
        if "value" not in table:
            self.faults.append(f"{name}.value: missing")
        else:
            try:
                value = checked(key, kind, table["value"])
            except ValueError as error:
                self.faults.append(f"{name}: {error}")
        source = self._text(f"{name}.", "source", table)
        if source and source not in self.sources:
            near = hint(source, self.sources)
            self.faults.append(f"{name}.source: {shown(source)} is not in [sources]{near}")
        confidence = self._text(f"{name}.", "confidence", table)
        if confidence and confidence not in CONFIDENCES:
            near = hint(confidence, CONFIDENCES)
            known = ", ".join(CONFIDENCES)
            self.faults.append(f"{name}.confidence: {shown(confidence)} is none of {known}{near}")
        note = self._text(f"{name}.", "note", table) if "note" in table else ""
        return None if value is None else Quantity(value, unit_of(key), source, confidence, note)

    def _source(self, key: str, entry: object) -> None:
        self.sources[key] = Source("")  # so that a faulty row is named once
        if not isinstance(entry, dict):
            self.faults.append(f'sources.{key}: must be {{ title = "..." }}, not {shown(entry)}')
            return
        table = cast(dict[str, object], entry)
        self._unknown_keys(f"sources.{key}.", table, ("title", "address"))
        title = self._text(f"sources.{key}.", "title", table)
        address = self._text(f"sources.{key}.", "address", table) if "address" in table else ""
        self.sources[key] = Source(title, address)

    def _table(self, prefix: str, key: str, content: Mapping[str, object]) -> dict[str, object]:
        entry = content.get(key)
        if isinstance(entry, dict):
            table = cast(dict[str, object], entry)
            if not table:
                self.faults.append(f"[{prefix}{key}]: empty")
            return table
        reason = "missing" if entry is None else f"must be a table, not {shown(entry)}"
        self.faults.append(f"[{prefix}{key}]: {reason}")
        return {}

    def _text(self, prefix: str, key: str, content: Mapping[str, object]) -> str:
        """The text at a key; empty, with a fault, where there is none."""
        entry = content.get(key)
        if isinstance(entry, str) and entry.strip() and entry.isprintable():
            return entry
        reason = "missing" if entry is None else f"must be one line of text, not {shown(entry)}"
        self.faults.append(f"{prefix}{key}: {reason}")
        return ""

    def _unknown_keys(self, prefix: str, table: Mapping[str, object], known: Iterable[str]) -> None:
        names = list(known)
        for key in table:
            if key not in names:
                self.faults.append(f"{prefix}{key}: unknown{hint(key, names)}")
