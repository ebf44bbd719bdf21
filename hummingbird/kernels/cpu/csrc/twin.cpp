// The comparison of a simulation in one pass over memory: a fast version of reference/simulation.py;
// kernels/simulation.py has the equations and says why every step is exact. Plain loops without jumps, over blocks that
// fit the first-level cache, which the compiler vectorizes. One thread: a pass is bound by memory, and a second thread
// did not make nets faster on two cores, where torch's own workers run.

#include <cmath>

#include "dispatch.h"

namespace {

constexpr int64_t kBlock = 1024;
constexpr uint64_t kStep = 0x9E3779B97F4A7C15;

struct Bf16 {
    uint16_t bits;
};

struct Job {
    const void* v;
    void *y, *z;  // z may be null
    int64_t n;
    uint64_t key;
    int k, m, draws;
    uint64_t minus, below;
    bool wraps;
    int q;
};

BODY float real(float x) { return x; }
BODY float real(Bf16 x) {
    const uint32_t bits = uint32_t(x.bits) << 16;
    float out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

BODY void put(float& to, float x) { to = x; }
BODY void put(Bf16& to, float x) {  // to nearest, ties to even; a NaN that came in as one stays one
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    to.bits = uint16_t((bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}

// ---- u of a block, from SplitMix64: four numbers to a word, or two

BODY uint64_t mix(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

template <class Chunk, class Word>
BODY void draw(const Job& job, int64_t start, Word* u) {
    constexpr int kBits = 8 * sizeof(Chunk), kEach = 64 / kBits;
    const int right = job.m < kBits ? kBits - job.m : 0, left = job.m > kBits ? job.m - kBits : 0;
    alignas(64) uint64_t words[kBlock / kEach];
    alignas(64) Chunk chunks[kBlock];
    memset(u, 0, kBlock * sizeof(Word));
    for (int number = 0; number < job.draws; number++) {
        const uint64_t draws = uint64_t(job.draws);
        const uint64_t first = job.key + (uint64_t(start / kEach) * draws + uint64_t(number) + 1) * kStep;
        for (uint64_t i = 0; i < kBlock / kEach; i++) words[i] = mix(first + i * draws * kStep);
        memcpy(chunks, words, sizeof chunks);
        for (int64_t i = 0; i < kBlock; i++) u[i] += Word(Word(chunks[i] >> right) << left);
    }
}

// ---- y and z of a block

BODY double power(int exponent) {  // 2^exponent
    const uint64_t bits = uint64_t(1023 + exponent) << 52;
    double out;
    memcpy(&out, &bits, sizeof out);
    return out;
}

template <class Real, class Word>
BODY Real keep(bool wanted, Real x) {  // x or 0, without a jump
    Word bits;
    memcpy(&bits, &x, sizeof bits);
    bits &= Word(0) - Word(wanted);
    memcpy(&x, &bits, sizeof x);
    return x;
}

template <class Real, class Int, class Word>
struct Cut {
    Real down, up, moved, most;
    Word mask, minus, below, rest;

    BODY Cut(int k, uint64_t minus, uint64_t below, bool wraps, int q)
        : down(Real(power(16 - k))), up(Real(power(k - 16))), moved(wraps ? up : 0),
          most(Real(power(8 * sizeof(Word) - 1) - 1024)),  // 2^63 - 1024 is the largest double below 2^63
          mask(Word(~uint64_t(0) >> (64 - k))), minus(Word(minus)), below(Word(below)),
          rest((Word(1) << q) - 1) {}

    BODY Real near(Real x, Real by) const { return x - std::rint(x * down) * by; }
    BODY bool finite(Real x) const { return x - x == 0; }
    BODY Int ring(Real near) const {  // of floats |near| <= 2^14, so only doubles can come to 2^63
        const Real scaled = std::rint(keep<Real, Word>(finite(near), near) * 65536);
        return Int(sizeof(Word) == 8 && scaled > most ? most : scaled);
    }
};

// For q > 0: multiples of 2^(q-16), from integers.
template <class Real, class Int, class Word, class Value>
BODY void round_off(const Value* v, int64_t n, const Cut<Real, Int, Word>& cut, const Word* u, Value* y, Value* z) {
    for (int64_t i = 0; i < n; i++) {
        const Real near = cut.near(real(v[i]), cut.up);
        const Word r = Word(cut.ring(near)), whole = (r + (u[i] & cut.rest)) & ~cut.rest;
        const bool bit = ((r + u[i] - cut.minus) & cut.mask) < cut.below;
        const Real kept = Real(Int(whole & (Word(0) - Word(bit)))) / 65536;
        put(y[i], float(kept + keep<Real, Word>(!cut.finite(near), near)));
    }
    if (!z) return;
    const Int last = Int(cut.mask >> 1);  // 2^(k-1) - 1
    for (int64_t i = 0; i < n; i++) {
        const Real near = cut.near(real(v[i]), cut.up);
        const Int r = cut.ring(near);
        const Word over = Word(0) - Word(r > last - Int(u[i]));
        const Word whole = ((Word(r) + (u[i] & cut.rest)) & ~cut.rest) - (over & (cut.mask + 1));
        put(z[i], float(Real(Int(whole)) / 65536 + keep<Real, Word>(!cut.finite(near), near)));
    }
}

template <class Real, class Int, class Word, class Value>
BODY void compare(const Value* v, int64_t n, const Cut<Real, Int, Word>& cut, const Word* u, Value* y, Value* z) {
    if (cut.rest) return round_off(v, n, cut, u, y, z);
    for (int64_t i = 0; i < n; i++) {
        const Real x = real(v[i]), near = cut.near(x, cut.up);
        const bool bit = ((Word(cut.ring(near)) + u[i] - cut.minus) & cut.mask) < cut.below;
        put(y[i], float(keep<Real, Word>(bit | !cut.finite(near), cut.near(x, cut.moved))));
    }
    if (!z) return;
    const Int last = Int(cut.mask >> 1);  // 2^(k-1) - 1
    for (int64_t i = 0; i < n; i++) {
        const Real near = cut.near(real(v[i]), cut.up);
        put(z[i], float(near - keep<Real, Word>(cut.ring(near) > last - Int(u[i]), cut.up)));
    }
}

typedef Cut<float, int32_t, uint32_t> Narrow;
typedef Cut<double, int64_t, uint64_t> Wide;

template <class Value>
BODY bool small(const Value* v, int64_t n) {  // whether all |v| < 2^13
    int out = 0;
    for (int64_t i = 0; i < n; i++) out |= !(std::fabs(real(v[i])) < 8192.0f);
    return !out;
}

template <class Value, class Chunk>
BODY void relu(Portable, const Job& job) {
    for (int64_t start = 0; start < job.n; start += kBlock) {
        const Value* const v = (const Value*)job.v + start;
        Value* const y = (Value*)job.y + start;
        Value* const z = job.z ? (Value*)job.z + start : nullptr;
        const int64_t n = job.n - start < kBlock ? job.n - start : kBlock;
        // 32 bits are enough for k <= 31; and where |r| < 2^29 for any k: u and `minus` are then below 2^28 (at most
        // 4095 numbers below 2^16), so r + u - minus is that of k = 31 and the bit is its sign.
        if (sizeof(Chunk) == 2 && (job.k <= 31 || (job.below >> 30 && small(v, n)))) {
            const bool lower = job.k > 31;
            alignas(64) uint32_t u[kBlock];
            draw<uint16_t>(job, start, u);
            compare(v, n, Narrow(lower ? 31 : job.k, job.minus, lower ? 1 << 30 : job.below, job.wraps, job.q), u, y, z);
        } else {
            alignas(64) uint64_t u[kBlock];
            draw<Chunk>(job, start, u);
            compare(v, n, Wide(job.k, job.minus, job.below, job.wraps, job.q), u, y, z);
        }
    }
}

}  // namespace

// v, y, z: n floats, or bfloat16s if `half`; z may be null. 1 <= k <= 64, 0 <= m <= 63, 0 <= draws <= 4095,
// 0 <= q <= min(m, 16), and 0 unless `wraps`.
API void hb_twin_relu(const void* v, int64_t n, int half, uint64_t key, int k, int m, int draws, uint64_t minus,
                      uint64_t below, int wraps, int q, void* y, void* z) {
    const Job job{v, y, z, n, key, k, m, draws, minus, below, wraps != 0, q};
    if (m <= 16 && half) return dispatch(OVERLOADS(relu<Bf16, uint16_t>), job);
    if (m <= 16) return dispatch(OVERLOADS(relu<float, uint16_t>), job);
    if (half) return dispatch(OVERLOADS(relu<Bf16, uint32_t>), job);
    dispatch(OVERLOADS(relu<float, uint32_t>), job);
}
