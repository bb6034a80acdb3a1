"""The papers of the methods, as BibTeX: for those who cite what they have run."""

import functools
import importlib.resources
import re

from fedax.algorithms import METHODS
from fedax.errors import ConfigError

# Method -> keys in references.bib, its own paper first, then the one that it builds on.
SOURCES: dict[str, tuple[str, ...]] = {
    "fedavg": ("mcmahan2017communication",),
    "fedprox": ("li2020federated",),
    "fednova": ("wang2020tackling",),
    "fednova-vr": ("wang2020tackling",),
    "server-momentum": ("hsu2019measuring",),
    "slowmo": ("wang2020slowmo",),
    "fedadagrad": ("reddi2021adaptive",),
    "fedadam": ("reddi2021adaptive",),
    "fedyogi": ("reddi2021adaptive",),
    "fedexp": ("jhunjhunwala2023fedexp",),
    "ditto": ("li2021ditto",),
    "mr-mtl": ("liu2022privacy",),
    "ifca": ("ghosh2020efficient",),
    "q-fedavg": ("li2020fair",),
    "scaffold": ("karimireddy2020scaffold",),
    "vrl-sgd": ("liang2019variance",),
    "fedgate": ("haddadpour2021federated",),
    "led": ("alghunaim2023local",),
    "scaffnew": ("mishchenko2022proxskip",),
    "fedpaq": ("reisizadeh2020fedpaq",),
    "compressed-scaffnew": ("condat2022provably", "mishchenko2022proxskip"),
    "locodl": ("condat2025locodl",),
    "ef21": ("richtarik2021ef21", "fatkhullin2021ef21"),
    "diana": ("mishchenko2019distributed", "horvath2019stochastic"),
    "marina": ("gorbunov2021marina",),
    "dasha": ("tyurin2023dasha",),
    "feddyn": ("acar2021federated",),
    "fedpd": ("zhang2021fedpd",),
    "fedavg-m": ("cheng2024momentum", "xu2021fedcm"),
    "fedavg-m-vr": ("cheng2024momentum",),
    "scaffold-m": ("cheng2024momentum", "karimireddy2020scaffold"),
    "scaffold-m-vr": ("cheng2024momentum", "karimireddy2020scaffold"),
    "mb-storm": ("patel2022towards", "cutkosky2019momentum"),
    "ce-lsgd": ("patel2022towards",),
    "bvr-l-sgd": ("murata2021bias",),
    "stem": ("khanduri2021stem",),
    "fedglomo": ("das2022faster",),
    "mime": ("karimireddy2020mime",),
    "mimelite": ("karimireddy2020mime",),
    "mime-mvr": ("karimireddy2020mime",),
    "mimelite-mvr": ("karimireddy2020mime",),
    "nesterov-fedavg": ("qu2020federated",),
    "fedmass": ("qu2020federated",),
    "fedda": ("li2023fedda",),
    "fedda-mvr": ("li2023fedda",),
    "fedda-distributed": ("li2023fedda",),
    "feddualavg": ("yuan2021federated",),
    "fedasync": ("xie2019asynchronous",),
    "fedbuff": ("nguyen2022federated",),
    "ca2fl": ("wang2024tackling",),
    "ace": ("chang2025mitigating",),
    "area": ("iakovidou2024asynchronous",),
    "fadas": ("wang2024fadas",),
    "ringmaster": ("maranjyan2025ringmaster",),
    "ringleader": ("maranjyan2025ringleader",),
    "delayed-nesterov": ("liu2024asynchronous",),
    "local-adapt": ("wang2021local",),
    "local-amsgrad": ("chen2020toward",),
}


@functools.cache
def entries() -> dict[str, str]:
    """All papers: key -> BibTeX entry.

    Example:
        >>> entries()["wang2020tackling"].splitlines()[0]
        '@inproceedings{wang2020tackling,'
    """
    text = importlib.resources.files("fedax").joinpath("references.bib").read_text(encoding="utf-8")
    return {re.split("[{,]", each)[1]: each.strip() for each in re.split(r"(?m)^(?=@)", text) if each.strip()}


def keys(name: str) -> tuple[str, ...]:
    """The keys of a method's papers: its own first, then the one that it builds on.

    Raises:
        ConfigError: no such method, or one of the user's own.

    Example:
        >>> keys("FedCM")
        ('cheng2024momentum', 'xu2021fedcm')
    """
    canonical = METHODS.get(name).name
    if canonical not in SOURCES:
        raise ConfigError("method", name, "fedax knows no paper of a method of your own; name one that it comes with")
    return SOURCES[canonical]


def cite(*names: str) -> str:
    """The BibTeX entries for methods, or for fedax itself.

    Args:
        names: methods, by any name that :func:`fedax.create` takes; ``"fedax"``, or no name, is the library.

    Returns:
        The entries in the order of the names, without repetitions.

    Raises:
        ConfigError: no such method, or one of the user's own.

    Example:
        >>> print(cite("fednova"))
        @inproceedings{wang2020tackling,
          title = {Tackling the Objective Inconsistency Problem in Heterogeneous Federated Optimization},
          author = {Wang, Jianyu and Liu, Qinghua and Liang, Hao and Joshi, Gauri and Poor, H. Vincent},
          booktitle = {Advances in Neural Information Processing Systems (NeurIPS)},
          year = {2020},
          volume = {33},
          pages = {7611--7623},
        }
        <BLANKLINE>
    """
    cited: dict[str, str] = {}
    for name in names or ("fedax",):
        if isinstance(name, str) and name.lower() == "fedax":
            cited["fedax"] = _fedax()
        else:
            cited |= {key: entries()[key] for key in keys(name)}
    return "\n\n".join(cited.values()) + "\n"


def _fedax() -> str:
    import fedax

    return f"""@misc{{fedax,
  title = {{fedax: federated optimization in {{JAX}}}},
  author = {{{{The fedax authors}}}},
  year = {{2026}},
  note = {{Version {fedax.__version__}}},
}}"""
