"""Systems: a catalogue of TOML files, their loader, and the numbers of a system with their origin."""

from collemu.catalogue.load import load_system, systems
from collemu.catalogue.quantity import CONFIDENCES, Quantity, femtoseconds, femtoseconds_per_byte
from collemu.catalogue.sections import Chip, Domain, Endpoint, Processes, Protocol, Scaleout
from collemu.catalogue.system import Source, System, SystemFileError

__all__ = [
    "CONFIDENCES",
    "Chip",
    "Domain",
    "Endpoint",
    "Processes",
    "Protocol",
    "Quantity",
    "Scaleout",
    "Source",
    "System",
    "SystemFileError",
    "femtoseconds",
    "femtoseconds_per_byte",
    "load_system",
    "systems",
]
