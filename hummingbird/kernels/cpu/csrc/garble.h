// A tile of garbled circuits: its AES keys, the hash of its blocks for each target, and half-gates (kernels/garble.py).
// A key serves the 16 instances of a tile, one block each: four registers of AVX-512, which hide AES's latency.

#pragma once

#include "aes.h"
#include "aes_x86.h"
#include "eight.h"

namespace {

constexpr int kTile = 16, kMostWidth = 24;
constexpr int kFirstRow = 48;  // number of the hash of row 0
constexpr int kMostKeys = 2 * (kMostWidth - 1) + kMostWidth;

typedef uint64_t Four __attribute__((vector_size(32)));

template <class Target>
using Register = Vector<uint64_t, Target>;  // Two, Four or Eight

template <class R>
struct Blocks {  // one of each instance of a tile
    static constexpr int kCount = kTile * 16 / int(sizeof(R));
    R v[kCount];
};

// ---- the round keys of a tile: of the gates' numbers 0 .. gates - 1, then of the rows

struct RoundKeys {
    alignas(64) uint8_t of[(kMostKeys + 3) / 4][11][4][16];  // four keys side by side
};

struct Numbers {
    int gates, rows;
    uint64_t key[2];  // S
    BODY int count() const { return gates + rows; }
    BODY void four(int64_t tile, int first, uint64_t (*keys)[2]) const {
        for (int j = 0; j < 4; j++) {
            const int i = first + j;
            keys[j][0] = key[0] ^ uint64_t(tile << 8 | (i < gates ? i : kFirstRow + i - gates));
            keys[j][1] = key[1];
        }
    }
};

template <class Keys>  // such as Numbers: `count` keys, made four at a time
inline void schedule(Portable, const Keys& numbers, int64_t tile, RoundKeys& out) {
    for (int i = 0; i < numbers.count(); i += 4) {
        uint64_t keys[4][2];
        numbers.four(tile, i, keys);
        for (int j = 0; j < 4; j++) {
            uint8_t round_keys[11][16];
            make_round_keys((const uint8_t*)keys[j], round_keys);
            for (int r = 0; r < 11; r++) memcpy(out.of[i / 4][r][j], round_keys[r], 16);
        }
    }
}

// ---- y = AES(x) ^ x of `tiles` blocks of each instance, by the key at this place

template <int tiles>
void hash_sigma(Portable, const RoundKeys& keys, int place, const Blocks<Two>* x, Blocks<Two>* y) {
    uint8_t round_keys[11][16];
    for (int r = 0; r < 11; r++) memcpy(round_keys[r], keys.of[place / 4][r][place % 4], 16);
    Sliced sliced;
    slice_keys(round_keys, sliced);
    memcpy(y, x, tiles * sizeof *x);
    for (int i = 0; i < tiles * kTile; i += 8) hash8(sliced, (uint8_t*)y + 16 * i);
}

#if X86

// A round of FIPS 197's key expansion: the last instruction of AES, of a word in all columns, is the S-box, and XORs
// the constant. The three shifts make prefix sums of the columns.
#define EXPAND(U, XOR, SHIFT, SHUFFLE, LAST, constant)                                      \
    for (int u = 0; u < U; u++) {                                                           \
        const auto box = LAST(SHUFFLE(k[u], turned), constant);                             \
        k[u] = XOR(k[u], SHIFT(k[u], 4));                                                   \
        k[u] = XOR(XOR(k[u], SHIFT(k[u], 8)), box);                                         \
    }

constexpr int kConstants[10] = {1, 2, 4, 8, 16, 32, 64, 128, 0x1B, 0x36};

template <class Keys>
AVX2_AES inline void schedule(Avx2Aes, const Keys& numbers, int64_t tile, RoundKeys& out) {
    const __m128i turned = _mm_set1_epi32(0x0C0F0E0D);  // the last column, rotated by a byte
    for (int i = 0; i < numbers.count(); i += 4) {
        uint64_t keys[4][2];
        numbers.four(tile, i, keys);
        __m128i k[4];
        for (int j = 0; j < 4; j++) k[j] = _mm_set_epi64x(int64_t(keys[j][1]), int64_t(keys[j][0]));
        for (int r = 0;; r++) {
            for (int j = 0; j < 4; j++) store128(out.of[i / 4][r][j], k[j]);
            if (r == 10) break;
            const __m128i constant = _mm_set1_epi32(kConstants[r]);
            EXPAND(4, _mm_xor_si128, _mm_slli_si128, _mm_shuffle_epi8, _mm_aesenclast_si128, constant);
        }
    }
}

template <int tiles>
AVX2_AES void hash_sigma(Avx2Aes, const RoundKeys& keys, int place, const Blocks<Four>* x, Blocks<Four>* y) {
    __m128i k[11], hashed[8];
    for (int r = 0; r < 11; r++) k[r] = load128(keys.of[place / 4][r][place % 4]);
    for (int i = 0; i < tiles; i++)
        for (int j = 0; j < kTile; j += 8) {
            hash<8>(k, (const __m128i*)(x + i) + j, hashed);
            for (int u = 0; u < 8; u += 2)  // whole registers, as they are read next
                y[i].v[(j + u) / 2] = (Four)_mm256_set_m128i(hashed[u + 1], hashed[u]);
        }
}

template <class Keys>
AVX512_AES inline void schedule(Avx512Aes, const Keys& numbers, int64_t tile, RoundKeys& out) {
    const __m512i turned = _mm512_set1_epi32(0x0C0F0E0D);
    for (int i = 0; i < numbers.count(); i += 8) {  // twice four keys
        alignas(64) uint64_t keys[2][4][2];
        numbers.four(tile, i, keys[0]);
        numbers.four(tile, i + 4, keys[1]);
        const int here = i + 4 < numbers.count() ? 2 : 1;
        __m512i k[2] = {load512(keys[0]), load512(keys[1])};
        for (int r = 0;; r++) {
            for (int u = 0; u < here; u++) _mm512_store_si512(out.of[i / 4 + u][r], k[u]);
            if (r == 10) break;
            const __m512i constant = _mm512_set1_epi32(kConstants[r]);
            EXPAND(2, _mm512_xor_si512, _mm512_bslli_epi128, _mm512_shuffle_epi8, _mm512_aesenclast_epi128, constant);
        }
    }
}

template <int tiles>
AVX512_AES void hash_sigma(Avx512Aes, const RoundKeys& keys, int place, const Blocks<Eight>* x,
                                Blocks<Eight>* y) {
    constexpr int step = tiles < 2 ? 1 : 2;
    __m512i k[11];
    for (int r = 0; r < 11; r++) k[r] = _mm512_broadcast_i32x4(load128(keys.of[place / 4][r][place % 4]));
    for (int i = 0; i < tiles; i += step) hash<4 * step>(k, (const __m512i*)(x + i), (__m512i*)(y + i));
}

#undef EXPAND
#endif

// ---- blocks of a tile

#define EACH(R) for (int j = 0; j < Blocks<R>::kCount; j++)

// swap_words: the words of each block in the other order, (l|r) -> (r|l). even: the low words of two registers.
#if defined(__clang__)
#define SHUFFLE(x, y, R, ...) __builtin_shufflevector(x, y, __VA_ARGS__)
#else
#define SHUFFLE(x, y, R, ...) __builtin_shuffle(x, y, R{__VA_ARGS__})
#endif
BODY void swap_words(const Two& x, Two& y) { y = SHUFFLE(x, x, Two, 1, 0); }
BODY void swap_words(const Four& x, Four& y) { y = SHUFFLE(x, x, Four, 1, 0, 3, 2); }
BODY void swap_words(const Eight& x, Eight& y) { y = SHUFFLE(x, x, Eight, 1, 0, 3, 2, 5, 4, 7, 6); }
BODY void even(const Two& x, const Two& y, Two& z) { z = SHUFFLE(x, y, Two, 0, 2); }
BODY void even(const Four& x, const Four& y, Four& z) { z = SHUFFLE(x, y, Four, 0, 2, 4, 6); }
BODY void even(const Eight& x, const Eight& y, Eight& z) { z = SHUFFLE(x, y, Eight, 0, 2, 4, 6, 8, 10, 12, 14); }
#undef SHUFFLE

template <class R>
constexpr R kLow{};  // ones in the low word of each block
template <>
constexpr Two kLow<Two> = {~uint64_t(0), 0};
template <>
constexpr Four kLow<Four> = {~uint64_t(0), 0, ~uint64_t(0), 0};
template <>
constexpr Eight kLow<Eight> = 0 - ((kLane & 1) ^ 1);

template <class R>
BODY void sigma(const Blocks<R>& x, Blocks<R>& y) {
    EACH(R) {
        R swapped;
        swap_words(x.v[j], swapped);
        y.v[j] = swapped ^ (x.v[j] & ~kLow<R>);
    }
}

// All ones where the colour is 1, else 0.
template <class R>
BODY void colours(const Blocks<R>& x, Blocks<R>& y) {
    EACH(R) {
        const R bit = x.v[j] & kLow<R> & 1;
        R swapped;
        swap_words(bit, swapped);
        y.v[j] = 0 - (bit | swapped);
    }
}

// The low words of the blocks, in a row.
template <class R>
struct Words {
    static constexpr int kCount = Blocks<R>::kCount / 2;
    R v[kCount];
};

template <class R>
BODY void low_words(const Blocks<R>& x, Words<R>& low) {
    for (int j = 0; j < Words<R>::kCount; j++) even(x.v[2 * j], x.v[2 * j + 1], low.v[j]);
}

template <class R>
BODY void copies(const uint64_t* block, Blocks<R>& x) {
    for (int t = 0; t < kTile; t++) memcpy((uint8_t*)&x + 16 * t, block, 16);
}

// ---- half-gates of a label x; `added`: a term of the table; `before`: a term added to the table before its use

template <class R>
struct Offset {  // R, sigma(R), sigma(sigma(R))
    Blocks<R> once, turned, twice;
    BODY explicit Offset(const uint64_t* delta) {
        copies(delta, once);
        sigma(once, turned);
        sigma(turned, twice);
    }
};

// table = H(x) ^ H(x ^ R) ^ added, and product ^= H(x) ^ colour (table ^ before), in m instances
template <class Target, class R>
BODY void garble_half(Target target, const RoundKeys& keys, int place, const Offset<R>& delta, const Blocks<R>& x,
                      const Blocks<R>& added, const Blocks<R>& before, Blocks<R>& product, int m, uint8_t*& out) {
    Blocks<R> in[2], hashed[2], colour, table;
    colours(x, colour);
    sigma(x, in[0]);
    EACH(R) in[1].v[j] = in[0].v[j] ^ delta.turned.v[j];
    hash_sigma<2>(target, keys, place, in, hashed);
    EACH(R) {
        table.v[j] = hashed[0].v[j] ^ hashed[1].v[j] ^ added.v[j];
        product.v[j] ^= hashed[0].v[j] ^ (colour.v[j] & (table.v[j] ^ before.v[j]));
    }
    memcpy(out, &table, size_t(m) * 16);
    out += 16 * m;
}

template <class Target, class R>
BODY void evaluate_half(Target target, const RoundKeys& keys, int place, const Blocks<R>& x, const Blocks<R>& before,
                        Blocks<R>& product, int m, const uint8_t*& in) {
    Blocks<R> turned, hashed, colour, table = {};
    colours(x, colour);
    sigma(x, turned);
    hash_sigma<1>(target, keys, place, &turned, &hashed);
    memcpy(&table, in, size_t(m) * 16);
    EACH(R) product.v[j] ^= hashed.v[j] ^ (colour.v[j] & (table.v[j] ^ before.v[j]));
    in += 16 * m;
}

}  // namespace
