"""Proof that a schedule does what its collective says, and names of what is wrong where it does not."""

from collemu.verification.verify import VerifyReport, verify

__all__ = ["VerifyReport", "verify"]
