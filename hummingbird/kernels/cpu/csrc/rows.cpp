// Tables of rows, and the XOR or the sum of the rows that each of many queries selects by bits, as kernels/lookups.py
// defines them.
//
// The table is bit-sliced (slices.h). With AVX2 or more, XOR is a product of bit matrices (tiles.h); sums, and XOR
// without AVX2, select among the sums of four rows (sums.h). Each thread computes a part of the table's blocks.

#include <mutex>

#include "slices.h"
#include "sums.h"
#include "threads.h"
#include "tiles.h"
#include "tiles_x86.h"

namespace {

// ---- the table

constexpr double kLarge = 1e6;  // nanoseconds: a table whose blocks are worth sharing
constexpr double kPut = 8;      // nanoseconds: a byte of a row that is written alone

// Groups first to last from rows that lie one after the other; fewer than eight `rows` are left for the last group.
BODY void write(Portable, uint64_t* table, Shape s, int64_t first, int64_t last, const uint8_t* data, int64_t rows) {
    for (int64_t group = first; group < last; group++, data += 8 * s.row_bytes, rows -= 8)
        for (int64_t at = 0; at < s.row_bytes; at += 64) {
            const size_t size = size_t(least(64, s.row_bytes - at));
            Eight row[8] = {};
            for (int64_t i = 0; i < least(8, rows); i++) memcpy(&row[i], data + i * s.row_bytes + at, size);
            exchange(row);  // word v of row j: byte 8 v + j of all rows
            for (int j = 0; j < 8; j++) turn(row[j]);
            for (int64_t v = at / 8; v < least(at / 8 + 8, s.vectors()); v++) {
                uint64_t* const out = table + 8 * (s.line(group / kGroups, v / kWide, group % kGroups) + v % kWide);
                for (int j = 0; j < 8; j++) out[j] = row[j][v % 8];
            }
        }
}

// The same rows back from groups first to last; `rows` are wanted.
BODY void read(Portable, const uint64_t* table, Shape s, int64_t first, int64_t last, int64_t rows, uint8_t* data) {
    for (int64_t group = first; group < last; group++, data += 8 * s.row_bytes, rows -= 8)
        for (int64_t at = 0; at < s.row_bytes; at += 64) {
            const size_t size = size_t(least(64, s.row_bytes - at));
            Eight row[8] = {};
            for (int64_t v = at / 8; v < least(at / 8 + 8, s.vectors()); v++) {
                const uint64_t* const in = table + 8 * (s.line(group / kGroups, v / kWide, group % kGroups) + v % kWide);
                for (int j = 0; j < 8; j++) row[j][v % 8] = in[j];
            }
            for (int j = 0; j < 8; j++) turn(row[j]);
            exchange(row);
            for (int64_t i = 0; i < least(8, rows); i++) memcpy(data + i * s.row_bytes + at, &row[i], size);
        }
}

// One row: one bit of each of 8 row_bytes bytes.
void put(uint64_t* table, const Shape& s, int64_t index, const uint8_t* data) {
    const int64_t group = index / 8, shift = index % 8;
    for (int64_t at = 0; at < s.row_bytes; at++) {
        const int64_t v = at / 8;
        uint64_t& word = table[8 * (s.line(group / kGroups, v / kWide, group % kGroups) + v % kWide) + at % 8];
        uint64_t bits = data[at];
        turn(bits);  // bit c to byte c
        word = (word & ~(uint64_t(0x0101010101010101) << shift)) | bits << shift;
    }
}

void take(const uint64_t* table, const Shape& s, int64_t index, uint8_t* data) {
    const int64_t group = index / 8, shift = index % 8;
    for (int64_t at = 0; at < s.row_bytes; at++) {
        const int64_t v = at / 8;
        uint64_t bits = table[8 * (s.line(group / kGroups, v / kWide, group % kGroups) + v % kWide) + at % 8] >> shift;
        bits &= 0x0101010101010101;
        turn(bits);  // bit 0 of byte c to bit c
        data[at] = uint8_t(bits);
    }
}

// ---- answers

// An estimate of nanoseconds: 3/4 for a line of the table with eight queries.
double work(const Shape& s, int64_t queries) { return 0.75 * double(s.groups() * s.vectors() * ((queries + 7) / 8)); }

// The sum over all blocks: each thread calls add(first block, last block, sums) with its own lines for sums.
template <class Add>
std::vector<Line> total(const Shape& s, int64_t queries, int threads, int64_t lines, int width, const Add& add) {
    std::vector<Line> all;
    std::mutex lock;
    share(s.blocks(), threads, work(s, queries), [&](int64_t first, int64_t last) {
        std::vector<Line> own(size_t(lines), Line{});
        add(first, last, own.data());
        const std::lock_guard<std::mutex> held(lock);
        if (all.empty()) all = std::move(own);
        else merge_words(all.data(), own.data(), lines, width);
    });
    return all;
}

// One table, out (count, row_bytes): by sums of any width, or, for an XOR on a target that has them, by tiles.
void answer(Portable, const Shape& s, const uint8_t* table, int width, const Queries& queries, int threads,
            uint8_t* out) {
    const auto add = [&](int64_t first, int64_t last, Line* sums) {
        add_sums(s, table, queries, width, first, last, sums);
    };
    const int64_t lines = (s.row_bytes + 63) / 64 * queries.count;
    give_sums(s, total(s, queries.count, threads, lines, width, add).data(), queries.count, out);
}

template <class Target>
void answer(Target target, const Shape& s, const uint8_t* table, int width, const Queries& queries, int threads,
            uint8_t* out) {
    const auto add = [&](int64_t first, int64_t last, Line* sums) {
        add_tiles(target, s, table, queries, first, last, sums);
    };
    const int64_t lines = s.vectors() * ((queries.count + 7) / 8);
    give_tiles(s, total(s, queries.count, threads, lines, width, add).data(), queries.count, out);
}

}  // namespace

