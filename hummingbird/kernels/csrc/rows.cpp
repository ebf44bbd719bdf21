// Tables of rows, and the XOR or the sum of the rows that each of many queries selects by bits. Python: ../rows.py.
//
// The table is bit-sliced (slices.h). With AVX2 or more, XOR is a product of bit matrices (tiles.h); sums, and XOR
// without AVX2, choose among the sums of four rows (sums.h). Each thread takes a share of the table's blocks.

#include <thread>

#include "slices.h"
#include "sums.h"
#include "tiles.h"

namespace {

bool has_gfni() {
#if X86
    __builtin_cpu_init();
    return __builtin_cpu_supports("gfni");
#else
    return false;
#endif
}

std::atomic<bool> gfni{has_gfni()};

// ---- the table

// Groups first to last from rows that lie one after the other; fewer than eight `rows` are left for the last group.
BODY void write_body(uint64_t* table, const Shape& s, int64_t first, int64_t last, const uint8_t* data, int64_t rows) {
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
#define WRITE_PARAMETERS uint64_t *table, const Shape &s, int64_t first, int64_t last, const uint8_t *data, int64_t rows
#define WRITE_ARGUMENTS table, s, first, last, data, rows
void write_portable(WRITE_PARAMETERS) { write_body(WRITE_ARGUMENTS); }
#if X86
AVX2 void write_avx2(WRITE_PARAMETERS) { write_body(WRITE_ARGUMENTS); }
AVX512 void write_avx512(WRITE_PARAMETERS) { write_body(WRITE_ARGUMENTS); }
#endif

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

// ---- threads: add(first block, last block, sums) for each one's share, then merge(sums, other sums)

template <typename Add, typename Merge>
std::vector<Line> shared(int64_t blocks, int64_t threads, int64_t lines, const Add& add, const Merge& merge) {
    std::vector<std::vector<Line>> sums;
    for (int64_t i = 0; i < threads; i++) sums.emplace_back(size_t(lines));
    const auto run = [&](int64_t i) { add(blocks * i / threads, blocks * (i + 1) / threads, sums[size_t(i)].data()); };
    std::vector<std::thread> others;
    for (int64_t i = 1; i < threads; i++) others.emplace_back(run, i);
    run(0);
    for (auto& other : others) other.join();
    for (size_t i = 1; i < sums.size(); i++) merge(sums[0].data(), sums[i].data());
    return std::move(sums[0]);
}

// A thread costs as much as some ten thousand products of a line of the table with eight queries.
int64_t useful_threads(const Shape& s, int64_t count, int64_t threads) {
    const int64_t useful = s.groups() * s.vectors() * ((count + 7) / 8) / (1 << 16) + 1;
    return least(useful, threads < 1 ? 1 : threads);
}

// out (count, row_bytes): of one table.
void answer(const Shape& s, const uint8_t* table, int width, const Queries& queries, int64_t threads, uint8_t* out) {
    const int64_t used = least(useful_threads(s, queries.count, threads), s.blocks());
#if X86
    if (!width && current_isa >= kAvx2) {
        const bool affine = gfni;
        const int64_t lines = s.vectors() * ((queries.count + 7) / 8);
        const auto add = [&](int64_t first, int64_t last, Line* sums) {
            add_tiles(s, table, queries, affine, first, last, sums);
        };
        const auto merge = [&](Line* sums, const Line* other) { merge_words(sums, other, lines, 0); };
        return give_tiles(s, shared(s.blocks(), used, lines, add, merge).data(), queries.count, out);
    }
#endif
    const int64_t lines = (s.row_bytes + 63) / 64 * queries.count;
    const auto add = [&](int64_t first, int64_t last, Line* sums) {
        add_sums(s, table, queries, width, first, last, sums);
    };
    const auto merge = [&](Line* sums, const Line* other) { merge_words(sums, other, lines, width); };
    give_sums(s, shared(s.blocks(), used, lines, add, merge).data(), queries.count, out);
}

}  // namespace

API int hb_gfni() { return gfni; }

API int hb_set_gfni(int on) {  // 0, or -1 where this processor lacks it
    if (on && !has_gfni()) return -1;
    gfni = on != 0;
    return 0;
}

// Rows start to start + count. The table is aligned to 8 bytes, and zero before the first row is written.
API void hb_rows_write(uint64_t* table, int64_t rows, int64_t row_bytes, int64_t start, int64_t count,
                       const uint8_t* data) {
    const Shape s = {rows, row_bytes};
    const int64_t end = start + count;
    const int64_t first = (start + 7) / 8, last = end < rows ? end / 8 : (end + 7) / 8;  // groups to write as a whole
    if (first < last) CHOOSE(write)(table, s, first, last, data + (8 * first - start) * row_bytes, end - 8 * first);
    for (int64_t i = start; i < end; i++) {
        if (first < last && i == 8 * first) i = least(end, 8 * last);
        if (i < end) put(table, s, i, data + (i - start) * row_bytes);
    }
}

API void hb_rows_update(uint64_t* table, int64_t rows, int64_t row_bytes, const int64_t* index, int64_t count,
                        const uint8_t* data) {
    const Shape s = {rows, row_bytes};
    for (int64_t i = 0; i < count; i++) put(table, s, index[i], data + i * row_bytes);
}

// out: for each of the `tables`, all of one shape, and each of its `count` queries, row_bytes bytes: the XOR (width 0), or
// the sum in words of `width` bits, of the rows selected. data: `size` bytes for each query, table after table: keys of a
// DPF in which the table begins at leaf `leaf`, or, leaf -1, the bits. Threads share one table, or else the tables.
API void hb_rows_answer(const uint8_t* const* table, int64_t tables, int64_t rows, int64_t row_bytes, int width,
                        const uint8_t* data, int64_t count, int64_t size, int64_t leaf, int threads, uint8_t* out) {
    const Shape s = {rows, row_bytes};
    const auto run = [&](int64_t first, int64_t last, int64_t inside) {
        for (int64_t i = first; i < last; i++)
            answer(s, table[i], width, {data + i * count * size, count, size, leaf}, inside, out + i * count * row_bytes);
    };
    const int64_t used = least(useful_threads(s, count * tables, threads), tables);
    if (tables == 1 || used == 1) return run(0, tables, tables == 1 ? threads : 1);
    std::vector<std::thread> others;
    for (int64_t i = 1; i < used; i++) others.emplace_back(run, tables * i / used, tables * (i + 1) / used, 1);
    run(0, tables / used, 1);
    for (auto& other : others) other.join();
}
