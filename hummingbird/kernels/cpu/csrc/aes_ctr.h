// The key stream of AES-128 in counter mode: blocks of 16 bytes, block i the encryption of i as a big-endian number.
// `stream` computes consecutive blocks, `blocks` any others.

#pragma once

#include "aes.h"
#include "aes_x86.h"

namespace {

constexpr int64_t kLine = 64;  // bytes: four blocks, where every field of a stream begins
constexpr int kParties = 64;   // whose keys one kernel takes, at most

struct StreamKey {
    uint8_t rounds[11][16];
    Sliced sliced;
};

inline void open_stream(const uint8_t* key, StreamKey& out) {
    make_round_keys(key, out.rounds, sub_secret);
    slice_keys(out.rounds, out.sliced);
}

// The vectors beside a target's AES.
BODY Portable vectors(Portable) { return {}; }
#if X86
BODY Avx2 vectors(Avx2Aes) { return {}; }
BODY Avx512 vectors(Avx512Aes) { return {}; }
#endif

// ---- lines first .. first + count - 1

inline void stream(Portable, const StreamKey& key, int64_t first, int64_t count, uint8_t* out) {
    for (int64_t i = 0; i < 4 * count; i += 8) {
        uint64_t counters[8][2] = {}, blocks[8][2];
        for (int j = 0; j < 8; j++) counters[j][1] = __builtin_bswap64(uint64_t(4 * first + i + j));
        memcpy(blocks, counters, sizeof blocks);
        hash8(key.sliced, (uint8_t*)blocks);
        for (int j = 0; j < 8; j++) blocks[j][1] ^= counters[j][1];
        memcpy(out + 16 * i, blocks, 4 * count - i < 8 ? kLine : sizeof blocks);
    }
}

#if X86
AVX2_AES inline void stream(Avx2Aes, const StreamKey& key, int64_t first, int64_t count, uint8_t* out) {
    __m128i k[11];
    for (int r = 0; r < 11; r++) k[r] = load128(key.rounds[r]);
    for (int64_t i = 0; i < 4 * count; i += 4) {
        __m128i x[4], y[4];
        for (int j = 0; j < 4; j++) x[j] = _mm_set_epi64x(int64_t(__builtin_bswap64(uint64_t(4 * first + i + j))), 0);
        hash<4>(k, x, y);
        for (int j = 0; j < 4; j++) store128(out + 16 * (i + j), _mm_xor_si128(x[j], y[j]));
    }
}

template <int U>
AVX512_AES BODY void lines(const __m512i* k, uint64_t block, uint8_t* out) {
    const __m512i places = _mm512_setr_epi64(0, 0, 0, 1, 0, 2, 0, 3);
    const __m512i reversed = _mm512_set4_epi32(0x08090A0B, 0x0C0D0E0F, 0x00010203, 0x04050607);  // bytes of each word
    __m512i x[U], y[U];
    for (int u = 0; u < U; u++) {
        const __m512i counter = _mm512_add_epi64(places, _mm512_maskz_set1_epi64(0xAA, int64_t(block) + 4 * u));
        x[u] = _mm512_shuffle_epi8(counter, reversed);
    }
    hash<U>(k, x, y);
    for (int u = 0; u < U; u++) _mm512_storeu_si512(out + kLine * u, _mm512_xor_si512(x[u], y[u]));
}

AVX512_AES inline void stream(Avx512Aes, const StreamKey& key, int64_t first, int64_t count, uint8_t* out) {
    __m512i k[11];
    for (int r = 0; r < 11; r++) k[r] = _mm512_broadcast_i32x4(load128(key.rounds[r]));
    int64_t i = 0;
    for (; i + 8 <= count; i += 8) lines<8>(k, uint64_t(4 * (first + i)), out + kLine * i);
    for (; i < count; i++) lines<1>(k, uint64_t(4 * (first + i)), out + kLine * i);
}
#endif

// ---- blocks of any numbers: `number` and `out` have room for whole steps of 32

inline void blocks(Portable, const StreamKey& key, const uint64_t* number, int64_t count, uint8_t* out) {
    for (int64_t i = 0; i < count; i += 8) {
        uint64_t counters[8][2] = {}, found[8][2];
        for (int j = 0; j < 8; j++) counters[j][1] = __builtin_bswap64(number[i + j]);
        memcpy(found, counters, sizeof found);
        hash8(key.sliced, (uint8_t*)found);
        for (int j = 0; j < 8; j++) found[j][1] ^= counters[j][1];
        memcpy(out + 16 * i, found, sizeof found);
    }
}

#if X86
AVX2_AES inline void blocks(Avx2Aes, const StreamKey& key, const uint64_t* number, int64_t count, uint8_t* out) {
    __m128i k[11];
    for (int r = 0; r < 11; r++) k[r] = load128(key.rounds[r]);
    for (int64_t i = 0; i < count; i += 4) {
        __m128i x[4], y[4];
        for (int j = 0; j < 4; j++) x[j] = _mm_set_epi64x(int64_t(__builtin_bswap64(number[i + j])), 0);
        hash<4>(k, x, y);
        for (int j = 0; j < 4; j++) store128(out + 16 * (i + j), _mm_xor_si128(x[j], y[j]));
    }
}

AVX512_AES inline void blocks(Avx512Aes, const StreamKey& key, const uint64_t* number, int64_t count, uint8_t* out) {
    constexpr int U = 8;
    const __m512i reversed = _mm512_set4_epi32(0x08090A0B, 0x0C0D0E0F, 0x00010203, 0x04050607);  // bytes of each word
    __m512i k[11];
    for (int r = 0; r < 11; r++) k[r] = _mm512_broadcast_i32x4(load128(key.rounds[r]));
    for (int64_t i = 0; i < count; i += 4 * U) {
        __m512i x[U], y[U];
        for (int u = 0; u < U; u++) {
            const __m512i four = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)(number + i + 4 * u)));
            x[u] = _mm512_shuffle_epi8(_mm512_maskz_expand_epi64(0xAA, four), reversed);
        }
        hash<U>(k, x, y);
        for (int u = 0; u < U; u++) _mm512_storeu_si512(out + 16 * i + kLine * u, _mm512_xor_si512(x[u], y[u]));
    }
}
#endif

}  // namespace
