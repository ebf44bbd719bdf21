// The steps of dpf.cpp's trees by AES: H(j, s) = AES_k(s ^ 2 j) ^ s ^ 2 j (reference/lookups.py). Included by dpf.cpp
// alone.

#pragma once

#include "aes.h"
#include "aes_x86.h"
#include "prf.h"

namespace {

// Blocks `first` .. `first + blocks - 1` of H for a node; the block's number is XORed above the control bit.
BODY void inputs(const uint8_t* node, int first, int blocks, uint8_t* x) {
    for (int j = 0; j < blocks; j++) {
        memcpy(x + kBlock * j, node, kBlock);
        x[kBlock * j] = uint8_t((node[0] & 0xFE) ^ (first + j) << 1);
    }
}

void aes_children(Portable, const Prf& prf, const uint8_t* corrections, uint8_t* nodes, int n) {
    Sliced keys;
    slice_keys(prf.round_keys, keys);
    uint8_t correction[2 * kBlock], x[8 * kBlock];
    both(corrections, correction);
    for (int i = (n - 1) / 4 * 4; i >= 0; i -= 4) {
        for (int j = 0; j < 4; j++) inputs(nodes + kBlock * (i + j), 0, 2, x + 2 * kBlock * j);
        hash8(keys, x);
        for (int j = 0; j < 4; j++) correct(nodes + kBlock * (i + j), correction, 2 * kBlock, x + 2 * kBlock * j);
        memcpy(nodes + 2 * kBlock * i, x, sizeof x);
    }
}

void aes_convert(Portable, const Prf& prf, const uint8_t* final, const uint8_t* nodes, int n, uint8_t* out) {
    Sliced keys;
    slice_keys(prf.round_keys, keys);
    for (int i = 0; i < n; i++) {
        uint8_t x[8 * kBlock];
        inputs(nodes + kBlock * i, 2, 8, x);
        hash8(keys, x);
        correct(nodes + kBlock * i, final, kLeafBytes, x);
        memcpy(out + kLeafBytes * i, x, kLeafBytes);
    }
}


#if X86
AVX2_AES BODY __m128i mask128(__m128i node) {  // the control bit, everywhere
    return _mm_sub_epi32(_mm_setzero_si128(), _mm_and_si128(_mm_shuffle_epi32(node, 0), _mm_set1_epi32(1)));
}


AVX2_AES void aes_children(Avx2Aes, const Prf& prf, const uint8_t* corrections, uint8_t* nodes, int n) {
    __m128i k[11];
    for (int r = 0; r < 11; r++) k[r] = load128(prf.round_keys[r]);
    uint8_t correction[2 * kBlock];
    both(corrections, correction);
    const __m128i left = load128(correction), right = load128(correction + kBlock), one = _mm_cvtsi32_si128(1);
    for (int i = (n - 1) / 4 * 4; i >= 0; i -= 4) {
        __m128i node[4], x[8], y[8];
        for (int j = 0; j < 4; j++) {
            node[j] = load128(nodes + kBlock * (i + j));
            x[2 * j] = _mm_andnot_si128(one, node[j]);
            x[2 * j + 1] = _mm_xor_si128(x[2 * j], _mm_cvtsi32_si128(2));
        }
        hash<8>(k, x, y);
        for (int j = 0; j < 4; j++) {
            const __m128i mask = mask128(node[j]);
            store128(nodes + 2 * kBlock * (i + j), _mm_xor_si128(y[2 * j], _mm_and_si128(mask, left)));
            store128(nodes + 2 * kBlock * (i + j) + kBlock, _mm_xor_si128(y[2 * j + 1], _mm_and_si128(mask, right)));
        }
    }
}

AVX2_AES void aes_convert(Avx2Aes, const Prf& prf, const uint8_t* final, const uint8_t* nodes, int n, uint8_t* out) {
    __m128i k[11];
    for (int r = 0; r < 11; r++) k[r] = load128(prf.round_keys[r]);
    for (int i = 0; i < n; i++) {
        const __m128i node = load128(nodes + kBlock * i), mask = mask128(node);
        __m128i x[8], y[8];
        for (int j = 0; j < 8; j++)
            x[j] = _mm_xor_si128(_mm_andnot_si128(_mm_cvtsi32_si128(1), node), _mm_cvtsi32_si128((j + 2) << 1));
        hash<8>(k, x, y);
        for (int j = 0; j < 8; j++)
            store128(out + kLeafBytes * i + kBlock * j,
                     _mm_xor_si128(y[j], _mm_and_si128(mask, load128(final + kBlock * j))));
    }
}

// ---- VAES: four blocks in a register

AVX512_AES BODY __m512i mask512(__m512i node) {
    return _mm512_sub_epi32(_mm512_setzero_si512(),
                            _mm512_and_si512(_mm512_shuffle_epi32(node, _MM_PERM_AAAA), _mm512_set1_epi32(1)));
}
AVX512_AES BODY __m512i fixed512(__m512i x, __m512i mask, __m512i correction) {  // x ^ (mask & correction)
    return _mm512_ternarylogic_epi64(x, mask, correction, 0x78);
}
AVX512_AES BODY __m512i seed512(__m512i node) {
    return _mm512_andnot_si512(_mm512_broadcast_i32x4(_mm_cvtsi32_si128(1)), node);
}
AVX512_AES BODY __m512i number512(int a, int b, int c, int d) {  // numbers of blocks, in place
    return _mm512_setr_epi64(2 * a, 0, 2 * b, 0, 2 * c, 0, 2 * d, 0);
}
AVX512_AES BODY void keys512(const Prf& prf, __m512i* k) {
    for (int r = 0; r < 11; r++) k[r] = _mm512_broadcast_i32x4(load128(prf.round_keys[r]));
}

template <int U>  // 2 U nodes in U registers
AVX512_AES BODY void children512(const __m512i* k, __m512i correction, const uint8_t* nodes, uint8_t* out) {
    __m512i node[U], x[U], y[U];
    for (int u = 0; u < U; u++) {
        const __m512i pair = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i*)(nodes + 2 * kBlock * u)));
        node[u] = _mm512_permutexvar_epi64(_mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3), pair);
        x[u] = _mm512_xor_si512(seed512(node[u]), number512(0, 1, 0, 1));
    }
    hash<U>(k, x, y);
    for (int u = 0; u < U; u++) _mm512_storeu_si512(out + 64 * u, fixed512(y[u], mask512(node[u]), correction));
}

