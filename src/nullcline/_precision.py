"""Matrix products in the precision of their arrays."""

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar, cast

import jax

_Function = TypeVar("_Function", bound=Callable)


def full_precision(function: _Function) -> _Function:
    """Let ``function`` multiply matrices with all their digits; GPUs by default keep three of float32."""

    @wraps(function)
    def precise(*args: Any, **options: Any) -> Any:
        with jax.default_matmul_precision("highest"):
            return function(*args, **options)

    return cast(_Function, precise)
