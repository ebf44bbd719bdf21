// Correlated oblivious transfers: fast versions of reference/cot.py; kernels/cot.py has the equations.
//
// A run of 2,048 transfers is computed from the leaves' streams to rows within the first-level cache: for each tree 16
// streams of 256 bytes, folded into its sum and four columns; then the 128 columns are transposed. The round keys of
// all leaves, 88 KiB, come from the second-level cache. A leaf's stream is AES-CTR; computed here is AES(t) ^ t for
// block t, and the t cancel, as every column sums eight leaves and every sum sixteen.
//
// Leaves, streams, columns and delta are secret: no branch and no memory address depends on them. So the round keys are
// computed by the AES instructions, or in bit slices.

#include "aes.h"
#include "aes_x86.h"
#include "eight.h"

namespace {

constexpr int kTrees = 32, kLeaves = 16, kColumns = 128;
constexpr int kRun = 16;           // blocks of 128 transfers
constexpr int kBytes = 16 * kRun;  // of a column, in a run
constexpr int kRows = 128 * kRun;  // transfers of a run

struct alignas(64) TreeKeys {
    uint8_t of[11][kLeaves][16];  // by round, then by leaf
};

// ---- round keys (FIPS 197, section 5.2): the next one is k ^ k << 32 ^ k << 64 ^ k << 96, as 128-bit numbers, and on
// ---- every word SubWord(RotWord(the last word of k)) ^ constant

constexpr uint8_t kConstants[10] = {0x01, 0x02, 0x04, 0x08, 0x10, 0x20, 0x40, 0x80, 0x1B, 0x36};

void schedule(Portable, const uint8_t* leaves, TreeKeys& keys) {  // eight leaves at once
    memcpy(keys.of[0], leaves, kLeaves * 16);
    for (int r = 0; r < 10; r++)
        for (int first = 0; first < kLeaves; first += 8) {
            uint8_t words[8][16] = {};
            for (int i = 0; i < 8; i++)
                for (int j = 0; j < 4; j++) words[i][j] = keys.of[r][first + i][12 + (j + 1) % 4];
            Two q[8];
            slice(words[0], q);
            sub_bytes(q);
            unslice(q, words[0]);
            for (int i = 0; i < 8; i++) {
                words[i][0] ^= kConstants[r];
                for (int j = 0; j < 16; j++)
                    keys.of[r + 1][first + i][j] =
                        keys.of[r][first + i][j] ^ (j < 4 ? words[i][j] : keys.of[r + 1][first + i][j - 4]);
            }
        }
}

// ---- kRun blocks of a leaf's stream, from number `block` on

void stream(Portable, const TreeKeys& keys, int leaf, int64_t block, uint8_t* out) {
    uint8_t round_keys[11][16];
    for (int r = 0; r < 11; r++) memcpy(round_keys[r], keys.of[r][leaf], 16);
    Sliced sliced;
    slice_keys(round_keys, sliced);
    for (int first = 0; first < kRun; first += 8) {
        int64_t x[8][2] = {};
        for (int i = 0; i < 8; i++) x[i][0] = block + first + i;
        hash8(sliced, (uint8_t*)x);
        memcpy(out + 16 * first, x, sizeof x);
    }
}

#if X86
// SubWord by AESENCLAST: its shift of rows does not change a word that is in all four columns.
#define NEXT(k, constant, shuffle, last, shift, XOR)                       \
    do {                                                                   \
        const auto word = last(shuffle(k, rotated), constant);             \
        k = XOR(k, shift(k, 4));                                           \
        k = XOR(XOR(k, shift(k, 8)), word);                                \
    } while (0)

AVX2_AES void schedule(Avx2Aes, const uint8_t* leaves, TreeKeys& keys) {
    const __m128i rotated = _mm_set1_epi32(0x0C0F0E0D);
    for (int first = 0; first < kLeaves; first += 8) {
        __m128i k[8];
        for (int i = 0; i < 8; i++) k[i] = load128(leaves + 16 * (first + i));
        for (int r = 0;; r++) {
            for (int i = 0; i < 8; i++) store128(keys.of[r][first + i], k[i]);
            if (r == 10) break;
            const __m128i constant = _mm_set1_epi32(kConstants[r]);
            for (int i = 0; i < 8; i++)
                NEXT(k[i], constant, _mm_shuffle_epi8, _mm_aesenclast_si128, _mm_slli_si128, _mm_xor_si128);
        }
    }
}

AVX2_AES void stream(Avx2Aes, const TreeKeys& keys, int leaf, int64_t block, uint8_t* out) {
    __m128i k[11];
    for (int r = 0; r < 11; r++) k[r] = load128(keys.of[r][leaf]);
    for (int first = 0; first < kRun; first += 8) {
        __m128i x[8], y[8];
        for (int i = 0; i < 8; i++) x[i] = _mm_set_epi64x(0, block + first + i);
        hash<8>(k, x, y);
        for (int i = 0; i < 8; i++) store128(out + 16 * (first + i), y[i]);
    }
}

AVX512_AES void schedule(Avx512Aes, const uint8_t* leaves, TreeKeys& keys) {
    const __m512i rotated = _mm512_set1_epi32(0x0C0F0E0D);
    __m512i k[4];
    for (int i = 0; i < 4; i++) k[i] = _mm512_loadu_si512(leaves + 64 * i);
    for (int r = 0;; r++) {
        for (int i = 0; i < 4; i++) _mm512_store_si512(keys.of[r][4 * i], k[i]);
        if (r == 10) break;
        const __m512i constant = _mm512_set1_epi32(kConstants[r]);
        for (int i = 0; i < 4; i++)
            NEXT(k[i], constant, _mm512_shuffle_epi8, _mm512_aesenclast_epi128, _mm512_bslli_epi128, _mm512_xor_si512);
    }
}
#undef NEXT

AVX512_AES void stream(Avx512Aes, const TreeKeys& keys, int leaf, int64_t block, uint8_t* out) {
    __m512i k[11], x[4], y[4];
    for (int r = 0; r < 11; r++) k[r] = _mm512_broadcast_i32x4(load128(keys.of[r][leaf]));
    for (int i = 0; i < 4; i++)
        x[i] = _mm512_add_epi64(_mm512_setr_epi64(0, 0, 1, 0, 2, 0, 3, 0),
                                _mm512_maskz_set1_epi64(0x55, block + 4 * i));
    hash<4>(k, x, y);
    for (int i = 0; i < 4; i++) _mm512_storeu_si512(out + 64 * i, y[i]);
}
#endif

// ---- a tree's streams: their sum, and the four columns, column b the sum of the leaves whose number has bit b

template <class Target>
BODY void fold(Target, const uint8_t* streams, uint8_t* sum, uint8_t* columns) {
    using V = Vector<uint64_t, Target>;
    for (int at = 0; at < kBytes; at += int(sizeof(V))) {
        V x[kLeaves];
        for (int i = 0; i < kLeaves; i++) memcpy(&x[i], streams + kBytes * i + at, sizeof(V));
#pragma GCC unroll 4
        for (int bit = 0; bit < 4; bit++) {
            V odd = x[1];
            for (int i = 1; i < kLeaves >> (bit + 1); i++) odd ^= x[2 * i + 1];
            memcpy(columns + kBytes * bit + at, &odd, sizeof(V));
            for (int i = 0; i < kLeaves >> (bit + 1); i++) x[i] = x[2 * i] ^ x[2 * i + 1];
        }
        memcpy(sum + at, &x[0], sizeof(V));
    }
}

// ---- the columns of a run, transposed: row i holds bit i of every column

// Bits unit j .. unit (j + 1) - 1 of word i <-> those of word j from bit unit i on, for eight words and any `unit`.
template <int unit, class V>
BODY void exchange(V* word) {
#pragma GCC unroll 3
    for (int distance = 4; distance > 0; distance /= 2) {
        const int shift = unit * distance;
        const uint64_t low = ~uint64_t(0) / ((uint64_t(1) << shift) + 1);  // `shift` ones, `shift` zeros, ...
#pragma GCC unroll 8
        for (int i = 0; i < 8; i++) {
            if (i & distance) continue;
            const V t = ((word[i] >> shift) ^ word[i + distance]) & low;
            word[i + distance] ^= t;
            word[i] ^= t << shift;
        }
    }
}

template <class Target>
BODY void transpose_columns(Target, const uint8_t* columns, uint64_t* rows) {
    using V = Vector<uint64_t, Target>;  // each lane a 64 x 64 matrix of its own
    constexpr int lanes = sizeof(V) / 8;
    for (int at = 0; at < kBytes; at += int(sizeof(V))) {
        alignas(64) uint64_t words[2][64][lanes];
        for (int half = 0; half < 2; half++) {
            for (int i = 0; i < 8; i++) {
                V x[8];
                for (int j = 0; j < 8; j++)
                    memcpy(&x[j], columns + kBytes * (64 * half + i + 8 * j) + at, sizeof(V));
                exchange<8>(x);
                for (int j = 0; j < 8; j++) memcpy(words[half][i + 8 * j], &x[j], sizeof(V));
            }
            for (int i = 0; i < 64; i += 8) {
                V x[8];
                memcpy(x, words[half][i], sizeof x);
                exchange<1>(x);
                memcpy(words[half][i], x, sizeof x);
            }
        }
        for (int lane = 0; lane < lanes; lane++)
            for (int i = 0; i < 64; i++, rows += 2) rows[0] = words[0][i][lane], rows[1] = words[1][i][lane];
    }
}

// ---- the two sides

struct Side {
    const uint64_t* delta;       // null: the receiver, who has all leaves
    const uint8_t* corrections;  // the sender's, one column for each tree
    uint8_t* sums;               // the receiver's
};

template <class Target>
BODY void extend(Target target, const uint8_t* leaves, int64_t block, int64_t blocks, Side side, uint64_t* rows) {
    static_assert(kBytes % sizeof(Vector<uint64_t, Target>) == 0, "a column is whole registers");
    alignas(64) TreeKeys keys[kTrees];
    alignas(64) uint8_t streams[kLeaves * kBytes] = {}, columns[kColumns * kBytes], sum[kBytes];
    alignas(64) uint64_t last[2 * kRows];
    for (int tree = 0; tree < kTrees; tree++) schedule(target, leaves + kLeaves * 16 * tree, keys[tree]);
    for (int64_t first = 0; first < blocks; first += kRun) {
        const int64_t here = blocks - first < kRun ? blocks - first : kRun;
        const size_t bytes = size_t(16 * here);
        for (int tree = 0; tree < kTrees; tree++) {
            const int64_t place = 16 * (blocks * tree + first);
            uint8_t* const four = columns + 4 * kBytes * tree;
            // The sender lacks leaf 0, which no column has.
            for (int leaf = side.delta ? 1 : 0; leaf < kLeaves; leaf++)
                stream(target, keys[tree], leaf, block + first, streams + kBytes * leaf);
            fold(target, streams, sum, four);
            if (!side.delta) {
                memcpy(side.sums + place, sum, bytes);
                continue;
            }
            memcpy(sum, side.corrections + place, bytes);
            for (int bit = 0; bit < 4; bit++) {
                const int column = 4 * tree + bit;
                const uint8_t mask = uint8_t(-(side.delta[column / 64] >> (column % 64) & 1));
                for (int i = 0; i < kBytes; i++) four[kBytes * bit + i] ^= sum[i] & mask;
            }
        }
        uint64_t* const out = rows + 256 * first;
        transpose_columns(target, columns, here == kRun ? out : last);
        if (here < kRun) memcpy(out, last, 128 * bytes);
    }
}

BODY void choose(Portable, const uint64_t* labels, const uint8_t* bits, const uint64_t* delta, int64_t n,
                 uint64_t* out) {
    const Eight offset = {delta[0], delta[1], delta[0], delta[1], delta[0], delta[1], delta[0], delta[1]};
    const Eight places = {0, 0, 1, 1, 2, 2, 3, 3};
    for (int64_t i = 0; i < n; i += 4) {  // half a byte of bits
        const size_t bytes = 16 * size_t(n - i < 4 ? n - i : 4);
        Eight x;
        load(x, labels + 2 * i, bytes);
        const uint64_t here = uint64_t(bits[i / 8]) >> (i % 8);
        x ^= (0 - (((here * kOne) >> places) & kOne)) & offset;
        memcpy(out + 2 * i, &x, bytes);
    }
}

}  // namespace

// leaves: 32 trees of 16 times 16 bytes. sums: 32 times 16 bytes a block. rows: 128 a block, of two words.
API void hb_cot_receive(const uint8_t* leaves, int64_t block, int64_t blocks, uint8_t* sums, uint64_t* rows) {
    dispatch<AesTargets>(OVERLOADS(extend), leaves, block, blocks, Side{nullptr, nullptr, sums}, rows);
}

API void hb_cot_send(const uint8_t* leaves, const uint64_t* delta, int64_t block, int64_t blocks,
                     const uint8_t* corrections, uint64_t* rows) {
    dispatch<AesTargets>(OVERLOADS(extend), leaves, block, blocks, Side{delta, corrections, nullptr}, rows);
}

// bits: packed, one for each of the n labels of two words; labels and out may be the same.
API void hb_cot_choose(const uint64_t* labels, const uint8_t* bits, const uint64_t* delta, int64_t n, uint64_t* out) {
    dispatch(OVERLOADS(choose), labels, bits, delta, n, out);
}
