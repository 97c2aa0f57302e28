"""Tables of measured collectives: rows of a CSV, or what nccl-tests prints."""

import csv
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from collemu.catalogue.load import load_system, networks, systems

DTYPES = {
    "f8e4m3": "float8_e4m3fn",
    "f8e5m2": "float8_e5m2",
    "fp8": "float8_e4m3fn",
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
    "float": "float32",
    "half": "float16",
}
COLLECTIVES = {"permute": "sendrecv", "allreduce": "all_reduce", "allgather": "all_gather"}
NEEDED = ("case_id", "system_id", "network_id", "nodes", "ranks", "collective", "size_bytes", "time_us")
MOE_NEEDED = (
    "case_id",
    "gpu",
    "ep_ranks",
    "kernel",
    "dtype",
    "phase",
    "tokens_per_rank",
    "hidden",
    "topk",
    "experts",
    "time_us",
)
MOE_SYSTEMS = {"gb200": "gb200_nvl72", "gb300": "gb300_nvl72"}
NO_NETWORK = "none"
MORE = "more cells"  # than columns
LARGEST = 2**53  # of whole numbers

# Who chose the algorithm, from words of the free texts of algorithm and version.
LIBRARY, CUSTOM = "library", "custom"
CUSTOM_WORDS = ("one-shot", "one_shot", "two-shot", "two_shot", "custom", "symm", "zero-copy", "multimem")
CUSTOM_VERSIONS = ("mscclpp", "msccl++", "trtllm", "vllm")


@dataclass(frozen=True)
class Measured:
    """Measured cases, an array of an entry each.

    Attributes
    ----------
    case, system, network, collective, dtype : str arrays
        ``network`` is none where there is a single domain.
    nodes, ranks, size : float arrays
        ``size`` in bytes, as nccl-tests counts it for the collective.
    time_us : float array
    algorithm : str array
        Free text, in lower case.
    nvls : str array
        on, off or auto.
    version : float array
        Of NCCL: 2.27 is 227; NaN where nobody says.
    library : str array
        The version's text: nccl's number, or another library's name.
    tokens, hidden, top_k, experts : float arrays
        Of a mixture of experts, whose ``collective`` is a phase and ``algorithm`` a kernel; NaN elsewhere. ``size`` is
        then what a rank's tokens are in memory, in bytes of bfloat16.
    """

    case: NDArray[Any]
    system: NDArray[Any]
    network: NDArray[Any]
    collective: NDArray[Any]
    dtype: NDArray[Any]
    nodes: NDArray[np.float64]
    ranks: NDArray[np.float64]
    size: NDArray[np.float64]
    time_us: NDArray[np.float64]
    algorithm: NDArray[Any]
    nvls: NDArray[Any]
    version: NDArray[np.float64]
    library: NDArray[Any]
    tokens: NDArray[np.float64]
    hidden: NDArray[np.float64]
    top_k: NDArray[np.float64]
    experts: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.case)

    def where(self, mask: NDArray[Any]) -> "Measured":
        """Those of a mask, or of indices."""
        return Measured(**{field.name: getattr(self, field.name)[mask] for field in fields(self)})

    @property
    def custom(self) -> NDArray[np.bool_]:
        """Whether a kernel of another library than NCCL did it, or may have."""
        words = [any(word in text for word in CUSTOM_WORDS) for text in self.algorithm]
        other = [text.startswith(CUSTOM_VERSIONS) for text in self.library]
        return np.array(words, bool) | np.array(other, bool)


def joined(tables: Sequence[Measured]) -> Measured:
    """Several as one."""
    return Measured(
        **{field.name: np.concatenate([getattr(each, field.name) for each in tables]) for field in fields(Measured)}
    )


def read_csv(path: str, conditions: Iterable[str] = ()) -> tuple[Measured, list[tuple[str, str, int]]]:
    """Read a table, of collectives or of mixtures of experts, and which of its rows cannot be used.

    Parameters
    ----------
    path : str
    conditions : iterable of str
        ``COLUMN=VALUE``: only rows that meet all of them.

    Returns
    -------
    Measured
    list of (case, reason, rows)
        What is skipped.

    Raises
    ------
    ValueError
        If it cannot be read, or a value is no number; the text names file, line and column.
    """
    rows = _rows(path)
    wanted = [_condition(text, rows[0], path) for text in conditions]
    chosen = [row for row in rows if all(each(row) for each in wanted)]
    if not chosen:
        raise ValueError(f"{path}: no row meets {', '.join(conditions)}")
    skipped: dict[tuple[str, str], int] = {}
    kept: list[Mapping[str, str]] = []
    for given in chosen:
        row = _as_collective(given) if "tokens_per_rank" in given else given
        reason = _unusable(row, path)
        if reason is None:
            kept.append(row)
        else:
            skipped[row["case_id"], reason] = skipped.get((row["case_id"], reason), 0) + 1
    return _measured(kept, path), [(*key, count) for key, count in skipped.items()]


