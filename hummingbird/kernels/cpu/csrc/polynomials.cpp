// Tables of polynomials behind masks: the dealer's corrections and a party's look-up, each in one pass. Fast versions
// of reference/shares.py; shares/polynomials.py has the equations.
//
// The dealer's pass draws, computes and packs a run of coefficients at a time; a run begins at a whole line of each
// stream, and at a whole byte of each correction. A party reads, or draws, one coefficient of each power for a value.

#include "aes_ctr.h"
#include "reals.h"
#include "threads.h"
#include "words.h"

namespace {

constexpr int kDegree = 3;                           // at most
constexpr double kCoefficient = 1.0, kValue = 20.0;  // nanoseconds: of one dealt coefficient, of one look-up
constexpr int kSpare = 8;                            // elements: a whole register may be read or written at the end

// ---- the dealer

struct Deal {
    const StreamKey* keys;  // of all parties but the receiver
    int parties;
    const double* pieces;   // by power: a column of 2^w numbers, twice, and spare ones
    const uint64_t* mask;
    int64_t total;          // coefficients of one power
    int w, m;
    const int64_t* firsts;  // by power: the line where the field begins
    const int* widths;
    uint8_t* const* outs;
};

struct Room {
    alignas(64) uint64_t moved[kDegree + 1][kRun + kSpare];
    alignas(64) uint8_t drawn[8 * kRun];
};

// The coefficients start .. start + n - 1 of all values' rows. Products and sums are rounded one by one.
template <int degree, class Target>
BODY void move_run(Target, const Deal& job, int64_t start, int64_t n, Room& room) {
    constexpr double kMagic = 6755399441055744.0;  // 1.5 2^52: adding it rounds to an integer below 2^51, ties to even
    constexpr int64_t kLanes = Target::kBytes / 8;
    using Integers = Vector<uint64_t, Target>;
    const int64_t rows = int64_t(1) << job.w, column = 2 * rows + kSpare;
    const Reals<Target> magic = Reals<Target>{} + kMagic;
    const double unit = -1 / double(uint64_t(1) << job.m);
    for (int64_t at = 0; at < n;) {
        const int64_t row = (start + at) & (rows - 1), here = rows - row < n - at ? rows - row : n - at;
        const uint64_t lambda = job.mask[(start + at) >> job.w];
        const double* const from = job.pieces + ((row - int64_t(lambda >> job.m)) & (rows - 1));
        const double low = double(int64_t(lambda & low_bits(job.m))) * unit;
        for (int64_t i = 0; i < here; i += kLanes) {
            Reals<Target> c[degree + 1];
#pragma GCC unroll 4
            for (int p = 0; p <= degree; p++) memcpy(&c[p], from + p * column + i, sizeof c[p]);
#pragma GCC unroll 4
            for (int done = 0; done < degree; done++)
#pragma GCC unroll 4
                for (int p = degree - 1; p >= done; p--) {
                    Reals<Target> product = c[p + 1] * low;
                    rounded(product);
                    c[p] += product;
                }
#pragma GCC unroll 4
            for (int p = 0; p <= degree; p++) {
                const Integers whole = (Integers)(c[p] + magic) - (Integers)magic;
                memcpy(room.moved[p] + at + i, &whole, sizeof whole);
            }
        }
        at += here;
    }
}

template <class Word>
BODY void subtract(int64_t n, const uint8_t* drawn, uint64_t* value) {
    for (int64_t i = 0; i < n; i++) {
        Word word;
        memcpy(&word, drawn + i * int64_t(sizeof word), sizeof word);
        value[i] -= word;
    }
}

template <int degree, class Target>
BODY void deal_runs(Target, const Deal& job, int64_t first, int64_t last) {
    Room room;
    for (int64_t run = first; run < last; run++) {
        const int64_t start = run * kRun, n = job.total - start < kRun ? job.total - start : kRun;
        move_run<degree>(vectors(Target{}), job, start, n, room);
        for (int p = 0; p <= degree; p++) {
            const int width = job.widths[p];
            const int64_t bytes = width > 32 ? 8 : 4, line = job.firsts[p] + start * bytes / kLine;
            for (int party = 0; party < job.parties; party++) {
                stream(Target{}, job.keys[party], line, (n * bytes + kLine - 1) / kLine, room.drawn);
                if (width > 32) subtract<uint64_t>(n, room.drawn, room.moved[p]);
                else subtract<uint32_t>(n, room.drawn, room.moved[p]);
            }
            pack(vectors(Target{}), n, width, job.outs[p] + start / 8 * width, Plain{room.moved[p]});
        }
    }
}

// ---- a party

struct Coefficients {
    const uint8_t* data;   // words of `width` bits, or kSigned; or else
    const StreamKey* key;  // drawn in whole words, kSigned or of 64 bits, from line `first` on
    int64_t first, bytes;  // bytes: of the data
    int width;
};

struct Evaluation {
    const uint64_t* opened;
    int64_t n;
    const Coefficients* coefficients;
    int degree, m, w, shift;
    uint64_t* out;
};

struct Chosen {
    alignas(64) uint64_t row[kRun], block[kRun], word[kDegree + 1][kRun];
    alignas(64) uint8_t drawn[16 * kRun];
};

// Words `row` of one power, for n values.
template <class Target>
BODY void choose(Target, const Coefficients& from, int64_t n, Chosen& room, uint64_t* out) {
    const uint64_t* const row = room.row;
    const uint8_t* data = from.data;
    if (from.key) {
        const uint64_t shift = from.width == 64 ? 1 : 2, size = 16 >> shift;  // words of a block: 2^shift
        for (int64_t i = 0; i < kRun; i++) room.block[i] = i < n ? 4 * uint64_t(from.first) + (row[i] >> shift) : 0;
        blocks(Target{}, *from.key, room.block, n, room.drawn);
        for (int64_t i = 0; i < n; i++) {
            const uint8_t* const at = room.drawn + 16 * i + (row[i] & ((1 << shift) - 1)) * size;
            int32_t word;
            memcpy(&word, at, sizeof word);
            out[i] = uint64_t(int64_t(word));
            if (from.width == 64) memcpy(out + i, at, sizeof out[i]);
        }
    } else if (from.width == kSigned || from.width == 64) {
        for (int64_t i = 0; i < n; i++)
            out[i] = from.width == 64 ? reinterpret_cast<const uint64_t*>(data)[row[i]]
                                      : uint64_t(int64_t(reinterpret_cast<const int32_t*>(data)[row[i]]));
    } else {
        const uint64_t width = uint64_t(from.width), low = low_bits(from.width);
        for (int64_t i = 0; i < n; i++) {
            const uint64_t bit = row[i] * width, rest = uint64_t(from.bytes) - bit / 8;
            uint8_t end[9] = {};
            if (rest < sizeof end) memcpy(end, data + bit / 8, rest);
            out[i] = (rest < sizeof end ? word_at(end, bit % 8) : word_at(data, bit)) & low;
        }
    }
}

template <class Target>
BODY void evaluate(Target, const Evaluation& job, int64_t first, int64_t last) {
    Chosen room;
    const uint64_t rows = low_bits(job.w), low = low_bits(job.m), half = uint64_t(1) << job.shift >> 1;
    for (int64_t run = first; run < last; run++) {
        const int64_t start = run * kRun, n = job.n - start < kRun ? job.n - start : kRun;
        const uint64_t* const opened = job.opened + start;
        for (int64_t i = 0; i < n; i++) room.row[i] = (uint64_t(start + i) << job.w) + ((opened[i] >> job.m) & rows);
        for (int p = 0; p <= job.degree; p++) choose(Target{}, job.coefficients[p], n, room, room.word[p]);
        by_eights(n, [&](int64_t i, size_t bytes) INLINE {
            Eight v, total, next;
            load(v, opened + i, bytes);
            v &= low;
            load(total, room.word[job.degree] + i, bytes);
            for (int p = job.degree - 1; p >= 0; p--) {
                load(next, room.word[p] + i, bytes);
                total = total * v + (next << ((job.degree - p) * job.m));
            }
            const Eight result = Eight(SignedEight(total + half) >> job.shift);
            memcpy(job.out + start + i, &result, bytes);
        });
    }
}

}  // namespace

