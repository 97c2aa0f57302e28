"""Wire images: sizes, layout, any offset, any length, and the same bits in plain Python."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from collemu_kernels import format_ids as ids
from collemu_kernels.images import decode_image, encode_image, image_bytes

from collemu.number_formats import BLOCK_FORMATS, ELEMENT_FORMATS, find_format
from collemu.quantization import Quantized, encode, quantize

LENGTHS = [0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 65, 1023, 1024, 1025, 2049]
NAMES = [*ELEMENT_FORMATS, *BLOCK_FORMATS]


def packed(codes, bits):
    """Codes side by side, by way of one bit at a time."""
    return np.packbits(np.unpackbits(codes[:, None], axis=1, count=bits, bitorder="little"), bitorder="little")


def image_of(values, format_id, offset=0, saturate=True):
    size = int(image_bytes(values.size, format_id))
    memory = np.full(size + offset + 64, 0xA5, np.uint8)
    assert encode_image(values, format_id, saturate, memory[offset : offset + size]) == ids.OK
    assert (memory[:offset] == 0xA5).all()
    assert (memory[offset + size :] == 0xA5).all()
    return memory[offset : offset + size]


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("float8_e4m3fn", {0: 0, 1: 1, 33: 33}),
        ("float4_e2m1fn", {0: 0, 1: 1, 33: 17}),
        ("float6_e2m3fn", {0: 0, 1: 1, 2: 2, 3: 3, 4: 3, 5: 4, 33: 25}),
        ("bfloat16", {0: 0, 3: 6}),
        ("mxfp8_e4m3", {0: 0, 1: 2, 32: 33, 33: 35}),
        ("mxfp4", {0: 0, 1: 2, 31: 17, 32: 17, 33: 19}),
        ("nvfp4", {0: 0, 1: 6, 16: 13, 17: 15, 32: 22}),
        ("mxfp6_e3m2", {0: 0, 1: 2, 32: 25, 33: 27}),
        ("mxint8", {0: 0, 32: 33, 33: 35}),
        ("fp8_block128", {0: 0, 1: 5, 128: 132, 129: 137}),
        ("fp8_row", {0: 0, 1: 5, 5000: 5004}),
        ("int8_block32", {0: 0, 32: 36, 33: 41}),
        ("int4_block32", {0: 0, 32: 20, 33: 25}),
    ],
)
def test_sizes(name, sizes):
    for length, size in sizes.items():
        assert image_bytes(length, find_format(name).format_id) == size
    assert image_bytes(3, ids.FLOAT32) == 12


@pytest.mark.parametrize("name", NAMES)
def test_images_are_the_codes_then_the_scales_then_the_tensor_scale(name):
    rng = np.random.default_rng(1)
    for length in LENGTHS:
        values = np.abs(rng.standard_normal(length)).astype(np.float32)
        image = image_of(values, find_format(name).format_id)
        if name in BLOCK_FORMATS:
            expected = quantize(values, name).to_bytes()
        else:
            codes = encode(values, name)
            if find_format(name).bits < 8:
                codes = packed(codes, find_format(name).bits)
            expected = codes.astype(codes.dtype.newbyteorder("<")).tobytes()
        assert image.tobytes() == expected


@pytest.mark.parametrize("name", ["float32", *NAMES])
def test_any_offset_gives_the_same_bytes_and_values(name):
    format_id = ids.FLOAT32 if name == "float32" else find_format(name).format_id
    rng = np.random.default_rng(2)
    for length in LENGTHS:
        values = rng.standard_normal(length).astype(np.float32)
        straight = image_of(values, format_id)
        decoded = np.empty(length, np.float32)
        assert decode_image(straight, format_id, decoded) == ids.OK
        for offset in (1, 2, 3, 5, 7, 13, 63):
            image = image_of(values, format_id, offset)
            assert (image == straight).all()
            again = np.full(length + 2, 7, np.float32)
            assert decode_image(image, format_id, again[1:-1]) == ids.OK
            assert (again[1:-1].view(np.uint32) == decoded.view(np.uint32)).all()
            assert again[0] == again[-1] == 7


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_decoding_an_image_is_dequantizing_it(name):
    values = np.random.default_rng(3).standard_normal(5001).astype(np.float32)
    image = image_of(values, BLOCK_FORMATS[name].format_id)
    decoded = np.empty(values.size, np.float32)
    decode_image(image, BLOCK_FORMATS[name].format_id, decoded)
    assert (decoded == Quantized.from_bytes(image, name, 5001).dequantize()).all()


def test_status_says_what_has_no_image():
    values = np.array([1, np.nan], np.float32)
    image = np.full(8, 9, np.uint8)
    for name in ("float4_e2m1fn", "float6_e2m3fn", "float6_e3m2fn"):
        format_id = ELEMENT_FORMATS[name].format_id
        size = int(image_bytes(2, format_id))
        assert encode_image(values, format_id, True, image[:size]) == ids.NAN_HAS_NO_CODE
        assert (image == 9).all()
    for unknown in (-1, ids.FLOAT64, ids.INT8, 19, ids.SYMMETRIC8, ids.SYMMETRIC4, 63, 90):
        assert encode_image(values, unknown, True, image) == ids.UNKNOWN_FORMAT
        assert decode_image(image, unknown, values) == ids.UNKNOWN_FORMAT


def digest() -> str:
    """Hash of many images and of what they decode to."""
    rng = np.random.default_rng(4)
    total = hashlib.sha256()
    with np.errstate(all="ignore"):
        for name in NAMES:
            format_id = find_format(name).format_id
            for length in (1, 33, 1030):
                values = (rng.standard_normal(length) * np.exp2(rng.integers(-150, 127, length))).astype(np.float32)
                values[:: max(length // 3, 1)] = [0.0, -0.0, 3e38, -1e-45][: len(values[:: max(length // 3, 1)])]
                for saturate in (True, False):
                    image = image_of(values, format_id, saturate=saturate)
                    decoded = np.empty(length, np.float32)
                    decode_image(image, format_id, decoded)
                    total.update(image.tobytes())
                    total.update(np.where(np.isnan(decoded), np.float32(0), decoded).tobytes())
        for rounding in ("nearest_away", "toward_zero", "up", "down", "stochastic"):
            for name in ("mxfp8_e5m2", "mxfp6_e2m3", "mxint8", "int4_block32", "fp8_block128"):
                total.update(quantize(rng.standard_normal(100), name, rounding=rounding, seed=3).to_bytes())
        matrix = rng.standard_normal((40, 130)).astype(np.float32)
        matrix[3, 4] = np.inf
        for name, mode in (("nvfp4", "two_level"), ("nvfp4", "torchao"), ("fp8_block128", "pow2"), ("mxint8", "even")):
            total.update(quantize(matrix, name, scale_mode=mode, square=True).to_bytes())
    return total.hexdigest()


def test_plain_python_gives_the_same_bits():
    root = Path(__file__).resolve().parents[2]
    paths = os.pathsep.join([str(root), str(root / "kernels")])
    environment = os.environ | {"COLLEMU_PLAIN_PYTHON": "1", "PYTHONPATH": paths}
    script = "from tests.kernels.test_images import digest; print(digest())"
    command = [sys.executable, "-W", "error", "-c", script]
    plain = subprocess.run(command, env=environment, cwd=root, check=True, capture_output=True, text=True)
    assert plain.stdout.strip() == digest()