def _unusable(row: Mapping[str, str], path: str) -> str | None:
    if not row["system_id"]:
        return "it names no system that is known"
    if not row["time_us"]:
        return "it has no time"
    if not row["size_bytes"]:
        return "it says not how many tokens, or of which size"
    nodes, ranks = (int(_whole(row, name, path)) for name in ("nodes", "ranks"))
    if "tokens_per_rank" in row:
        top_k, experts = (int(_whole(row, name, path)) for name in ("topk", "experts"))
        if max(top_k, ranks) > experts:
            return f"{ranks} ranks and {top_k} experts a token, of {experts}"
    return impossible(row["system_id"].lower(), row["network_id"].lower() or NO_NETWORK, nodes, ranks)


def impossible(system: str, network: str, nodes: int, ranks: int) -> str | None:
    """Why nobody can have measured so many ranks there; None if somebody can."""
    if system not in systems():
        return f"no system {system} in the catalogue"
    if network != NO_NETWORK and network not in networks():
        return f"no network {network} in the catalogue"
    if nodes > ranks:
        return f"{nodes} nodes cannot have {ranks} ranks"
    if network != NO_NETWORK and nodes == 1:
        return f"one node, but a network, {network}"
    chips = _chips(system)
    if network == NO_NETWORK and ranks > chips:
        return f"{ranks} ranks, but a domain of {chips} chips and no network"
    return None


@lru_cache
def _chips(system: str) -> int:
    return load_system(system).domain.chips


def _as_collective(row: Mapping[str, str]) -> Mapping[str, str]:
    """A row of a mixture of experts, in the columns of collectives."""
    system = next((name for word, name in MOE_SYSTEMS.items() if row["gpu"].lower().startswith(word)), "")
    tokens, hidden = row["tokens_per_rank"], row["hidden"]
    amount = str(2 * int(tokens) * int(hidden)) if tokens.isdigit() and hidden.isdigit() else ""
    return {
        **row,
        "system_id": system,
        "network_id": NO_NETWORK,
        "nodes": "1",
        "ranks": row["ep_ranks"],
        "collective": row["phase"],
        "size_bytes": amount,
        "algo": row["kernel"],
    }


def _rows(path: str) -> list[dict[str, str]]:
    try:
        with Path(path).open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file, restkey=MORE, restval="")
            rows = [row | {"line": str(reader.line_num)} for row in reader]
            names = list(reader.fieldnames or ())
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    for name in MOE_NEEDED if "tokens_per_rank" in names else NEEDED:
        if name not in names:
            raise ValueError(f"{path}: no column {name}; it has {', '.join(names) or 'none'}")
    if not rows:
        raise ValueError(f"{path} has no rows")
    for row in rows:
        if MORE in row:
            raise ValueError(f"{path}, line {row['line']}: more cells than there are columns")
    return rows


def _condition(text: str, row: Mapping[str, str], path: str) -> Callable[[Mapping[str, str]], bool]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ValueError(f"--where {text!r} is no COLUMN=VALUE")
    if name not in row:
        raise ValueError(f"--where {text}: {path} has no column {name}; it has {', '.join(row)}")
    return lambda each: each[name] == value


def _measured(rows: Sequence[Mapping[str, str]], path: str) -> Measured:
    def texts(name: str, otherwise: str = "") -> NDArray[Any]:
        return np.array([(row.get(name) or otherwise).lower() for row in rows], object)

    def wholes(name: str) -> NDArray[np.float64]:
        return np.array([_whole(row, name, path) for row in rows], np.float64)

    collectives, dtypes = texts("collective"), texts("dtype", "float32")
    return Measured(
        case=np.array([row["case_id"] for row in rows], object),
        system=texts("system_id"),
        network=texts("network_id", NO_NETWORK),
        collective=np.array([COLLECTIVES.get(name, name) for name in collectives], object),
        dtype=np.array([DTYPES.get(name, name) for name in dtypes], object),
        nodes=wholes("nodes"),
        ranks=wholes("ranks"),
        size=wholes("size_bytes"),
        time_us=np.array([_number(row, "time_us", path) for row in rows], np.float64),
        algorithm=np.array([_algorithm(row) for row in rows], object),
        nvls=texts("nvls", "auto"),
        version=np.array([_version(row) for row in rows], np.float64),
        library=texts("nccl_version"),
        **{
            name: np.array([_whole(row, column, path) if row.get(column) else np.nan for row in rows], np.float64)
            for name, column in (
                *(("tokens", "tokens_per_rank"), ("hidden", "hidden")),
                *(("top_k", "topk"), ("experts", "experts")),
            )
        },
    )


