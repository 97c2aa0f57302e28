"""quantize, Quantized, encode and decode as users meet them: shapes, layouts, inputs, refusals."""

import ml_dtypes
import numpy as np
import pytest
from collemu_kernels._jit import PLAIN_PYTHON
from collemu_kernels.blocks import decode_rows, encode_rows
from collemu_kernels.elements import decode_elements, encode_elements

from collemu.number_formats import BLOCK_FORMATS, ELEMENT_FORMATS
from collemu.quantization import Quantized, decode, encode, quantize

SIZES = [0, 1, 2, 15, 16, 17, 31, 32, 33, 129]


def wave(*shape):
    return np.random.default_rng(6).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
@pytest.mark.parametrize("shape", [(), *((n,) for n in SIZES), (3, 33), (2, 3, 17), (0, 5), (5, 0)])
def test_image_round_trip_keeps_everything(name, shape):
    x = np.float32(1.7) if shape == () else wave(*shape)
    quantised = quantize(x, name)
    image = quantised.to_bytes()
    back = Quantized.from_bytes(image, name, shape)
    assert quantised.nbytes == back.nbytes == len(image)
    assert quantised.shape == back.shape == quantised.dequantize().shape == shape
    assert (back.codes == quantised.codes).all()
    assert (back.scales == quantised.scales).all()
    assert back.tensor_scale == quantised.tensor_scale
    assert back.to_bytes() == image
    assert (back.dequantize() == quantised.dequantize()).all()
    if x.size == 0:
        assert image == b""


def test_image_layout():
    quantised = quantize(wave(2, 33), "mxfp4")
    assert quantised.codes.shape == (2, 17)
    assert quantised.scales.shape == (2, 2)
    assert quantised.to_bytes() == quantised.codes.tobytes() + quantised.scales.tobytes()
    one = quantize(np.full(16, 6.0), "nvfp4")
    assert one.to_bytes() == one.codes.tobytes() + one.scales.tobytes() + one.tensor_scale.tobytes()
    scaled = quantize(wave(2, 130), "fp8_block128")
    assert (scaled.scales.shape, scaled.scales.dtype) == ((2, 2), np.float32)
    assert scaled.to_bytes() == scaled.codes.tobytes() + scaled.scales.astype("<f4").tobytes()
    assert quantize(wave(2, 33), "mxfp6_e2m3").codes.shape == (2, 25)
    along = quantize(wave(33, 2), "mxfp8_e4m3", axis=0)
    assert (along.codes.shape, along.scales.shape) == ((33, 2), (2, 2))


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_axis(name):
    x = wave(40, 3, 34)
    for axis in (0, 1, 2, -1, -2, -3):
        moved = quantize(np.moveaxis(x, axis, -1), name)
        quantised = quantize(x, name, axis=axis)
        assert quantised.to_bytes() == moved.to_bytes()
        assert (quantised.dequantize() == np.moveaxis(moved.dequantize(), -1, axis)).all()
        back = Quantized.from_bytes(moved.to_bytes(), name, x.shape, axis=axis)
        assert (back.dequantize() == quantised.dequantize()).all()
    with pytest.raises(ValueError, match=r"axis=3 is outside shape \(40, 3, 34\); choose -3 to 2"):
        quantize(x, name, axis=3)


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_blocks_stay_in_their_row(name):
    x = wave(5, 45)
    x[2] *= 1e6
    x[3] = 0
    if name == "nvfp4":  # one tensor scale: the rows must share their largest magnitude
        x[:, 0] = np.abs(x).max()
    rows = [quantize(row, name).dequantize() for row in x]
    assert (quantize(x, name).dequantize() == rows).all()


def test_order_of_nibbles():
    x = np.array([0.5, 1.0, 6.0], np.float32)
    low = quantize(x, "mxfp4", scale_mode="floor")
    high = quantize(x, "mxfp4", order="high_first")
    assert low.codes.tolist() == [0x21, 0x07]
    assert high.codes.tolist() == [0x12, 0x70]
    assert (high.dequantize() == x).all()
    assert (Quantized.from_bytes(high.to_bytes(), "mxfp4", 3, order="high_first").dequantize() == x).all()


