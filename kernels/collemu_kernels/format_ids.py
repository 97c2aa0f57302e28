"""Integer ids of dtypes, element formats and block formats, and the parameters that define each.

The ids are stable. Two tables hold all that the kernels know of a format: a further format is one more row.
Sources: OCP 8-bit Floating Point Specification 1.0, OCP Microscaling Formats 1.0, IEEE 754, and for the
FNUZ, IEEE-like and B11 variants the definitions that ml_dtypes documents.
"""

import numpy as np

# Dtypes.
FLOAT32 = 0
FLOAT64 = 1
INT8 = 2
UINT8 = 3
INT32 = 4
INT64 = 5

# What values can be added in beside formats: float16 whose overflow gives the largest number.
SATURATING_FLOAT16 = 9

# Element formats.
FIRST_ELEMENT_FORMAT = 10
BFLOAT16 = 10
FLOAT16 = 11
TFLOAT32 = 12
FLOAT8_E4M3FN = 20
FLOAT8_E5M2 = 21
FLOAT8_E4M3FNUZ = 22
FLOAT8_E5M2FNUZ = 23
FLOAT8_E4M3 = 24
FLOAT8_E3M4 = 25
FLOAT8_E4M3B11FNUZ = 26
FLOAT8_E8M0FNU = 27
FLOAT6_E2M3FN = 30
FLOAT6_E3M2FN = 31
FLOAT4_E2M1FN = 40

# Integers. The first three are elements of block formats alone, and symmetric: they leave the most negative code out.
FIRST_INTEGER_ELEMENT = 50
SIXTY_FOURTHS = 50  # 8 bits, in steps of 2**-6 (MXINT8)
SYMMETRIC8 = 51
SYMMETRIC4 = 52
FIRST_FULL_INTEGER = 53
FULL_INT8 = 53
FULL_INT4 = 54
WIDE_INTEGER = 55  # what any rounding gives before it is limited to a full integer

# Block formats.
FIRST_BLOCK_FORMAT = 64
MXFP8_E4M3 = 64
MXFP8_E5M2 = 65
MXFP4 = 66
NVFP4 = 67
MXFP6_E2M3 = 68
MXFP6_E3M2 = 69
MXINT8 = 70
FP8_BLOCK128 = 71
FP8_ROW = 72
INT8_BLOCK32 = 73
INT4_BLOCK32 = 74
INT4_BLOCK2048 = 75

# Lane formats: 64 elements, of which the even and the odd ones have a float16 scale each.
FIRST_LANE_FORMAT = 96
INT8_LANES32 = 96
INT6_LANES32 = 97
INT4_LANES32 = 98
FP8_LANES32 = 99
FP4_LANES32 = 100

# Columns of ELEMENT_PARAMETERS. Codes are magnitudes: the sign bit is left out.
BITS = 0
MANTISSA_BITS = 1
BIAS = 2
MAX_CODE = 3  # largest finite magnitude; an unsaturated overflow gives the next code, infinity or NaN
INFINITY_CODE = 4  # MAX_CODE where the format has no infinity
NAN_CODE = 5  # the NaN that encoding writes; NO_NAN where the format has none
NO_NEGATIVE_ZERO = 6  # 1: the code of -0 is the only NaN (the FNUZ formats)

NO_NAN = -1

