"""`combine`: reduce the wire images of two contributions, as a rank does with what it received."""

import numpy as np
from collemu_kernels.combine import reduce_images
from collemu_kernels.images import image_bytes
from numpy.typing import NDArray

from collemu.arguments import one_of, whole
from collemu.inputs import image_bytes_of
from collemu.memory import OPERATORS
from collemu.number_formats import find_format
from collemu.recipe import ACCUMULATE

Wire = bytes | bytearray | memoryview | NDArray[np.uint8]


def combine(
    wire_a: Wire,
    wire_b: Wire,
    format: str,  # noqa: A002
    *,
    op: str = "sum",
    accumulate: str = "float32",
    elements: int | None = None,
) -> bytes:
    """Wire image of the sum of the numbers of two wire images.

    Both are decoded to float32, reduced element by element, and encoded again: nearest even, saturating, blocks from
    the first element on, scales as `quantize` makes them by default. Collectives do this on every hop that reduces.

    Parameters
    ----------
    wire_a, wire_b : bytes or arrays of uint8
        Images as `Quantized.to_bytes` writes them of flat arrays, or codes of an element format side by side.
    format : str
        Of both images and of the result; a name of `formats`.
    op : str
        sum; avg: the sum of the halves, which does not overflow (of more than two images: reduce by sum, and divide
        once); min and max, which propagate NaN and order -0 below +0; prod.
    accumulate : str
        float32; float16 or bfloat16: both terms and the result are rounded to it. In float32 the sum of two numbers of
        an element format, and the product of two of at most 16 bits, are rounded to the format as if they were exact:
        24 bits are twice 11 and 2 more.
    elements : int, optional
        How many numbers an image holds. Without it, as many as its length allows: 4-bit and 6-bit codes may leave room
        for one more in their last byte, which is a zero that changes nothing and stays one.

    Returns
    -------
    bytes
        As long as either image.

    Raises
    ------
    ValueError
        For an unknown name, images of different lengths, or a length that no number of elements has.
    """
    number = find_format(format).format_id
    one_of(op, OPERATORS, "combine: op")
    one_of(accumulate, ACCUMULATE, "combine: accumulate")
    first, second = image_bytes_of(wire_a, "combine: wire_a"), image_bytes_of(wire_b, "combine: wire_b")
    if first.size != second.size:
        raise ValueError(
            f"combine: wire_a has {first.size} bytes and wire_b {second.size}; give images of equally many elements"
        )
    count = _elements(first.size, format, number, elements)
    with np.errstate(all="ignore"):
        reduce_images(first, second, count, number, OPERATORS[op], ACCUMULATE[accumulate], first)
    return first.tobytes()


def _elements(size: int, name: str, number: int, elements: int | None) -> int:
    """How many elements an image of so many bytes holds."""
    if elements is not None:
        elements = whole(elements, "combine: elements")
        if image_bytes(elements, number) != size:
            raise ValueError(
                f"combine: elements={elements} of {name} take {image_bytes(elements, number)} bytes, not {size}"
            )
        return elements
    bits = find_format(name).bits_per_element
    most = 8 * size * bits.denominator // bits.numerator  # or a little less: what else is in an image is not counted
    while image_bytes(most, number) > size:
        most -= 1
    if image_bytes(most, number) != size:
        raise ValueError(
            f"combine: {size} bytes are no image of {name}: {most} elements take {image_bytes(most, number)}, "
            f"{most + 1} take {image_bytes(most + 1, number)}"
        )
    return most
