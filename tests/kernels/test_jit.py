"""Where compiled kernels are kept."""

import os
from pathlib import Path

from collemu_kernels import _jit


def test_cache_lies_in_the_users_cache_folder_and_changes_with_the_sources(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _jit.cache_directory() == tmp_path / "collemu" / _jit.source_fingerprint()
    before = _jit.cache_directory()
    monkeypatch.setenv("NUMBA_BOUNDSCHECK", "1")  # counts as another source
    assert _jit.cache_directory() != before


def test_a_folder_that_cannot_be_made_falls_back_to_the_users_own_temporary_one(tmp_path, monkeypatch):
    blocked = tmp_path / "file"
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    monkeypatch.setattr(_jit.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = _jit.cache_directory()
    assert folder.parent == tmp_path / f"collemu-{os.getuid()}"
    assert folder.parent.stat().st_mode & 0o077 == 0


def test_a_folder_of_somebody_else_is_left_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(_jit.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setattr(_jit.os, "getuid", lambda: os.geteuid() + 1)
    monkeypatch.setattr(_jit.tempfile, "mkdtemp", lambda prefix: f"/fresh/{prefix}")
    assert _jit.cache_directory() == Path("/fresh/collemu-")