AVX512_AES void aes_children(Avx512Aes, const Prf& prf, const uint8_t* corrections, uint8_t* nodes, int n) {
    __m512i k[11];
    keys512(prf, k);
    uint8_t bytes[2 * kBlock];
    both(corrections, bytes);
    const __m512i correction = _mm512_broadcast_i64x4(_mm256_loadu_si256((const __m256i*)bytes));
    if (n <= 2) return children512<1>(k, correction, nodes, nodes);
    if (n <= 8) return children512<4>(k, correction, nodes, nodes);
    for (int i = (n - 1) / 16 * 16; i >= 0; i -= 16)
        children512<8>(k, correction, nodes + kBlock * i, nodes + 2 * kBlock * i);
}

AVX512_AES void aes_convert(Avx512Aes, const Prf& prf, const uint8_t* final, const uint8_t* nodes, int n,
                            uint8_t* out) {
    __m512i k[11];
    keys512(prf, k);
    const __m512i low = load512(final), high = load512(final + 64);
    for (int i = 0; i < n; i += 4) {  // the buffer has a multiple of eight nodes
        __m512i node[4], x[8], y[8];
        for (int j = 0; j < 4; j++) {
            node[j] = _mm512_broadcast_i32x4(load128(nodes + kBlock * (i + j)));
            x[2 * j] = _mm512_xor_si512(seed512(node[j]), number512(2, 3, 4, 5));
            x[2 * j + 1] = _mm512_xor_si512(seed512(node[j]), number512(6, 7, 8, 9));
        }
        hash<8>(k, x, y);
        for (int j = 0; j < 4 && i + j < n; j++) {
            const __m512i mask = mask512(node[j]);
            _mm512_storeu_si512(out + kLeafBytes * (i + j), fixed512(y[2 * j], mask, low));
            _mm512_storeu_si512(out + kLeafBytes * (i + j) + 64, fixed512(y[2 * j + 1], mask, high));
        }
    }
}
#endif

}  // namespace
