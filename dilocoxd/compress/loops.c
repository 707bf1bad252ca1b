/* One pass over the values where torch needs five to twenty: see loops.py, which checks every length before it calls.
 *
 * The same bits as the codecs' own torch code: each operation is one IEEE rounding in the order written there. So no
 * fused multiply-add, no reordering, and a build that cannot promise that is none (torch's code runs instead).
 */
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__FAST_MATH__) || FLT_EVAL_METHOD != 0
#error "every operation must be rounded once, to its own type"
#endif
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "formats are little-endian"
#endif

/* On x86-64 each loop is compiled three times; the processor decides when the library is loaded. */
#if defined(WIDE)
#elif defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define WIDE __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define WIDE
#endif
#define INLINE static inline __attribute__((always_inline))

enum { GROUP = 4096, HALF = GROUP / 2, QUARTER = GROUP / 4, OK = 0, NOT_ENCODABLE = 1 };
enum { FP32, BF16, POW2, SHORT };

#define LARGEST 0x5F800000u /* bits of 2**64 */
#define SCALE_MIN 0x1p-64f
#define BELOW_SCALE_MIN (0x1p-64f * (1.0f - 0x1p-24f))
#define ROUNDER (0x1.8p23f + 8.0f) /* leaves code + 8 in the lowest byte, rounded to nearest even */

INLINE uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

INLINE float float_of(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* Bits of the largest magnitude: NaN is above all numbers. */
INLINE uint32_t largest_bits(const float *x, int64_t n) {
    uint32_t largest = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(x[i]) & 0x7FFFFFFFu;
        largest = bits > largest ? bits : largest;
    }
    return largest;
}

INLINE uint16_t bf16_bits(float value) { /* of a number, to nearest even */
    uint32_t bits = bits_of(value);
    return (uint16_t)((bits + 0x7FFFu + (bits >> 16 & 1)) >> 16);
}

/* Wire form of a block's scale at `out`; the scale as it will be read. */
INLINE float put_scale(float scale, int format, uint8_t *out) {
    uint32_t bits = bits_of(scale);
    uint16_t half;
    switch (format) {
    case FP32:
        memcpy(out, &scale, 4);
        return scale;
    case POW2:
        bits = (bits + 0x7FFFFFu) >> 23;
        *out = (uint8_t)(bits - 127);
        return float_of(bits << 23);
    case SHORT:
        scale = float_of((bits + 0xFFFFFu) & ~0xFFFFFu);
        /* fall through */
    default:
        half = bf16_bits(scale);
        memcpy(out, &half, 2);
        return float_of((uint32_t)half << 16);
    }
}

INLINE float get_scale(int format, const uint8_t *in) {
    float scale;
    uint16_t half;
    switch (format) {
    case FP32:
        memcpy(&scale, in, 4);
        return scale;
    case POW2:
        return float_of((uint32_t)((int8_t)*in + 127) << 23);
    default:
        memcpy(&half, in, 2);
        return float_of((uint32_t)half << 16);
    }
}

INLINE int scale_bytes(int format) { return format == FP32 ? 4 : format == POW2 ? 1 : 2; }

/* Sum of n = 2**m floats in the order of the codec: the upper half is added to the lower one until one is left. */
INLINE float halved(float *x, int64_t n) {
    for (int64_t half = n / 2; half; half /= 2)
        for (int64_t i = 0; i < half; i++) x[i] += x[i + half];
    return x[0];
}

