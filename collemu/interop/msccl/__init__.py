"""Schedules as MSCCL XML, which the runtimes of MSCCL (microsoft/msccl, msccl-executor-nccl, RCCL) run on GPUs."""

from collemu.interop.msccl.reading import read_layouts, read_msccl
from collemu.interop.msccl.writing import msccl_text, write_msccl

__all__ = ["msccl_text", "read_layouts", "read_msccl", "write_msccl"]
