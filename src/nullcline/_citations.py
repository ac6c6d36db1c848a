"""What to cite, as BibTeX."""

from importlib.metadata import version

_DOCUMENTS = {
    "anguita2024": """@mastersthesis{anguita2024,
  author = {Anguita, Nicolas},
  title  = {Learning Dynamics of Linear Neural Networks},
  school = {Imperial College London, Department of Computing},
  type   = {MEng individual project},
  year   = {2024},
  month  = jun
}""",
    "domine2025": """@article{domine2025,
  author = {Domin{\\'e}, Cl{\\'e}mentine C. J.},
  title  = {Exact Learning Dynamics of Bottlenecked and Wide Deep Linear Networks},
  year   = {2025}
}""",
    "shared-representations": """@misc{shared-representations,
  title = {Shared Representations in Gated Deep Linear Networks},
  note  = {Research note}
}""",
    "schuessler2020": """@inproceedings{schuessler2020,
  author    = {Schuessler, Friedrich and Mastrogiuseppe, Francesca and Dubreuil, Alexis and Ostojic, Srdjan
               and Barak, Omri},
  title     = {The interplay between randomness and structure during learning in {RNN}s},
  booktitle = {Advances in Neural Information Processing Systems},
  volume    = {33},
  year      = {2020}
}""",
    "hazelden2025": """@article{hazelden2025,
  author = {Hazelden, James and Driscoll, Laura and Shlizerman, Eli and Shea-Brown, Eric},
  title  = {{KPFlow}: An Operator Perspective on Dynamic Collapse Under Gradient Descent Training of Recurrent
            Networks},
  year   = {2025}
}""",
}


def documents() -> tuple[str, ...]:
    """Give the short names of the documents that can be cited."""
    return tuple(_DOCUMENTS)


def citation(*names: str) -> str:
    """BibTeX of nullcline and of the documents ``names``; all of them when none is named."""
    unknown = [name for name in names if name not in _DOCUMENTS]
    if unknown:
        raise ValueError(f"Unknown document {', '.join(unknown)}; the documents are {', '.join(_DOCUMENTS)}.")
    own = f"""@software{{nullcline,
  author  = {{{{The nullcline developers}}}},
  title   = {{nullcline: how neural networks change while gradient descent trains them}},
  version = {{{version("nullcline")}}},
  year    = {{2026}}
}}"""
    return "\n\n".join([own, *(_DOCUMENTS[name] for name in names or _DOCUMENTS)])