/* n values from a multiple of GROUP on -> one scale per block, and nibbles in groups with split halves. */
WIDE int encode_int4(const float *x, int64_t n, int64_t block, int format, uint8_t *scales, uint8_t *out) {
    float work[GROUP];
    uint32_t largest = 0;
    for (int64_t start = 0; start < n; start += GROUP) {
        int64_t count = n - start < GROUP ? n - start : GROUP, half = (count + 1) / 2;
        const float *values = x + start;
        for (int64_t at = 0; at < count; at += block) {
            int64_t stop = count - at < block ? count : at + block;
            uint32_t magnitude = largest_bits(values + at, stop - at);
            largest = magnitude > largest ? magnitude : largest;
            float scale = float_of(magnitude) / 7.0f;
            scale = put_scale(scale > BELOW_SCALE_MIN ? scale : 0.0f, format, scales);
            scales += scale_bytes(format);
            float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
            for (int64_t i = at; i < stop; i++) work[i] = values[i] * inverse + ROUNDER;
        }
        if (count == GROUP)
            for (int64_t i = 0; i < HALF; i++) out[i] = (uint8_t)(bits_of(work[i]) + (bits_of(work[i + HALF]) << 4));
        else
            for (int64_t i = 0; i < half; i++) {
                uint32_t high = i + half < count ? bits_of(work[i + half]) : 8;
                out[i] = (uint8_t)(bits_of(work[i]) + (high << 4));
            }
        out += half;
    }
    return largest <= LARGEST ? OK : NOT_ENCODABLE;
}

/* The same for two bits a value: levels -3, -1, 1, 3 and a scale that fits them best. */
WIDE int encode_int2(const float *x, int64_t n, int64_t block, uint8_t *scales, uint8_t *out) {
    float unit[GROUP], work[GROUP];
    uint8_t codes[GROUP];
    uint32_t largest = 0;
    for (int64_t start = 0; start < n; start += GROUP) {
        int64_t count = n - start < GROUP ? n - start : GROUP, quarter = (count + 3) / 4;
        for (int64_t at = 0; at < count; at += block) {
            int64_t full = count - at < block ? count - at : block;
            const float *values = x + start + at;
            uint32_t magnitude = largest_bits(values, full);
            largest = magnitude > largest ? magnitude : largest;
            float maximum = float_of(magnitude), divisor = maximum < SCALE_MIN ? 1.0f : maximum;
            for (int64_t i = 0; i < full; i++) unit[i] = values[i] / divisor;
            for (int64_t i = full; i < block; i++) unit[i] = 0.0f;
            for (int64_t i = 0; i < block; i++) work[i] = unit[i] * unit[i];
            float rms = sqrtf(halved(work, block) / (float)block);
            int32_t wide = 0;
            for (int64_t i = 0; i < block; i++) {
                float u = unit[i];
                int32_t is_positive = u >= 0.0f, is_outer = is_positive ? u >= rms : u < -rms;
                int32_t code = is_positive ? 2 + is_outer : 1 - is_outer;
                codes[at + i] = (uint8_t)code;
                work[i] = u * (float)(2 * code - 3);
                wide += is_outer;
            }
            float scale = halved(work, block) / (float)(block + 8 * wide) * (maximum < SCALE_MIN ? 0.0f : maximum);
            uint16_t raw = bf16_bits(scale > BELOW_SCALE_MIN ? scale : 0.0f);
            memcpy(scales, &raw, 2);
            scales += 2;
        }
        if (count < GROUP) memset(codes + count, 0, (size_t)(4 * quarter - count));
        const uint8_t *a = codes, *b = a + quarter, *c = b + quarter, *d = c + quarter;
        if (quarter == QUARTER)
            for (int64_t i = 0; i < QUARTER; i++)
                out[i] = (uint8_t)(a[i] | a[i + QUARTER] << 2 | a[i + 2 * QUARTER] << 4 | a[i + 3 * QUARTER] << 6);
        else
            for (int64_t i = 0; i < quarter; i++) out[i] = (uint8_t)(a[i] | b[i] << 2 | c[i] << 4 | d[i] << 6);
        out += quarter;
    }
    return largest <= LARGEST ? OK : NOT_ENCODABLE;
}

/* The codes of one group as numbers; `bits`: 8, 4 or 2. Writes up to three more. */
INLINE void unpack(const uint8_t *in, int64_t count, int bits, int8_t *out) {
    int64_t part = (count * bits + 7) / 8;
    if (bits == 8) {
        memcpy(out, in, (size_t)count);
    } else if (bits == 4) {
        for (int64_t i = 0; i < part; i++) out[i] = (int8_t)((in[i] & 15) - 8);
        for (int64_t i = 0; i < part; i++) out[part + i] = (int8_t)((in[i] >> 4) - 8);
    } else {
        for (int shift = 0; shift < 4; shift++)
            for (int64_t i = 0; i < part; i++) out[shift * part + i] = (int8_t)(2 * (in[i] >> 2 * shift & 3) - 3);
    }
}

