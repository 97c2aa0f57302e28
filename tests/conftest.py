"""How much Hypothesis tries, and where the shared facts and data are."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

pytest_plugins = ["collemu.testing.plugin"]  # where the package is not installed anew since it has one, too

settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=200, deadline=None, derandomize=True)
settings.register_profile("deep", max_examples=5000, deadline=None)
default_profile = "ci" if os.environ.get("CI") else "dev"
settings.load_profile(os.environ.get("COLLEMU_HYPOTHESIS_PROFILE") or default_profile)


@pytest.fixture(scope="session")
def shared_folder() -> Path:
    """Folder of facts and measured data, $COLLEMU_SHARED or ../shared; tests that need it skip without it."""
    named = os.environ.get("COLLEMU_SHARED")
    folder = Path(named) if named else Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip(f"no folder {folder}: set COLLEMU_SHARED to the shared facts and data")
    return folder
