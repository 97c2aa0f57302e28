"""`quantization_report`: what a format does to given numbers."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from collemu.number_formats import BLOCK_FORMATS, BlockFormat, ElementFormat, find_format
from collemu.quantization import Quantized, decode, encode, quantize


@dataclass(frozen=True)
class QuantizationReport:
    """Errors of numbers that were encoded and decoded again.

    Errors are those of elements that are finite before and after.

    Attributes
    ----------
    format : str
    elements : int
    snr_db : float
        10 log10 of the sum of squares over the sum of squared errors; infinity without an error.
    max_abs_error, max_rel_error : float
        Largest |error|, and largest |error / x| of elements that are not zero.
    saturated : int
        Finite elements beyond the largest number that their scale allows by more than half its last step.
    flushed_to_zero : int
        Elements that are not zero and decode to zero.
    not_finite : int
        Elements that were NaN or infinite to begin with.
    nan : int
        Elements that decode to NaN: those of a poisoned block all do.
    nan_scales : int
        Blocks whose scale is NaN.
    scale_exponents : dict of int to int
        How many of the other blocks have a scale in [2**e, 2**(e + 1)), by e; the float32 scale of the tensor included.
    """

    format: str
    elements: int
    snr_db: float
    max_abs_error: float
    max_rel_error: float
    saturated: int
    flushed_to_zero: int
    not_finite: int
    nan: int
    nan_scales: int
    scale_exponents: dict[int, int]


def quantization_report(x: ArrayLike, format: str, **options: Any) -> QuantizationReport:  # noqa: A002
    """Encode numbers, decode them, and say what that did to them.

    Parameters
    ----------
    x : array of numbers
        As `quantize` and `encode` take it.
    format : str
        A name of `formats`.
    **options
        Of `quantize` for a block format, of `encode` for an element format.

    Returns
    -------
    QuantizationReport

    Raises
    ------
    ValueError
        As `quantize` and `encode`.
    """
    number_format = find_format(format)
    scales = np.ones(0)
    spread_scales: NDArray[np.float64] | float = 1.0
    if isinstance(number_format, BlockFormat):
        quantized = quantize(x, format, **options)
        values = quantized.dequantize()
        scales = _scales(quantized)
        spread_scales = _spread(scales, quantized)
    else:
        values = decode(encode(x, format, **options), format)
    exact = np.asarray(x).astype(np.float64)
    element = number_format.element if isinstance(number_format, BlockFormat) else number_format
    with np.errstate(all="ignore"):
        finite = np.isfinite(exact) & np.isfinite(values)
        numbers = np.where(finite, exact, 0.0)
        error = np.where(finite, np.abs(values.astype(np.float64) - exact), 0.0)
        relative = error[numbers != 0] / np.abs(numbers[numbers != 0])
        noise, signal = float(np.square(error).sum()), float(np.square(numbers).sum())
        scaled, steps = exact * np.sign(spread_scales), np.abs(spread_scales)
        lowest, highest = _saturation(element, all_codes=options.get("scale_mode") in ("asymmetric", "clipped"))
        beyond = (scaled > steps * highest) | (scaled < steps * lowest)
        has_scale = np.isfinite(scales) & (scales != 0)
        exponents, counts = np.unique(np.frexp(np.abs(scales[has_scale]))[1] - 1, return_counts=True)
    return QuantizationReport(
        format=format,
        elements=exact.size,
        snr_db=float(10 * np.log10(signal / noise)) if noise > 0 and signal > 0 else float("inf"),
        max_abs_error=float(error.max(initial=0.0)),
        max_rel_error=float(relative.max(initial=0.0)),
        saturated=int(np.count_nonzero(beyond & np.isfinite(exact))),
        flushed_to_zero=int(np.count_nonzero(finite & (exact != 0) & (values == 0))),
        not_finite=int(np.count_nonzero(~np.isfinite(exact))),
        nan=int(np.count_nonzero(np.isnan(values))),
        nan_scales=int(np.count_nonzero(np.isnan(scales))),
        scale_exponents=dict(zip(exponents.tolist(), counts.tolist(), strict=True)),
    )


def _saturation(element: ElementFormat, *, all_codes: bool) -> tuple[float, float]:
    """Where rounding to nearest would go beyond the least and the largest number, had the format more numbers."""
    if element.exponent_bits == 0:
        step = element.min_subnormal
        least = -element.max - step if all_codes else element.min
        return least - step / 2, element.max + step / 2
    last_step = 2.0 ** (np.frexp(element.max)[1] - 1 - element.mantissa_bits)
    return element.min - last_step / 2, element.max + last_step / 2


def _scales(quantized: Quantized) -> NDArray[np.float64]:
    """What the elements of each block are multiplied by."""
    block = BLOCK_FORMATS[quantized.format]
    codes = quantized.scales
    scales = codes if codes.dtype == np.float32 else decode(codes, block.scale.name)
    tensor_scale = 1.0 if quantized.tensor_scale is None else float(quantized.tensor_scale)
    return scales.astype(np.float64) * tensor_scale


def _spread(scales: NDArray[np.float64], quantized: Quantized) -> NDArray[np.float64]:
    """The scale of every element."""
    axis = quantized.axis
    length = quantized.shape[axis] if quantized.shape else 1
    block = min(BLOCK_FORMATS[quantized.format].block, max(length, 1))
    spread = np.repeat(scales, block, axis=axis)
    return np.take(spread, np.arange(length), axis=axis).reshape(quantized.shape)
