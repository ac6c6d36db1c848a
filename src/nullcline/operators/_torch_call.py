"""A PyTorch function of rows as a JAX primitive: ``torch.func`` computes its value and its derivatives.

The function takes parameters, states z (rows, S) and inputs x (rows, I) to new states (rows, S), each row on
its own. Five modes, each a call of PyTorch on the host: the step itself, the derivative along a change of the
states or of the parameters (``push``), and the transposes of these (``pull``). So JAX can linearise,
transpose and batch the step of any module, and operators need no Jacobian. Nothing more is defined: no
derivative in the inputs, and no second one.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import ShapedArray
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

step_p = Primitive("torch_step")
step_p.multiple_results = True


def _split(args: Sequence[Any], cell: Any) -> tuple[list[Any], list[Any], list[Any]]:
    """Parameters; states and inputs; and what the mode takes beside them."""
    n = len(cell.names)
    return list(args[:n]), list(args[n : n + 2]), list(args[n + 2 :])


@step_p.def_impl
def _impl(*args, cell, mode):
    return [jnp.asarray(out) for out in cell.compute(mode, *map(np.asarray, args))]


@step_p.def_abstract_eval
def _abstract(*avals, cell, mode):
    params, (z, _), _ = _split(avals, cell)
    outs = params if mode == "pull_params" else [z]
    return [ShapedArray(out.shape, out.dtype) for out in outs]


def _lower(ctx, *operands, cell, mode):
    # The callback of `jax.pure_callback` waits for JAX's own threads, of which there may be one; this one
    # hands over plain arrays.
    outs, _, _ = mlir.emit_python_callback(
        ctx,
        lambda *args: tuple(cell.compute(mode, *args)),
        None,
        operands,
        ctx.avals_in,
        ctx.avals_out,
        has_side_effect=False,
    )
    return outs


mlir.register_lowering(step_p, _lower)


def _jvp(primals, tangents, *, cell, mode):
    params, rows, _ = _split(primals, cell)
    d_params, (d_z, d_x), d_extra = _split(tangents, cell)
    outs = step_p.bind(*primals, cell=cell, mode=mode)
    if type(d_x) is not ad.Zero:
        raise ValueError("The step of a PyTorch cell has no derivative in its inputs here.")
    if mode != "step":
        if any(type(d) is not ad.Zero for d in (*d_params, d_z)):
            raise ValueError("The step of a PyTorch cell has no second derivative here.")
        along = [ad.instantiate_zeros(d) for d in d_extra]
        return outs, step_p.bind(*params, *rows, *along, cell=cell, mode=mode)
    parts = []
    if type(d_z) is not ad.Zero:
        parts += step_p.bind(*params, *rows, d_z, cell=cell, mode="push_state")
    if any(type(d) is not ad.Zero for d in d_params):
        along = [ad.instantiate_zeros(d) for d in d_params]
        parts += step_p.bind(*params, *rows, *along, cell=cell, mode="push_params")
    return outs, [sum(parts[1:], parts[0])]


ad.primitive_jvps[step_p] = _jvp

_TRANSPOSED = {
    "push_state": "pull_state",
    "pull_state": "push_state",
    "push_params": "pull_params",
    "pull_params": "push_params",
}


def _transpose(cotangents, *args, cell, mode):
    params, rows, extra = _split(args, cell)
    if mode not in _TRANSPOSED or not all(ad.is_undefined_primal(arg) for arg in extra):
        raise ValueError(f"A PyTorch cell is not linear in what is transposed here ({mode}).")
    cotangents = [ad.instantiate_zeros(ct) for ct in cotangents]
    outs = step_p.bind(*params, *rows, *cotangents, cell=cell, mode=_TRANSPOSED[mode])
    return [None] * (len(params) + 2) + list(outs)


ad.primitive_transposes[step_p] = _transpose


def _batch(args, dims, *, cell, mode):
    n = len(cell.names)
    is_mapped = [dim is not None for dim in dims]
    has_tangent = mode == "push_params" and any(is_mapped[n + 2 :])
    moved = [arg if dim is None else jnp.moveaxis(arg, dim, 0) for arg, dim in zip(args, dims, strict=True)]
    if any(is_mapped[:n]) or has_tangent or mode == "pull_params":
        # Different parameters, or a sum over the rows of each: one call after another.
        def one(mapped):
            rest = iter(mapped)
            whole = [next(rest) if m else arg for arg, m in zip(moved, is_mapped, strict=True)]
            return step_p.bind(*whole, cell=cell, mode=mode)

        outs = jax.lax.map(one, [arg for arg, m in zip(moved, is_mapped, strict=True) if m])
        return outs, [0] * len(outs)
    size = next(arg.shape[0] for arg, m in zip(moved, is_mapped, strict=True) if m)
    last = n + 2 if mode == "push_params" else len(args)
    rows = [
        (arg if m else jnp.broadcast_to(arg, (size, *arg.shape))).reshape(-1, arg.shape[-1])
        for arg, m in zip(moved[n:last], is_mapped[n:last], strict=True)
    ]
    (out,) = step_p.bind(*moved[:n], *rows, *moved[last:], cell=cell, mode=mode)
    return [out.reshape(size, -1, out.shape[-1])], [0]


batching.primitive_batchers[step_p] = _batch
