"""What a quantised collective does, to the last bit and the last nanosecond, on a fabric that does not exist yet.

Names are imported when they are first used, so ``import collemu`` costs nothing by itself.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collemu.blocks import Quantized as Quantized
    from collemu.catalogue import System as System
    from collemu.catalogue import load_system as load_system
    from collemu.catalogue import systems as systems
    from collemu.combining import combine as combine
    from collemu.emulator import Result as Result
    from collemu.emulator import emulate as emulate
    from collemu.interop.schedules import load_schedule as load_schedule
    from collemu.interop.schedules import save_schedule as save_schedule
    from collemu.multiply import matmul as matmul
    from collemu.number_formats import formats as formats
    from collemu.published import recipes as recipes
    from collemu.quantization import decode as decode
    from collemu.quantization import encode as encode
    from collemu.quantization import quantize as quantize
    from collemu.recipe import Recipe as Recipe
    from collemu.reporting import QuantizationReport as QuantizationReport
    from collemu.reporting import quantization_report as quantization_report
    from collemu.schedule import Schedule as Schedule
    from collemu.schedule import ScheduleError as ScheduleError
    from collemu.schedule import algorithms as algorithms
    from collemu.schedule import build_schedule as build_schedule
    from collemu.verification import VerifyReport as VerifyReport
    from collemu.verification import verify as verify

__version__ = "0.1.0"

_HOMES = {
    "QuantizationReport": "reporting",
    "Quantized": "blocks",
    "Recipe": "recipe",
    "Result": "emulator",
    "Schedule": "schedule",
    "ScheduleError": "schedule",
    "System": "catalogue",
    "VerifyReport": "verification",
    "algorithms": "schedule",
    "build_schedule": "schedule",
    "combine": "combining",
    "decode": "quantization",
    "emulate": "emulator",
    "encode": "quantization",
    "formats": "number_formats",
    "load_schedule": "interop.schedules",
    "load_system": "catalogue",
    "matmul": "multiply",
    "quantization_report": "reporting",
    "quantize": "quantization",
    "recipes": "published",
    "save_schedule": "interop.schedules",
    "systems": "catalogue",
    "verify": "verification",
}

__all__ = [
    "QuantizationReport",
    "Quantized",
    "Recipe",
    "Result",
    "Schedule",
    "ScheduleError",
    "System",
    "VerifyReport",
    "algorithms",
    "build_schedule",
    "combine",
    "decode",
    "emulate",
    "encode",
    "formats",
    "load_schedule",
    "load_system",
    "matmul",
    "quantization_report",
    "quantize",
    "recipes",
    "save_schedule",
    "systems",
    "verify",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'collemu' has no attribute {name!r}")
    value = getattr(import_module(f"collemu.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