def test_codes_of_other_arrays_are_codes():
    codes = np.arange(256, dtype=np.uint8)
    assert np.isnan(decode(codes.view(ml_dtypes.float8_e4m3fn), "float8_e4m3fn")).sum() == 2
    assert decode(np.float16(1.5), "float16") == 1.5
    assert decode(np.array([1.5], ">f2"), "float16") == 1.5
    with pytest.raises(ValueError, match="codes of float8_e5m2 are uint8, not float8_e4m3fn"):
        decode(codes.view(ml_dtypes.float8_e4m3fn), "float8_e5m2")
    with pytest.raises(ValueError, match="are uint8, not float64"):
        decode([1.0], "float8_e5m2")
    with pytest.raises(ValueError, match="0x10 is no code of float4_e2m1fn"):
        decode(np.array([16], np.uint8), "float4_e2m1fn")


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float4_e2m1fn", "bfloat16", "float16"])
def test_encode_and_decode_keep_shapes(name):
    for shape in [(), (0,), (3, 0), (2, 3, 4)]:
        x = np.ones(shape, np.float32)
        codes = encode(x, name)
        assert codes.shape == shape
        assert codes.dtype == (np.uint16 if name in ("bfloat16", "float16") else np.uint8)
        assert (decode(codes, name) == x).all()
        assert decode(codes, name).shape == shape


@pytest.mark.parametrize(
    "dtype",
    [
        np.float16,
        np.float64,
        ">f4",
        ">f8",
        ">f2",
        np.int8,
        np.uint16,
        np.int64,
        ml_dtypes.bfloat16,
        ml_dtypes.float8_e5m2,
    ],
)
def test_inputs_of_every_dtype_are_their_numbers(dtype):
    x = np.array([[0, 1, 3, 100], [7, 2, 5, 64]]).astype(dtype)
    plain = x.astype(np.float32)
    assert (encode(x, "float8_e4m3fn") == encode(plain, "float8_e4m3fn")).all()
    for name in BLOCK_FORMATS:
        assert quantize(x, name).to_bytes() == quantize(plain, name).to_bytes()


@pytest.mark.parametrize(("name", "top"), [("int8_block32", 127), ("int4_block32", 7)])
def test_asymmetric_scales_give_the_largest_number_the_most_negative_code(name, top):
    """QuickReduce's rule with float32 scales: scale = m * (-1 / 2**(bits - 1)), code = rint(x * (1 / scale))."""
    random = np.random.default_rng(3)
    x = (random.standard_normal((50, 70)) * np.exp2(random.integers(-30, 30, (50, 1)))).astype(np.float32)
    x[0, :3] = [-4, 4, 1]  # of two that are largest the negative one counts
    x[1] = 0
    q = quantize(x, name, scale_mode="asymmetric")
    integers = decode(q.element_codes(), name[:4])
    for row, scales, codes in zip(x, q.scales, integers, strict=True):
        for block, first in enumerate(range(0, 70, 32)):
            part = row[first : first + 32]
            low, high = part.min(), part.max()
            largest = high if abs(high) > abs(low) else low
            scale = largest * np.float32(-1 / (top + 1)) if largest else np.float32(1)
            assert scales[block] == scale
            assert (codes[first : first + 32] == np.clip(np.rint(part * (1 / scale)), -top - 1, top)).all()
            assert not largest or codes[first : first + 32].min() == -top - 1
    assert (q.dequantize() == integers * np.repeat(q.scales, 32, axis=1)[:, :70]).all()
    assert (Quantized.from_bytes(q.to_bytes(), name, x.shape).dequantize() == q.dequantize()).all()
    with pytest.raises(ValueError, match="use square=False"):
        quantize(x, name, scale_mode="asymmetric", square=True)
    stochastic = [
        quantize(x, name, scale_mode="asymmetric", rounding="stochastic", seed=s).to_bytes() for s in (1, 1, 2)
    ]
    assert stochastic[0] == stochastic[1] != stochastic[2]
    x[2, 40] = np.nan
    poisoned = quantize(x, name, scale_mode="asymmetric").dequantize()
    assert np.isnan(poisoned[2, 32:64]).all()
    assert not np.isnan(poisoned[2, :32]).any()


def test_float64_is_rounded_once():
    """Just beside a tie, nearer than float32 can say."""
    tie = 1.0625  # between 1.0 and 1.125 in float8_e4m3fn
    x = np.array([tie, tie + 2.0**-40, tie - 2.0**-40, -tie - 2.0**-50])
    assert decode(encode(x, "float8_e4m3fn"), "float8_e4m3fn").tolist() == [1, 1.125, 1, -1.125]
    assert (quantize(np.append(x, 256), "mxfp8_e4m3").codes[:4] == encode(x, "float8_e4m3fn")).all()
    assert encode(np.array([1e300, -1e300]), "float8_e5m2", saturate=False).tolist() == [0x7C, 0xFC]
    assert encode(np.array([1e-300]), "float4_e2m1fn", rounding="up").tolist() == [1]
    halfway = np.float64(1 + 2.0**-8 + 2.0**-40)
    assert encode(halfway, "bfloat16") == 0x3F81
    assert encode(np.float64(2049.0 + 2.0**-30), "float16") == np.float16(2050).view(np.uint16)


