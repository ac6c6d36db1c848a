"""One package per document, one Study per figure.

Studies are found by walking this package: a module whose name does not begin with an underscore defines
studies, and every :class:`~nullcline.engine.Study` subclass with a ``source`` in it is one. Adding a figure
touches no other file. Study modules import heavy libraries inside their functions, or through
:func:`lazily`, so that listing them is instant.
"""
