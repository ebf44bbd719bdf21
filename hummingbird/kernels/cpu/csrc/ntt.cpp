// Polynomials on CPUs: fast versions of ring.py and polynomials.py of reference/ciphertexts, which are the
// definitions. A polynomial modulo one prime is computed in a buffer that fits the nearest cache; operations before and
// after its transform are part of the first and the last pass.

#include "ntt.h"
#include "threads.h"

namespace {

struct Job {
    const double* tables;  // of each prime: itself, 7 unused, the factors of `forward` (N), those of `inverse` (N)
    int64_t primes, n, parts;
    const int32_t *x, *message, *noise, *secret;
    bool ntt;
    int32_t* out;
};

// One polynomial modulo one prime: its tables, and where its residues are.
template <class V>
struct Place {
    const Modulus<V> m;
    const double* forward;
    const double* inverse;
    int64_t n, row, at, size;  // at: of the residues of prime l in a tensor (L, N); size: of that tensor

    BODY Place(const Job& job, int64_t row, int64_t l)
        : m(job.tables[l * (2 * job.n + 8)]), forward(job.tables + l * (2 * job.n + 8) + 8), inverse(forward + job.n),
          n(job.n), row(row), at(l * job.n), size(job.primes * job.n) {}
};

// out = the transform of x, or its inverse
template <class Target>
BODY void transform(Target, const Job& job, int64_t row, int64_t l, double* x) {
    using V = Real<Target>;
    const Place<V> p(job, row, l);
    const int32_t* const from = job.x + p.row * p.size + p.at;
    int32_t* const to = job.out + p.row * p.size + p.at;
    const auto in = [&](V& v, int64_t i) INLINE { load(v, from + i); };
    const auto out = [&](V& v, int64_t i) INLINE {
        p.m.reduce(v);
        store(to + i, v);
    };
    if (job.ntt) forward<V>(in, out, x, p.forward, p.m, p.n);
    else inverse<V>(in, out, x, p.inverse, p.m, p.n);
}

// out = message + noise - x secret; values if job.ntt
template <class Target>
BODY void encrypt(Target, const Job& job, int64_t row, int64_t l, double* x) {
    using V = Real<Target>;
    const Place<V> p(job, row, l);
    const int32_t *const a = job.x + p.row * p.size + p.at, *const s = job.secret + p.at;
    const int32_t *const message = job.message + p.row * p.n, *const noise = job.noise + p.row * p.n;
    int32_t* const to = job.out + p.row * p.size + p.at;
    const auto product = [&](V& v, int64_t i) INLINE {
        V factor;
        load(v, a + i), load(factor, s + i);
        p.m.multiply(v, factor);
    };
    const auto plain = [&](V& v, int64_t i) INLINE {
        V e;
        load(v, message + i), load(e, noise + i);
        v = v + e;
    };
    if (job.ntt) {
        const auto in = [&](V& v, int64_t i) INLINE {
            plain(v, i);
            p.m.reduce(v);
        };
        const auto out = [&](V& v, int64_t i) INLINE {
            V masked;
            product(masked, i);
            v = v - masked;
            p.m.reduce(v);
            store(to + i, v);
        };
        forward<V>(in, out, x, p.forward, p.m, p.n);
    } else {
        const auto out = [&](V& v, int64_t i) INLINE {
            V sum;
            plain(sum, i);
            v = sum - v;  // below 2^30 + 2^25
            p.m.reduce(v);
            store(to + i, v);
        };
        inverse<V>(product, out, x, p.inverse, p.m, p.n);
    }
}

// out = the coefficients of sum x_i secret^i; of two parts, the first of them coefficients already, if not job.ntt
template <class Target>
BODY void phase(Target, const Job& job, int64_t row, int64_t l, double* x) {
    using V = Real<Target>;
    const Place<V> p(job, row, l);
    const int32_t *const c = job.x + p.row * job.parts * p.size + p.at, *const s = job.secret + p.at;
    int32_t* const to = job.out + p.row * p.size + p.at;
    const int64_t last = job.parts - 1;
    const auto sum = [&](V& v, int64_t i) INLINE {
        V factor, part;
        load(v, c + last * p.size + i), load(factor, s + i);
        for (int64_t k = last - 1; k >= 0; k--) {
            load(part, c + k * p.size + i);
            v = v * factor + part;  // below 2^50 + 2^25
            p.m.reduce(v);
        }
    };
    const auto product = [&](V& v, int64_t i) INLINE {
        V factor;
        load(v, c + p.size + i), load(factor, s + i);
        p.m.multiply(v, factor);
    };
    const auto put = [&](V& v, int64_t i) INLINE {
        p.m.reduce(v);
        store(to + i, v);
    };
    const auto add = [&](V& v, int64_t i) INLINE {
        V part;
        load(part, c + i);
        v = v + part;
        put(v, i);
    };
    if (job.ntt) inverse<V>(sum, put, x, p.inverse, p.m, p.n);
    else inverse<V>(product, add, x, p.inverse, p.m, p.n);
}

// kernel(job, row, l, N doubles) for all polynomials and primes. A residue takes about 3/4 ns.
template <class F>
void each(const Job& job, int64_t count, int threads, const F& kernel) {
    struct alignas(64) Line {
        double values[8];
    };
    share(count, threads, 0.75 * double(count * job.primes * job.n), [&](int64_t first, int64_t last) {
        std::vector<Line> buffer(size_t(job.n / 8));
        double* const x = buffer[0].values;
        for (int64_t row = first; row < last; row++)
            for (int64_t l = 0; l < job.primes; l++) dispatch(kernel, job, row, l, x);
    });
}

// ---- residues one by one: plain loops, of which the compiler makes vectors

constexpr uint32_t kWord = (1 << 26) - 1;  // a residue without sign is drawn and packed in 26 bits

BODY void noise(Portable, const uint64_t* words, int64_t count, int32_t* out) {
    for (int64_t i = 0; i < count; i++) {  // ones among 42 bits, in fields of 2, 4, 8, then all bits
        uint64_t v = words[i] & 0x3FFFFFFFFFF;
        v -= v >> 1 & 0x15555555555;
        v = (v & 0x333333333333) + (v >> 2 & 0x333333333333);
        v = (v + (v >> 4)) & 0x0F0F0F0F0F0F;
        v += v >> 8;
        v += (v >> 16) + (v >> 32);
        out[i] = int32_t(v & 0xFF) - 21;
    }
}

// Converts words x to centred residues of q. Returns how many must be drawn again; `again`: their indices from `first`.
BODY int64_t uniform(Portable, int32_t* x, int64_t n, int32_t q, int64_t first, int64_t* again) {
    int64_t found = 0;
    for (int64_t start = 0; start < n; start += 64) {
        int32_t* const here = x + start;
        int32_t worst = 0;
        for (int i = 0; i < 64; i++) {
            const int32_t v = here[i] & int32_t(kWord);
            worst = v > worst ? v : worst;
        }
        if (worst >= q)
            for (int i = 0; i < 64; i++)
                if ((here[i] & int32_t(kWord)) >= q) again[found++] = first + start + i;
        for (int i = 0; i < 64; i++) {
            const int32_t v = here[i] & int32_t(kWord);
            here[i] = v - (v > q / 2 ? q : 0);
        }
    }
    return found;
}

// out = the residues of n integers, `digits` words of 32 bits each, `stride` apart, the highest first and with a sign
template <class Target>
BODY void wide(Target, const int32_t* words, int64_t digits, int64_t stride, int spare, int64_t n, double q,
               int32_t* out) {
    using V = Real<Target>;
    constexpr int64_t lanes = kLanes<V>;
    const Modulus<V> m(q);
    V power = V{} + 4294967296.0;
    m.reduce(power);
    for (int64_t i = 0; i < n; i += lanes) {
        int32_t word[lanes];
        for (int j = 0; j < lanes; j++) word[j] = words[i + j] >> spare;
        V total, digit;
        load(total, word);
        m.reduce(total);
        for (int64_t k = 1; k < digits; k++) {
            for (int j = 0; j < lanes; j++) word[j] = int32_t(uint32_t(words[k * stride + i + j]) ^ 0x80000000);
            load(digit, word);
            total = total * power + (digit + 2147483648.0);  // below 2^50 + 2^32
            m.reduce(total);
        }
        store(out + i, total);
    }
}

// The format of `pack` in ciphertexts/polynomials.py: three planes for a polynomial, at any address.
typedef uint16_t Loose16 __attribute__((aligned(1), may_alias));

BODY void pack(Portable, const int32_t* __restrict__ x, int64_t n, int32_t q, uint8_t* __restrict__ out) {
    Loose16* const low = (Loose16*)out;
    uint8_t *const middle = out + 2 * n, *const top = out + 3 * n;
    memset(top, 0, size_t(n / 4));
    for (int64_t j = 0; j < 4; j++)
        for (int64_t i = 0; i < n / 4; i++) {
            const int64_t at = i + j * (n / 4);
            const uint32_t v = uint32_t(x[at] + (x[at] >> 31 & q));
            low[at] = uint16_t(v);
            middle[at] = uint8_t(v >> 16);
            top[i] |= uint8_t(v >> 24 << 2 * j);
        }
}

BODY bool unpack(Portable, const uint8_t* __restrict__ data, int64_t n, int32_t q, int32_t* __restrict__ out) {
    const Loose16* const low = (const Loose16*)data;
    const uint8_t *const middle = data + 2 * n, *const top = data + 3 * n;
    int32_t wrong = 0;
    for (int64_t j = 0; j < 4; j++)
        for (int64_t i = 0; i < n / 4; i++) {
            const int64_t at = i + j * (n / 4);
            const int32_t v = low[at] | middle[at] << 16 | (top[i] >> 2 * j & 3) << 24;
            wrong |= q - 1 - v;  // negative if v >= q
            out[at] = v - ((q / 2 - v) >> 31 & q);
        }
    return wrong >= 0;
}

// x: (L, N). table: all primes, then of every digit k but the last the inverses of q_k mod q_{k+1} .. q_{L-1}.
template <class Target>
BODY void compose(Target, const int32_t* x, int64_t primes, int64_t n, const double* table, double* out) {
    using V = Real<Target>;
    constexpr int kBlock = 64 / kLanes<V>;  // vectors, so that there are sums to do while others wait
    V digits[64][kBlock];
    for (int64_t i = 0; i < n; i += 64) {
        const double* factor = table + primes;
        for (int64_t j = 0; j < primes; j++)
            for (int v = 0; v < kBlock; v++) load(digits[j][v], x + j * n + i + v * kLanes<V>);
        for (int64_t k = 0; k < primes; k++)
            for (int64_t j = k + 1; j < primes; j++) {
                const Modulus<V> m(table[j]);
                const V by = V{} + *factor++;
                for (int v = 0; v < kBlock; v++) {
                    digits[j][v] = digits[j][v] - digits[k][v];
                    m.multiply(digits[j][v], by);
                }
            }
        for (int v = 0; v < kBlock; v++) {
            V total = digits[primes - 1][v];
            for (int64_t j = primes - 2; j >= 0; j--) {
                total = total * table[j];
                rounded(total);  // twice, as torch does
                total = total + digits[j][v];
            }
            memcpy(out + i + v * kLanes<V>, &total, sizeof total);
        }
    }
}

}  // namespace

