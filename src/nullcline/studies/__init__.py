"""One package per document, one Study per figure.

Studies are found by walking this package: a module whose name does not begin with an underscore defines
studies, and every :class:`~nullcline.engine.Study` subclass with a ``source`` in it is one. Adding a figure
touches no other file. Study modules import heavy libraries inside their functions, or through
``nullcline.studies._lazy``, so that listing them is instant.
"""

import importlib
import pkgutil
from collections.abc import Iterator
from types import ModuleType

from ..engine import Study


def studies_in(module: ModuleType) -> list[Study]:
    """Give one instance of every study that ``module`` itself defines, in the order of their definition."""
    return [
        value()
        for value in vars(module).values()
        if isinstance(value, type)
        and issubclass(value, Study)
        and value.__module__ == module.__name__
        and isinstance(getattr(value, "source", None), str)
    ]


def _modules(package: ModuleType) -> Iterator[ModuleType]:
    for info in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
        if not info.name.rpartition(".")[2].startswith("_"):
            module = importlib.import_module(info.name)
            yield module
            if info.ispkg:
                yield from _modules(module)


def find(package: ModuleType | None = None) -> dict[str, Study]:
    """Every study in the public modules below ``package`` (default: this one), by ``source``, sorted."""
    package = package or importlib.import_module(__name__)
    found: dict[str, Study] = {}
    for module in _modules(package):
        for study in studies_in(module):
            if study.source in found:
                other = type(found[study.source])
                raise ValueError(
                    f"Two studies have the source {study.source!r}: {other.__module__}.{other.__name__} and "
                    f"{module.__name__}.{type(study).__name__}; `source` must be unique."
                )
            found[study.source] = study
    return dict(sorted(found.items()))