// keys: 16 bytes of each party but the receiver; at most 64. pieces: as in struct Deal. firsts, widths, outs: by power.
API void hb_deal_polynomials(const uint8_t* keys, int parties, const double* pieces, const uint64_t* mask, int64_t n,
                             int degree, int w, int m, const int64_t* firsts, const int* widths, uint8_t* const* outs,
                             int threads) {
    StreamKey opened[kParties];
    for (int i = 0; i < parties; i++) open_stream(keys + 16 * i, opened[i]);
    const int64_t total = n << w;
    const Deal job{opened, parties, pieces, mask, total, w, m, firsts, widths, outs};
    const double work = kCoefficient * (degree + 1) * double(total);
    share((total + kRun - 1) / kRun, threads, work, [&](int64_t first, int64_t last) {
        if (degree == 1) dispatch<AesTargets>(OVERLOADS(deal_runs<1>), job, first, last);
        else if (degree == 2) dispatch<AesTargets>(OVERLOADS(deal_runs<2>), job, first, last);
        else dispatch<AesTargets>(OVERLOADS(deal_runs<3>), job, first, last);
    });
}

// words, firsts, sizes, widths: by power. firsts: -1, or words is the key from whose stream words are drawn. sizes: in
// bytes. widths: -32 for int32.
API void hb_evaluate_opened(const uint64_t* opened, int64_t n, const uint8_t* const* words, const int64_t* firsts,
                            const int64_t* sizes, const int* widths, int degree, int m, int w, int shift, int threads,
                            uint64_t* out) {
    StreamKey keys[kDegree + 1];
    Coefficients coefficients[kDegree + 1];
    for (int p = 0; p <= degree; p++) {
        if (firsts[p] >= 0) open_stream(words[p], keys[p]);
        coefficients[p] = {words[p], firsts[p] < 0 ? nullptr : keys + p, firsts[p], sizes[p], widths[p]};
    }
    const Evaluation job{opened, n, coefficients, degree, m, w, shift, out};
    share((n + kRun - 1) / kRun, threads, kValue * (degree + 1) * double(n), [&](int64_t first, int64_t last) {
        dispatch<AesTargets>(OVERLOADS(evaluate), job, first, last);
    });
}
