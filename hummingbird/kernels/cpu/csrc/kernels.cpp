// Bit planes, packed bits and the masked selection, for CPUs: fast versions of reference/shares/packing.py, and of
// `select` and `rescale` in reference/shares.py.
//
// A plain C interface over raw pointers (no Python, no torch), called through ctypes. Paths in comments are relative to
// the folder of the kernels' Python modules. Elements of Z_2^64 are uint64_t, so + - * wrap by the language's own rule.
// Bits are packed least significant first: element i is bit i % 8 of byte i / 8.
//
// Bit planes are a transposition. Eight bits of each element are gathered into one byte per element, and a vector test
// of one bit position over those bytes yields that plane for 64 (AVX-512) or 32 (AVX2) elements at once; the baseline
// transposes 8 x 8 bits in one word (H. S. Warren, Hacker's Delight, 2nd ed., section 7-3).

#include "eight.h"

namespace {

// ---- to_planes: up to eight planes of bits low, low + 1, .. of a run of elements; row p starts at out + p * stride

BODY uint64_t transpose8(uint64_t x) {  // bit p of byte j goes to bit j of byte p
    uint64_t t = (x ^ (x >> 7)) & 0x00AA00AA00AA00AAu;
    x ^= t ^ (t << 7);
    t = (x ^ (x >> 14)) & 0x0000CCCC0000CCCCu;
    x ^= t ^ (t << 14);
    t = (x ^ (x >> 28)) & 0x00000000F0F0F0F0u;
    return x ^ t ^ (t << 28);
}

void planes(Portable, const uint64_t* x, int64_t n, int low, int rows, uint8_t* out, int64_t stride) {
    for (int64_t i = 0; i < n; i += 8) {
        const int64_t here = n - i < 8 ? n - i : 8;
        uint64_t word = 0;
        for (int64_t j = 0; j < here; j++) word |= ((x[i + j] >> low) & 0xFF) << (8 * j);
        word = transpose8(word);
        for (int p = 0; p < rows; p++) out[p * stride + i / 8] = uint8_t(word >> (8 * p));
    }
}

#if X86
AVX2 void planes(Avx2, const uint64_t* x, int64_t n, int low, int rows, uint8_t* out, int64_t stride) {
    const __m128i shift = _mm_cvtsi32_si128(low);
    const __m256i byte = _mm256_set1_epi64x(0xFF);
    const __m256i pair_bytes = _mm256_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15,  //
                                                0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15);
    const __m256i pair_words = _mm256_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15,  //
                                                0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15);
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        __m256i t = _mm256_setzero_si256();  // byte j of lane q: element i + 4j + q
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            const __m256i v = _mm256_loadu_si256((const __m256i*)(x + i + 4 * j));
            t = _mm256_or_si256(t, _mm256_slli_epi64(_mm256_and_si256(_mm256_srl_epi64(v, shift), byte), 8 * j));
        }
        t = _mm256_shuffle_epi8(t, pair_bytes);  // transposes the 4 x 8 bytes: byte e is element i + e
        t = _mm256_shuffle_epi8(_mm256_permute4x64_epi64(t, 0xD8), pair_words);
#pragma GCC unroll 8
        for (int p = 7; p >= 0; p--) {
            const uint32_t plane = uint32_t(_mm256_movemask_epi8(t));  // the top bit of every byte
            if (p < rows) memcpy(out + p * stride + i / 8, &plane, sizeof plane);
            t = _mm256_add_epi8(t, t);
        }
    }
    planes(Portable{}, x + i, n - i, low, rows, out + i / 8, stride);
}

AVX512 void planes(Avx512, const uint64_t* x, int64_t n, int low, int rows, uint8_t* out, int64_t stride) {
    const __m512i pair_bytes =
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 8, 1, 9, 2, 10, 3, 11, 4, 12, 5, 13, 6, 14, 7, 15));
    alignas(64) uint16_t order[32];  // word l of quarter j is word j of 128-bit lane l
    for (int j = 0; j < 8; j++)
        for (int l = 0; l < 4; l++) order[4 * j + l] = uint16_t(8 * l + j);
    const __m512i gather = _mm512_load_si512(order);
    __m512i turn[8], keep[8];
