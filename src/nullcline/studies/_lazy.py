"""Heavy libraries that study modules name at the top and pay for at the first use.

``from nullcline.studies._lazy import jnp, jr`` costs nothing; the first attribute read (``jnp.exp``) imports
the library. Reading one while a module is imported, as the decorator ``@jax.jit`` does, imports it at once:
put such functions inside ``compute``, or below it.
"""

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any


class _Lazy:
    """Stand-in for a module, imported when an attribute is asked for."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        if attribute.startswith("__"):
            # Inspection and copying ask for these; they are no reason to import a library.
            raise AttributeError(attribute)
        return getattr(importlib.import_module(self._name), attribute)

    def __reduce__(self) -> tuple[type, tuple[str]]:
        return _Lazy, (self._name,)

    def __repr__(self) -> str:
        return f"<lazy module {self._name}>"


def lazily(name: str) -> ModuleType:
    """Give the module ``name`` without importing it yet."""
    return _Lazy(name)  # pyright: ignore[reportReturnType]


if TYPE_CHECKING:
    import diffrax
    import equinox as eqx
    import jax
    import jax.numpy as jnp
    import jax.random as jr
    import optax
    import xarray as xr
    from jax import lax
else:
    diffrax = lazily("diffrax")
    eqx = lazily("equinox")
    jax = lazily("jax")
    jnp = lazily("jax.numpy")
    jr = lazily("jax.random")
    lax = lazily("jax.lax")
    optax = lazily("optax")
    xr = lazily("xarray")

__all__ = ["diffrax", "eqx", "jax", "jnp", "jr", "lax", "lazily", "optax", "xr"]
