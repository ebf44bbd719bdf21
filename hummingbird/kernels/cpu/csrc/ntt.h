// The transform of ciphertexts/ring.py on one vector type at a time; ntt.cpp has the operations fused with it.
//
// Residues are float64 integers here. With |w| <= q/2 and |x| <= 2^28, x w is exact, below 2^53, and so is
// x w - round(x w / q) q, which is at most q/2 + 1 with or without fused instructions. Sums stay unreduced as long as
// they are below 2^28 (D. Harvey, Faster arithmetic for number-theoretic transforms, 2014; in float64: van der Hoeven,
// Lecerf, Quintin, Modular SIMD arithmetic in Mathemagix, ACM TOMS 2016). Bounds below are in units of 2^25, at least
// q/2 + 1. Two levels are computed in one pass over memory; the last three, on blocks of eight, for one block in each
// lane of a vector, transposed.

#pragma once

#include <type_traits>

#include "reals.h"

namespace {

typedef VectorOf<double, 64>::type Double8;
typedef VectorOf<double, 32>::type Double4;
typedef ResiduesOf<32>::type Int8;
typedef ResiduesOf<16>::type Int4;

// The operand of a step: with registers of 16 bytes one number, as `columns` and `rows` have no version for two.
template <class Target>
using Real = std::conditional_t<(Target::kBytes > 16), Reals<Target>, double>;

template <class V>
constexpr int kLanes = sizeof(V) / 8;

// Vectors are passed by reference: by value, the calling convention would depend on the target.
BODY void load(Double8& v, const int32_t* from) { v = __builtin_convertvector(*(const Int8*)from, Double8); }
BODY void load(Double4& v, const int32_t* from) { v = __builtin_convertvector(*(const Int4*)from, Double4); }
BODY void load(double& v, const int32_t* from) { v = *from; }
BODY void store(int32_t* to, const Double8& v) { *(Int8*)to = __builtin_convertvector(v, Int8); }
BODY void store(int32_t* to, const Double4& v) { *(Int4*)to = __builtin_convertvector(v, Int4); }
BODY void store(int32_t* to, const double& v) { *to = int32_t(v); }

template <class V>
struct Modulus {
    V q, inverse;

    BODY explicit Modulus(double prime) : q(V{} + prime), inverse(V{} + 1.0 / prime) {}

