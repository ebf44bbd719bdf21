// The dealer's corrections of masked openings, in one pass: a fast version of reference/shares.py;
// shares/opening.py has the equations.
//
// A run of elements at a time is drawn from all parties' seeds, computed, and packed; intermediate values fit a cache.
// A run begins at a whole line of each field's stream, for any width of the field.

#include "aes_ctr.h"
#include "threads.h"
#include "words.h"

namespace {

constexpr double kElement = 5.0;            // nanoseconds: of one element, two parties
constexpr int kWidest = 256;                // bits of an element in a field: a step table of 8 bits
constexpr int kFields = 7;                  // without tables
static_assert(kRun % 512 == 0, "one bit of each element of a run fills lines");

struct Deal {
    const StreamKey* keys;
    int parties;
    int64_t n;
    int k, m, ring;
    int tables;
    const int* sizes;       // bits of the window that each table covers
    const int64_t* firsts;  // the line where each field begins: mask, r_b, r_s, and the corrected ones
    uint8_t* const* outs;   // of the corrected fields: carry (null where none is dealt), r_b, r_s, r_b lambda, tables
};

struct Room {
    alignas(64) uint8_t drawn[kRun * kWidest / 8];
    alignas(64) uint8_t table[kRun * kWidest / 8];
    alignas(64) uint64_t share[kRun], total[kRun], lambda[kRun], value[kRun];
};

struct Run {
    int64_t start, n;
};

// A party's share of `bits` bits an element; its buffer includes the spare bytes of the last line.
template <class Target>
BODY void draw(Target, const Deal& job, Run run, int field, int party, int bits, uint8_t* out) {
    const int64_t lines = (run.n * bits + 8 * kLine - 1) / (8 * kLine);
    stream(Target{}, job.keys[party], job.firsts[field] + run.start * bits / (8 * kLine), lines, out);
}

// value - the other parties' shares, in the form of the message.
template <class Target>
BODY void correct(Target, const Deal& job, Run run, int field, int width, Room& room) {
    for (int party = 1; party < job.parties; party++) {
        draw(Target{}, job, run, field, party, width, room.drawn);
        const uint64_t* const share = run_of(vectors(Target{}), Words{room.drawn, width}, 0, run.n, room.share);
        for (int64_t i = 0; i < run.n; i++) room.value[i] -= share[i];
    }
    pack(vectors(Target{}), run.n, width, job.outs[field - 3] + run.start / 8 * width, Plain{room.value});
}

// r, the xor of all parties' bits, as numbers 0 and 1.
template <class Target>
BODY void bits_of(Target, const Deal& job, Run run, int field, Room& room) {
    uint8_t total[kRun / 8] = {};
    for (int party = 0; party < job.parties; party++) {
        draw(Target{}, job, run, field, party, 1, room.drawn);
        for (int64_t i = 0; i < kRun / 8; i++) total[i] ^= room.drawn[i];
    }
    by_eights(run.n, [&](int64_t i, size_t) INLINE {  // there is room for eight
        const Eight bits = ((uint64_t(total[i / 8]) * kOne) >> kLane) & kOne;
        memcpy(room.value + i, &bits, sizeof bits);
    });
}

template <class Target>
BODY void tables_of(Target, const Deal& job, Run run, Room& room) {
    int low = job.m;
    for (int t = 0; t < job.tables; t++) {
        const int bits = job.sizes[t];
        const int64_t bytes = ((run.n << bits) + 7) / 8;
        for (int64_t i = 0; i < run.n; i++) room.value[i] = room.lambda[i] >> low;
        step_table(vectors(Target{}), room.value, run.n, bits, room.table);
        for (int party = 1; party < job.parties; party++) {
            draw(Target{}, job, run, kFields + t, party, 1 << bits, room.drawn);
            for (int64_t i = 0; i < bytes; i++) room.table[i] ^= room.drawn[i];
        }
        memcpy(job.outs[kFields - 3 + t] + (run.start << bits) / 8, room.table, size_t(bytes));
        low += bits;
    }
}

template <class Target>
BODY void deal_run(Target, const Deal& job, Run run, Room& room) {
    const uint64_t low = low_bits(job.k);
    memset(room.total, 0, sizeof room.total);
    for (int party = 0; party < job.parties; party++) {
        draw(Target{}, job, run, 0, party, job.k, room.drawn);
        const uint64_t* const mask = run_of(vectors(Target{}), Words{room.drawn, job.k}, 0, run.n, room.share);
        for (int64_t i = 0; i < run.n; i++) room.total[i] += mask[i];
    }
    for (int64_t i = 0; i < run.n; i++) room.lambda[i] = room.total[i] & low;
    if (job.outs[0] != nullptr) {
        for (int64_t i = 0; i < run.n; i++) room.value[i] = room.total[i] >> (job.k - 1) >> 1;  // k may be 64
        correct(Target{}, job, run, 3, job.ring - job.k, room);
    }
    bits_of(Target{}, job, run, 1, room);
    memcpy(room.total, room.value, sizeof room.total);
    correct(Target{}, job, run, 4, job.ring, room);
    bits_of(Target{}, job, run, 2, room);
    correct(Target{}, job, run, 5, job.ring - job.k, room);
    for (int64_t i = 0; i < run.n; i++) room.value[i] = (0 - room.total[i]) & room.lambda[i];
    correct(Target{}, job, run, 6, job.ring, room);
    tables_of(Target{}, job, run, room);
}

template <class Target>
BODY void deal_runs(Target, const Deal& job, int64_t first, int64_t last) {
    Room room;
    for (int64_t i = first; i < last; i++) {
        const int64_t start = i * kRun;
        deal_run(Target{}, job, Run{start, job.n - start < kRun ? job.n - start : kRun}, room);
    }
}

}  // namespace

// Whether the processor's AES instructions are used.
API int hb_aes() { return has_aes; }

// Lines first .. first + count - 1 of a key stream.
API void hb_aes128(const uint8_t* key, int64_t first, int64_t count, uint8_t* out) {
    StreamKey opened;
    open_stream(key, opened);
    dispatch<AesTargets>(OVERLOADS(stream), opened, first, count, out);
}

// keys: 16 bytes of each party; at most 64 parties.
API void hb_deal_masks(const uint8_t* keys, int parties, int64_t n, int k, int m, int ring, int tables,
                       const int* sizes, const int64_t* firsts, uint8_t* const* outs, int threads) {
    static_assert(sizeof(StreamKey) * kParties < 128 << 10, "on the stack");
    StreamKey opened[kParties];
    for (int i = 0; i < parties; i++) open_stream(keys + 16 * i, opened[i]);
    const Deal job{opened, parties, n, k, m, ring, tables, sizes, firsts, outs};
    share((n + kRun - 1) / kRun, threads, kElement * double(n), [&](int64_t first, int64_t last) {
        dispatch<AesTargets>(OVERLOADS(deal_runs), job, first, last);
    });
}
