// Arithmetic on ciphertexts, for CPUs: fast versions of reference/ciphertexts/arithmetic.py; ciphertexts/arithmetic.py
// has the bounds.
//
// The linear layer is a matrix product [rows, terms] x [terms, columns] for every place, whose columns are the residues
// of the ciphertexts that the place reads. Places that read the same ciphertexts are computed together, by panels.h.
// Weights that are 0 are left out; 1 and -1 cost what other weights cost, a multiplication that adds.

#include "panels.h"
#include "threads.h"

namespace {

constexpr int64_t kPanel = 1 << 16;    // residues in a panel: two panels of 256 KiB in a second-level cache
constexpr int64_t kStep = 512;         // the most columns of a panel; the degree is a multiple
constexpr int64_t kWeights = 1 << 16;  // that stay in the cache: 512 KiB
constexpr int64_t kTerms = 1 << 18;    // in the list of the places done together: 2 MiB
constexpr int64_t kOwn = 1 << 22;      // in the lists of tiles that have their own: 32 MiB
constexpr int64_t kStream = 1 << 18;   // residues of a result that no second-level cache holds: 1 MiB

template <typename T>
T* aligned(T* at) {
    return (T*)((uintptr_t(at) + 63) / 64 * 64);
}

// ---- linear

constexpr int64_t kTime[kRows + 1] = {0, 7, 10, 15, 18, 21, 25};  // of a term of a tile, by its rows: as measured, AVX2

// Which terms have a weight in some of `rows` rows, to `any`; returns how many. used: for each row and term, 1 or 0.
int64_t join(const uint8_t* used, int64_t rows, int64_t terms, uint8_t* any) {
    memcpy(any, used, size_t(terms));
    for (int64_t i = terms; i < rows * terms; i += terms)
        for (int64_t k = 0; k < terms; k++) any[k] |= used[i + k];
    int64_t count = 0;
    for (int64_t k = 0; k < terms; k++) count += any[k];
    return count;
}

// Whether a tile with `count` of a group's terms has a list of its own: to read one takes time, too.
bool has_own(int64_t count, int64_t terms) { return 4 * count <= 3 * terms; }

// A group with the terms that have a weight, and its rows in tiles of nearly one size that take the least time: with
// many zeros, of few rows.
Group pack(const double* weights, const Sizes& s) {
    std::vector<uint8_t> used(size_t(s.rows * s.terms)), any(size_t(s.terms));
    for (int64_t i = 0; i < s.rows * s.terms; i++) used[size_t(i)] = weights[i] != 0;
    Group group;
    const int64_t all = join(used.data(), s.rows, s.terms, any.data());
    for (int64_t k = 0; k < s.terms; k++)
        if (any[size_t(k)]) group.terms.push_back(int32_t(k));

    int64_t least = 0, count = 0;  // of tiles
    for (int64_t most = kRows; most > 0; most--) {
        const int64_t tiles = (s.rows + most - 1) / most;
        int64_t time = 0;
        for (int64_t i = 0; i < tiles; i++) {
            const int64_t first = s.rows * i / tiles, rows = s.rows * (i + 1) / tiles - first;
            const int64_t own = join(used.data() + first * s.terms, rows, s.terms, any.data());
            time += (has_own(own, all) ? own : all) * kTime[rows];
        }
        if (most == kRows) time = time * 2 / 3;  // smaller tiles read more memory: they have to gain more than that
        if (count && time >= least) continue;
        least = time;
        count = tiles;
    }

    for (int64_t i = 0; i < count; i++) {
        Rows rows{s.rows * i / count, 0, {}, {}};
        rows.count = int(s.rows * (i + 1) / count - rows.first);
        const double* const first = weights + rows.first * s.terms;
        const int64_t own = join(used.data() + rows.first * s.terms, rows.count, s.terms, any.data());
        const bool listed = has_own(own, all);
        int32_t columns = 0;
        for (const int32_t k : group.terms) {
            const bool here = any[size_t(k)];
            if (listed) rows.column_of.push_back(here ? columns++ : -1);
            for (int r = 0; r < rows.count && (here || !listed); r++) rows.weights.push_back(first[r * s.terms + k]);
        }
        group.own += listed ? own : 0;
        group.words += int64_t(rows.weights.size()) + (listed ? own : 0);
        group.tiles.push_back(std::move(rows));
    }
    return group;
}

// Places of one group from `place` on, at least one, that read no more than `most` ciphertexts.
void gather(const Job& job, int64_t place, int64_t most, int columns, std::vector<int32_t>& slot_of, Chunk& chunk) {
    chunk.place = place;
    chunk.all.terms.clear();
    chunk.all.ends.clear();
    chunk.inputs.clear();
    const Group& group = *chunk.group;
    for (; place < job.s.places; place++) {
        const int32_t* index = job.index + (chunk.number * job.s.places + place) * job.s.terms;
        const size_t terms = chunk.all.terms.size(), inputs = chunk.inputs.size();
        for (size_t j = 0; j < group.terms.size(); j++) {
            const int32_t input = index[group.terms[j]];
            if (input < 0) continue;
            int32_t& slot = slot_of[size_t(input)];
            if (slot < 0) {
                slot = int32_t(chunk.inputs.size());
                chunk.inputs.push_back(input);
            }
            chunk.all.terms.push_back({slot * columns, int32_t(j)});
        }
        const int64_t listed = int64_t(chunk.all.terms.size());
        const int64_t own = listed / std::max<int64_t>(1, int64_t(group.terms.size())) * group.own;
        const bool full = int64_t(chunk.inputs.size()) > most || listed > kTerms || own > kOwn;
        if (full && !chunk.all.ends.empty()) {
            for (size_t i = inputs; i < chunk.inputs.size(); i++) slot_of[size_t(chunk.inputs[i])] = -1;
            chunk.inputs.resize(inputs);
            chunk.all.terms.resize(terms);
            break;
        }
        chunk.all.ends.push_back(int64_t(chunk.all.terms.size()));
    }
    for (const int32_t input : chunk.inputs) slot_of[size_t(input)] = -1;
}

// Wide panels read memory in long runs; long panels read ciphertexts that places share less often. A panel 4 times as
// wide reads about 1.2 times as fast.
void choose(const Job& job, int64_t place, int columns, std::vector<int32_t>& slot_of, Chunk& chunk) {
    constexpr int64_t kWide = kPanel / 256, kNarrow = kPanel / 64;
    gather(job, place, kNarrow, columns, slot_of, chunk);
    const double narrow = double(chunk.inputs.size()) / double(chunk.all.ends.size());
    if (chunk.inputs.size() > kWide) {
        gather(job, place, kWide, columns, slot_of, chunk);
        if (double(chunk.inputs.size()) / double(chunk.all.ends.size()) > 1.2 * narrow)
            gather(job, place, kNarrow, columns, slot_of, chunk);
    }
    // Weights that do not fit the cache are read again for every panel: use fewer panels then.
    const int64_t slots = std::max<int64_t>(1, int64_t(chunk.inputs.size()));
    const int64_t most = chunk.group->words > kWeights ? 4 * kPanel : kPanel;
    chunk.width = kStep;
    while (chunk.width > kColumns && chunk.width * slots > most) chunk.width /= 2;
}

// Makes the lists of the tiles that have their own.
void list_own(Chunk& chunk) {
    chunk.own.clear();
    for (const Rows& rows : chunk.group->tiles) {
        if (rows.column_of.empty()) continue;
        Terms list;
        size_t from = 0;
        for (const int64_t end : chunk.all.ends) {
            for (; from < size_t(end); from++) {
                const Term term = chunk.all.terms[from];
                const int32_t column = rows.column_of[size_t(term.column)];
                if (column >= 0) list.terms.push_back({term.at, column});
            }
            list.ends.push_back(int64_t(list.terms.size()));
        }
        chunk.own.push_back(std::move(list));
    }
}

template <class Target>
void linear(Target target, const Job& job, int64_t first, int64_t last) {
    constexpr int columns = kTileColumns<Target>;
    std::vector<int32_t> slot_of(size_t(job.s.inputs), -1), panels;
    Chunk chunk;
    for (int64_t g = 0; g < job.s.groups; g++) {
        chunk.group = &job.groups[size_t(g)];
        chunk.number = g;
        for (int64_t place = 0; place < job.s.places; place += int64_t(chunk.all.ends.size())) {
            choose(job, place, columns, slot_of, chunk);
            list_own(chunk);
            const size_t panel = chunk.inputs.size() * size_t(chunk.width);
            if (panels.size() < 2 * panel + 16) panels.resize(2 * panel + 16);
            int32_t* start = aligned(panels.data());
            target.call(OVERLOADS(run_chunk), job, chunk, first, last, start, start + panel);
        }
    }
}

// ---- residue by residue

template <typename V>
BODY void widen_columns(const int32_t* from, double* to) {
    for (int j = 0; j < kColumns; j += int(sizeof(V) / 8)) widen(from + j, *(V*)(to + j));
}

// out = a x + b y mod q
template <class Target>
BODY void combine(Target, const int32_t* x, const int32_t* y, int64_t n, double a, double b, double q,
                  int32_t* out) {
    using V = Reals<Target>;
    const double inverse = 1.0 / q;
    for (int64_t i = 0; i < n; i += int64_t(sizeof(V) / 8)) {
        V left, right;
        widen(x + i, left);
        widen(y + i, right);
        V sum = a * left + b * right;
        reduce(sum, q, inverse);
        const auto words = __builtin_convertvector(sum, Residues<Target>);
        memcpy(out + i, &words, sizeof words);
    }
}

// x += constant mod q at every `step`-th of n residues; 0 <= constant < q.
template <class Target>
BODY void shift(Target, int32_t* x, int64_t n, int64_t step, int32_t constant, int32_t q) {
    using W = Residues<Target>;
    const int32_t half = q / 2;
    if (step > 1) {
        for (int64_t i = 0; i < n; i += step) {
            const int32_t sum = x[i] + constant;
            x[i] = sum > half ? sum - q : sum;
        }
        return;
    }
    for (int64_t i = 0; i < n; i += int64_t(sizeof(W) / 4)) {
        W sum;
        memcpy(&sum, x + i, sizeof sum);
        sum += constant;
        sum -= (sum > half) & q;
        memcpy(x + i, &sum, sizeof sum);
    }
}

// `a` parts of x times `b` parts of y, `stride` apart, n residues modulo q each; spare: holds (a + b) * 32 numbers.
template <class Target>
BODY void convolve(Target, const int32_t* x, int64_t a, const int32_t* y, int64_t b, int64_t stride, int64_t n,
                   double q, double* spare, int32_t* out) {
    using V = Reals<Target>;
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
                const auto words = __builtin_convertvector(sum, Residues<Target>);
                memcpy(out + k * stride + column + j, &words, sizeof words);
            }
    }
}

}  // namespace

