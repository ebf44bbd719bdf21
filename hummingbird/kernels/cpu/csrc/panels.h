// The inner part of the linear layer of ciphertexts.cpp: all rows of some places, for one panel of columns at a time.
//
// Some columns of all ciphertexts that the places read are copied into a panel, which fits the second-level cache. From
// there a tile of up to 6 rows x 32 columns is summed in registers, over a list of the place's terms, reduced modulo q
// and stored (K. Goto, R. van de Geijn, Anatomy of High-Performance Matrix Multiplication, ACM TOMS 2008; the list
// replaces the copies of a convolution's unfolding). The next columns are copied between the tiles of the current ones,
// so that waits for memory overlap the sums.
//
// Zeros among the weights are skipped: a tile that lacks many terms has a list of those for which one of its rows has a
// weight. So a net that was pruned takes less time, and its tiles have fewer rows (ciphertexts.cpp chooses how many).

#pragma once

#include <algorithm>
#include <vector>

#include "reals.h"

namespace {

constexpr int kColumns = 32, kRows = 6;  // of a tile: 24 sums, 4 columns and a weight in the registers of AVX-512
constexpr int64_t kAhead = 4;            // ciphertexts between fetching and copying

// Columns of a tile in registers: two, two and four vectors, as there are 16, 16 and 32 of them.
template <class Target>
constexpr int kTileColumns = int(Target::kBytes / 8 * (Target::kBytes < 64 ? 2 : 4));

// Eight, four or two numbers in one instruction; of __builtin_convertvector gcc 12 makes several.
template <typename V>
BODY void widen(const int32_t* from, V& to) {
    for (int i = 0; i < int(sizeof(V) / 8); i++) to[i] = from[i];
}

struct Sizes {  // as cpu/ciphertexts.py fills it in; lines: N residues each, of prime number line % primes
    int64_t groups, rows, terms, places, inputs, lines, primes, degree, row_stride, place_stride;
};

struct Term {
    int32_t at;      // where the ciphertext's columns are in a panel
    int32_t column;  // of the packed weights
};

struct Rows {  // of one group: a tile's weights, column by column
    int64_t first;
    int count;
    std::vector<int32_t> column_of;  // for each of the group's terms, its column, or -1; empty: all have theirs
    std::vector<double> weights;
};

struct Group {
    std::vector<int32_t> terms;  // those with a weight that is not zero
    std::vector<Rows> tiles;
    int64_t own = 0;    // terms for one place, in the lists of tiles that have their own
    int64_t words = 0;  // of 8 bytes: weights, and these terms
};

struct Terms {
    std::vector<Term> terms;    // of all places of a chunk, one after the other
    std::vector<int64_t> ends;  // in `terms`, of each place
};

struct Chunk {  // places done together
    const Group* group;
    int64_t number, place;        // of the group, of the first place
    int64_t width;                // columns of a panel, a power of two
    std::vector<int32_t> inputs;  // what is in the panel
    Terms all;                    // of the group
    std::vector<Terms> own;       // of each tile that has a list of its own, with its columns
};

struct Job {
    const int32_t* index;
    const int32_t* x;
    int32_t* out;
    const double* primes;
    Sizes s;
    int steps;
    bool stream;  // the result is written past the caches
    std::vector<Group> groups;
};

// Copies columns from `column` on of the chunk's ciphertexts first .. last - 1; a panel has C columns of all together.
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

// R rows x 32 columns of one place, to sums[r * 32 + j]. With one row or two, several parts of the panel are summed at
// once: a sum that waits for the one before it would take the time of four.
template <class Target, int R>
BODY void tile(const int32_t* panel, int64_t slots, const Term* term, const Term* end, const double* weights,
               double prime, int steps, int32_t* sums) {
    using V = Reals<Target>;
    constexpr int C = kTileColumns<Target>;
    constexpr int parts = R < 3 ? std::min(kColumns / C, 4 / R) : 1;
    constexpr int lanes = sizeof(V) / 8, each = C / lanes, vectors = parts * each;
    const double inverse = 1.0 / prime;
    for (int j = 0; j < kColumns; j += parts * C, panel += slots * parts * C) {
        V sum[R][vectors] = {};
        for (const Term* t = term; t < end; t++) {
            const int32_t* x = panel + t->at;
            const double* w = weights + int64_t(t->column) * R;
            V column[vectors];
            for (int v = 0; v < vectors; v++) widen(x + v / each * slots * C + v % each * lanes, column[v]);
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
                const auto words = __builtin_convertvector(sum[r][v], Residues<Target>);
                memcpy(sums + r * kColumns + j + v * lanes, &words, sizeof words);
            }
    }
}

// ---- stores past the caches, of a row of a tile: with SSE2, which every x86-64 has

#if X86
BODY void stream(const int32_t* from, int32_t* to) {
    for (int j = 0; j < kColumns; j += 4) _mm_stream_si128((__m128i*)(to + j), *(const __m128i*)(from + j));
}
BODY void end_stream() { _mm_sfence(); }
#else
BODY void stream(const int32_t* from, int32_t* to) { memcpy(to, from, kColumns * 4); }
BODY void end_stream() {}
#endif

// ---- panels

// All rows and places of a chunk for one panel; also copies the next panel, from column `next` on unless negative.
template <class Target>
BODY void multiply(const Job& job, const Chunk& chunk, int64_t column, const int32_t* panel, int64_t next,
                   int32_t* next_panel) {
    const int64_t slots = int64_t(chunk.inputs.size()), places = int64_t(chunk.all.ends.size());
    const int64_t tiles = int64_t(chunk.group->tiles.size()) * places * (chunk.width / kColumns);
    const double prime = job.primes[column / job.s.degree % job.s.primes];
    int64_t done = 0, copied = 0;
    alignas(64) int32_t sums[kRows * kColumns];
    const Terms* own = chunk.own.data();
    for (const Rows& rows : chunk.group->tiles) {
        const double* weights = rows.weights.data();
        int32_t* out = job.out + (chunk.number * job.s.rows + rows.first) * job.s.row_stride +
                       chunk.place * job.s.place_stride + column;
        const Terms& list = rows.column_of.empty() ? chunk.all : *own++;
        const Term* term = list.terms.data();
        for (int64_t place = 0; place < places; place++, out += job.s.place_stride) {
            const Term* const end = list.terms.data() + list.ends[size_t(place)];
            for (int64_t j = 0; j < chunk.width; j += kColumns) {
                const int32_t* part = panel + j * slots;
                switch (rows.count) {
#define HB_TILE(R) \
    case R: tile<Target, R>(part, slots, term, end, weights, prime, job.steps, sums); break;
                    HB_TILE(1) HB_TILE(2) HB_TILE(3) HB_TILE(4) HB_TILE(5) HB_TILE(6)
#undef HB_TILE
                }
                for (int r = 0; r < rows.count; r++) {
                    int32_t* const to = out + r * job.s.row_stride + j;
                    if (job.stream) stream(sums + r * kColumns, to);
                    else memcpy(to, sums + r * kColumns, kColumns * 4);
                }
                if (next >= 0) {
                    const int64_t wanted = slots * ++done / tiles;
                    copy<kTileColumns<Target>>(job, chunk, next, next_panel, copied, wanted);
                    copied = wanted;
                }
            }
            term = end;
        }
    }
}

// One chunk, columns first .. last - 1 of a ciphertext; two panels.
template <class Target>
BODY void run_chunk(Target, const Job& job, const Chunk& chunk, int64_t first, int64_t last, int32_t* panel,
                    int32_t* other) {
    copy<kTileColumns<Target>>(job, chunk, first, panel, 0, int64_t(chunk.inputs.size()));
    for (int64_t column = first; column < last; column += chunk.width) {
        const int64_t next = column + chunk.width < last ? column + chunk.width : -1;
        multiply<Target>(job, chunk, column, panel, next, other);
        std::swap(panel, other);
    }
    end_stream();
}

}  // namespace
