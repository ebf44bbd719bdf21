// The XOR of the rows that each query selects, on x86 with AVX2 or more, from the bit-sliced table of slices.h.
//
// It is a product of bit matrices over GF(2). For eight queries (a query group), `gf2p8affineqb` multiplies their bits
// for eight rows, an 8 x 8 matrix, by the 64 bytes of a vector: bit k of a result byte belongs to query k. Without that
// instruction, half of a byte (the bits of four rows) chooses among the 16 sums of the queries' bits for these rows, by
// `pshufb`. Four query groups by a tile's four vectors are summed in registers over the groups of a block (K. Goto, R.
// van de Geijn, Anatomy of High-Performance Matrix Multiplication, ACM TOMS 2008), while the next tile is fetched from
// memory: a tile, 32 KiB, stays in the first-level cache for all queries, and each is read once.

#pragma once

#include "slices.h"

#if X86

#define AVX2_GFNI __attribute__((target("avx2,gfni")))
#define AVX512_GFNI __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,gfni")))

namespace {

constexpr int kDeep = 4;  // query groups of a tile

// ---- operands: of eight queries for a block; `bits` has 128 bytes for each, kStride (or `stride`) apart

using Operands = void (*)(const uint8_t* bits, uint64_t* out);

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
AVX2 void operands_gfni(const uint8_t* bits, uint64_t* out) { gather(bits + 7 * kStride, -kStride, out); }

// For each group two tables of 16 bytes: bit k of byte i is the XOR of query k's bits for those of the group's lower,
// or upper, four rows that the bits of i name.
AVX2 void operands_avx2(const uint8_t* bits, uint64_t* out) {
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
    for (int64_t g = 0; g < kGroups; g++) {
        turn(words[g]);
        const __m256i word = _mm256_set1_epi64x(int64_t(words[g]));  // byte r: the queries' bits for row r
        __m256i sums = _mm256_setzero_si256();
        for (int r = 0; r < 4; r++)
            sums = _mm256_xor_si256(sums, _mm256_and_si256(_mm256_shuffle_epi8(word, row[r]), named[r]));
        _mm256_storeu_si256((__m256i*)(out + 4 * g), sums);
    }
}

// ---- tiles: sums[q][v] ^= query group q's operands times vector v, over the groups of a block

struct Ahead {  // what to fetch meanwhile, into the second-level cache: so many lines for each group
    const uint8_t* from;
    int lines;
};

BODY void fetch(Ahead& ahead, int lines) {
    for (int i = 0; i < lines; i++, ahead.from += 64) __builtin_prefetch(ahead.from, 0, 2);
}

#define TILE_PARAMETERS                                                                                       \
    const uint8_t *table, int vectors, const uint64_t *operands, int queries, int64_t groups, uint8_t *sums, \
        Ahead ahead
#define TILE_ARGUMENTS table, vectors, operands, queries, groups, sums, ahead
using Tile = void (*)(TILE_PARAMETERS);

// Vector after vector, in halves of 32 bytes, with 8 sums in 16 registers.
#define HALVES(q, h) ((__m256i*)(sums + ((q) * vectors + v) * 64) + (h))

template <int Q>
AVX2 BODY void nibbles(TILE_PARAMETERS) {
    const __m256i low = _mm256_set1_epi8(15);
    for (int v = 0; v < vectors; v++) {
        __m256i sum[Q][2];
        for (int q = 0; q < Q; q++)
            for (int h = 0; h < 2; h++) sum[q][h] = _mm256_loadu_si256(HALVES(q, h));
        for (int64_t g = 0; g < groups; g++) {
            fetch(ahead, v < ahead.lines);
            __m256i lower[2], upper[2];
            for (int h = 0; h < 2; h++) {
                const __m256i x = _mm256_loadu_si256((const __m256i*)(table + (g * vectors + v) * 64) + h);
                lower[h] = _mm256_and_si256(x, low);
                upper[h] = _mm256_and_si256(_mm256_srli_epi16(x, 4), low);
            }
            for (int q = 0; q < Q; q++) {
                const __m128i* const of = (const __m128i*)(operands + 4 * (q * kGroups + g));
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
AVX2_GFNI BODY void affine(TILE_PARAMETERS) {
    for (int v = 0; v < vectors; v++) {
        __m256i sum[Q][2];
        for (int q = 0; q < Q; q++)
            for (int h = 0; h < 2; h++) sum[q][h] = _mm256_loadu_si256(HALVES(q, h));
        for (int64_t g = 0; g < groups; g++) {
            fetch(ahead, v < ahead.lines);
            const __m256i* const x = (const __m256i*)(table + (g * vectors + v) * 64);
            for (int q = 0; q < Q; q++) {
                const __m256i bits = _mm256_set1_epi64x(int64_t(operands[q * kGroups + g]));
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
AVX512_GFNI BODY void wide(TILE_PARAMETERS) {
    __m512i sum[Q][V];
    for (int q = 0; q < Q; q++)
        for (int v = 0; v < V; v++) sum[q][v] = _mm512_loadu_si512(sums + (q * V + v) * 64);
    for (int64_t g = 0; g < groups; g += 2) {
        fetch(ahead, 2 * ahead.lines);
        __m512i even[V], odd[V];
        for (int v = 0; v < V; v++) {
            even[v] = _mm512_loadu_si512(table + (g * V + v) * 64);
            odd[v] = _mm512_loadu_si512(table + (g * V + V + v) * 64);
        }
        for (int q = 0; q < Q; q++) {
            const __m512i bits = _mm512_set1_epi64(int64_t(operands[q * kGroups + g]));
            const __m512i more = _mm512_set1_epi64(int64_t(operands[q * kGroups + g + 1]));
            for (int v = 0; v < V; v++) {
                const __m512i one = _mm512_gf2p8affine_epi64_epi8(even[v], bits, 0);
                const __m512i two = _mm512_gf2p8affine_epi64_epi8(odd[v], more, 0);
                sum[q][v] = _mm512_ternarylogic_epi64(sum[q][v], one, two, 0x96);  // the XOR of all three
            }
        }
    }
    for (int q = 0; q < Q; q++)
        for (int v = 0; v < V; v++) _mm512_storeu_si512(sums + (q * V + v) * 64, sum[q][v]);
}

template <int Q>
AVX512_GFNI BODY void affine_wide(TILE_PARAMETERS) {
    switch (vectors) {
        case 1: return wide<Q, 1>(TILE_ARGUMENTS);
        case 2: return wide<Q, 2>(TILE_ARGUMENTS);
        case 3: return wide<Q, 3>(TILE_ARGUMENTS);
        default: return wide<Q, 4>(TILE_ARGUMENTS);
    }
}

#define TILE(name, kernel, target)                     \
    target void name(TILE_PARAMETERS) {                \
        switch (queries) {                             \
            case 1: return kernel<1>(TILE_ARGUMENTS);  \
            case 2: return kernel<2>(TILE_ARGUMENTS);  \
            case 3: return kernel<3>(TILE_ARGUMENTS);  \
            default: return kernel<4>(TILE_ARGUMENTS); \
        }                                              \
    }
TILE(tile_avx2, nibbles, AVX2)
TILE(tile_avx2_gfni, affine, AVX2_GFNI)
TILE(tile_avx512_gfni, affine_wide, AVX512_GFNI)

// ---- all tiles of blocks first to last; sums [tile][query group][vector][64]

void add_tiles(const Shape& s, const uint8_t* table, const Queries& queries, bool gfni, int64_t first, int64_t last,
               Line* sums) {
    const Operands make = gfni ? operands_gfni : operands_avx2;
    const Tile tile = !gfni ? tile_avx2 : current_isa == kAvx512 ? tile_avx512_gfni : tile_avx2_gfni;
    const int64_t deep = (queries.count + 7) / 8, size = gfni ? kGroups : 4 * kGroups;  // words of eight queries
    const int64_t steps = (deep + kDeep - 1) / kDeep;
    Selections selections(queries);
    std::vector<Line> lines(size_t(deep * size / 8));
    uint64_t* const operands = (uint64_t*)lines[0].byte;
    for (int64_t start = first; start < last; start += kBlocks) {
        const int64_t blocks = least(kBlocks, last - start);
        const uint8_t* bits = selections.read(start, blocks);
        for (int64_t block = start; block < start + blocks; block++, bits += kLeafBytes) {
            for (int64_t q = 0; q < deep; q++) make(bits + 8 * q * kStride, operands + q * size);
            const int64_t groups = s.groups_of(block);
            for (int64_t t = 0; t < s.tiles(); t++) {
                const int width = s.width_of(t), part = int((width + steps - 1) / steps);
                const uint8_t* const at = table + 64 * s.line(block, t, 0);
                for (int64_t step = 0; step < steps; step++) {
                    const int64_t q = step * kDeep, fetched = width + step * part;  // lines for each group
                    const Ahead ahead = {at + fetched * groups * 64, fetched < 2 * width ? part : 0};
                    tile(at, width, operands + q * size, int(least(kDeep, deep - q)), groups,
                         sums[t * kWide * deep + q * width].byte, ahead);
                }
            }
        }
    }
}

// Byte c of a word of the sums holds bit c of eight queries' bytes.
void give_tiles(const Shape& s, const Line* sums, int64_t count, uint8_t* out) {
    const int64_t deep = (count + 7) / 8;
    for (int64_t q = 0; q < deep; q++)
        for (int64_t at = 0; at < s.row_bytes; at++) {
            const int64_t v = at / 8, t = v / kWide;
            uint64_t word;
            memcpy(&word, sums[t * kWide * deep + q * s.width_of(t) + v % kWide].byte + at % 8 * 8, 8);
            turn(word);
            for (int64_t k = 8 * q; k < least(8 * q + 8, count); k++, word >>= 8)
                out[k * s.row_bytes + at] = uint8_t(word);
        }
}

}  // namespace

#endif
