"""Systems: a catalogue of TOML files, their loader, and the numbers of a system with their origin."""

from collemu.systems.load import load_system, systems
from collemu.systems.quantity import CONFIDENCES, Quantity, femtoseconds, femtoseconds_per_byte
from collemu.systems.system import (
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
