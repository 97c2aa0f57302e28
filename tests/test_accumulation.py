"""Accumulation models: published vectors, cases by hand, formats of operands, plain Python, sizes beyond a panel."""

import hashlib
import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from collemu import Quantized, decode, encode, formats, matmul, quantize
from collemu.accumulation import MODELS, FusedDot
from collemu.number_formats import BLOCK_FORMATS
from tests.oracles.fused_dot_reference import blackwell_blocks, fused_dot
from tests.oracles.matmul_reference import matmul_exact, matmul_narrow, matmul_pairwise
from tests.properties.test_multiply import same_bits

GOLDEN = {  # model: column, element format
    "ada": ("mmasim_ada_mma", "e4m3", "float8_e4m3fn"),
    "hopper": ("mmasim_hopper_wgmma", "e4m3", "float8_e4m3fn"),
    "blackwell": ("mmasim_blackwell_tcgen05", "e4m3", "float8_e4m3fn"),
    "cdna3": ("mmasim_cdna3_mfma", "e4m3fnuz", "float8_e4m3fnuz"),
}


@pytest.mark.parametrize("model", GOLDEN)
def test_golden_float8_products(shared_folder, model):
    """Published vectors with accumulators, to the last bit."""
    column, short, name = GOLDEN[model]
    golden = np.load(shared_folder / "data/golden/gemm_accum.npz")
    a = golden[f"fp8_uniform_A_{short}"]
    b = golden[f"fp8_uniform_B_{short}" + ("_KxN" if short == "e4m3" else "")]
    c = golden["fp8_uniform_C_f32bits"].view(np.float32)
    result = matmul(a, b, c, accumulate=model, a_format=name, b_format=name)
    assert (result.view(np.uint32) == golden[f"fp8_uniform_D_f32bits__{column}"]).all()
    of_dtype = matmul(a.view(getattr(ml_dtypes, name)), b.view(getattr(ml_dtypes, name)), c, accumulate=model)
    of_numbers = matmul(decode(a, name), decode(b, name), c, accumulate=model)
    assert (of_dtype == result).all()
    assert (of_numbers == result).all()


def test_golden_mxfp4_products(shared_folder):
    """FP4 with scales on Blackwell."""
    golden = np.load(shared_folder / "data/golden/gemm_accum.npz")
    left = Quantized(golden["mxf4_A_packed"], golden["mxf4_sA_e8m0"], None, (16, 64), "mxfp4", axis=1)
    right = Quantized(golden["mxf4_Bt_packed"].T, golden["mxf4_sBt_e8m0"].T, None, (64, 16), "mxfp4", axis=0)
    c = golden["mxf4_C_f32bits"].view(np.float32)
    result = matmul(left, right, c, accumulate="blackwell")
    assert (result.view(np.uint32) == golden["mxf4_D_f32bits__mmasim_blackwell"]).all()


def dot(model: str, a: list[float], b: list[float], c: float = 0.0, **arguments: object) -> float:
    """One result."""
    row, column = np.array([a], np.float32), np.array([b], np.float32).T
    return float(matmul(row, column, [[c]], accumulate=model, **arguments)[0, 0])  # type: ignore[arg-type]


def test_bits_that_hopper_keeps():
    """13 bits below the largest exponent; toward zero; the accumulator as well."""
    assert dot("hopper", [1.0], [1.0], 2.0**-13) == 1 + 2.0**-13
    assert dot("hopper", [1.0], [1.0], 2.0**-14) == 1.0
    assert dot("hopper", [1.0], [1.0], -(2.0**-14)) == 1.0
    assert dot("blackwell", [1.0], [1.0], -(2.0**-14)) == 1 - 2.0**-14
    assert dot("hopper", [0.0], [0.0], 1 + 2.0**-14) == 1.0
    assert dot("blackwell", [0.0], [0.0], 1 + 2.0**-14) == 1 + 2.0**-14


