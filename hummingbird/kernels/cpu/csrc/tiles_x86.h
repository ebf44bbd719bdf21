// The tiles of tiles.h by AVX2 and AVX-512.
//
// For eight queries (a query group), `gf2p8affineqb` multiplies their bits for eight rows, an 8 x 8 matrix, by the 64
// bytes of a vector: bit k of a result byte belongs to query k. Without that instruction, half of a byte (the bits of
// four rows) chooses among the 16 sums of the queries' bits for these rows, by `pshufb`.

#pragma once

#include "tiles.h"

#if X86

namespace {

// ---- operands

// Byte k of word g: query k's bits for group g.
AVX2 BODY void gather(const uint8_t* bits, int64_t stride, uint64_t* out) {
    for (int64_t g = 0; g < kGroups; g += 32) {
        __m256i a[8], b[8];
        for (int k = 0; k < 8; k++) a[k] = _mm256_loadu_si256((const __m256i*)(bits + k * stride + g));
        for (int k = 0; k < 4; k++) {  // bytes of queries k and k + 4, then of k, k + 2, k + 4, k + 6, then of all
            b[2 * k] = _mm256_unpacklo_epi8(a[k], a[k + 4]);
            b[2 * k + 1] = _mm256_unpackhi_epi8(a[k], a[k + 4]);
        }
        for (int k = 0; k < 2; k++)
            for (int half = 0; half < 2; half++) {
                a[4 * k + 2 * half] = _mm256_unpacklo_epi8(b[2 * k + half], b[2 * k + 4 + half]);
                a[4 * k + 2 * half + 1] = _mm256_unpackhi_epi8(b[2 * k + half], b[2 * k + 4 + half]);
            }
        for (int k = 0; k < 4; k++) {
            const __m256i even = _mm256_unpacklo_epi8(a[k], a[k + 4]), odd = _mm256_unpackhi_epi8(a[k], a[k + 4]);
            _mm_storeu_si128((__m128i*)(out + g + 4 * k), _mm256_castsi256_si128(even));
            _mm_storeu_si128((__m128i*)(out + g + 4 * k + 2), _mm256_castsi256_si128(odd));
            _mm_storeu_si128((__m128i*)(out + g + 16 + 4 * k), _mm256_extracti128_si256(even, 1));
            _mm_storeu_si128((__m128i*)(out + g + 16 + 4 * k + 2), _mm256_extracti128_si256(odd, 1));
        }
    }
}

// The matrix of `gf2p8affineqb`: its byte 7 - k makes bit k of the result.
constexpr int64_t operand_words(Avx2Gfni) { return kGroups; }
AVX2 void operands(Avx2Gfni, const uint8_t* bits, uint64_t* out) { gather(bits + 7 * kStride, -kStride, out); }

// For each group two tables of 16 bytes: bit k of byte i is the XOR of query k's bits for those of the group's lower,
// or upper, four rows that the bits of i name.
typedef uint64_t Four __attribute__((vector_size(32)));
constexpr int64_t operand_words(Avx2) { return 4 * kGroups; }
AVX2 void operands(Avx2, const uint8_t* bits, uint64_t* out) {
    alignas(32) uint64_t words[kGroups];
    gather(bits, kStride, words);
    const __m128i sixteen = _mm_setr_epi8(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    const __m256i all = _mm256_broadcastsi128_si256(sixteen);
    __m256i named[4], row[4];
    for (int r = 0; r < 4; r++) {
        const __m256i bit = _mm256_set1_epi8(char(1 << r));
        named[r] = _mm256_cmpeq_epi8(_mm256_and_si256(all, bit), bit);
        row[r] = _mm256_setr_m128i(_mm_set1_epi8(char(r)), _mm_set1_epi8(char(4 + r)));
    }
    for (int64_t g = 0; g < kGroups; g += 4) {
        Four four;
        memcpy(&four, words + g, sizeof four);
        turn(four);
        memcpy(words + g, &four, sizeof four);
    }
    for (int64_t g = 0; g < kGroups; g++) {
        const __m256i word = _mm256_set1_epi64x(int64_t(words[g]));  // byte r: the queries' bits for row r
        __m256i sums = _mm256_setzero_si256();
        for (int r = 0; r < 4; r++)
            sums = _mm256_xor_si256(sums, _mm256_and_si256(_mm256_shuffle_epi8(word, row[r]), named[r]));
        _mm256_storeu_si256((__m256i*)(out + 4 * g), sums);
    }
}

// ---- tiles

// Vector after vector, in halves of 32 bytes, with 8 sums in 16 registers.
#define HALVES(q, h) ((__m256i*)(p.sums + ((q) * p.vectors + v) * 64) + (h))

template <int Q>
AVX2 BODY void nibbles(Tile p) {
    const __m256i low = _mm256_set1_epi8(15);
    for (int v = 0; v < p.vectors; v++) {
        __m256i sum[Q][2];
        for (int q = 0; q < Q; q++)
            for (int h = 0; h < 2; h++) sum[q][h] = _mm256_loadu_si256(HALVES(q, h));
        for (int64_t g = 0; g < p.groups; g++) {
            p.ahead.fetch(v < p.ahead.lines);
            __m256i lower[2], upper[2];
            for (int h = 0; h < 2; h++) {
                const __m256i x = _mm256_loadu_si256((const __m256i*)(p.table + (g * p.vectors + v) * 64) + h);
                lower[h] = _mm256_and_si256(x, low);
                upper[h] = _mm256_and_si256(_mm256_srli_epi16(x, 4), low);
            }
            for (int q = 0; q < Q; q++) {
                const __m128i* const of = (const __m128i*)(p.operands + 4 * (q * kGroups + g));
                const __m256i first = _mm256_broadcastsi128_si256(_mm_loadu_si128(of));
                const __m256i second = _mm256_broadcastsi128_si256(_mm_loadu_si128(of + 1));
                for (int h = 0; h < 2; h++) {
                    sum[q][h] = _mm256_xor_si256(sum[q][h], _mm256_shuffle_epi8(first, lower[h]));
                    sum[q][h] = _mm256_xor_si256(sum[q][h], _mm256_shuffle_epi8(second, upper[h]));
                }
            }
        }
        for (int q = 0; q < Q; q++)
            for (int h = 0; h < 2; h++) _mm256_storeu_si256(HALVES(q, h), sum[q][h]);
    }
}

template <int Q>
AVX2_GFNI BODY void affine(Tile p) {
    for (int v = 0; v < p.vectors; v++) {
        __m256i sum[Q][2];
        for (int q = 0; q < Q; q++)
            for (int h = 0; h < 2; h++) sum[q][h] = _mm256_loadu_si256(HALVES(q, h));
        for (int64_t g = 0; g < p.groups; g++) {
            p.ahead.fetch(v < p.ahead.lines);
            const __m256i* const x = (const __m256i*)(p.table + (g * p.vectors + v) * 64);
            for (int q = 0; q < Q; q++) {
                const __m256i bits = _mm256_set1_epi64x(int64_t(p.operands[q * kGroups + g]));
                for (int h = 0; h < 2; h++) {
                    const __m256i product = _mm256_gf2p8affine_epi64_epi8(_mm256_loadu_si256(x + h), bits, 0);
                    sum[q][h] = _mm256_xor_si256(sum[q][h], product);
                }
            }
        }
        for (int q = 0; q < Q; q++)
            for (int h = 0; h < 2; h++) _mm256_storeu_si256(HALVES(q, h), sum[q][h]);
    }
}

// 16 sums in 32 registers. Two groups at a time: one instruction adds both products.
template <int Q, int V>
AVX512_GFNI BODY void wide(Tile p) {
    __m512i sum[Q][V];
    for (int q = 0; q < Q; q++)
        for (int v = 0; v < V; v++) sum[q][v] = _mm512_loadu_si512(p.sums + (q * V + v) * 64);
    for (int64_t g = 0; g < p.groups; g += 2) {
        p.ahead.fetch(2 * p.ahead.lines);
        __m512i even[V], odd[V];
        for (int v = 0; v < V; v++) {
            even[v] = _mm512_loadu_si512(p.table + (g * V + v) * 64);
            odd[v] = _mm512_loadu_si512(p.table + (g * V + V + v) * 64);
        }
        for (int q = 0; q < Q; q++) {
            const __m512i bits = _mm512_set1_epi64(int64_t(p.operands[q * kGroups + g]));
            const __m512i more = _mm512_set1_epi64(int64_t(p.operands[q * kGroups + g + 1]));
            for (int v = 0; v < V; v++) {
                const __m512i one = _mm512_gf2p8affine_epi64_epi8(even[v], bits, 0);
                const __m512i two = _mm512_gf2p8affine_epi64_epi8(odd[v], more, 0);
                sum[q][v] = _mm512_ternarylogic_epi64(sum[q][v], one, two, 0x96);  // the XOR of all three
            }
        }
    }
    for (int q = 0; q < Q; q++)
        for (int v = 0; v < V; v++) _mm512_storeu_si512(p.sums + (q * V + v) * 64, sum[q][v]);
}

template <int Q>
AVX512_GFNI BODY void wide(const Tile& p) {
    switch (p.vectors) {
        case 1: return wide<Q, 1>(p);
        case 2: return wide<Q, 2>(p);
        case 3: return wide<Q, 3>(p);
        default: return wide<Q, 4>(p);
    }
}

AVX2 void add_tile(Avx2, const Tile& p) {
    switch (p.queries) {
        case 1: return nibbles<1>(p);
        case 2: return nibbles<2>(p);
        case 3: return nibbles<3>(p);
        default: return nibbles<4>(p);
    }
}

AVX2_GFNI void add_tile(Avx2Gfni, const Tile& p) {
    switch (p.queries) {
        case 1: return affine<1>(p);
        case 2: return affine<2>(p);
        case 3: return affine<3>(p);
        default: return affine<4>(p);
    }
}

AVX512_GFNI void add_tile(Avx512Gfni, const Tile& p) {
    switch (p.queries) {
        case 1: return wide<1>(p);
        case 2: return wide<2>(p);
        case 3: return wide<3>(p);
        default: return wide<4>(p);
    }
}

}  // namespace

#endif
