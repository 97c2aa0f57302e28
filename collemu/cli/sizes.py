"""Message sizes and lists of numbers as nccl-tests' flags give them."""

import re
from fractions import Fraction

UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30}
MOST_SIZES = 100_000
MOST_BYTES = 2**38

_SIZE = re.compile(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([KMG]?)(?:I?B)?\s*", re.IGNORECASE)


def parse_size(text: str) -> int:
    """Bytes of a size such as ``64M``, ``1k`` or ``0.5G``; K, M and G are binary.

    Raises
    ------
    ValueError
        If the text is no size.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is not a size; give bytes, or a number with K, M or G (binary): 64M")
    size = int(Fraction(match[1]) * UNITS[match[2].upper()])
    if size > MOST_BYTES:
        raise ValueError(f"size {text} would take hours to emulate; give at most {MOST_BYTES // 2**30}G")
    return size


def sizes(smallest: int, largest: int, step: int, factor: int) -> list[int]:
    """Sizes from ``smallest`` to ``largest``: times ``factor``, or plus ``step`` where the factor is 1 or less.

    Raises
    ------
    ValueError
        If they do not go from one to the other.
    """
    if smallest > largest:
        raise ValueError(f"sizes from -b {smallest} to -e {largest} bytes: -b must not exceed -e, give both")
    if smallest == largest:
        return [smallest]
    if factor > 1:
        if smallest == 0:
            raise ValueError(f"sizes from -b 0 by -f {factor} never grow; start at -b 1 or more, or step by -i")
        result = [smallest]
        while result[-1] * factor <= largest:
            result.append(result[-1] * factor)
        return result
    if step < 1:
        raise ValueError(f"sizes from -b {smallest} by -i {step} never reach -e {largest}; give a step of 1 or more")
    rows = (largest - smallest) // step + 1
    if rows > MOST_SIZES:
        raise ValueError(f"-b {smallest} -e {largest} -i {step} are {rows} sizes; multiply with -f 2 instead")
    return list(range(smallest, largest + 1, step))


def parse_numbers(text: str, what: str, most: int, everything: int | None = None) -> list[int]:
    """Numbers of a comma list with ranges: ``2,4,8-12``; ``all`` is 1 to ``everything``, or ``most``.

    Raises
    ------
    ValueError
        If the text is no such list, or a number is not between 1 and ``most``.
    """
    numbers: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part)
        if part.strip() == "all":
            low, high = 1, most if everything is None else everything
        elif match is None:
            raise ValueError(f"{what} {part.strip()!r} is not a number; give a list such as 2,4,8-12, or all")
        else:
            low = int(match[1])
            high = int(match[2] or match[1])
        if low < 1:
            raise ValueError(f"{what} is {low}; give 1 or more")
        if high > most:
            raise ValueError(f"{what} is {high}; give at most {most}")
        if low > high:
            raise ValueError(f"{what} {part.strip()} runs backwards; give {high}-{low}")
        if high - low >= MOST_SIZES:
            raise ValueError(f"{what} {part.strip()} are {high - low + 1} numbers; give at most {MOST_SIZES}")
        numbers += range(low, high + 1)
    return list(dict.fromkeys(numbers))
