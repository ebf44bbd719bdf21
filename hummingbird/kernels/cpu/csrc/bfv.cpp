// BFV's operations for CPUs: fast versions of reference/ciphertexts/arithmetic.py; ciphertexts/arithmetic.py has the
// bounds.
//
// Products are of 32-bit integers, with 64-bit sums. In a register of 2 n residues, one multiplication, which reads the
// lower halves of 64-bit lanes, multiplies the n even ones, and another, after a shift, the n odd ones. A sum stays
// below 2^62 without reduction, so only one sum is reduced for all products of a value.

#include "reals.h"
#include "threads.h"

namespace {

template <class Target>
using Lanes = Vector<int64_t, Target>;
template <class Target>
constexpr int kResidues = Target::kBytes / 4;  // in a register

template <class V>
BODY void load(V& v, const void* from) {
    memcpy(&v, from, sizeof v);
}
template <class V>
BODY void store(void* to, const V& v) {
    memcpy(to, &v, sizeof v);
}

// Reduces a sum to its centred residue, in the lower half of the lane; ignore the upper half. One product is at most
// 2^50. For a sum, |x| < 2^62: x + 2^62 = h 2^32 + l with h < 2^31 and l < 2^32, so x = (h - 2^30) 2^32 + l.
template <class Target>
struct Residue {
    using V = Lanes<Target>;
    using R = Reals<Target>;
    R q, inverse, power;  // power: 2^32 mod q, centred

    BODY explicit Residue(double prime) : q(R{} + prime), inverse(R{} + 1.0 / prime), power(R{} + 4294967296.0) {
        reduce(power, q, inverse);
    }

    // An integer |v| < 2^51 as a number, and back: both are the last bits of 1.5 2^52 + v.
    BODY static void number(R& out, const V& v) { out = (R)(v + 0x4338000000000000) - 6755399441055744.0; }
    BODY static void integer(V& out, const R& v) { out = (V)(v + 6755399441055744.0); }

    BODY void of_product(V& x) const {
        R v;
        number(v, x);
        reduce(v, q, inverse);
        integer(x, v);
    }

