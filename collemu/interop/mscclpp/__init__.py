"""Execution plans of MSCCL++ (microsoft/mscclpp), which its executor runs on GPUs, as schedules."""

from collemu.interop.mscclpp.reading import read_mscclpp

__all__ = ["read_mscclpp"]