// x, out: (count, primes, n). tables: see `Job`. ntt: 1 for the transform, 0 for its inverse.
API void hb_transform(const double* tables, int64_t primes, int64_t n, const int32_t* x, int64_t count, int ntt,
                      int threads, int32_t* out) {
    const Job job{tables, primes, n, 1, x, nullptr, nullptr, nullptr, ntt != 0, out};
    each(job, count, threads, OVERLOADS(transform));
}

// message, noise: (count, n). a, out: (count, primes, n). secret: (primes, n). ntt: 1 for values, 0 for coefficients.
API void hb_encrypt(const double* tables, int64_t primes, int64_t n, const int32_t* message, const int32_t* noise,
                    const int32_t* a, const int32_t* secret, int64_t count, int ntt, int threads, int32_t* out) {
    const Job job{tables, primes, n, 2, a, message, noise, secret, ntt != 0, out};
    each(job, count, threads, OVERLOADS(encrypt));
}

// c: (count, parts, primes, n), parts >= 2. out: (count, primes, n). ntt: 0 where part 0 is coefficients.
API void hb_phase(const double* tables, int64_t primes, int64_t n, const int32_t* c, int64_t parts,
                  const int32_t* secret, int64_t count, int ntt, int threads, int32_t* out) {
    const Job job{tables, primes, n, parts, c, nullptr, nullptr, secret, ntt != 0, out};
    each(job, count, threads, OVERLOADS(phase));
}

