// Keywords of a lookup table: their hash, and cuckoo hashing with three segments, as kernels/keywords.py defines them.
//
// The hash is BLAKE2b (RFC 7693) with a key of 16 bytes and a digest of 16. The block with the key comes first, so its
// state is computed once. The table of tags is larger than any cache: the tags of keywords that come next are fetched
// ahead.

#include "dispatch.h"
#include "threads.h"

namespace {

constexpr int kSegments = 3;
constexpr int64_t kAhead = 16;    // keywords whose tags are fetched ahead
constexpr double kHashed = 150;   // nanoseconds of a block
constexpr double kFound = 60;     // nanoseconds of a keyword that is searched for

// ---- BLAKE2b

constexpr uint64_t kStart[8] = {0x6a09e667f3bcc908, 0xbb67ae8584caa73b, 0x3c6ef372fe94f82b, 0xa54ff53a5f1d36f1,
                                0x510e527fade682d1, 0x9b05688c2b3e6c1f, 0x1f83d9abfb41bd6b, 0x5be0cd19137e2179};
constexpr uint8_t kOrder[10][16] = {
    {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}, {14, 10, 4, 8, 9, 15, 13, 6, 1, 12, 0, 2, 11, 7, 5, 3},
    {11, 8, 12, 0, 5, 2, 15, 13, 10, 14, 3, 6, 7, 1, 9, 4}, {7, 9, 3, 1, 13, 12, 11, 14, 2, 6, 5, 10, 4, 0, 15, 8},
    {9, 0, 5, 7, 2, 4, 10, 15, 14, 1, 11, 12, 6, 8, 3, 13}, {2, 12, 6, 10, 0, 11, 8, 3, 4, 13, 7, 5, 15, 14, 1, 9},
    {12, 5, 1, 15, 14, 13, 4, 10, 0, 7, 6, 3, 9, 2, 8, 11}, {13, 11, 7, 14, 12, 1, 3, 9, 5, 0, 15, 4, 8, 6, 2, 10},
    {6, 15, 14, 9, 11, 3, 0, 8, 12, 2, 13, 7, 1, 4, 10, 5}, {10, 2, 8, 4, 7, 6, 1, 5, 15, 11, 9, 14, 3, 12, 13, 0}};
constexpr int64_t kBlock = 128;

uint64_t right(uint64_t x, int by) { return x >> by | x << (64 - by); }

void compress(uint64_t* state, const uint8_t* block, uint64_t length, bool last) {
    uint64_t m[16], v[16];
    memcpy(m, block, sizeof m);
    for (int i = 0; i < 8; i++) v[i] = state[i], v[8 + i] = kStart[i];
    v[12] ^= length;
    if (last) v[14] = ~v[14];
    const auto mix = [&](int a, int b, int c, int d, uint64_t x, uint64_t y) INLINE {
        v[a] += v[b] + x, v[d] = right(v[d] ^ v[a], 32), v[c] += v[d], v[b] = right(v[b] ^ v[c], 24);
        v[a] += v[b] + y, v[d] = right(v[d] ^ v[a], 16), v[c] += v[d], v[b] = right(v[b] ^ v[c], 63);
    };
#pragma GCC unroll 12
    for (int round = 0; round < 12; round++) {
        const uint8_t* const o = kOrder[round % 10];
        for (int i = 0; i < 4; i++) mix(i, 4 + i, 8 + i, 12 + i, m[o[2 * i]], m[o[2 * i + 1]]);
        for (int i = 0; i < 4; i++)
            mix(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4, m[o[8 + 2 * i]], m[o[9 + 2 * i]]);
    }
    for (int i = 0; i < 8; i++) state[i] ^= v[i] ^ v[8 + i];
}

struct Hash {
    uint64_t keyed[8], empty[8];  // after the key's block; if no data follow, that block is the last one

    explicit Hash(const uint8_t* key) {
        uint8_t block[kBlock] = {};
        memcpy(block, key, 16);
        for (int i = 0; i < 8; i++) keyed[i] = kStart[i];
        keyed[0] ^= 0x01010000 | 16 << 8 | 16;
        memcpy(empty, keyed, sizeof keyed);
        compress(keyed, block, kBlock, false);
        compress(empty, block, kBlock, true);
    }