def _algorithm(row: Mapping[str, str]) -> str:
    """What the row says of it, and the number of a kernel where the description of the system has it."""
    kernel = re.search(r"allreduce\d+", (row.get("system") or "").lower())
    text = (row.get("algo") or "auto").lower()
    return f"{text} {kernel[0]}" if kernel else text


def _number(row: Mapping[str, str], name: str, path: str) -> float:
    try:
        value = float(row[name])
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise ValueError(f"{path}, line {row['line']}: {name} is {row[name]!r}; give a number above 0")
    return value


def _whole(row: Mapping[str, str], name: str, path: str) -> float:
    value = _number(row, name, path)
    if value != int(value) or value > LARGEST:
        raise ValueError(f"{path}, line {row['line']}: {name} is {row[name]!r}; give a whole number, up to 2**53")
    return value


def _version(row: Mapping[str, str]) -> float:
    """A benchmark's own library may be another than the folder of its results is called after."""
    found = re.search(r"row version (\d+)\.(\d+)", row.get("notes") or "")
    found = found or re.match(r"(\d+)\.(\d+)", row.get("nccl_version") or "")
    return 100.0 * int(found[1]) + int(found[2]) if found else np.nan


def read_nccl_tests(path: str, system: str, network: str, nodes: int, ranks: int, collective: str | None) -> Measured:
    """Read what nccl-tests printed, or wrote with ``-J``; the out-of-place times.

    Raises
    ------
    ValueError
        If it is neither, or what it does not say is not given.
    """
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"cannot read {path}: {getattr(error, 'strerror', None) or error}") from None
    found = _of_json(text) if text.lstrip().startswith("{") else _of_text(text)
    if not any(size > 0 for size, *_ in found):
        raise ValueError(f"{path}: no results of nccl-tests in it")
    name = collective or _collective_of(text) or _collective_of(Path(path).stem)
    if name is None:
        raise ValueError(f"{path} does not say which one collective it is of; give --collective")
    if reason := impossible(system, network, nodes, ranks):
        raise ValueError(f"{path}: {reason}; change --system, --network, --nodes or --ranks")
    rows = [
        {
            "case_id": Path(path).stem,
            "system_id": system,
            "network_id": network,
            "nodes": str(nodes),
            "ranks": str(ranks),
            "collective": name,
            "dtype": dtype,
            "line": str(number),
            "size_bytes": str(size),
            "time_us": str(time),
        }
        for number, (size, dtype, time) in enumerate(found, 1)
        if size > 0
    ]
    return _measured(rows, path)


def _of_text(text: str) -> list[tuple[int, str, float]]:
    """Size, type and out-of-place time of the lines of results; launchers may have put something before them."""
    launcher = r"^(?:\[[^\]]*\](?:<stdout>)?:?|\d+:)?"
    line = launcher + r"\s*(\d+)\s+\d+\s+([a-z]\w*)\s+[a-z]\w*\s+-?\d+\s+(\S+)\s+\S+\s+\S+(?:\s|$)"
    return [(int(size), dtype, _time(time)) for size, dtype, time in re.findall(line, text, re.MULTILINE)]


def _time(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise ValueError(f"a result of nccl-tests has the time {text!r}; leave its line out")
    return value


def _of_json(text: str) -> list[tuple[int, str, float]]:
    try:
        results = cast("list[dict[str, Any]]", json.loads(text)["results"])
        return [(int(each["size"]), str(each["type"]), float(each["out_of_place"]["time"])) for each in results]
    except (json.JSONDecodeError, KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return []


def _collective_of(text: str) -> str | None:
    """The one that a text names, as nccl-tests do their programs, or else by itself; none where it names several."""
    names = "all_reduce|all_gather|reduce_scatter|alltoall|sendrecv|broadcast|reduce"
    found = set(re.findall(rf"\b({names})_perf\b", text)) or set(re.findall(rf"(?<![\w-])({names})(?![\w-])", text))
    return found.pop() if len(found) == 1 else None
