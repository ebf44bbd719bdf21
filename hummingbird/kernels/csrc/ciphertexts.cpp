// Arithmetic on ciphertexts, for CPUs: the fast twins of the torch versions in ../ciphertexts.py, which has the bounds.
//
// The linear layer is a matrix product [rows, terms] x [terms, columns] for every place, whose columns are the residues
// of the ciphertexts that the place reads. Some columns of all ciphertexts that some places read are copied into a panel
// that stays in the second-level cache; from there a tile of up to 6 rows x 32 columns is summed in registers, over a
// list of the place's terms, reduced modulo q and stored (K. Goto, R. van de Geijn, Anatomy of High-Performance Matrix
// Multiplication, ACM TOMS 2008; the list is what a convolution's unfolding would have copied). The next columns are
// copied between the tiles of these, so that the waits for memory overlap the sums.

#include "common.h"

#include <algorithm>
#include <thread>
#include <vector>

#if X86
#define AVX2FMA __attribute__((target("avx2,fma")))
#endif

namespace {

typedef double Two __attribute__((vector_size(16)));
typedef double Four __attribute__((vector_size(32)));
typedef double EightReals __attribute__((vector_size(64)));
typedef int32_t TwoWords __attribute__((vector_size(8)));
typedef int32_t FourWords __attribute__((vector_size(16)));
typedef int32_t EightWords __attribute__((vector_size(32)));

constexpr int kColumns = 32, kRows = 6;
constexpr int64_t kPanel = 1 << 16;  // residues in a panel: two panels of 256 KiB in a second-level cache
constexpr int64_t kStep = 512;       // the most columns of a panel; the degree is a multiple
constexpr int64_t kWeights = 1 << 16;  // 512 KiB
constexpr int64_t kTerms = 1 << 18;  // in the lists of the places done together: 2 MiB
constexpr int64_t kAhead = 4;        // ciphertexts between fetching and copying

// One step towards the residue of s: ../ciphertexts.py says when it is enough. Adding and subtracting 1.5 2^52 rounds
// to an integer, ties to even; |s / q| < 2^51 leaves room for it. The product is exact, with and without fusing.
template <typename V>
BODY void reduce(V& s, double prime, double inverse) {
    constexpr double kMagic = 6755399441055744.0;
    const V quotient = (s * inverse + kMagic) - kMagic;
    s -= quotient * prime;
}

template <typename T>
T* aligned(T* at) {
    return (T*)((uintptr_t(at) + 63) / 64 * 64);
}

// ---- linear

struct Sizes {  // as ../ciphertexts.py fills it in; lines: N residues each, of prime number line % primes
    int64_t groups, rows, terms, places, inputs, lines, primes, degree, row_stride, place_stride;
};

struct Term {
    int32_t at;      // where the ciphertext's columns are in a panel
    int32_t column;  // of the packed weights
};

struct Rows {  // of one group: a tile's weights, column by column
    int64_t first;
    int count;
    std::vector<double> weights;
};

struct Group {
    std::vector<int32_t> terms;  // those with a weight that is not zero
    std::vector<Rows> tiles;
};

struct Chunk {  // places done together
    const Group* group;
    int64_t number, place;        // of the group, of the first place
    int64_t width;                // columns of a panel, a power of two
    std::vector<int32_t> inputs;  // what is in the panel
    std::vector<Term> terms;      // of all places, one after the other
    std::vector<int64_t> ends;    // in `terms`, of each place
};

struct Job {
    const int32_t* index;
    const int32_t* x;
    int32_t* out;
    const double* primes;
    Sizes s;
    int steps;
    bool stream;
    std::vector<Group> groups;

};

// Ciphertexts first .. last - 1 of the chunk, the columns from `column` on; in the panel C columns of all lie together.
template <int C>
BODY void copy(const Job& job, const Chunk& chunk, int64_t column, int32_t* panel, int64_t first, int64_t last) {
    const int64_t stride = job.s.lines * job.s.degree, slots = int64_t(chunk.inputs.size());
    const int32_t* x = job.x + column;
    for (int64_t slot = first; slot < last; slot++) {
        if (slot + kAhead < slots) {
            const int32_t* ahead = x + chunk.inputs[size_t(slot + kAhead)] * stride;
            for (int64_t j = 0; j < chunk.width; j += 16) __builtin_prefetch(ahead + j);
        }
        const int32_t* from = x + chunk.inputs[size_t(slot)] * stride;
        for (int64_t j = 0; j < chunk.width; j += C) memcpy(panel + j * slots + slot * C, from + j, C * 4);
    }
}

// Eight, four or two numbers in one instruction; of __builtin_convertvector gcc 12 makes several.
template <typename V>
BODY void widen(const int32_t* from, V& to) {
    for (int i = 0; i < int(sizeof(V) / 8); i++) to[i] = from[i];
}

// R rows x 32 columns of one place, to sums[r * 32 + j].
template <typename V, typename W, int C, int R>
BODY void tile(const int32_t* panel, int64_t slots, const Term* term, const Term* end, const double* weights,
               double prime, int steps, int32_t* sums) {
    constexpr int lanes = sizeof(V) / 8, vectors = C / lanes;
    const double inverse = 1.0 / prime;
    for (int j = 0; j < kColumns; j += C, panel += slots * C) {
        V sum[R][vectors] = {};
        for (const Term* t = term; t < end; t++) {
            const int32_t* x = panel + t->at;
            const double* w = weights + int64_t(t->column) * R;
            V column[vectors];
            for (int v = 0; v < vectors; v++) widen(x + v * lanes, column[v]);
            for (int r = 0; r < R; r++)
                for (int v = 0; v < vectors; v++) sum[r][v] += w[r] * column[v];
        }
        for (int r = 0; r < R; r++)
            for (int v = 0; v < vectors; v++) reduce(sum[r][v], prime, inverse);
        if (steps == 2)
            for (int r = 0; r < R; r++)
                for (int v = 0; v < vectors; v++) reduce(sum[r][v], prime, inverse);
        for (int r = 0; r < R; r++)
            for (int v = 0; v < vectors; v++) {
                const W words = __builtin_convertvector(sum[r][v], W);
                memcpy(sums + r * kColumns + j + v * lanes, &words, sizeof words);
            }
    }
}

BODY void store(const int32_t* from, bool stream, int32_t* to) {
#if X86
    if (stream) {  // past the caches: the result is larger than they are, and is not read here
        for (int j = 0; j < kColumns; j += 4) _mm_stream_si128((__m128i*)(to + j), *(const __m128i*)(from + j));
        return;
    }
#endif
    memcpy(to, from, kColumns * 4);
}

// All rows and places of a chunk for one panel, and the copying of the next one, from column `next` on if not negative.
template <typename V, typename W, int C>
BODY void multiply(const Job& job, const Chunk& chunk, int64_t column, const int32_t* panel, int64_t next,
                   int32_t* next_panel) {
    const int64_t slots = int64_t(chunk.inputs.size()), places = int64_t(chunk.ends.size());
    const int64_t tiles = int64_t(chunk.group->tiles.size()) * places * (chunk.width / kColumns);
    const double prime = job.primes[column / job.s.degree % job.s.primes];
    int64_t done = 0, copied = 0;
    alignas(64) int32_t sums[kRows * kColumns];
    for (const Rows& rows : chunk.group->tiles) {
        const double* weights = rows.weights.data();
        int32_t* out = job.out + (chunk.number * job.s.rows + rows.first) * job.s.row_stride +
                       chunk.place * job.s.place_stride + column;
        const Term* term = chunk.terms.data();
        for (int64_t place = 0; place < places; place++, out += job.s.place_stride) {
            const Term* end = chunk.terms.data() + chunk.ends[size_t(place)];
            for (int64_t j = 0; j < chunk.width; j += kColumns) {
                const int32_t* part = panel + j * slots;
                switch (rows.count) {
#define HB_TILE(R) \
    case R: tile<V, W, C, R>(part, slots, term, end, weights, prime, job.steps, sums); break;
                    HB_TILE(1) HB_TILE(2) HB_TILE(3) HB_TILE(4) HB_TILE(5) HB_TILE(6)
#undef HB_TILE
                }
                for (int r = 0; r < rows.count; r++)
                    store(sums + r * kColumns, job.stream, out + r * job.s.row_stride + j);
                if (next >= 0) {
                    const int64_t wanted = slots * ++done / tiles;
                    copy<C>(job, chunk, next, next_panel, copied, wanted);
                    copied = wanted;
                }
            }
            term = end;
        }
    }
}

// One chunk, columns first .. last - 1 of a ciphertext; two panels.
template <typename V, typename W, int C>
BODY void run_chunk(const Job& job, const Chunk& chunk, int64_t first, int64_t last, int32_t* panel, int32_t* other) {
    copy<C>(job, chunk, first, panel, 0, int64_t(chunk.inputs.size()));
    for (int64_t column = first; column < last; column += chunk.width) {
        const int64_t next = column + chunk.width < last ? column + chunk.width : -1;
        multiply<V, W, C>(job, chunk, column, panel, next, other);
        std::swap(panel, other);
    }
#if X86
    _mm_sfence();
#endif
}

using RunChunk = void (*)(const Job&, const Chunk&, int64_t, int64_t, int32_t*, int32_t*);

int usable_isa() {
#if X86
    if (current_isa == kAvx2 && !__builtin_cpu_supports("fma")) return kPortable;
#endif
    return current_isa;
}

// The function of this name for the processor at hand.
#if X86
#define CHOOSE_FMA(name)                                                                                      \
    (usable_isa() == kAvx512 ? name##_avx512 : usable_isa() == kAvx2 ? name##_avx2 : name##_portable)
#else
#define CHOOSE_FMA(name) (name##_portable)
#endif

// Work on pieces 0 .. count - 1 by threads that take a run of them each; one costs about as much as a million products.
template <typename F>
void share(int64_t count, int threads, double products, const F& run) {
    const int64_t most = std::max<int64_t>(1, std::min<int64_t>({threads, count, int64_t(products / 1e6) + 1}));
    std::vector<std::thread> others;
    for (int64_t i = 1; i < most; i++)
        others.emplace_back([&, i] { run(count * i / most, count * (i + 1) / most); });
    run(0, count / most);
    for (auto& other : others) other.join();
}

constexpr int kPortableColumns = 4, kAvx2Columns = 8, kAvx512Columns = 32;  // of a tile in registers

void run_chunk_portable(const Job& job, const Chunk& chunk, int64_t first, int64_t last, int32_t* a, int32_t* b) {
    run_chunk<Two, TwoWords, kPortableColumns>(job, chunk, first, last, a, b);
}

#if X86
AVX2FMA void run_chunk_avx2(const Job& job, const Chunk& chunk, int64_t first, int64_t last, int32_t* a, int32_t* b) {
    run_chunk<Four, FourWords, kAvx2Columns>(job, chunk, first, last, a, b);
}

AVX512 void run_chunk_avx512(const Job& job, const Chunk& chunk, int64_t first, int64_t last, int32_t* a, int32_t* b) {
    run_chunk<EightReals, EightWords, kAvx512Columns>(job, chunk, first, last, a, b);
}
#endif

Group pack(const double* weights, const Sizes& s) {
    Group group;
    for (int64_t k = 0; k < s.terms; k++)
        for (int64_t r = 0; r < s.rows; r++)
            if (weights[r * s.terms + k] != 0) {
                group.terms.push_back(int32_t(k));
                break;
            }
    const int64_t tiles = (s.rows + kRows - 1) / kRows;
    for (int64_t i = 0; i < tiles; i++) {  // of nearly one size
        Rows rows{s.rows * i / tiles, 0, {}};
        rows.count = int(s.rows * (i + 1) / tiles - rows.first);
        for (const int32_t k : group.terms)
            for (int r = 0; r < rows.count; r++) rows.weights.push_back(weights[(rows.first + r) * s.terms + k]);
        group.tiles.push_back(std::move(rows));
    }
    return group;
}

// Places of one group from `place` on, at least one, that read no more than `most` ciphertexts.
void gather(const Job& job, int64_t place, int64_t most, int columns, std::vector<int32_t>& slot_of, Chunk& chunk) {
    chunk.place = place;
    chunk.terms.clear();
    chunk.ends.clear();
    chunk.inputs.clear();
    const Group& group = *chunk.group;
    for (; place < job.s.places; place++) {
        const int32_t* index = job.index + (chunk.number * job.s.places + place) * job.s.terms;
        const size_t terms = chunk.terms.size(), inputs = chunk.inputs.size();
        for (size_t j = 0; j < group.terms.size(); j++) {
            const int32_t input = index[group.terms[j]];
            if (input < 0) continue;
            int32_t& slot = slot_of[size_t(input)];
            if (slot < 0) {
                slot = int32_t(chunk.inputs.size());
                chunk.inputs.push_back(input);
            }
            chunk.terms.push_back({slot * columns, int32_t(j)});
        }
        const bool full = int64_t(chunk.inputs.size()) > most || int64_t(chunk.terms.size()) > kTerms;
        if (full && !chunk.ends.empty()) {
            for (size_t i = inputs; i < chunk.inputs.size(); i++) slot_of[size_t(chunk.inputs[i])] = -1;
            chunk.inputs.resize(inputs);
            chunk.terms.resize(terms);
            break;
        }
        chunk.ends.push_back(int64_t(chunk.terms.size()));
    }
    for (const int32_t input : chunk.inputs) slot_of[size_t(input)] = -1;
}

// Wide panels read memory in long runs, and long ones read what places share less often: 4 times as wide a panel reads
// about 1.2 times as fast.
void choose(const Job& job, int64_t place, int columns, std::vector<int32_t>& slot_of, Chunk& chunk) {
    constexpr int64_t kWide = kPanel / 256, kNarrow = kPanel / 64;
    gather(job, place, kNarrow, columns, slot_of, chunk);
    const double narrow = double(chunk.inputs.size()) / double(chunk.ends.size());
    if (chunk.inputs.size() > kWide) {
        gather(job, place, kWide, columns, slot_of, chunk);
        if (double(chunk.inputs.size()) / double(chunk.ends.size()) > 1.2 * narrow)
            gather(job, place, kNarrow, columns, slot_of, chunk);
    }
    // Weights that do not fit the cache themselves are read again for every panel: fewer panels then.
    const int64_t slots = std::max<int64_t>(1, int64_t(chunk.inputs.size()));
    const int64_t most = job.s.rows * job.s.terms > kWeights ? 4 * kPanel : kPanel;
    chunk.width = kStep;
    while (chunk.width > kColumns && chunk.width * slots > most) chunk.width /= 2;
}

void run_columns(const Job& job, RunChunk run, int columns, int64_t first, int64_t last) {
    std::vector<int32_t> slot_of(size_t(job.s.inputs), -1), panels;
    Chunk chunk;
    for (int64_t g = 0; g < job.s.groups; g++) {
        chunk.group = &job.groups[size_t(g)];
        chunk.number = g;
        for (int64_t place = 0; place < job.s.places; place += int64_t(chunk.ends.size())) {
            choose(job, place, columns, slot_of, chunk);
            const size_t panel = chunk.inputs.size() * size_t(chunk.width);
            if (panels.size() < 2 * panel + 16) panels.resize(2 * panel + 16);
            int32_t* start = aligned(panels.data());
            run(job, chunk, first, last, start, start + panel);
        }
    }
}

// ---- residue by residue

template <typename V>
BODY void widen_columns(const int32_t* from, double* to) {
    for (int j = 0; j < kColumns; j += int(sizeof(V) / 8)) widen(from + j, *(V*)(to + j));
}

using Combine = void (*)(const int32_t* x, const int32_t* y, int64_t n, double a, double b, double q, int32_t* out);

template <typename V, typename W>
BODY void combine(const int32_t* x, const int32_t* y, int64_t n, double a, double b, double q, int32_t* out) {
    const double inverse = 1.0 / q;
    for (int64_t i = 0; i < n; i += int64_t(sizeof(V) / 8)) {
        V left, right;
        widen(x + i, left);
        widen(y + i, right);
        V sum = a * left + b * right;
        reduce(sum, q, inverse);
        const W words = __builtin_convertvector(sum, W);
        memcpy(out + i, &words, sizeof words);
    }
}

// `a` parts of x times `b` parts of y, `stride` apart, n residues modulo q each; spare: room for (a + b) * 32 numbers.
using Convolve = void (*)(const int32_t* x, int64_t a, const int32_t* y, int64_t b, int64_t stride, int64_t n, double q,
                          double* spare, int32_t* out);

template <typename V, typename W>
BODY void convolve(const int32_t* x, int64_t a, const int32_t* y, int64_t b, int64_t stride, int64_t n, double q,
                   double* spare, int32_t* out) {
    constexpr int lanes = sizeof(V) / 8;
    const double inverse = 1.0 / q;
    double* other = spare + a * kColumns;
    for (int64_t column = 0; column < n; column += kColumns) {
        for (int64_t i = 0; i < a; i++) widen_columns<V>(x + i * stride + column, spare + i * kColumns);
        for (int64_t i = 0; i < b; i++) widen_columns<V>(y + i * stride + column, other + i * kColumns);
        for (int64_t k = 0; k < a + b - 1; k++)
            for (int j = 0; j < kColumns; j += lanes) {
                V sum = {};
                for (int64_t i = std::max<int64_t>(0, k - b + 1); i <= std::min(k, a - 1); i++)
                    sum += *(const V*)(spare + i * kColumns + j) * *(const V*)(other + (k - i) * kColumns + j);
                reduce(sum, q, inverse);  // of at most 8 products below q^2 / 4: 2^53 - q
                reduce(sum, q, inverse);
                const W words = __builtin_convertvector(sum, W);
                memcpy(out + k * stride + column + j, &words, sizeof words);
            }
    }
}

#define HB_ELEMENTWISE(target, isa, V, W)                                                                              \
    target void combine_##isa(const int32_t* x, const int32_t* y, int64_t n, double a, double b, double q,             \
                              int32_t* out) {                                                                          \
        combine<V, W>(x, y, n, a, b, q, out);                                                                          \
    }                                                                                                                  \
    target void convolve_##isa(const int32_t* x, int64_t a, const int32_t* y, int64_t b, int64_t stride, int64_t n,    \
                               double q, double* spare, int32_t* out) {                                                \
        convolve<V, W>(x, a, y, b, stride, n, q, spare, out);                                                          \
    }