def test_a_product_has_the_exponent_of_its_fields():
    """1.5 * 1.5 is aligned at 2**0, not 2**1; a subnormal at its format's least exponent."""
    assert dot("hopper", [1.5], [1.5], 2.0**-13 * 3) == 2.25 + 2.0**-12
    sixteen = [1.0] + [0.0] * 15
    assert dot("ada", [1.5, *sixteen], [1.5, *sixteen], 2.0**-13) == 3.25
    tiny = 2.0**-9  # a subnormal of float8_e4m3fn, a normal number of float8_e5m2
    assert dot("hopper", [tiny], [1.0], tiny * 2.0**-12) == tiny
    assert dot("hopper", [tiny], [1.0], tiny * 2.0**-12, a_format="float8_e5m2") == tiny * (1 + 2.0**-12)


def test_order_of_terms_within_a_step_does_not_matter_but_steps_do():
    """Ada's 17th k meets an accumulator that has lost bits."""
    large, small = [256.0] * 2, [2.0**-6, 1.0]
    for model in ("ada", "hopper"):
        assert dot(model, [*large, *small[:1]], [256.0, -256.0, 1.0]) == 0.0
    far = [256.0] + [0.0] * 15 + [256.0, 2.0**-6]
    assert dot("ada", far, [256.0] + [0.0] * 15 + [-256.0, 1.0]) == 0.0
    assert dot("ada", [256.0, 256.0] + [0.0] * 14 + [2.0**-6], [256.0, -256.0] + [0.0] * 14 + [1.0]) == 2.0**-6
    assert dot("hopper", [256.0, 256.0] + [0.0] * 14 + [2.0**-6], [256.0, -256.0] + [0.0] * 14 + [1.0]) == 0.0


def test_cdna3_cuts_downward():
    """An accumulator 25 bits below the products counts as its lower neighbour; one farther below not at all."""
    for c, expected in [(1.5, 1.0), (-1.0, 1 - 2.0**-24), (-1.5, 1 - 2.0**-24), (-0.75, 1.0)]:
        assert dot("cdna3", [1.0], [1.0], c * 2.0**-25) == expected
    assert dot("cdna3", [2.0**-7], [-(2.0**-7)], 2.0**20) == 2.0**20


def test_cdna3_aligns_even_and_odd_apart():
    """Terms that lose their bits beside a large one in the same half keep them in the other, down to 24 bits."""
    large, tiny = 240.0, 2.0**-10
    same = dot("cdna3", [large, 0.0, large, 0.0, tiny], [large, 0.0, -large, 0.0, tiny])
    other = dot("cdna3", [large, 0.0, large, tiny], [large, 0.0, -large, tiny])
    assert same == 0.0
    assert other == 0.0
    assert dot("cdna3", [large, large, tiny, 0.0], [large, -large, tiny, 0.0]) == 0.0
    assert dot("cdna3", [1.0, 1.0, tiny, 0.0], [1.0, -1.0, tiny, 0.0]) == 2.0**-20


def test_blocks_of_float8_have_their_scales_in_the_exponents():
    """The sum of a step times a power of two, as long as nothing leaves float32."""
    rng = np.random.default_rng(0)
    codes = rng.integers(0, 120, (2, 4, 64)).astype(np.uint8)
    plain = matmul(codes[0], codes[1].T, accumulate="blackwell", a_format="float8_e4m3fn", b_format="float8_e4m3fn")
    left = Quantized(codes[0], np.full((4, 2), 130, np.uint8), None, (4, 64), "mxfp8_e4m3", axis=1)
    right = Quantized(codes[1].T, np.full((2, 4), 120, np.uint8), None, (64, 4), "mxfp8_e4m3", axis=0)
    assert (matmul(left, right, accumulate="blackwell") == plain * 2.0**-4).all()
    huge = replace(left, scales=np.full((4, 2), 254, np.uint8))
    assert (matmul(huge, right, accumulate="blackwell") == math.inf).all()


def test_tensor_scales_multiply_the_finished_sum():
    """Blackwell's instruction knows no tensor scale."""
    rng = np.random.default_rng(0)
    c = rng.standard_normal((4, 5)).astype(np.float32)
    left, right = (
        quantize(rng.standard_normal((4, 96)), "nvfp4"),
        quantize(rng.standard_normal((96, 5)), "nvfp4", axis=0),
    )
    bare = [replace(x, tensor_scale=None) for x in (left, right)]
    total = matmul(*bare, accumulate="blackwell")
    assert left.tensor_scale is not None
    assert right.tensor_scale is not None
    expected = c + total * (left.tensor_scale * right.tensor_scale)
    assert (matmul(left, right, c, accumulate="blackwell") == expected).all()
    assert (matmul(*bare, c, accumulate="blackwell") != total + c).any()