    // |x| < 2^53 - q: |x| <= q/2 + 1 after it, and centred if |x| < 2^51, as reference/ciphertexts/ring.py says.
    BODY void reduce(V& x) const { ::reduce(x, q, inverse); }
    BODY void multiply(V& x, const V& w) const {
        x = x * w;
        reduce(x);
    }
};

// ---- eight vectors: kLanes rows of eight values, to eight columns of kLanes values, and back

#if defined(__clang__)
#define MIX(to, Index, a, b, ...) to = __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int64_t Index8 __attribute__((vector_size(64)));
typedef int64_t Index4 __attribute__((vector_size(32)));
#define MIX(to, Index, a, b, ...) to = __builtin_shuffle(a, b, Index{__VA_ARGS__})
#endif

BODY void columns(Double8* r) {
    Double8 s[8], t[8];
    for (int i = 0; i < 8; i += 2) {
        MIX(s[i], Index8, r[i], r[i + 1], 0, 8, 2, 10, 4, 12, 6, 14);
        MIX(s[i + 1], Index8, r[i], r[i + 1], 1, 9, 3, 11, 5, 13, 7, 15);
    }
    for (int i = 0; i < 8; i += 4)
        for (int j = i; j < i + 2; j++) {
            MIX(t[j], Index8, s[j], s[j + 2], 0, 1, 8, 9, 4, 5, 12, 13);
            MIX(t[j + 2], Index8, s[j], s[j + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        }
    for (int j = 0; j < 4; j++) {
        MIX(r[j], Index8, t[j], t[j + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        MIX(r[j + 4], Index8, t[j], t[j + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}
BODY void rows(Double8* c) { columns(c); }

BODY void quarter(const Double4& a, const Double4& b, const Double4& c, const Double4& d, Double4* to, int step) {
    Double4 s[4];
    MIX(s[0], Index4, a, b, 0, 4, 2, 6);
    MIX(s[1], Index4, a, b, 1, 5, 3, 7);
    MIX(s[2], Index4, c, d, 0, 4, 2, 6);
    MIX(s[3], Index4, c, d, 1, 5, 3, 7);
    for (int j = 0; j < 2; j++) {
        MIX(to[j * step], Index4, s[j], s[j + 2], 0, 1, 4, 5);
        MIX(to[(j + 2) * step], Index4, s[j], s[j + 2], 2, 3, 6, 7);
    }
}
BODY void columns(Double4* r) {  // a row is two vectors
    Double4 c[8];
    for (int half = 0; half < 2; half++) quarter(r[half], r[2 + half], r[4 + half], r[6 + half], c + 4 * half, 1);
    for (int k = 0; k < 8; k++) r[k] = c[k];
}
BODY void rows(Double4* c) {
    Double4 r[8];
    for (int half = 0; half < 2; half++) {
        const Double4* const from = c + 4 * half;
        quarter(from[0], from[1], from[2], from[3], r + half, 2);
    }
    for (int k = 0; k < 8; k++) c[k] = r[k];
}
BODY void columns(double*) {}
BODY void rows(double*) {}

// ---- the steps. Factors, from `_table` of cpu/ciphertexts.py: w[groups + g] is the one of group g of a level, w[0] is
// 1/N in the inverse; after these N/8 factors, seven vectors of eight for every 64 values, a lane for each group of 8.

// (a, b) -> (a + w b, a - w b)
template <class V>
BODY void split(V& a, V& b, const V& w, const Modulus<V>& m) {
    m.multiply(b, w);
    const V sum = a + b;
    b = a - b;
    a = sum;
}

// (a, b) -> (a + b, (a - b) w)
template <class V>
BODY void join(V& a, V& b, const V& w, const Modulus<V>& m) {
    const V sum = a + b;
    b = a - b;
    m.multiply(b, w);
    a = sum;
}

template <class V, bool kReduce, class In>
BODY void split4(const In& in, double* x, const double* w, const Modulus<V>& m, int64_t groups, int64_t t) {
    for (int64_t g = 0; g < groups; g++) {
        const V w1 = V{} + w[groups + g], w2 = V{} + w[2 * groups + 2 * g], w3 = V{} + w[2 * groups + 2 * g + 1];
        for (int64_t i = 4 * t * g; i < 4 * t * g + t; i += kLanes<V>) {
            V a, b, c, d;
            in(a, i), in(b, i + t), in(c, i + 2 * t), in(d, i + 3 * t);
            if (kReduce) m.reduce(a), m.reduce(b);
            split(a, c, w1, m), split(b, d, w1, m);
            split(a, b, w2, m), split(c, d, w3, m);
            *(V*)(x + i) = a, *(V*)(x + i + t) = b, *(V*)(x + i + 2 * t) = c, *(V*)(x + i + 3 * t) = d;
        }
    }
}

// in(v, i): coefficients i .. of absolute value <= 1 unit. out(v, i): values, <= 9 units. x: N doubles.
template <class V, class In, class Out>
BODY void forward(const In& in, const Out& out, double* x, const double* w, const Modulus<V>& m, int64_t n) {
    const auto stay = [x](V& v, int64_t i) INLINE { v = *(const V*)(x + i); };
    split4<V, false>(in, x, w, m, 1, n / 4);
    int bound = 3;  // units, at most 5 before a pass: factors meet at most 7
    int64_t groups = 4, t = n / 16;
    for (; t >= 8; groups *= 4, t /= 4) {
        if (bound == 5) split4<V, true>(stay, x, w, m, groups, t), bound = 3;
        else split4<V, false>(stay, x, w, m, groups, t), bound = 5;
    }
    if (t == 4)  // N is an even power of two: blocks of 16 are left
        for (int64_t i = 0; i < n; i += 16)
            for (int64_t j = i; j < i + 8; j += kLanes<V>)
                split(*(V*)(x + j), *(V*)(x + j + 8), V{} + w[groups + i / 16], m);  // to 6 units
    for (int64_t i = 0; i < n; i += 8 * kLanes<V>) {
        const double* f = w + n / 8 + i / 64 * 56 + i / 8 % 8;
        V c[8];
        for (int k = 0; k < 8; k++) c[k] = *(const V*)(x + i + k * kLanes<V>);
        columns(c);
        for (int k = 0; k < 4; k++) split(c[k], c[k + 4], *(const V*)f, m);  // a factor meets 6 units, then 7, 8
        for (int k = 0; k < 2; k++) split(c[k], c[k + 2], *(const V*)(f + 8), m);
        for (int k = 4; k < 6; k++) split(c[k], c[k + 2], *(const V*)(f + 16), m);
        for (int k = 0; k < 8; k += 2) split(c[k], c[k + 1], *(const V*)(f + 24 + 4 * k), m);
        rows(c);
        for (int k = 0; k < 8; k++) out(c[k], i + k * kLanes<V>);
    }
}

template <class V, bool kLast, class Out>
BODY void join4(const Out& out, const double* x, const double* w, const Modulus<V>& m, int64_t groups, int64_t t) {
    const V scale = V{} + w[0];
    for (int64_t g = 0; g < groups; g++) {
        const V w1 = V{} + w[groups + g], w2 = V{} + w[2 * groups + 2 * g], w3 = V{} + w[2 * groups + 2 * g + 1];
        for (int64_t i = 4 * t * g; i < 4 * t * g + t; i += kLanes<V>) {
            V a = *(const V*)(x + i), b = *(const V*)(x + i + t);  // 2 units each
            V c = *(const V*)(x + i + 2 * t), d = *(const V*)(x + i + 3 * t);
            join(a, b, w2, m), join(c, d, w3, m);  // 4, 1, 4, 1
            join(a, c, w1, m), join(b, d, w1, m);  // 8, 2, 1, 1
            if (kLast) m.multiply(a, scale), m.multiply(b, scale);  // here w1 has 1/N in it
            else m.reduce(a);
            out(a, i), out(b, i + t), out(c, i + 2 * t), out(d, i + 3 * t);
        }
    }
}

// in(v, i): values of absolute value <= 1 unit. out(v, i): coefficients, <= 1 unit. x: N doubles.
template <class V, class In, class Out>
BODY void inverse(const In& in, const Out& out, double* x, const double* w, const Modulus<V>& m, int64_t n) {
    for (int64_t i = 0; i < n; i += 8 * kLanes<V>) {
        const double* f = w + n / 8 + i / 64 * 56 + i / 8 % 8;
        V c[8];
        for (int k = 0; k < 8; k++) in(c[k], i + k * kLanes<V>);
        columns(c);
        for (int k = 0; k < 8; k += 2) join(c[k], c[k + 1], *(const V*)(f + 24 + 4 * k), m);
        for (int k = 0; k < 2; k++) join(c[k], c[k + 2], *(const V*)(f + 8), m);
        for (int k = 4; k < 6; k++) join(c[k], c[k + 2], *(const V*)(f + 16), m);
        for (int k = 0; k < 4; k++) join(c[k], c[k + 4], *(const V*)f, m);  // 8, 4, 2, 2, 1, 1, 1, 1
        m.reduce(c[0]), m.reduce(c[1]);
        rows(c);
        for (int k = 0; k < 8; k++) *(V*)(x + i + k * kLanes<V>) = c[k];
    }
    const auto stay = [x](V& v, int64_t i) INLINE { *(V*)(x + i) = v; };
    int64_t groups = n / 32, t = 8;
    if (__builtin_ctzll(uint64_t(n)) % 2 == 0) {
        for (int64_t i = 0; i < n; i += 16)
            for (int64_t j = i; j < i + 8; j += kLanes<V>) {
                join(*(V*)(x + j), *(V*)(x + j + 8), V{} + w[n / 16 + i / 16], m);
                m.reduce(*(V*)(x + j));
            }
        groups = n / 64, t = 16;
    }
    for (; groups > 1; groups /= 4, t *= 4) join4<V, false>(stay, x, w, m, groups, t);
    join4<V, true>(out, x, w, m, 1, t);
}

}  // namespace
