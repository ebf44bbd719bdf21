// AES_k(x) ^ x by the instructions of x86: AES-NI beside AVX2, VAES beside AVX-512. Eight registers at once hide their
// latency.

#pragma once

#include "dispatch.h"

#if X86

namespace {

#define HASH(V, encrypt, last, XOR)                                              \
    V s[U];                                                                      \
    for (int u = 0; u < U; u++) s[u] = XOR(x[u], k[0]);                          \
    for (int r = 1; r < 10; r++)                                                 \
        for (int u = 0; u < U; u++) s[u] = encrypt(s[u], k[r]);                  \
    for (int u = 0; u < U; u++) y[u] = XOR(last(s[u], k[10]), x[u])

AVX2_AES BODY __m128i load128(const void* p) { return _mm_loadu_si128((const __m128i*)p); }
AVX2_AES BODY void store128(void* p, __m128i x) { _mm_storeu_si128((__m128i*)p, x); }

template <int U>
AVX2_AES BODY void hash(const __m128i* k, const __m128i* x, __m128i* y) {
    HASH(__m128i, _mm_aesenc_si128, _mm_aesenclast_si128, _mm_xor_si128);
}

// ---- VAES: four blocks in a register

AVX512_AES BODY __m512i load512(const void* p) { return _mm512_loadu_si512(p); }

template <int U>
AVX512_AES BODY void hash(const __m512i* k, const __m512i* x, __m512i* y) {
    HASH(__m512i, _mm512_aesenc_epi128, _mm512_aesenclast_epi128, _mm512_xor_si512);
}

#undef HASH

}  // namespace

#endif