def test_integers_beyond_float64_are_rounded_once():
    odd = 2**62 + 2**54 + 1  # one above the tie of bfloat16
    assert encode(np.array([odd - 1, odd, -odd]), "bfloat16").tolist() == [0x5E80, 0x5E81, 0xDE81]
    assert encode(np.array([2**64 - 1], np.uint64), "bfloat16", rounding="toward_zero") == [0x5F7F]


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float6_e2m3fn"])
def test_read_only_arrays(name):
    x = np.array([1, 2, 4], np.float32)
    x.flags.writeable = False
    codes = encode(x, name)
    codes.flags.writeable = False
    assert (decode(codes, name) == x).all()
    assert (quantize(x, "mxfp6_e2m3").dequantize() == x).all()


def test_arrays_of_any_layout_are_one_type_to_the_kernels():
    """Every other type would be compiled for, seconds in the middle of somebody's work."""
    if PLAIN_PYTHON:
        pytest.skip("nothing is compiled")
    x = wave(8, 8)
    read_only = x.copy()
    read_only.flags.writeable = False
    unaligned = np.frombuffer(bytearray(x.nbytes + 1), np.float32, x.size, offset=1).reshape(x.shape)
    unaligned[...] = x
    for name in ("mxfp4", "fp8_row"):
        Quantized.from_bytes(quantize(x, name).to_bytes(), name, x.shape).dequantize()
        decode(encode(x, "float8_e4m3fn"), "float8_e4m3fn")
        kernels = (encode_rows, decode_rows, encode_elements, decode_elements)
        before = [len(kernel.signatures) for kernel in kernels]
        for array in (read_only, unaligned, x.T, x[::2, 1:], np.broadcast_to(x[0], (3, 8)), x.astype(">f4")):
            image = quantize(array, name).to_bytes()
            for buffer in (image, bytearray(image), memoryview(image), np.frombuffer(image, np.uint8)):
                Quantized.from_bytes(buffer, name, array.shape).dequantize()
            quantize(array, name, axis=0, saturate=np.True_).dequantize()
            codes = encode(array, "float8_e4m3fn")
            codes.flags.writeable = False
            decode(codes.T, "float8_e4m3fn")
        assert [len(kernel.signatures) for kernel in kernels] == before


def test_inputs_are_not_changed():
    x = np.array([1, np.nan, 1e300, 5.0])
    before = x.copy()
    encode(x, "float8_e4m3fn", nan="zero")
    assert x.tobytes() == before.tobytes()