HB_ELEMENTWISE(, portable, Two, TwoWords)
#if X86
HB_ELEMENTWISE(AVX2FMA, avx2, Four, FourWords)
HB_ELEMENTWISE(AVX512, avx512, EightReals, EightWords)
#endif
#undef HB_ELEMENTWISE

}  // namespace

// out (groups * rows, places, lines, degree) as ../ciphertexts.py says; row_stride and place_stride are the first two
// strides of out, all else is contiguous; sizes: ten numbers in the order of `Sizes`, none of them 0.
API void hb_linear(const double* weights, const int32_t* index, const int32_t* x, const int64_t* sizes,
                   const double* primes, int steps, int threads, int32_t* out) {
    Job job{index, x, out, primes, {}, steps, false, {}};
    memcpy(&job.s, sizes, sizeof job.s);
    const Sizes& s = job.s;
    for (int64_t g = 0; g < s.groups; g++) job.groups.push_back(pack(weights + g * s.rows * s.terms, s));
    job.stream = uintptr_t(out) % 16 == 0 && s.row_stride % 4 == 0 && s.place_stride % 4 == 0;
    const RunChunk run = CHOOSE_FMA(run_chunk);
    const int isa = usable_isa();
    const int columns = isa == kAvx512 ? kAvx512Columns : isa == kAvx2 ? kAvx2Columns : kPortableColumns;
    const double products = double(s.groups * s.rows) * double(s.places * s.terms) * double(s.lines * s.degree);
    share(s.lines * s.degree / kStep, threads, products,
          [&](int64_t first, int64_t last) { run_columns(job, run, columns, first * kStep, last * kStep); });
}