    void operator()(const uint8_t* data, int64_t size, uint64_t* out) const {
        if (!size) {
            memcpy(out, empty, 16);
            return;
        }
        uint64_t state[8];
        memcpy(state, keyed, sizeof state);
        int64_t at = 0;
        for (; at + kBlock < size; at += kBlock) compress(state, data + at, uint64_t(2 * kBlock + at), false);
        uint8_t block[kBlock] = {};
        memcpy(block, data + at, size_t(size - at));
        compress(state, block, uint64_t(kBlock + size), true);
        memcpy(out, state, 16);
    }
};

// ---- positions

uint64_t mixed(uint64_t x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    return x ^ (x >> 31);
}

// How far a keyword's position in a segment is from its position in segment 0.
uint64_t offset(uint64_t tag, uint64_t segment, uint64_t size) {
    return segment ? mixed(tag + segment * 0x9E3779B97F4A7C15) % size : 0;
}

// A keyword's numbers of records, one in each segment of `size`.
struct Places {
    uint64_t at[kSegments];
    Places(uint64_t first, uint64_t tag, uint64_t size) {  // first: its position in segment 0
        for (uint64_t s = 0; s < kSegments; s++) at[s] = s * size + (first + offset(tag, s, size)) % size;
    }
};

uint64_t first_of(uint64_t place, uint64_t tag, uint64_t size) {
    const uint64_t segment = place / size;
    return (place - segment * size + size - offset(tag, segment, size)) % size;
}

template <class F>
void ahead(const uint64_t* digests, int64_t first, int64_t last, uint64_t size, const uint64_t* tags, const F& step) {
    for (int64_t i = first; i < last; i++) {
        if (const int64_t next = i + kAhead; next < last) {
            const Places places(digests[2 * next] % size, digests[2 * next + 1], size);
            for (const uint64_t place : places.at) __builtin_prefetch(tags + place);
        }
        step(i, Places(digests[2 * i] % size, digests[2 * i + 1], size), digests[2 * i + 1]);
    }
}

}  // namespace

// out: two words for each of `count` keywords: the first gives its position in segment 0, the second is its tag.
// offsets: count + 1 places in `data` where keywords begin and end.
API void hb_keywords_hash(const uint8_t* data, const int64_t* offsets, int64_t count, const uint8_t* key, int threads,
                          uint64_t* out) {
    const Hash hash(key);
    const double blocks = double(count) + double(offsets[count] - offsets[0]) / kBlock;
    share(count, threads, kHashed * blocks, [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; i++) {
            hash(data + offsets[i], offsets[i + 1] - offsets[i], out + 2 * i);
            out[2 * i + 1] += !out[2 * i + 1];
        }
    });
}

// Gives each keyword one of its positions: writes its tag there. tags: of 3 `size` records, 0: none. Returns -1; the
// number of a keyword that is there already; or -2 after `most` moves for one keyword: then another's tag is lost.
API int64_t hb_keywords_place(const uint64_t* digests, int64_t count, int64_t size, int64_t most, uint64_t* tags) {
    int64_t found = -1;
    uint64_t random = 1;
    ahead(digests, 0, count, uint64_t(size), tags, [&](int64_t i, Places places, uint64_t tag) {
        if (found != -1) return;
        for (const uint64_t place : places.at)
            if (tags[place] == tag) found = i;
        if (found != -1) return;
        uint64_t from = ~uint64_t(0);
        for (int64_t moves = 0;; moves++) {
            for (const uint64_t place : places.at)
                if (!tags[place]) {
                    tags[place] = tag;
                    return;
                }
            if (moves == most) break;
            random = random * 6364136223846793005 + 1442695040888963407;
            uint64_t turn = (random >> 33) % kSegments;
            if (places.at[turn] == from) turn = (turn + 1) % kSegments;  // where it was moved away from a moment ago
            from = places.at[turn];
            std::swap(tag, tags[from]);
            places = Places(first_of(from, tag, uint64_t(size)), tag, uint64_t(size));
        }
        found = -2;
    });
    return found;
}

// out: the number of the record that has each keyword's tag, -1 if none has.
API void hb_keywords_find(const uint64_t* digests, int64_t count, int64_t size, const uint64_t* tags, int threads,
                          int64_t* out) {
    share(count, threads, kFound * double(count), [&](int64_t first, int64_t last) {
        ahead(digests, first, last, uint64_t(size), tags, [&](int64_t i, const Places& places, uint64_t tag) {
            out[i] = -1;
            for (const uint64_t place : places.at)
                if (tags[place] == tag) out[i] = int64_t(place);
        });
    });
}