// out (groups * rows, places, lines, degree) as ciphertexts/arithmetic.py says; row_stride and place_stride are the
// first two strides of out, all else is contiguous; sizes: ten numbers in the order of `Sizes`, none of them 0.
API void hb_linear(const double* weights, const int32_t* index, const int32_t* x, const int64_t* sizes,
                   const double* primes, int steps, int threads, int32_t* out) {
    Job job{index, x, out, primes, {}, steps, false, {}};
    memcpy(&job.s, sizes, sizeof job.s);
    const Sizes& s = job.s;
    for (int64_t g = 0; g < s.groups; g++) job.groups.push_back(pack(weights + g * s.rows * s.terms, s));
    const int64_t size = s.groups * s.rows * s.places * s.lines * s.degree;
    job.stream = size > kStream && uintptr_t(out) % 16 == 0 && s.row_stride % 4 == 0 && s.place_stride % 4 == 0;
    share(s.lines * s.degree / kStep, threads, kProduct * double(size) * double(s.terms),
          [&](int64_t first, int64_t last) { dispatch(OVERLOADS(linear), job, first * kStep, last * kStep); });
}

// out (rows, primes, degree) = a x + b y mod q with a, b for each prime, |a x + b y| < 2^51; x (rows, x_primes, degree)
API void hb_combine(const int32_t* x, const int32_t* y, int64_t rows, int64_t primes, int64_t x_primes, int64_t degree,
                    const double* a, const double* b, const double* q, int threads, int32_t* out) {
    share(rows * primes, threads, kProduct * double(rows * primes * degree), [&](int64_t first, int64_t last) {
        for (int64_t line = first; line < last; line++) {
            const int64_t prime = line % primes, from = line / primes * x_primes + prime;
            dispatch(OVERLOADS(combine), x + from * degree, y + line * degree, degree, a[prime], b[prime], q[prime],
                     out + line * degree);
        }
    });
}