#pragma GCC unroll 8
    for (int j = 0; j < 8; j++) {
        turn[j] = _mm512_set1_epi64(low - 8 * j);  // rotation counts are read mod 64
        keep[j] = _mm512_set1_epi64(int64_t(uint64_t(0xFF) << (8 * j)));
    }
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        __m512i t = _mm512_setzero_si512();  // byte j of lane q: element i + 8j + q
#pragma GCC unroll 8
        for (int j = 0; j < 8; j++) {
            const __m512i v = _mm512_rorv_epi64(_mm512_loadu_si512(x + i + 8 * j), turn[j]);
            t = _mm512_ternarylogic_epi64(t, v, keep[j], 0xF8);  // t | (v & keep)
        }
        t = _mm512_permutexvar_epi16(gather, _mm512_shuffle_epi8(t, pair_bytes));  // byte e is element i + e
#pragma GCC unroll 8
        for (int p = 0; p < 8; p++) {
            if (p == rows) break;
            const uint64_t plane = _mm512_test_epi8_mask(t, _mm512_set1_epi8(char(1 << p)));
            memcpy(out + p * stride + i / 8, &plane, sizeof plane);
        }
    }
    planes(Portable{}, x + i, n - i, low, rows, out + i / 8, stride);
}
#endif

template <class Target>
void to_planes(Target target, const uint64_t* x, int64_t n, int low, int count, uint8_t* out) {
    // 2048 elements (16 KiB) stay in the first-level cache while their planes are written eight rows at a time: more
    // rows at once would exceed its ways when the row length is a multiple of 4 KiB. 256 bytes per row: whole lines.
    const int64_t block = 2048, stride = (n + 7) / 8;
    for (int64_t start = 0; start < n; start += block)
        for (int row = 0; row < count; row += 8)
            planes(target, x + start, n - start < block ? n - start : block, low + row,
                   count - row < 8 ? count - row : 8, out + row * stride + start / 8, stride);
}

// ---- from_bits, from_planes, pack_bits

BODY void from_bits(Portable, const uint8_t* plane, int64_t n, uint64_t* out) {
    for (int64_t i = 0; i < n; i += 8) {
        const Eight bits = ((uint64_t(plane[i / 8]) * kOne) >> kLane) & kOne;
        memcpy(out + i, &bits, n - i < 8 ? size_t(n - i) * 8 : sizeof bits);
    }
}

BODY void from_planes(Portable, const uint8_t* planes, int64_t n, int count, uint64_t* out) {
    const int64_t stride = (n + 7) / 8;
    for (int64_t i = 0; i < n; i += 8) {
        Eight words = {};
        for (int row = 0; row < count; row += 8) {
            const int rows = count - row < 8 ? count - row : 8;
            uint64_t bytes = 0;
            for (int p = 0; p < rows; p++) bytes |= uint64_t(planes[(row + p) * stride + i / 8]) << (8 * p);
            words |= (((transpose8(bytes) * kOne) >> (8 * kLane)) & 0xFF) << row;
        }
        memcpy(out + i, &words, n - i < 8 ? size_t(n - i) * 8 : sizeof words);
    }
}

void pack_bits(Portable, const uint8_t* bits, int64_t n, uint8_t* out) {
    for (int64_t i = 0; i < n; i += 8) {
        uint64_t word = 0;
        memcpy(&word, bits + i, size_t(n - i < 8 ? n - i : 8));
        // Bit 0 of byte j moves to bit 56 + j; the other products fall on distinct bits below 56, so nothing carries.
        out[i / 8] = uint8_t(((word & 0x0101010101010101u) * 0x0102040810204080u) >> 56);
    }
}

#if X86
AVX2 void pack_bits(Avx2, const uint8_t* bits, int64_t n, uint8_t* out) {
    int64_t i = 0;
    for (; i + 32 <= n; i += 32) {
        const __m256i v = _mm256_slli_epi16(_mm256_loadu_si256((const __m256i*)(bits + i)), 7);
        const uint32_t packed = uint32_t(_mm256_movemask_epi8(v));
        memcpy(out + i / 8, &packed, sizeof packed);
    }
    pack_bits(Portable{}, bits + i, n - i, out + i / 8);
}

