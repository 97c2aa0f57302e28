"""Systems: a catalogue of TOML files, their loader, and the numbers of a system with their origin."""

from collemu.catalogue.load import load_system, systems
from collemu.catalogue.quantity import CONFIDENCES, Quantity, femtoseconds, femtoseconds_per_byte
from collemu.catalogue.system import (
    Chip,
    Domain,
    Endpoint,
    Protocol,
    Scaleout,
    Source,
    System,
    SystemFileError,
)

__all__ = [
    "CONFIDENCES",
    "Chip",
    "Domain",
    "Endpoint",
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
