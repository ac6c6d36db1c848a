"""Imported first by scripts that may run from a source tree that is not installed."""

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
try:
    importlib.metadata.version("nullcline")
except importlib.metadata.PackageNotFoundError:
    installed_version = importlib.metadata.version
    importlib.metadata.version = lambda name: "0+source" if name == "nullcline" else installed_version(name)