AVX512 void pack_bits(Avx512, const uint8_t* bits, int64_t n, uint8_t* out) {
    int64_t i = 0;
    for (; i + 64 <= n; i += 64) {
        const uint64_t packed = _mm512_test_epi8_mask(_mm512_loadu_si512(bits + i), _mm512_set1_epi8(1));
        memcpy(out + i / 8, &packed, sizeof packed);
    }
    pack_bits(Portable{}, bits + i, n - i, out + i / 8);
}
#endif

// ---- select, rescale: one pass over memory, equations in shares/opening.py

struct Public {  // values that are the same for every element
    int shift;
    uint64_t offset;  // already shifted
    uint64_t first;   // all ones for the party that adds public constants, else 0
};

BODY void rescale(Portable, int64_t n, const uint64_t* opened, const uint64_t* mask_high, const uint64_t* mask_low,
                  Public pub, uint64_t* z) {
    by_eights(n, [&](int64_t i, size_t bytes) INLINE {
        Eight e, high, low;
        load(e, opened + i, bytes);
        load(high, mask_high + i, bytes);
        load(low, mask_low + i, bytes);
        const Eight top = 0 - (e >> 63);
        const Eight out = (((e >> pub.shift) - pub.offset) & pub.first) - PICK(top, high, low);
        memcpy(z + i, &out, bytes);
    });
}

BODY void select(Portable, int64_t n, const uint64_t* opened, const uint8_t* choice, const uint64_t* bit,
                 const uint64_t* mask_high, const uint64_t* mask_low, const uint64_t* bit_high,
                 const uint64_t* bit_low, Public pub, uint64_t* y, uint64_t* z) {
    by_eights(n, [&](int64_t i, size_t bytes) INLINE {
        Eight c, e, r, high, low, r_high, r_low;
        spread(c, choice[i / 8]);
        load(e, opened + i, bytes);
        load(r, bit + i, bytes);
        load(high, mask_high + i, bytes);
        load(low, mask_low + i, bytes);
        load(r_high, bit_high + i, bytes);
        load(r_low, bit_low + i, bytes);
        const Eight top = 0 - (e >> 63), value = (e >> pub.shift) - pub.offset;
        const Eight all = (value & pub.first) - PICK(top, high, low), part = value * r - PICK(top, r_high, r_low);
        const Eight out = PICK(c, all - part, part);
        memcpy(y + i, &out, bytes);
        memcpy(z + i, &all, bytes);
    });
}

Public make_public(int shift, int first, uint64_t offset) {
    return {shift, offset >> shift, first ? ~uint64_t(0) : 0};
}

}  // namespace

API void hb_to_planes(const uint64_t* x, int64_t n, int low, int count, uint8_t* out) {
    dispatch(OVERLOADS(to_planes), x, n, low, count, out);
}

API void hb_from_bits(const uint8_t* plane, int64_t n, uint64_t* out) { dispatch(OVERLOADS(from_bits), plane, n, out); }

API void hb_from_planes(const uint8_t* planes, int64_t n, int count, uint64_t* out) {
    dispatch(OVERLOADS(from_planes), planes, n, count, out);
}

API void hb_pack_bits(const uint8_t* bits, int64_t n, uint8_t* out) { dispatch(OVERLOADS(pack_bits), bits, n, out); }

API void hb_select(int64_t n, const uint64_t* opened, const uint8_t* choice, const uint64_t* bit,
                   const uint64_t* mask_high, const uint64_t* mask_low, const uint64_t* bit_high,
                   const uint64_t* bit_low, int shift, int first, uint64_t offset, uint64_t* y, uint64_t* z) {
    dispatch(OVERLOADS(select), n, opened, choice, bit, mask_high, mask_low, bit_high, bit_low,
             make_public(shift, first, offset), y, z);
}

API void hb_rescale(int64_t n, const uint64_t* opened, const uint64_t* mask_high, const uint64_t* mask_low, int shift,
                    int first, uint64_t offset, uint64_t* z) {
    dispatch(OVERLOADS(rescale), n, opened, mask_high, mask_low, make_public(shift, first, offset), z);
}