    BODY void of_sum(V& x) const {
        const Vector<uint64_t, Target> biased = (Vector<uint64_t, Target>)x + (uint64_t(1) << 62);
        R high, low;
        number(high, (V)(biased >> 32)), number(low, (V)(biased & 0xFFFFFFFF));
        high = high - 1073741824.0;
        reduce(high, q, inverse);
        high = high * power + low;  // below 2^50 + 2^32
        reduce(high, q, inverse);
        integer(x, high);
    }
};

// ---- accumulate

struct Sizes {
    int64_t outputs, inputs, parts, primes, degree;
};

struct Job {
    const int32_t *weights, *x;
    const int64_t *order, *inputs, *first;
    Sizes s;
    const double* primes;
    int32_t* out;
};

// Columns at a time: their residues of all inputs fit the second-level cache, and their sums the first.
constexpr int64_t kMostColumns = 1024, kLeastColumns = 128, kCache = 1 << 17;  // residues: 512 KiB

constexpr int kTerms = 4;  // products for each time that a sum is read and written

// sums += the sum of w[t] x[t] for t < terms, n residues each, or = if `first`; even and odd ones are apart, register by
// register.
#define ADD_PRODUCTS(Target, attribute, multiply_add)                                                            \
    template <int terms>                                                                                         \
    attribute void add_terms(Target, const int32_t* const* w, const int32_t* const* x, int64_t n, bool first,    \
                             int64_t* sums) {                                                                    \
        using V = Lanes<Target>;                                                                                 \
        using U = Vector<uint64_t, Target>;                                                                      \
        for (int64_t i = 0; i < n; i += kResidues<Target>) {                                                     \
            V even{}, odd{};                                                                                     \
            if (!first) load(even, sums + i), load(odd, sums + i + kResidues<Target> / 2);                       \
            for (int t = 0; t < terms; t++) {                                                                    \
                V a, b;                                                                                          \
                load(a, w[t] + i), load(b, x[t] + i);                                                            \
                multiply_add(even, a, b);                                                                        \
                multiply_add(odd, (V)((U)a >> 32), (V)((U)b >> 32));                                             \
            }                                                                                                    \
            store(sums + i, even), store(sums + i + kResidues<Target> / 2, odd);                                 \
        }                                                                                                        \
    }                                                                                                            \
    attribute void add_products(Target target, int terms, const int32_t* const* w, const int32_t* const* x,      \
                                int64_t n, bool first, int64_t* sums) {                                          \
        if (terms == kTerms) return add_terms<kTerms>(target, w, x, n, first, sums);                             \
        for (int t = 0; t < terms; t++) add_terms<1>(target, w + t, x + t, n, first && !t, sums);                \
    }

#define EACH_LANE(sum, a, b) \
    for (unsigned lane = 0; lane < sizeof(V) / 8; lane++) sum[lane] += int64_t(int32_t((a)[lane])) * int32_t((b)[lane])
#define LANES_256(sum, a, b) sum += (V)_mm256_mul_epi32((__m256i)(a), (__m256i)(b))
#define LANES_512(sum, a, b) sum += (V)_mm512_mul_epi32((__m512i)(a), (__m512i)(b))

ADD_PRODUCTS(Portable, , EACH_LANE)
#if X86
ADD_PRODUCTS(Avx2, AVX2, LANES_256)
ADD_PRODUCTS(Avx512, AVX512, LANES_512)
#endif
#undef ADD_PRODUCTS
#undef EACH_LANE
#undef LANES_256
#undef LANES_512

template <class Target>
BODY void accumulate(Target target, const Job& job, int64_t prime, int64_t column, int64_t n, int64_t* sums) {
    using V = Lanes<Target>;
    const Sizes& s = job.s;
    const int64_t size = s.primes * s.degree, at = prime * s.degree + column;
    const Residue<Target> residue(job.primes[prime]);
    for (int64_t o = 0; o < s.outputs; o++) {
        const int64_t first = job.first[o], last = job.first[o + 1];
        if (first == last) memset(sums, 0, size_t(s.parts * n) * 8);
        for (int64_t p = first; p < last; p += kTerms) {
            const int count = int(std::min<int64_t>(kTerms, last - p));
            const int32_t *w[kTerms], *x[kTerms];
            for (int64_t part = 0; part < s.parts; part++) {
                for (int t = 0; t < count; t++) {
                    w[t] = job.weights + job.order[p + t] * size + at;
                    x[t] = job.x + (job.inputs[p + t] * s.parts + part) * size + at;
                }
                add_products(target, count, w, x, n, p == first, sums + part * n);
            }
        }
        for (int64_t part = 0; part < s.parts; part++)
            for (int64_t i = 0; i < n; i += kResidues<Target>) {
                V even, odd;
                load(even, sums + part * n + i), load(odd, sums + part * n + i + kResidues<Target> / 2);
                if (last - first > 1) residue.of_sum(even), residue.of_sum(odd);
                else residue.of_product(even), residue.of_product(odd);
                const V both = (even & 0xFFFFFFFF) | odd << 32;
                store(job.out + (o * s.parts + part) * size + at + i, both);
            }
    }
}

// ---- encode

// out = error - v / 2^k mod q, v = factor x mod 2^k with its sign
template <class Target>
BODY void encode(Target, const int64_t* x, const int32_t* error, int64_t n, int k, uint64_t factor, double inverse,
                 double q, int32_t* out) {
    using V = Reals<Target>;
    constexpr int lanes = sizeof(V) / 8;
    const V prime = V{} + q, reciprocal = V{} + 1.0 / q;
    for (int64_t i = 0; i < n; i += lanes) {
        int32_t words[lanes];
        for (int j = 0; j < lanes; j++) words[j] = int32_t(uint32_t(uint64_t(x[i + j]) * factor) << (32 - k)) >> (32 - k);
        Residues<Target> integers, errors;
        memcpy(&integers, words, sizeof integers);
        memcpy(&errors, error + i, sizeof errors);
        V v = __builtin_convertvector(integers, V);
        reduce(v, prime, reciprocal);
        v = __builtin_convertvector(errors, V) - v * inverse;  // below 2^50 + 2^30
        reduce(v, prime, reciprocal);
        integers = __builtin_convertvector(v, Residues<Target>);
        memcpy(out + i, &integers, sizeof integers);
    }
}

}  // namespace

// out (outputs, parts, primes, degree): output o is the sum of weights (.., primes, degree) order[i] times x (inputs,
// parts, primes, degree) inputs[i] for first[o] <= i < first[o + 1]; sizes: five numbers in the order of `Sizes`
API void hb_accumulate(const int32_t* weights, const int32_t* x, const int64_t* order, const int64_t* inputs,
                       const int64_t* first, const int64_t* sizes, const double* primes, int threads, int32_t* out) {
    Job job{weights, x, order, inputs, first, {}, primes, out};
    memcpy(&job.s, sizes, sizeof job.s);
    const Sizes& s = job.s;
    int64_t columns = kMostColumns;
    while (columns > kLeastColumns && columns * s.inputs * s.parts > kCache) columns /= 2;
    const int64_t pieces = s.degree / columns;
    const double work = kProduct * double(first[s.outputs] * s.parts * s.primes * s.degree);
    share(s.primes * pieces, threads, work, [&](int64_t begin, int64_t end) {
        std::vector<int64_t> sums(size_t(s.parts * columns));
        for (int64_t i = begin; i < end; i++)
            dispatch(OVERLOADS(accumulate), job, i / pieces, i % pieces * columns, columns, sums.data());
    });
}

// x, error: (n, degree). out: (n, primes, degree). factor: Q mod 2^k; inverses: of 2^k modulo each prime, centred.
API void hb_encode(const int64_t* x, const int32_t* error, int64_t n, int64_t primes, int64_t degree, int k,
                   uint64_t factor, const double* inverses, const double* q, int32_t* out) {
    for (int64_t row = 0; row < n; row++)
        for (int64_t l = 0; l < primes; l++)
            dispatch(OVERLOADS(encode), x + row * degree, error + row * degree, degree, k, factor, inverses[l], q[l],
                     out + (row * primes + l) * degree);
}
