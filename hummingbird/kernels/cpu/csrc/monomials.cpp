// Sums of ciphertexts times monomials: a fast version of reference/ciphertexts/arithmetic.py; ciphertexts/arithmetic.py
// has the bounds.
//
// X^e x is a run of N residues of (-x, x), from N - e on. For one part and one prime of all inputs, (-x, x) is laid out
// as far as the largest e needs. Then some columns of an output at a time are summed in registers over all its terms,
// for all outputs in turn: the exponents of a convolution kernel are close to each other, so the residues that these
// columns read stay in the first-level cache.

#include "panels.h"
#include "threads.h"

namespace {

struct TapSizes {
    int64_t outputs, inputs, parts, primes, degree;
};

struct Tap {
    int64_t from;  // of column 0, in the laid out inputs
    double factor;
};

constexpr int kSums = 8;  // registers of sums, to hide the latency of a product and a sum

// out[columns] = sum of all taps' factor * x[from + columns] mod q
template <class Target>
BODY void sum_taps(Target, const int32_t* x, const Tap* taps, int64_t count, double prime, int32_t* out) {
    using V = Reals<Target>;
    constexpr int lanes = sizeof(V) / 8;
    V sum[kSums] = {};
    for (int64_t t = 0; t < count; t++) {
        const int32_t* from = x + taps[t].from;
        const V factor = V{} + taps[t].factor;
        for (int j = 0; j < kSums; j++) {
            V numbers;
            widen(from + j * lanes, numbers);
            sum[j] += numbers * factor;
        }
    }
    const V q = V{} + prime, inverse = V{} + 1.0 / prime;
    for (int j = 0; j < kSums; j++) {
        reduce(sum[j], q, inverse);  // up to 2^53 - q
        reduce(sum[j], q, inverse);
        const auto words = __builtin_convertvector(sum[j], Residues<Target>);
        memcpy(out + j * lanes, &words, sizeof words);
    }
}

template <class Target>
void line(Target target, const TapSizes& s, const int64_t* first, const std::vector<Tap>& taps, double prime,
          const int32_t* x, int32_t* out) {
    constexpr int64_t columns = kSums * Target::kBytes / 8;
    for (int64_t column = 0; column < s.degree; column += columns)
        for (int64_t o = 0; o < s.outputs; o++)
            target.call(OVERLOADS(sum_taps), x + column, taps.data() + first[o], first[o + 1] - first[o], prime,
                        out + o * s.parts * s.primes * s.degree + column);
}

}  // namespace

// out (outputs, parts, primes, degree): output o is the sum of factors[t] X^shifts[t] x[inputs[t]] for first[o] <= t <
// first[o + 1]; x (inputs, parts, primes, degree); 0 <= shifts < 2 degree; sizes: five numbers in the order of `TapSizes`
API void hb_taps(const int32_t* x, const int64_t* sizes, const int64_t* first, const int64_t* inputs,
                 const int64_t* shifts, const int64_t* factors, const double* primes, int threads, int32_t* out) {
    TapSizes s;
    memcpy(&s, sizes, sizeof s);
    const int64_t terms = first[s.outputs], lines = s.parts * s.primes;
    int64_t reach = 0;  // the largest exponent below N
    for (int64_t t = 0; t < terms; t++) reach = std::max(reach, shifts[t] % s.degree);
    const int64_t length = reach + s.degree;
    std::vector<Tap> taps;
    for (int64_t t = 0; t < terms; t++) {
        const double sign = shifts[t] < s.degree ? 1 : -1;  // X^N = -1
        taps.push_back({inputs[t] * length + reach - shifts[t] % s.degree, sign * double(factors[t])});
    }
    const double work = kProduct * double(lines * s.degree) * double(terms + 2 * s.inputs + s.outputs);
    share(lines, threads, work, [&](int64_t begin, int64_t end) {
        std::vector<int32_t> laid(size_t(s.inputs * length));
        for (int64_t i = begin; i < end; i++) {
            for (int64_t input = 0; input < s.inputs; input++) {
                const int32_t* from = x + (input * lines + i) * s.degree;
                int32_t* to = laid.data() + input * length;
                for (int64_t j = 0; j < reach; j++) to[j] = -from[s.degree - reach + j];
                memcpy(to + reach, from, size_t(s.degree) * sizeof *from);
            }
            dispatch(OVERLOADS(line), s, first, taps, primes[i % s.primes], laid.data(), out + i * s.degree);
        }
    });
}