// x (rows, places, .. primes, degree), of strides as given, plus constants (rows, primes) in 0 .. q - 1; sizes: rows,
// places, their strides, primes, degree, step
API void hb_shift(int32_t* x, const int64_t* sizes, const int32_t* constants, const int32_t* q, int threads) {
    const int64_t rows = sizes[0], places = sizes[1], primes = sizes[4], degree = sizes[5], step = sizes[6];
    share(rows * places, threads, kProduct * double(rows * places * primes * degree), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; i++) {
            const int64_t row = i / places, place = i % places;
            int32_t* part = x + row * sizes[2] + place * sizes[3];
            for (int64_t prime = 0; prime < primes; prime++)
                dispatch(OVERLOADS(shift), part + prime * degree, degree, step, constants[row * primes + prime],
                         q[prime]);
        }
    });
}

// out (n, a + b - 1, primes, degree): part k is the sum of x (n, a, primes, degree) i times y (n, b, primes, degree)
// k - i
API void hb_multiply(const int32_t* x, const int32_t* y, int64_t n, int64_t a, int64_t b, int64_t primes,
                     int64_t degree, const double* q, int threads, int32_t* out) {
    const int64_t size = primes * degree;
    share(n * primes, threads, kProduct * double(n * a * b * size), [&](int64_t first, int64_t last) {
        std::vector<double> spare(size_t((a + b) * kColumns) + 8);
        for (int64_t line = first; line < last; line++) {
            const int64_t i = line / primes, prime = line % primes, at = prime * degree;
            dispatch(OVERLOADS(convolve), x + i * a * size + at, a, y + i * b * size + at, b, size, degree, q[prime],
                     aligned(spare.data()), out + i * (a + b - 1) * size + at);
        }
    });
}