// Rows start to start + count. The table is aligned to 8 bytes, and zero before the first row is written.
API void hb_rows_write(uint64_t* table, int64_t rows, int64_t row_bytes, int64_t start, int64_t count,
                       const uint8_t* data) {
    const Shape s = {rows, row_bytes};
    const int64_t end = start + count;
    const int64_t first = (start + 7) / 8, last = end < rows ? end / 8 : (end + 7) / 8;  // groups to write as a whole
    if (first < last)
        dispatch(OVERLOADS(write), table, s, first, last, data + (8 * first - start) * row_bytes, end - 8 * first);
    for (int64_t i = start; i < end; i++) {
        if (first < last && i == 8 * first) i = least(end, 8 * last);
        if (i < end) put(table, s, i, data + (i - start) * row_bytes);
    }
}

// The rows start to start + count of the table, into data.
API void hb_rows_read(const uint64_t* table, int64_t rows, int64_t row_bytes, int64_t start, int64_t count,
                      uint8_t* data) {
    const Shape s = {rows, row_bytes};
    const int64_t end = start + count, first = (start + 7) / 8;
    for (int64_t i = start; i < least(end, 8 * first); i++) take(table, s, i, data + (i - start) * row_bytes);
    if (8 * first < end)
        dispatch(OVERLOADS(read), table, s, first, (end + 7) / 8, end - 8 * first,
                 data + (8 * first - start) * row_bytes);
}

API void hb_rows_gather(const uint64_t* table, int64_t rows, int64_t row_bytes, const int64_t* index, int64_t count,
                        uint8_t* data) {
    const Shape s = {rows, row_bytes};
    for (int64_t i = 0; i < count; i++) take(table, s, index[i], data + i * row_bytes);
}

// Of several rows with one number, the last remains. Each thread has groups of its own, as eight rows share bytes.
API void hb_rows_update(uint64_t* table, int64_t rows, int64_t row_bytes, const int64_t* index, int64_t count,
                        const uint8_t* data, int threads) {
    const Shape s = {rows, row_bytes};
    share(s.groups(), threads, kPut * double(count * row_bytes), [&](int64_t first, int64_t last) {
        for (int64_t i = 0; i < count; i++)
            if (index[i] / 8 >= first && index[i] / 8 < last) put(table, s, index[i], data + i * row_bytes);
    });
}

// out: for each of the `tables`, all of one shape, and each of its `count` queries, row_bytes bytes: the XOR (width 0),
// or the sum in words of `width` bits, of the rows selected. data: `size` bytes for each query, table after table: keys
// of a DPF in which the table begins at leaf `leaf`, or, leaf -1, the bits. Threads share small tables, or else
// the blocks of one table after another.
API void hb_rows_answer(const uint8_t* const* table, int64_t tables, int64_t rows, int64_t row_bytes, int width,
                        const uint8_t* data, int64_t count, int64_t size, int64_t leaf, int threads, uint8_t* out) {
    const Shape s = {rows, row_bytes};
    const bool apart = tables > 1 && work(s, count) < kLarge;
    const int inside = apart ? 1 : threads;
    share(tables, apart ? threads : 1, work(s, count * tables), [&](int64_t first, int64_t last) {
        for (int64_t i = first; i < last; i++) {
            const Queries queries = {data + i * count * size, count, size, leaf};
            uint8_t* const to = out + i * count * row_bytes;
            if (width) answer(Portable{}, s, table[i], width, queries, inside, to);
            else dispatch<GfniTargets>(OVERLOADS(answer), s, table[i], width, queries, inside, to);
        }
    });
}