/* out <- (code * scale) * factor, or that added to out. */
WIDE void decode_blocks(const uint8_t *scales, const uint8_t *in, int64_t n, int64_t block, int bits, int format,
                        float factor, int is_added, float *out) {
    int8_t codes[GROUP + 4];
    for (int64_t start = 0; start < n; start += GROUP) {
        int64_t count = n - start < GROUP ? n - start : GROUP;
        unpack(in, count, bits, codes);
        in += (count * bits + 7) / 8;
        for (int64_t at = 0; at < count; at += block) {
            int64_t stop = count - at < block ? count : at + block;
            float scale = get_scale(format, scales), *target = out + start;
            scales += scale_bytes(format);
            if (is_added)
                for (int64_t i = at; i < stop; i++) target[i] += (float)codes[i] * scale * factor;
            else if (factor != 1.0f)
                for (int64_t i = at; i < stop; i++) target[i] = (float)codes[i] * scale * factor;
            else
                for (int64_t i = at; i < stop; i++) target[i] = (float)codes[i] * scale;
        }
    }
}

/* Of each block the sum of its squared codes, an exact integer. */
WIDE void square_sums(const uint8_t *in, int64_t n, int64_t block, int bits, double *sums) {
    int8_t codes[GROUP + 4];
    for (int64_t start = 0; start < n; start += GROUP) {
        int64_t count = n - start < GROUP ? n - start : GROUP;
        unpack(in, count, bits, codes);
        in += (count * bits + 7) / 8;
        for (int64_t at = 0; at < count; at += block) {
            int64_t stop = count - at < block ? count : at + block;
            int32_t sum = 0;
            for (int64_t i = at; i < stop; i++) sum += (int32_t)codes[i] * codes[i];
            *sums++ = (double)sum;
        }
    }
}

/* Columns of `length` values each (columns.py): short scales of blocks that end with their column, codes of 8 or 4 bits in
 * two halves of a column. */
WIDE int encode_columns(const float *x, int64_t columns, int64_t length, int64_t block, int bits, uint8_t *scales,
                        uint8_t *out) {
    float levels = bits == 8 ? 127.0f : 7.0f;
    uint32_t largest = 0;
    int64_t half = (length + 1) / 2;
    for (int64_t column = 0; column < columns; column++, x += length, out += bits == 8 ? length : half) {
        for (int64_t at = 0; at < length; at += block) {
            int64_t stop = length - at < block ? length : at + block;
            uint32_t magnitude = largest_bits(x + at, stop - at);
            largest = magnitude > largest ? magnitude : largest;
            float scale = float_of(magnitude) / levels;
            scale = put_scale(scale > BELOW_SCALE_MIN ? scale : 0.0f, SHORT, scales);
            scales += 2;
            float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
            if (bits == 8) {
                for (int64_t i = at; i < stop; i++) out[i] = (uint8_t)(bits_of(x[i] * inverse + ROUNDER) - 8);
                continue;
            }
            int64_t middle = stop < half ? stop : half > at ? half : at;
            for (int64_t i = at; i < middle; i++) out[i] = (uint8_t)bits_of(x[i] * inverse + ROUNDER);
            for (int64_t i = middle; i < stop; i++) /* the low half of the byte is written already */
                out[i - half] += (uint8_t)(bits_of(x[i] * inverse + ROUNDER) << 4);
        }
        if (bits == 4 && length % 2) out[half - 1] += 8 << 4; /* a nibble without a value */
    }
    return largest <= LARGEST ? OK : NOT_ENCODABLE;
}

/* out <- code * scale. */
WIDE void decode_columns(const uint8_t *scales, const uint8_t *in, int64_t columns, int64_t length, int64_t block,
                         int bits, float *out) {
    int64_t half = (length + 1) / 2;
    for (int64_t column = 0; column < columns; column++, out += length, in += bits == 8 ? length : half)
        for (int64_t at = 0; at < length; at += block) {
            int64_t stop = length - at < block ? length : at + block;
            float scale = get_scale(SHORT, scales);
            scales += 2;
            if (bits == 8) {
                for (int64_t i = at; i < stop; i++) out[i] = (float)(int8_t)in[i] * scale;
                continue;
            }
            int64_t middle = stop < half ? stop : half > at ? half : at;
            for (int64_t i = at; i < middle; i++) out[i] = (float)((in[i] & 15) - 8) * scale;
            for (int64_t i = middle; i < stop; i++) out[i] = (float)((in[i - half] >> 4) - 8) * scale;
        }
}

