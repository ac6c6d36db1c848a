"""How neural networks change while gradient descent trains them.

The rooms are imported by name: ``from nullcline import linear``. Importing the package alone loads nothing
heavy, so that the command line answers at once.
"""

from importlib.metadata import version as _version

from ._citations import citation as citation

__version__ = _version("nullcline")