// x: (count, primes, n), primes <= 64. out: (count, n). table: see `compose`.
API void hb_compose(const int32_t* x, int64_t count, int64_t primes, int64_t n, const double* table, double* out) {
    for (int64_t row = 0; row < count; row++)
        dispatch(OVERLOADS(compose), x + row * primes * n, primes, n, table, out + row * n);
}

// words, out: (count,).
API void hb_noise(const uint64_t* words, int64_t count, int32_t* out) { dispatch(OVERLOADS(noise), words, count, out); }

// words: (digits, count, n). out: (count, primes, n). spare: bits of the first words that are not used.
API void hb_wide(const int32_t* words, int64_t digits, int spare, int64_t count, int64_t primes, int64_t n,
                 const double* q, int32_t* out) {
    for (int64_t row = 0; row < count; row++)
        for (int64_t l = 0; l < primes; l++)
            dispatch(OVERLOADS(wide), words + row * n, digits, count * n, spare, n, q[l], out + (row * primes + l) * n);
}

// x: (count, primes, n), words on entry. again: room for as many places. Returns how many there are.
API int64_t hb_uniform(int32_t* x, int64_t count, int64_t primes, int64_t n, const int32_t* moduli, int64_t* again) {
    int64_t found = 0;
    for (int64_t row = 0; row < count * primes; row++)
        found += dispatch(OVERLOADS(uniform), x + row * n, n, moduli[row % primes], row * n, again + found);
    return found;
}

// x: (count, primes, n). out: 13 n / 4 bytes for each.
API void hb_pack(const int32_t* x, int64_t count, int64_t primes, int64_t n, const int32_t* moduli, uint8_t* out) {
    for (int64_t row = 0; row < count * primes; row++)
        dispatch(OVERLOADS(pack), x + row * n, n, moduli[row % primes], out + row * n / 4 * 13);
}

// Returns 1, or 0 if a value is not below its prime.
API int hb_unpack(const uint8_t* data, int64_t count, int64_t primes, int64_t n, const int32_t* moduli, int32_t* out) {
    bool right = true;
    for (int64_t row = 0; row < count * primes; row++)
        right &= dispatch(OVERLOADS(unpack), data + row * n / 4 * 13, n, moduli[row % primes], out + row * n);
    return right;
}