// out (rows, primes, degree) = a x + b y mod q with a, b for each prime, |a x + b y| < 2^51; x (rows, x_primes, degree)
API void hb_combine(const int32_t* x, const int32_t* y, int64_t rows, int64_t primes, int64_t x_primes, int64_t degree,
                    const double* a, const double* b, const double* q, int threads, int32_t* out) {
    const Combine run = CHOOSE_FMA(combine);
    share(rows * primes, threads, double(rows * primes * degree), [&](int64_t first, int64_t last) {
        for (int64_t line = first; line < last; line++) {
            const int64_t prime = line % primes, from = line / primes * x_primes + prime;
            run(x + from * degree, y + line * degree, degree, a[prime], b[prime], q[prime], out + line * degree);
        }
    });
}

// out (n, a + b - 1, primes, degree): part k is the sum of x (n, a, primes, degree) i times y (n, b, primes, degree) k - i
API void hb_multiply(const int32_t* x, const int32_t* y, int64_t n, int64_t a, int64_t b, int64_t primes, int64_t degree,
                     const double* q, int threads, int32_t* out) {
    const Convolve run = CHOOSE_FMA(convolve);
    const int64_t size = primes * degree;
    share(n * primes, threads, double(n * a * b * size), [&](int64_t first, int64_t last) {
        std::vector<double> spare(size_t((a + b) * kColumns) + 8);
        for (int64_t line = first; line < last; line++) {
            const int64_t i = line / primes, prime = line % primes, at = prime * degree;
            run(x + i * a * size + at, a, y + i * b * size + at, b, size, degree, q[prime], aligned(spare.data()),
                out + i * (a + b - 1) * size + at);
        }
    });
}