# One row an element format that is sign, exponent, mantissa. float8_e8m0fnu is none: it has its own kernel.
ELEMENT_PARAMETERS = np.zeros((FIRST_BLOCK_FORMAT, 7), np.int64)
#                                         bits  m  bias  max     infinity nan     no -0
ELEMENT_PARAMETERS[BFLOAT16] = (16, 7, 127, 0x7F7F, 0x7F80, 0x7FC0, 0)
ELEMENT_PARAMETERS[FLOAT16] = (16, 10, 15, 0x7BFF, 0x7C00, 0x7E00, 0)
ELEMENT_PARAMETERS[TFLOAT32] = (19, 10, 127, 0x3FBFF, 0x3FC00, 0x3FE00, 0)  # held in the upper bits of 32
ELEMENT_PARAMETERS[FLOAT8_E4M3FN] = (8, 3, 7, 0x7E, 0x7E, 0x7F, 0)
ELEMENT_PARAMETERS[FLOAT8_E5M2] = (8, 2, 15, 0x7B, 0x7C, 0x7E, 0)
ELEMENT_PARAMETERS[FLOAT8_E4M3FNUZ] = (8, 3, 8, 0x7F, 0x7F, 0x80, 1)
ELEMENT_PARAMETERS[FLOAT8_E5M2FNUZ] = (8, 2, 16, 0x7F, 0x7F, 0x80, 1)
ELEMENT_PARAMETERS[FLOAT8_E4M3] = (8, 3, 7, 0x77, 0x78, 0x7C, 0)
ELEMENT_PARAMETERS[FLOAT8_E3M4] = (8, 4, 3, 0x6F, 0x70, 0x78, 0)
ELEMENT_PARAMETERS[FLOAT8_E4M3B11FNUZ] = (8, 3, 11, 0x7F, 0x7F, 0x80, 1)
ELEMENT_PARAMETERS[FLOAT6_E2M3FN] = (6, 3, 1, 0x1F, 0x1F, NO_NAN, 0)
ELEMENT_PARAMETERS[FLOAT6_E3M2FN] = (6, 2, 3, 0x1F, 0x1F, NO_NAN, 0)
ELEMENT_PARAMETERS[FLOAT4_E2M1FN] = (4, 1, 1, 0x7, 0x7, NO_NAN, 0)
# A float whose exponent has one bit is an integer with a sign: subnormal and normal numbers have one step. Integers are
# rounded as such, and their codes made two's complement after it.
ELEMENT_PARAMETERS[SIXTY_FOURTHS] = (8, 6, 1, 0x7F, 0x7F, NO_NAN, 0)
ELEMENT_PARAMETERS[SYMMETRIC8] = (8, 6, -5, 0x7F, 0x7F, NO_NAN, 0)
ELEMENT_PARAMETERS[SYMMETRIC4] = (4, 2, -1, 0x7, 0x7, NO_NAN, 0)
ELEMENT_PARAMETERS[FULL_INT8] = ELEMENT_PARAMETERS[SYMMETRIC8]
ELEMENT_PARAMETERS[FULL_INT4] = ELEMENT_PARAMETERS[SYMMETRIC4]
ELEMENT_PARAMETERS[WIDE_INTEGER] = (16, 8, -7, 0xFF, 0xFF, NO_NAN, 0)

# Columns of BLOCK_PARAMETERS.
BLOCK_ELEMENT = 0  # id of the element format
BLOCK_SIZE = 1
BLOCK_SCALE = 2  # what scales a block

# Kinds of scales.
E8M0_SCALE = 0  # OCP MX: a power of two
TWO_LEVEL_SCALE = 1  # NVFP4: float8_e4m3fn under one float32 a tensor
FLOAT32_SCALE = 2

WHOLE_ROW = 1 << 40  # block size beyond any row: a row has one scale

BLOCK_PARAMETERS = np.array(
    [
        (FLOAT8_E4M3FN, 32, E8M0_SCALE),
        (FLOAT8_E5M2, 32, E8M0_SCALE),
        (FLOAT4_E2M1FN, 32, E8M0_SCALE),
        (FLOAT4_E2M1FN, 16, TWO_LEVEL_SCALE),
        (FLOAT6_E2M3FN, 32, E8M0_SCALE),
        (FLOAT6_E3M2FN, 32, E8M0_SCALE),
        (SIXTY_FOURTHS, 32, E8M0_SCALE),
        (FLOAT8_E4M3FN, 128, FLOAT32_SCALE),
        (FLOAT8_E4M3FN, WHOLE_ROW, FLOAT32_SCALE),
        (SYMMETRIC8, 32, FLOAT32_SCALE),
        (SYMMETRIC4, 32, FLOAT32_SCALE),
        (SYMMETRIC4, 2048, FLOAT32_SCALE),
    ],
    np.int64,
)

# Columns of LANE_PARAMETERS.
LANE_BITS = 0  # of a code
LANE_ELEMENT = 1  # id of the element format, or NO_ELEMENT: integers, offset by half their range
LANE_FACTOR = 2  # code of the float16 that makes a scale of the number of largest magnitude

NO_ELEMENT = -1

LANE_PARAMETERS = np.array(
    [
        (8, NO_ELEMENT, 0xA000),  # -1/128
        (6, NO_ELEMENT, 0xA800),  # -1/32
        (4, NO_ELEMENT, 0xB000),  # -1/8
        (8, FLOAT8_E4M3FNUZ, 0x1C44),  # 1/240
        (4, FLOAT4_E2M1FN, 0x3155),  # 1/6
    ],
    np.int64,
)

# Rounding of an element.
NEAREST_EVEN = 0
NEAREST_AWAY = 1
TOWARD_ZERO = 2
UP = 3
DOWN = 4
STOCHASTIC = 5

# How a block's scale follows from its largest magnitude: the rules of each kind of scale, the first as on the wire.
WIRE_RULE = 0
FLOOR = 0
CEIL = 1
EVEN = 2
RCEIL = 3
TRN3 = 4
TWO_LEVEL = 0
TORCHAO = 1
AMAX = 0
POW2 = 1
MARGIN = 2  # floats: as AMAX, but of a largest magnitude of at least 1e-4
ASYMMETRIC = 5  # integers: the signed number of largest magnitude becomes the most negative code
CLIPPED = 6  # integers: the largest magnitude over half the range, so that the positive one is clipped

# Status of a kernel.
OK = 0
NAN_HAS_NO_CODE = 1
UNKNOWN_FORMAT = 2
