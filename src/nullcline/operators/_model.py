"""One form for every recurrent model: ``F(theta, z, x) -> z'`` on flat states, and a readout.

A cell with ``step(state, input)`` and ``readout(state)``, or a function ``step(params, state, input)`` with
its parameters beside it, becomes a :class:`Model`: a flat dictionary of named parameter leaves and two pure
functions.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jax.extend.core import Literal
from jaxtyping import Array, Float

Params = dict[str, Array]


class Model(eqx.Module):
    """Named parameters and the two pure functions that use them.

    ``step_names`` are the leaves that reach the step (they make up K), ``readout_names`` those that reach the
    readout.
    """

    params: Params
    fixed: Any
    function: Callable | None = eqx.field(static=True)
    reader: Callable | None = eqx.field(static=True)
    treedef: Any = eqx.field(static=True)
    names: tuple[str, ...] = eqx.field(static=True)
    step_names: tuple[str, ...] = eqx.field(static=True)
    readout_names: tuple[str, ...] = eqx.field(static=True)
    state_treedef: Any = eqx.field(static=True)
    state_shapes: tuple[tuple[int, ...], ...] = eqx.field(static=True)

    @property
    def state_size(self) -> int:
        """Length S of the flat state."""
        return sum(math.prod(shape) for shape in self.state_shapes)

    @property
    def has_readout(self) -> bool:
        """Whether outputs, and so errors, are defined."""
        return self.reader is not None

    def flatten(self, state: Any) -> Array:
        """One vector from the cell's own state; components in the order of the pytree."""
        return jnp.concatenate([jnp.ravel(leaf) for leaf in jax.tree.leaves(state)])

    def unflatten(self, z: Array) -> Any:
        """The cell's own state from one vector."""
        sizes = [math.prod(shape) for shape in self.state_shapes]
        starts = [sum(sizes[:i]) for i in range(len(sizes))]
        leaves = [
            z[start : start + size].reshape(shape)
            for start, size, shape in zip(starts, sizes, self.state_shapes, strict=True)
        ]
        return jax.tree.unflatten(self.state_treedef, leaves)

    def _tree(self, params: Params) -> Any:
        return jax.tree.unflatten(self.treedef, [params[name] for name in self.names])

    def step(self, params: Params, z: Array, x: Array) -> Array:
        """Flat state after one input; ``params`` may leave out leaves, which then keep their values."""
        params = self.params | params
        state = self.unflatten(z)
        if self.function is None:
            return self.flatten(eqx.combine(self._tree(params), self.fixed).step(state, x))
        return self.flatten(self.function(self._tree(params), state, x))

    def output(self, params: Params, z: Array) -> Array:
        """Output read from a flat state."""
        assert self.reader is not None
        params = self.params | params
        state = self.unflatten(z)
        if self.reader is affine_readout:
            return affine_readout(params["readout.weight"], params.get("readout.bias"), z)
        if self.function is None:
            return self.reader(eqx.combine(self._tree(params), self.fixed), state)
        return self.reader(self._tree(params), state)


def affine_readout(weight: Array, bias: Array | None, z: Array) -> Array:
    """Outputs ``C z + c`` of a readout given beside the model."""
    y = weight @ z
    return y if bias is None else y + bias


def cell_readout(cell: Any, state: Any) -> Array:
    """The cell's own readout."""
    return cell.readout(state)


def as_model(
    cell: Any, state: Any, x: Float[Array, " inputs"], params: Any, readout: Any, trainable: Any
) -> Model:
    """Normalise a cell or a step function, for one example ``state`` and ``x``; refuse what does not fit."""
    if params is None:
        _refuse_stateful(cell)
        tree, fixed = eqx.partition(cell, eqx.is_inexact_array if trainable is None else trainable)
        function = None
    else:
        tree, fixed, function = params, None, cell
    paths, treedef = jax.tree_util.tree_flatten_with_path(tree)
    names = tuple(jax.tree_util.keystr(path, simple=True, separator=".") or "params" for path, _ in paths)
    leaves = {name: _leaf(name, leaf) for name, (_, leaf) in zip(names, paths, strict=True)}
    reader = _reader(cell, params, readout)
    if reader is affine_readout:
        weight, bias = _affine(readout, sum(jnp.size(part) for part in jax.tree.leaves(state)))
        leaves["readout.weight"] = weight
        if bias is not None:
            leaves["readout.bias"] = bias
    model = Model(
        params=leaves,
        fixed=fixed,
        function=function,
        reader=reader,
        treedef=treedef,
        names=names,
        step_names=(),
        readout_names=(),
        state_treedef=jax.tree.structure(state),
        state_shapes=tuple(jnp.shape(part) for part in jax.tree.leaves(state)),
    )
    _check_step(model, state, x)
    z = jax.eval_shape(model.flatten, state)
    step_names = _reaching(lambda p, z: model.step(p, z, x), model.params, z)
    readout_names = _reaching(model.output, model.params, z) if reader is not None else ()
    if not step_names:
        raise ValueError(
            "No floating-point parameter of `cell` reaches its step: there is nothing to train, so K is not "
            "defined."
        )
    return dataclasses.replace(model, step_names=step_names, readout_names=readout_names)