def test_nan_rules():
    x = np.array([[1, np.nan], [2, 3]], np.float32)
    assert np.isnan(decode(encode(x, "float8_e4m3fn"), "float8_e4m3fn")).tolist() == [
        [False, True],
        [False, False],
    ]
    assert decode(encode(x, "float4_e2m1fn", nan="zero"), "float4_e2m1fn").tolist() == [[1, 0], [2, 3]]
    with pytest.raises(ValueError, match=r"float4_e2m1fn: x has 1 NaN, the first at \(0, 1\): .*nan='zero'"):
        encode(x, "float4_e2m1fn")
    with pytest.raises(ValueError, match="refuses"):
        encode(x, "float8_e4m3fn", nan="raise")
    assert quantize(x, "mxfp4", nan="zero").dequantize().tolist() == [[1, 0], [2, 3]]
    for bad in (np.nan, np.inf):
        with pytest.raises(ValueError, match="refuses"):
            quantize([1, bad], "mxfp4", nan="raise")
    with pytest.raises(ValueError, match="no zero for a NaN"):
        encode([1.0], "float8_e8m0fnu", nan="zero")


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: encode([1], "mxfp4"), "use quantize"),
        (lambda: quantize([1], "float16"), "use encode"),
        (
            lambda: encode([1], "float8_e4m3fn", rounding="odd"),
            "rounding='odd' is not supported; choose nearest_even",
        ),
        (
            lambda: encode([1], "float8_e4m3fn", nan="drop"),
            "nan='drop' is not supported; choose propagate, raise, zero",
        ),
        (lambda: quantize([1], "mxfp4", order="middle"), "order='middle' is not supported; choose low_first"),
        (
            lambda: quantize([1], "mxfp4", scale_mode="two_level"),
            "mxfp4: scale_mode='two_level' is not supported",
        ),
        (lambda: quantize([1], "nvfp4", scale_mode="floor"), "nvfp4: scale_mode='floor' .* choose two_level"),
        (lambda: quantize([1], "int8_block32", scale_mode="pow2"), "int8_block32: scale_mode='pow2' .* choose amax"),
        (lambda: quantize([1], "fp8_block128", square=True), r"square blocks need a matrix, not shape \(1,\)"),
        (lambda: quantize([[1]], "fp8_row", square=True), "a row has one scale"),
        (
            lambda: encode([1], "float8_e8m0fnu", rounding="stochastic"),
            "no stochastic rounding; choose nearest_even",
        ),
        (lambda: encode(["a"], "float8_e4m3fn"), "has dtype"),
        (lambda: encode([1j], "float8_e4m3fn"), "has dtype complex128"),
        (lambda: encode([True], "float8_e4m3fn"), "has dtype bool"),
        (lambda: encode(np.ones(2, np.longdouble), "float8_e4m3fn"), "has dtype"),
        (lambda: quantize([1e300], "mxfp4"), r"1e\+300, beyond float32"),
        (lambda: quantize([1], "mxfp8_e4m3", order="high_first"), "is for codes of 4 bits; mxfp8_e4m3 has 8"),
        (lambda: quantize([1], "mxfp4", axis=None), "axis is None; give a whole number"),
        (lambda: quantize([1], "mxfp4", axis=1), r"axis=1 is outside shape \(1,\)"),
        (lambda: quantize(1.0, "mxfp4", axis=1), r"axis=1 is outside shape \(1,\)"),
        (lambda: quantize([1], "mxfp4", scale_mode=""), "scale_mode='' is not supported"),
        (lambda: quantize([1], "mxfp4", saturate="no"), "saturate is 'no'; give True or False"),
        (lambda: quantize([1], "mxfp4", rounding=["up"]), "is not supported; choose nearest_even"),
        (lambda: quantize([1], "mxfp4", rounding="stochastic", seed=-1), "seed is -1; give a whole number"),
        (lambda: encode([1], "bfloat16", rounding="stochastic", seed="a"), "seed is 'a'; give a whole number"),
        (lambda: encode([1], "bfloat16", rounding="stochastic"), "needs a seed"),
        (lambda: encode([[1], [2, 3]], "bfloat16"), "rows of different lengths"),
        (lambda: quantize([[1], [2, 3]], "mxfp4"), "rows of different lengths"),
        (lambda: decode([[1], [2, 3]], "bfloat16"), "rows of different lengths"),
        (lambda: Quantized.from_bytes(b"", "mxfp4", (-1,)), "a length of shape is -1; give a whole number of 0"),
        (lambda: Quantized.from_bytes(b"", "mxfp4", "3"), "a length of shape is '3'; give a whole number of 0"),
        (lambda: Quantized.from_bytes(b"123", "mxfp8_e4m3", 3), r"of shape \(3,\) .*4 bytes, not 3"),
    ],
)
def test_refusals_are_one_line_that_helps(call, text):
    with pytest.raises(ValueError, match=text) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_element_formats_all_encode():
    for name in ELEMENT_FORMATS:
        assert decode(encode([1.0, 2.0, 4.0], name), name).tolist() == [1, 2, 4]


def test_nothing_has_no_codes():
    values = decode([], "float8_e4m3fn")
    assert values.dtype == np.float32 and values.shape == (0,)
    assert Quantized.from_bytes(b"", "mxfp4", np.int64(0)).dequantize().shape == (0,)


def test_a_number_alone_is_a_block_along_either_axis():
    assert quantize(1.0, "mxfp4", axis=0).dequantize() == quantize(1.0, "mxfp4").dequantize() == 1


def test_asymmetric_blocks_have_no_minus_zero():
    for x in ([4.0, 0.0], [4.0, -0.0], [np.nan, 4.0]):
        back = quantize(np.array(x, np.float32), "int8_block32", scale_mode="asymmetric", nan="zero").dequantize()
        assert not np.signbit(back).any()


def test_stochastic_rounding_of_float64_is_not_moved_by_what_float32_drops():
    """One part in 2**20 of a step away from zero: four of four million, not five hundred."""
    codes = encode(np.full(4_000_000, 1 + 2.0**-30), "tfloat32", rounding="stochastic", seed=0)
    assert np.count_nonzero(codes != codes.min()) < 30


@pytest.mark.parametrize("name", [["int8"], None, 8])
def test_names_of_other_types_are_unknown_names(name):
    with pytest.raises(ValueError, match="no element format"):
        encode([1.0], name)
