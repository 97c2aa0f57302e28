"""Mixture of experts: tokens go to the ranks of their experts and come back, as two alltoallv.

Experts lie on ranks in blocks as equal as can be: expert e of E is on rank ``e * n // E``. Dispatch sends each token to
the ranks of its experts; once to a rank however many of them are there, as DeepEP's normal kernels do, or once an
expert, as its low-latency kernels do. Combine sends as much back: its counts are the transpose. What comes back is
added up, weighted by the gates, where the token came from; that sum is no part of the collective.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from collemu.catalogue import System
from collemu.emulator import Result, emulate
from collemu.recipe import Recipe
from collemu.schedule import build_schedule

Ids = NDArray[np.int64]

NO_EXPERT = -1  # in place of an expert: the token has one less


@dataclass(frozen=True)
class Copies:
    """Tokens on their way: an entry a copy, sorted by source, target and token.

    Attributes
    ----------
    ranks, tokens : int
        Ranks, and tokens of each.
    source, token, target : int64 arrays
        Whose token it is, which of that rank's, and where it goes.
    weight : float32 array
        Sum of the gates of the experts that the copy is for.
    """

    ranks: int
    tokens: int
    source: Ids
    token: Ids
    target: Ids
    weight: NDArray[np.float32]

    @property
    def counts(self) -> Ids:
        """Tokens from each rank to each, shape (ranks, ranks)."""
        pairs = np.bincount(self.source * self.ranks + self.target, minlength=self.ranks**2)
        return pairs.reshape(self.ranks, self.ranks).astype(np.int64)


@dataclass(frozen=True)
class Exchange:
    """A dispatch and the combine after it.

    Attributes
    ----------
    dispatch, combine : Result
    relative_error, max_abs_error : float or None
        Of what the ranks have in the end, from float64: Frobenius norm over that of the exact result, and largest
        difference. None without data.
    """

    dispatch: Result
    combine: Result
    relative_error: float | None = None
    max_abs_error: float | None = None


def route(ranks: int, tokens: int, topk: int, experts: int, *, exponent: float = 0.0, seed: int = 0) -> Ids:
    """Draw the experts of every token, without repetition.

    Parameters
    ----------
    ranks, tokens, topk, experts : int
        ``tokens`` of each rank, each with ``topk`` of all ``experts``.
    exponent : float
        Of Zipf's law: the expert in place p of popularity is drawn in proportion to ``p ** -exponent``, and which one
        is in which place is random. 0: all alike.

    Returns
    -------
    int64 array (ranks, tokens, topk)

    Raises
    ------
    ValueError
        If there are fewer experts than a token needs, or the exponent is negative or no number.
    """
    if not 1 <= topk <= experts:
        raise ValueError(f"top {topk} of {experts} experts: give 1 to {experts}")
    if not 0 <= exponent < np.inf:
        raise ValueError(f"zipf exponent {exponent}: give a number of 0 or more")
    random = np.random.default_rng(seed)
    place = random.permutation(experts) + 1.0
    chosen = np.empty((ranks, tokens, topk), np.int64)
    for rank in range(ranks):
        # the largest of Gumbel-distributed keys around log weights are a weighted draw without repetition
        keys = random.gumbel(size=(tokens, experts)) - exponent * np.log(place)
        chosen[rank] = np.argpartition(keys, experts - topk, axis=1)[:, experts - topk :]
    return chosen


def load_routing(path: str, ranks: int, experts: int) -> Ids:
    """Read the experts of every token from a ``.npy`` file.

    Parameters
    ----------
    path : str
        Integers (tokens of all ranks, k), the first rank's first; `NO_EXPERT` for none.

    Returns
    -------
    int64 array (ranks, tokens, k)

    Raises
    ------
    ValueError
        If there is no such file, the ranks cannot share the tokens evenly, or an expert does not exist.
    """
    what = f"routing {path}"
    if not Path(path).is_file():
        raise ValueError(f"{what}: no such file; give uniform, zipf:EXPONENT or a .npy file of expert numbers")
    try:
        with open(path, "rb") as file:
            ids: NDArray[Any] = np.lib.format.read_array(file, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise ValueError(f"{what}: no .npy file of numbers ({str(error).splitlines()[0]})") from None
    if ids.ndim != 2 or ids.dtype.kind not in "iu" or not ids.size:
        raise ValueError(f"{what}: give an array of integers, tokens x experts of each")
    if len(ids) % ranks:
        raise ValueError(f"{what}: {len(ids)} tokens cannot be shared evenly by {ranks} ranks")
    wrong = np.argwhere((ids < NO_EXPERT) | (ids >= experts))
    if len(wrong):
        token, place = (int(each) for each in wrong[0])
        raise ValueError(f"{what}: token {token} has expert {ids[token, place]}; there are 0 to {experts - 1}")
    return ids.astype(np.int64).reshape(ranks, len(ids) // ranks, -1)


def copies_of(ids: Ids, experts: int, *, gates: NDArray[Any] | None = None, per_expert: bool = False) -> Copies:
    """The copies of tokens that a dispatch sends.

    Parameters
    ----------
    ids : int64 array (ranks, tokens, k)
        Experts of every token.
    gates : array, same shape, optional
        Their weights; all 1 / k without.
    per_expert : bool
        A copy an expert, and not one a rank.
    """
    ranks, tokens, k = (int(each) for each in ids.shape)
    weights = np.full(ids.shape, 1 / k) if gates is None else np.asarray(gates, np.float64)
    real = (ids != NO_EXPERT).reshape(-1)
    place = np.repeat(np.arange(ranks * tokens), k)[real]
    source, token = place // tokens, place % tokens
    target, weight = ids.reshape(-1)[real] * ranks // experts, weights.reshape(-1)[real]
    key = (source * ranks + target) * tokens + token
    if per_expert:
        order = np.argsort(key, kind="stable")
        key, weight = key[order], weight[order]
    else:
        key, which = np.unique(key, return_inverse=True)
        weight = np.bincount(which.reshape(-1), weights=weight, minlength=len(key))
    pair, token = np.divmod(key, tokens)
    return Copies(ranks, tokens, pair // ranks, token, pair % ranks, weight.astype(np.float32))


def exchange(
    copies: Copies,
    hidden: int,
    system: System,
    *,
    x: NDArray[Any] | None = None,
    dtype: str = "bfloat16",
    dispatch: Recipe | str = "deepep_dispatch",
    combine: Recipe | str = "deepep_combine",
    algorithm: str = "direct",
    protocol: str = "auto",
    fidelity: str = "auto",
) -> Exchange:
    """Emulate a dispatch and the combine after it.

    Parameters
    ----------
    copies : Copies
    hidden : int
        Elements of a token.
    system : System
    x : float array (ranks, tokens, hidden), optional
        The tokens, as numbers that the dtype holds. Experts return what they get, so that what is lost was lost on the
        wire. A token whose expert is at home does not travel, and is not rounded.
    dispatch, combine : Recipe or str
        How either quantises; a name is that of a published recipe.
    dtype, algorithm, protocol, fidelity : str

    Returns
    -------
    Exchange
    """
    data = None
    if x is not None:
        sent = x[copies.source, copies.token]
        data = np.split(sent.reshape(-1), np.cumsum(copies.counts.sum(axis=1))[:-1] * hidden)

    def run(counts: Ids, recipe: Recipe | str, data: Any) -> Result:
        schedule = build_schedule("alltoallv", algorithm, copies.ranks, counts=counts * hidden)
        return emulate(
            schedule,
            system,
            dtype=dtype,
            recipe=recipe,
            data=data,
            protocol=protocol,
            fidelity=fidelity,
            timeline=False,
        )

    there = run(copies.counts, dispatch, data)
    # what a rank got lies in the order of sources, in which it goes back
    back = run(copies.counts.T, combine, there.outputs)
    if x is None or back.outputs is None:
        return Exchange(there, back)
    rows = np.concatenate([np.asarray(part, np.float32) for part in back.outputs]).reshape(-1, hidden)
    got, exact = np.zeros(x.shape, np.float32), np.zeros(x.shape, np.float64)
    place = copies.source, copies.token
    np.add.at(got, place, copies.weight[:, None] * rows)
    np.add.at(exact, place, copies.weight[:, None].astype(np.float64) * x[place])
    error, norm = np.abs(got - exact), float(np.linalg.norm(exact))
    relative = float(np.linalg.norm(error)) / norm if norm else float(np.linalg.norm(error))
    return Exchange(there, back, relative, float(error.max(initial=0.0)))