def check_cell(cell: Any, params: Any) -> None:
    """Refuse what has no step."""
    if params is None and not callable(getattr(cell, "step", None)):
        is_torch = type(cell).__module__.partition(".")[0] == "torch"
        raise ValueError(
            f"`cell` must have a method `step(state, input) -> state`, got {type(cell).__name__}. "
            + (
                "Use `from_torch` for a module of PyTorch."
                if is_torch
                else "For a function `step(params, state, input)` pass its parameters as `params=`."
            )
        )
    if params is not None and not callable(cell):
        raise ValueError(
            f"With `params=`, `cell` must be a function step(params, state, input), got {cell!r}."
        )


def _leaf(name: str, leaf: Any) -> Array:
    if not eqx.is_array_like(leaf) or isinstance(leaf, bool | int | complex | str):
        kind = type(leaf).__name__
    elif not jnp.issubdtype(jnp.asarray(leaf).dtype, jnp.floating):
        kind = str(jnp.asarray(leaf).dtype)
    else:
        return jnp.asarray(leaf)
    raise ValueError(
        f"Parameter leaf `{name}` is {kind}: gradient descent needs real floating-point leaves. Close over "
        "constants in the step function, or keep them out of `trainable`."
    )


def _refuse_stateful(cell: Any) -> None:
    leaves = jax.tree.leaves(cell, is_leaf=lambda leaf: isinstance(leaf, eqx.nn.StateIndex))
    if any(isinstance(leaf, eqx.nn.StateIndex) for leaf in leaves):
        raise ValueError(
            f"`cell` ({type(cell).__name__}) keeps hidden state of its own (`equinox.nn.StateIndex`). Its "
            "step must be "
            "a pure function: make that memory part of the state."
        )


def _reader(cell: Any, params: Any, readout: Any) -> Callable | None:
    if readout is None:
        has_own = params is None and callable(getattr(cell, "readout", None))
        return cell_readout if has_own else None
    if isinstance(readout, tuple):
        return affine_readout
    if callable(readout):
        return readout
    raise ValueError(
        "`readout` must be a pair (C, c) of a matrix (outputs, hidden) and a bias or None, or a function "
        f"readout(params, state), got {type(readout).__name__}."
    )


def _affine(readout: tuple, size: int) -> tuple[Array, Array | None]:
    if len(readout) != 2:
        raise ValueError(f"`readout` must be a pair (C, c), got {len(readout)} entries.")
    weight, bias = jnp.asarray(readout[0]), None if readout[1] is None else jnp.asarray(readout[1])
    if weight.ndim != 2 or weight.shape[1] != size:
        raise ValueError(f"`readout`: C must have shape (outputs, {size}), got {weight.shape}.")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"`readout`: c must have shape {weight.shape[:1]}, got {bias.shape}.")
    return weight, bias


def _check_step(model: Model, state: Any, x: Array) -> None:
    def raw(params, state, x):
        if model.function is None:
            return eqx.combine(model._tree(params), model.fixed).step(state, x)
        return model.function(model._tree(params), state, x)

    try:
        after = eqx.filter_eval_shape(raw, model.params, state, x)
    except TypeError as error:
        raise ValueError(
            f"The step does not take a state of shape {_shapes(state)} and an input of shape {x.shape}: "
            f"{error}"
        ) from error
    if jax.tree.structure(after) != jax.tree.structure(state) or _shapes(after) != _shapes(state):
        raise ValueError(
            f"The step must return a state like the one it takes, {_shapes(state)}; it returned "
            f"{_shapes(after)}. "
            "A cell that also returns outputs or carries memory elsewhere needs a step that returns the "
            "state alone."
        )
    kinds = {str(leaf.dtype) for leaf in jax.tree.leaves((after, state))}
    if len(kinds) > 1 or not all(kind.startswith(("float", "bfloat")) for kind in kinds):
        raise ValueError(
            f"State before and after the step must have one floating-point type, got {sorted(kinds)}. Give "
            "parameters, inputs and `initial_state` the same type."
        )


def _shapes(state: Any) -> Any:
    shapes = [tuple(jnp.shape(leaf)) for leaf in jax.tree.leaves(state)]
    return shapes[0] if len(shapes) == 1 else shapes


def _reaching(function: Callable, params: Params, z: Any) -> tuple[str, ...]:
    """Names of the leaves on which the result can depend, read off the traced program."""
    closed = jax.make_jaxpr(function)(params, z)
    live = {var for var in closed.jaxpr.outvars if not isinstance(var, Literal)}
    for eqn in reversed(closed.jaxpr.eqns):
        if any(var in live for var in eqn.outvars):
            live |= {var for var in eqn.invars if not isinstance(var, Literal)}
    names = sorted(params)  # the order in which JAX flattens a dictionary
    return tuple(name for name, var in zip(names, closed.jaxpr.invars, strict=False) if var in live)