def test_promotion_keeps_what_the_accumulator_would_lose():
    """Sums of 128 k's added in float32, as DeepSeek-V3 trains."""
    ones = [1.0] * 2**15
    assert dot("hopper", ones, ones) == 2.0**14  # where 1 lies below the 13 bits
    assert dot("hopper", ones, ones, promote_every=128) == 2.0**15
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(ml_dtypes.float8_e4m3fn) for shape in ((3, 300), (300, 4)))
    runs = [matmul(a[:, i : i + 128], b[i : i + 128], accumulate="hopper") for i in (0, 128, 256)]
    assert (matmul(a, b, accumulate="hopper", promote_every=128) == (runs[0] + runs[1]) + runs[2]).all()


def test_pairwise_is_a_tree():
    """Seven terms: ((1 + 2) + (3 + 4)) + ((5 + 6) + 7), then c."""
    terms = [2.0**24, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert dot("float32", [1.0] * 7, terms) == 2.0**24
    assert dot("pairwise", [1.0] * 7, terms) == 2.0**24 + 4  # 2**24 + 2, and 3: a tie
    assert dot("pairwise", [1.0] * 6, terms[1:], 2.0**24) == 2.0**24 + 6


@pytest.mark.parametrize("k", [1, 5, 250, 256, 257, 700, 1100])
def test_number_sums_beyond_one_tile(k):
    """Where k takes several chunks: against fractions, a few results."""
    rng = np.random.default_rng(k)
    a, b = rng.standard_normal((6, k)).astype(np.float32), rng.standard_normal((k, 300)).astype(np.float32)
    c = rng.standard_normal((6, 300)).astype(np.float32)
    rows, columns = [0, 5], [255, 299]
    part = a[rows].tolist(), b.T[columns].tolist(), c[np.ix_(rows, columns)].tolist()
    expected = {
        "pairwise": matmul_pairwise(*part),
        "exact": matmul_exact(*part),
        "bfloat16": matmul_narrow(*part, "bfloat16"),
        "float16": matmul_narrow(*part, "float16"),
    }
    for model, numbers in expected.items():
        result = matmul(a, b, c, accumulate=model)
        assert same_bits(np.ascontiguousarray(result[np.ix_(rows, columns)]), numbers), model


def test_exact_is_exact_where_float64_is_not():
    """Products of 2**200 that cancel, and a tie that the least float32 product decides."""
    wide = np.array([[2.0**100, -(2.0**100), 2.0**-149, 1.0]], np.float32)
    assert matmul(wide, np.array([[2.0**100], [2.0**100], [2.0**-149], [0.0]], np.float32), accumulate="exact") == 0.0
    half = np.array([[2.0**12, 1.0, 2.0**-149]], np.float32)
    for tiny, expected in ((0.0, 2.0**24), (2.0**-149, 2.0**24 + 2), (-(2.0**-149), 2.0**24)):
        other = np.array([[2.0**12], [1.0], [tiny]], np.float32)
        assert matmul(half, other, accumulate="exact") == expected
    narrow = np.array([[2.0**12, 1.0]], np.float32)
    assert matmul(narrow, narrow.T, [[2.0**-149]], accumulate="exact") == 2.0**24 + 2


@pytest.mark.parametrize("model", [name for name, model in MODELS.items() if isinstance(model, FusedDot)])
@pytest.mark.parametrize(("m", "n", "k"), [(5, 300, 70), (300, 3, 33)])
def test_fused_beyond_one_panel(model, m, n, k):
    """A few results of a large product."""
    name = "float8_e5m2fnuz" if model == "cdna3" else "float8_e5m2"
    rng = np.random.default_rng(m)
    a, b = (encode(rng.standard_normal(shape) * 8, name) for shape in ((m, k), (k, n)))
    c = rng.standard_normal((m, n)).astype(np.float32)
    result = matmul(a, b, c, accumulate=model, a_format=name, b_format=name)
    for i, j in [(0, 0), (m - 1, n - 1), (m // 2, n - 2), (1, n // 2)]:
        expected = fused_dot(a[i].tolist(), b[:, j].tolist(), name, name, float(c[i, j]), model, None)
        assert same_bits(result[i : i + 1, j : j + 1].copy(), [[expected]])


@pytest.mark.parametrize(("name", "block"), [("mxfp4", 32), ("nvfp4", 16), ("mxfp8_e5m2", 32), ("mxfp6_e3m2", 32)])
def test_blocks_beyond_one_panel(name, block):
    """A few results of a large product in blocks."""
    rng = np.random.default_rng(block)
    a, b = rng.standard_normal((5, 150)), rng.standard_normal((150, 300))
    left, right = replace(quantize(a, name), tensor_scale=None), replace(quantize(b, name, axis=0), tensor_scale=None)
    result = matmul(left, right, accumulate="blackwell", promote_every=96)
    element = BLOCK_FORMATS[name].element.name
    a_codes, b_codes = left.element_codes(), right.element_codes()
    for i, j in [(0, 0), (4, 299), (2, 256)]:
        scales = left.scales[i].tolist(), right.scales[:, j].tolist()
        one, other = a_codes[i].tolist(), b_codes[:, j].tolist()
        expected = blackwell_blocks(one, other, (element, element), scales, (name, name), block, 0.0, 96)
        assert same_bits(result[i : i + 1, j : j + 1].copy(), [[expected]])


FP8 = np.ones((32, 32), ml_dtypes.float8_e4m3fn)
FNUZ = np.ones((32, 32), ml_dtypes.float8_e4m3fnuz)
FP4 = np.ones((32, 32), ml_dtypes.float4_e2m1fn)
NUMBERS = np.ones((32, 32), np.float32)
MX, MX_COLUMNS = quantize(NUMBERS, "mxfp8_e4m3"), quantize(NUMBERS, "mxfp8_e4m3", axis=0)
NV_COLUMNS = quantize(NUMBERS, "nvfp4", axis=0)
ROWS, ROW_COLUMNS, INTEGERS = (
    quantize(NUMBERS, "fp8_row"),
    quantize(NUMBERS, "fp8_row", axis=0),
    quantize(NUMBERS, "mxint8"),
)
WRONG = [
    ({"a": FP8, "b": FNUZ, "accumulate": "hopper"}, "hopper.* float8_e4m3fnuz, the format of b; choose float8_e4m3fn"),
    ({"a": FP4, "b": FP8, "accumulate": "ada"}, "ada.* float4_e2m1fn, the format of a; choose"),
    ({"a": FP8, "b": FP8, "accumulate": "cdna3"}, "cdna3.* float8_e4m3fn, .* choose float8_e4m3fnuz"),
    ({"a": NUMBERS * 0.3, "b": FP8, "accumulate": "hopper"}, r"a holds 0\.3 at \(0, 0\), .* float8_e4m3fn; encode"),
    ({"a": FP8, "b": NUMBERS * 1e6, "accumulate": "hopper"}, r"b holds 1e\+06 at \(0, 0\)"),
    ({"a": np.ones((32, 32), np.uint8), "b": FP8, "accumulate": "hopper"}, "a is uint8; say with a_format"),
    ({"a": FP8, "b": FP8, "a_format": "float8_e5m2"}, "a is an array of float8_e4m3fn; a_format='float8_e5m2'"),
    ({"a": MX, "b": FP8, "a_format": "float8_e5m2"}, "a is a Quantized of mxfp8_e4m3; leave a_format out"),
    ({"a": NUMBERS, "b": FP8, "a_format": "bfloat16"}, "a_format='bfloat16' is no format of signed numbers"),
    ({"a": NUMBERS, "b": FP8, "a_format": "mxfp4"}, "no element format 'mxfp4'"),
    ({"a": np.full((32, 32), 16, np.uint8), "b": FP8, "a_format": "float4_e2m1fn"}, "0x10 is no code"),
    ({"a": np.full((2, 32), np.nan), "b": FP4, "a_format": "float4_e2m1fn"}, "NaN"),
    (
        {"a": MX, "b": MX_COLUMNS, "accumulate": "hopper"},
        "without scales, and a is a Quantized of mxfp8_e4m3; .*='blackwell'",
    ),
    ({"a": MX, "b": FP8, "accumulate": "blackwell"}, "two Quantized or none"),
    ({"a": ROWS, "b": ROW_COLUMNS, "accumulate": "hopper"}, "Quantized of fp8_row; .*='float32'"),
    ({"a": ROWS, "b": ROW_COLUMNS, "accumulate": "blackwell"}, "fp8_row, float8_e4m3fn with float32 scales; use"),
    ({"a": INTEGERS, "b": MX_COLUMNS, "accumulate": "blackwell"}, "does not multiply mxint8, int8 / 64 with"),
    ({"a": MX, "b": NV_COLUMNS, "accumulate": "blackwell"}, "not mxfp8_e4m3 and nvfp4"),
    ({"a": MX, "b": MX_COLUMNS, "accumulate": "blackwell", "promote_every": 40}, "promote_every=40 .* 32"),
]


@pytest.mark.parametrize(("arguments", "message"), WRONG)
def test_errors_say_what_to_do(arguments, message):
    """One line: what, where, the value, what to do."""
    with pytest.raises(ValueError, match=message) as error:
        matmul(**arguments)
    assert "\n" not in str(error.value)


def test_models_say_where_they_come_from():
    """Every entry, and formats that exist."""
    for name, model in MODELS.items():
        assert model.name == name
        assert model.rule
        assert model.source
        assert model.limits
        if isinstance(model, FusedDot):
            assert set(model.elements) <= set(formats())


def digest() -> str:
    """Hash of small products under every model, in which sums overflow, cancel and vanish."""
    rng = np.random.default_rng(7)
    total = hashlib.sha256()
    m, n, k = 3, 5, 40

    def take(result: np.ndarray) -> None:
        total.update(np.where(np.isnan(result), np.float32(0), result).tobytes())

    c = (rng.standard_normal((m, n)) * np.exp2(rng.integers(-150, 120, (m, n)))).astype(np.float32)
    for model in MODELS.values():
        for every in (None, 32):
            if isinstance(model, FusedDot):
                for name in model.elements:
                    bits = {"float4": 4, "float6": 6}.get(name[:6], 8)
                    a, b = (rng.integers(0, 1 << bits, shape).astype(np.uint8) for shape in ((m, k), (k, n)))
                    take(matmul(a, b, c, accumulate=model.name, a_format=name, b_format=name, promote_every=every))
                    a, b = a & 0x3B, b & 0x3B
                    a, b = (a & 15, b & 15) if bits == 4 else (a, b)
                    take(matmul(a, b, c, accumulate=model.name, a_format=name, b_format=name, promote_every=every))
            elif model.name != "block_exact":
                a, b = (
                    (rng.standard_normal(shape) * np.exp2(rng.integers(-60, 60, shape))).astype(np.float32)
                    for shape in ((m, k), (k, n))
                )
                take(matmul(a, b, c, accumulate=model.name, promote_every=every))
                take(matmul(np.round(a), np.round(b), c, accumulate=model.name, promote_every=every))
    for name in BLOCK_FORMATS:
        for exponent in (0, 60):
            a, b = (
                rng.standard_normal(shape) * np.exp2(rng.integers(-exponent, exponent + 1, shape))
                for shape in ((m, k), (k, n))
            )
            left, right = quantize(a, name), quantize(b, name, axis=0)
            take(matmul(left, right, c))
            take(matmul(left, right, c, accumulate="block_exact"))
            if name not in ("mxfp8_e4m3", "mxfp6_e2m3", "mxfp6_e3m2", "mxfp4", "nvfp4"):
                continue
            take(matmul(left, right, c, accumulate="blackwell"))
            take(matmul(replace(left, tensor_scale=None), replace(right, tensor_scale=None), c, accumulate="blackwell"))
    return total.hexdigest()


def test_plain_python_gives_the_same_bits():
    """And no warning."""
    root = Path(__file__).resolve().parents[1]
    paths = os.pathsep.join([str(root), str(root / "kernels")])
    environment = os.environ | {"COLLEMU_PLAIN_PYTHON": "1", "PYTHONPATH": paths}
    script = "from tests.test_accumulation import digest; print(digest())"
    command = [sys.executable, "-W", "error", "-c", script]
    plain = subprocess.run(command, env=environment, cwd=root, check=True, capture_output=True, text=True)
    assert plain.stdout.strip() == digest()