/* Rounded once to fp32. */
WIDE void narrow(const double *x, int64_t n, float *out) {
    for (int64_t i = 0; i < n; i++) out[i] = (float)x[i];
}

/* Sum of squares of n <= 2 * room values in float64, in the order of codec.folded; `work` has room for half of them. */
WIDE double folded_squares(const float *x, int64_t n, double *work) {
    int64_t half = n / 2, count = n - half;
    for (int64_t i = 0; i < half; i++) work[i] = (double)x[i] * x[i] + (double)x[count + i] * x[count + i];
    if (count > half) work[half] = (double)x[half] * x[half];
    while (count > 1) {
        half = count / 2;
        for (int64_t i = 0; i < half; i++) work[i] += work[count - half + i];
        count -= half;
    }
    return n ? work[0] : 0.0;
}

/* m <- b m + g; x <- x - lr (g + b m), as the outer step does it. */
WIDE void nesterov(float *x, float *m, const float *g, int64_t n, float lr, float b) {
    for (int64_t i = 0; i < n; i++) {
        float next = m[i] * b + g[i];
        m[i] = next;
        x[i] -= (next * b + g[i]) * lr;
    }
}

INLINE int64_t num_from(const uint32_t *x, int64_t n, uint32_t bound) {
    int32_t found = 0;
    for (int64_t i = 0; i < n; i++) found += x[i] >= bound;
    return found;
}

/* A bound that exactly k of x reach, or the k-th largest of x if equal ones leave a choice. */
INLINE uint32_t bound_of(const uint32_t *x, int64_t n, int64_t k) {
    uint32_t bound = 0;
    for (uint32_t bit = 1u << 30; bit; bit >>= 1) {
        int64_t found = num_from(x, n, bound | bit);
        if (found >= k) bound |= bit;
        if (found == k) break;
    }
    return bound;
}

/* Of each row of GROUP values the places of the k largest magnitudes, ascending; is_clear 0: equal ones leave a choice,
 * or fewer than k of the `groups` have any. */
WIDE int largest_places(const float *x, int64_t rows, int64_t k, int64_t groups, int64_t *places, uint8_t *is_clear) {
    uint32_t magnitudes[GROUP], peaks[HALF], candidates[GROUP], largest = 0;
    int32_t from[GROUP];
    for (int64_t row = 0; row < rows; row++, x += GROUP, places += k) {
        memset(peaks, 0, (size_t)groups * 4);
        for (int64_t start = 0; start < GROUP; start += groups)
            for (int64_t i = 0; i < groups; i++) {
                uint32_t bits = bits_of(x[start + i]) & 0x7FFFFFFFu;
                magnitudes[start + i] = bits;
                peaks[i] = bits > peaks[i] ? bits : peaks[i];
            }
        for (int64_t i = 0; i < groups; i++) largest = peaks[i] > largest ? peaks[i] : largest;
        uint32_t bound = bound_of(peaks, groups, k);
        int64_t found = 0, kept = 0;
        is_clear[row] = 0;
        if (!bound) continue;
        for (int64_t start = 0; start < GROUP; start += 16) {
            uint32_t peak = 0;
            for (int64_t i = start; i < start + 16; i++) peak = magnitudes[i] > peak ? magnitudes[i] : peak;
            if (peak < bound) continue;
            for (int64_t i = start; i < start + 16; i++) {
                candidates[found] = magnitudes[i];
                from[found] = (int32_t)i;
                found += magnitudes[i] >= bound;
            }
        }
        bound = bound_of(candidates, found, k);
        if (num_from(candidates, found, bound) != k) continue;
        for (int64_t i = 0; i < found; i++)
            if (candidates[i] >= bound) places[kept++] = from[i];
        is_clear[row] = 1;
    }
    return largest <= LARGEST ? OK : NOT_ENCODABLE;
}
