// ChaCha12 for the trees of dpf.cpp, by 4, 8 or 16 states at a time. Included by dpf.cpp alone.
//
// A vector holds one word of many states. 4 x 4 words in each 128-bit lane are transposed to bring nodes into that
// form, and once more to bring blocks back: element i of lane l is then the state of node (lanes) i + l. `convert`
// computes blocks 1 and 2 of half as many nodes at once: elements 0 and 1 of each lane, and 2 and 3, of the same two
// nodes.

#pragma once

#include "prf.h"

namespace {

typedef uint32_t Four __attribute__((vector_size(16)));
typedef uint32_t EightWords __attribute__((vector_size(32)));
typedef uint32_t Sixteen __attribute__((vector_size(64)));

template <class V>
BODY void turn(V& into, const V& add, V& mix, int amount) {
    into += add;
    mix ^= into;
    mix = mix << amount | mix >> (32 - amount);
}

template <class V>
BODY void quarter(V& a, V& b, V& c, V& d) {
    turn(a, b, d, 16);
    turn(c, d, b, 12);
    turn(a, b, d, 8);
    turn(c, d, b, 7);
}

// Words 0 .. 15 of block `counter` under the key `seed`, twice; the seed's control bit must be clear.
template <class V>
BODY void chacha12(const V* seed, const V& counter, const uint8_t* nonce, V* x) {
    constexpr uint32_t kConstants[4] = {0x61707865, 0x3120646E, 0x79622D36, 0x6B206574};  // "expand 16-byte k"
    uint32_t salt[3];
    memcpy(salt, nonce, sizeof salt);
    for (int i = 0; i < 4; i++) {
        x[i] = V{} + kConstants[i];
        x[4 + i] = x[8 + i] = seed[i];
        x[12 + i] = i ? V{} + salt[i ? i - 1 : 0] : counter;
    }
    for (int round = 0; round < 12; round += 2) {
        for (int i = 0; i < 4; i++) quarter(x[i], x[4 + i], x[8 + i], x[12 + i]);
        for (int i = 0; i < 4; i++) quarter(x[i], x[4 + (i + 1) % 4], x[8 + (i + 2) % 4], x[12 + (i + 3) % 4]);
    }
    for (int i = 0; i < 4; i++) {
        x[i] += kConstants[i];
        x[4 + i] += seed[i];
        x[8 + i] += seed[i];
        x[12 + i] += i ? V{} + salt[i ? i - 1 : 0] : counter;
    }
}

// Both children of one node for each element of a vector: words 0 .. 3 and 4 .. 7 of x.
template <class V>
BODY void two_children(const V* node, const uint8_t* nonce, const uint8_t* corrections, V* x) {
    const V seed[4] = {node[0] & ~1u, node[1], node[2], node[3]}, mask = -(node[0] & 1);
    uint32_t correction[8];
    both(corrections, (uint8_t*)correction);
    chacha12(seed, V{}, nonce, x);
    for (int i = 0; i < 8; i++) x[i] ^= mask & correction[i];
}

void chacha_children(Portable, const Prf& prf, const uint8_t* corrections, uint8_t* nodes, int n) {
    for (int i = (n - 1) / 4 * 4; i >= 0; i -= 4) {
        uint32_t words[4][4], out[4][8];
        Four node[4], x[16];
        memcpy(words, nodes + kBlock * i, sizeof words);
        for (int w = 0; w < 4; w++) node[w] = Four{words[0][w], words[1][w], words[2][w], words[3][w]};
        two_children(node, prf.public_key, corrections, x);
        for (int s = 0; s < 4; s++)
            for (int w = 0; w < 8; w++) out[s][w] = x[w][s];
        memcpy(nodes + 2 * kBlock * i, out, sizeof out);
    }
}

void chacha_convert(Portable, const Prf& prf, const uint8_t* final, const uint8_t* nodes, int n, uint8_t* out) {
    for (int i = 0; i < n; i += 2) {  // an odd n reads one node more
        uint32_t words[2][4], bits[4][16];
        Four seed[4], x[16];
        memcpy(words, nodes + kBlock * i, sizeof words);
        for (int w = 0; w < 4; w++) seed[w] = Four{words[0][w], words[0][w], words[1][w], words[1][w]};
        seed[0] &= ~1u;
        chacha12(seed, Four{1, 2, 1, 2}, prf.public_key, x);
        for (int s = 0; s < 4; s++)
            for (int w = 0; w < 16; w++) bits[s][w] = x[w][s];
        for (int j = 0; j < 2 && i + j < n; j++) {
            correct(nodes + kBlock * (i + j), final, kLeafBytes, (uint8_t*)bits[2 * j]);
            memcpy(out + kLeafBytes * (i + j), bits[2 * j], kLeafBytes);
        }
    }
}

#if X86

// ---- AVX2: eight states

AVX2 BODY void transpose(__m256i& a, __m256i& b, __m256i& c, __m256i& d) {  // 4 x 4 words in each lane
    const __m256i ab = _mm256_unpacklo_epi32(a, b), AB = _mm256_unpackhi_epi32(a, b);
    const __m256i cd = _mm256_unpacklo_epi32(c, d), CD = _mm256_unpackhi_epi32(c, d);
    a = _mm256_unpacklo_epi64(ab, cd);
    b = _mm256_unpackhi_epi64(ab, cd);
    c = _mm256_unpacklo_epi64(AB, CD);
    d = _mm256_unpackhi_epi64(AB, CD);
}

AVX2 BODY __m256i load256(const uint8_t* p) { return _mm256_loadu_si256((const __m256i*)p); }
AVX2 BODY void store256(uint8_t* p, __m256i x) { _mm256_storeu_si256((__m256i*)p, x); }

AVX2 void chacha_children(Avx2, const Prf& prf, const uint8_t* corrections, uint8_t* nodes, int n) {
    for (int i = (n - 1) / 8 * 8; i >= 0; i -= 8) {
        __m256i a[4];
        for (int j = 0; j < 4; j++) a[j] = load256(nodes + kBlock * (i + 2 * j));
        transpose(a[0], a[1], a[2], a[3]);
        EightWords node[4], x[16];
        memcpy(node, a, sizeof node);
        two_children(node, prf.public_key, corrections, x);
        __m256i y[8];
        memcpy(y, x, sizeof y);
        transpose(y[0], y[1], y[2], y[3]);
        transpose(y[4], y[5], y[6], y[7]);
        for (int j = 0; j < 4; j++) {  // left children of two nodes, and right ones, become two pairs
            store256(nodes + 2 * kBlock * (i + 2 * j), _mm256_permute2x128_si256(y[j], y[4 + j], 0x20));
            store256(nodes + 2 * kBlock * (i + 2 * j + 1), _mm256_permute2x128_si256(y[j], y[4 + j], 0x31));
        }
    }
}

AVX2 void chacha_convert(Avx2, const Prf& prf, const uint8_t* final, const uint8_t* nodes, int n, uint8_t* out) {
    for (int i = 0; i < n; i += 4) {
        __m256i a[4];
        a[0] = a[2] = load256(nodes + kBlock * i);
        a[1] = a[3] = load256(nodes + kBlock * (i + 2));
        transpose(a[0], a[1], a[2], a[3]);
        EightWords seed[4], x[16];
        memcpy(seed, a, sizeof seed);
        seed[0] &= ~1u;
        chacha12(seed, EightWords{1, 1, 2, 2, 1, 1, 2, 2}, prf.public_key, x);
        __m256i y[16];
        memcpy(y, x, sizeof y);
        for (int q = 0; q < 16; q += 4) transpose(y[q], y[q + 1], y[q + 2], y[q + 3]);
        for (int j = 0; j < 4 && i + j < n; j++) {  // node i + j is in lane j % 2 of rows j / 2 (block 1) and + 2
            const __m256i mask = _mm256_set1_epi32(-(nodes[kBlock * (i + j)] & 1));
            for (int part = 0; part < 4; part++) {
                const __m256i* const row = y + j / 2 + part / 2 * 2 + part % 2 * 8;
                const __m256i bits = j % 2 ? _mm256_permute2x128_si256(row[0], row[4], 0x31)
                                           : _mm256_permute2x128_si256(row[0], row[4], 0x20);
                store256(out + kLeafBytes * (i + j) + 32 * part,
                         _mm256_xor_si256(bits, _mm256_and_si256(mask, load256(final + 32 * part))));
            }
        }
    }
}

// ---- AVX-512: sixteen states

AVX512 BODY void transpose(__m512i& a, __m512i& b, __m512i& c, __m512i& d) {
    const __m512i ab = _mm512_unpacklo_epi32(a, b), AB = _mm512_unpackhi_epi32(a, b);
    const __m512i cd = _mm512_unpacklo_epi32(c, d), CD = _mm512_unpackhi_epi32(c, d);
    a = _mm512_unpacklo_epi64(ab, cd);
    b = _mm512_unpackhi_epi64(ab, cd);
    c = _mm512_unpacklo_epi64(AB, CD);
    d = _mm512_unpackhi_epi64(AB, CD);
}

AVX512 BODY void transpose_lanes(__m512i& a, __m512i& b, __m512i& c, __m512i& d) {
    const __m512i ab = _mm512_shuffle_i32x4(a, b, 0x44), AB = _mm512_shuffle_i32x4(a, b, 0xEE);
    const __m512i cd = _mm512_shuffle_i32x4(c, d, 0x44), CD = _mm512_shuffle_i32x4(c, d, 0xEE);
    a = _mm512_shuffle_i32x4(ab, cd, 0x88);
    b = _mm512_shuffle_i32x4(ab, cd, 0xDD);
    c = _mm512_shuffle_i32x4(AB, CD, 0x88);
    d = _mm512_shuffle_i32x4(AB, CD, 0xDD);
}

AVX512 void chacha_children(Avx512, const Prf& prf, const uint8_t* corrections, uint8_t* nodes, int n) {
    for (int i = (n - 1) / 16 * 16; i >= 0; i -= 16) {
        __m512i a[4];
        for (int j = 0; j < 4; j++) a[j] = _mm512_loadu_si512(nodes + kBlock * (i + 4 * j));
        transpose(a[0], a[1], a[2], a[3]);
        Sixteen node[4], x[16];
        memcpy(node, a, sizeof node);
        two_children(node, prf.public_key, corrections, x);
        __m512i y[8];
        memcpy(y, x, sizeof y);
        transpose(y[0], y[1], y[2], y[3]);
        transpose(y[4], y[5], y[6], y[7]);
        const __m512i low = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
        const __m512i high = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
        for (int j = 0; j < 4; j++) {  // left children of four nodes, and right ones, become four pairs
            uint8_t* const to = nodes + 2 * kBlock * (i + 4 * j);
            _mm512_storeu_si512(to, _mm512_permutex2var_epi64(y[j], low, y[4 + j]));
            _mm512_storeu_si512(to + 64, _mm512_permutex2var_epi64(y[j], high, y[4 + j]));
        }
    }
}

AVX512 void chacha_convert(Avx512, const Prf& prf, const uint8_t* final, const uint8_t* nodes, int n, uint8_t* out) {
    const __m512i low = _mm512_loadu_si512(final), high = _mm512_loadu_si512(final + 64);
    for (int i = 0; i < n; i += 8) {
        __m512i a[4];
        a[0] = a[2] = _mm512_loadu_si512(nodes + kBlock * i);
        a[1] = a[3] = _mm512_loadu_si512(nodes + kBlock * (i + 4));
        transpose(a[0], a[1], a[2], a[3]);
        Sixteen seed[4], x[16];
        memcpy(seed, a, sizeof seed);
        seed[0] &= ~1u;
        chacha12(seed, Sixteen{1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2, 1, 1, 2, 2}, prf.public_key, x);
        __m512i y[16];
        memcpy(y, x, sizeof y);
        for (int q = 0; q < 16; q += 4) transpose(y[q], y[q + 1], y[q + 2], y[q + 3]);
        for (int row = 0; row < 4; row++) transpose_lanes(y[row], y[4 + row], y[8 + row], y[12 + row]);
        for (int j = 0; j < 8 && i + j < n; j++) {  // node i + j: rows j / 4 (block 1) and j / 4 + 2, quarter j % 4
            const __mmask16 set = __mmask16(-(nodes[kBlock * (i + j)] & 1));
            const __m512i one = y[j / 4 + j % 4 * 4], two = y[j / 4 + 2 + j % 4 * 4];
            _mm512_storeu_si512(out + kLeafBytes * (i + j), _mm512_mask_xor_epi32(one, set, one, low));
            _mm512_storeu_si512(out + kLeafBytes * (i + j) + 64, _mm512_mask_xor_epi32(two, set, two, high));
        }
    }
}
#endif

}  // namespace
