// Words of any width in one stream of bits: packing, unpacking with sums, and step tables, which are such words.
//
// Eight words of `width` bits fill `width` bytes, so with AVX-512 one register holds eight words, packed or unpacked,
// and every 64-bit lane of the result combines two (unpacking) or three (packing) neighbouring lanes, shifted: a vector
// shift by 64 or more yields 0, so one rule covers all cases. Other targets use a 64-bit accumulator.

#pragma once

#include "eight.h"

namespace {

BODY uint64_t low_bits(int width) { return width < 64 ? (uint64_t(1) << width) - 1 : ~uint64_t(0); }

// ---- sources of words to pack: read() returns one word, or eight, of which `step` bytes exist

struct Plain {
    const uint64_t* x;
    template <class T>
    BODY void read(T& word, int64_t i, size_t step) const {
        memcpy(&word, x + i, step);
    }
};

struct Steps {  // step tables of up to 64 bits
    const uint64_t* x;
    uint64_t low;
    template <class T>
    BODY void read(T& word, int64_t i, size_t step) const {
        memcpy(&word, x + i, step);
        word = ~T{} << (word & low);
    }
};

// ---- pack: n words of `width` bits

template <class Source>
BODY void pack(Portable, int64_t n, int width, uint8_t* out, Source source) {
    const uint64_t low = low_bits(width);
    uint64_t filling = 0;
    int filled = 0;  // bits, below 64
    for (int64_t i = 0; i < n; i++) {
        uint64_t word = 0;
        source.read(word, i, sizeof word);
        word &= low;
        filling |= word << filled;
        filled += width;
        if (filled >= 64) {
            memcpy(out, &filling, sizeof filling);
            out += sizeof filling;
            filled -= 64;
            filling = filled ? word >> (width - filled) : 0;
        }
    }
    if (filled) memcpy(out, &filling, size_t(filled + 7) / 8);
}

#if X86
template <class Source>
AVX512 void pack(Avx512, int64_t n, int width, uint8_t* out, Source source) {
    // Join neighbours within the register until a joined word has more than 32 bits, or all eight are one word; a lane
    // of the output then overlaps three joined words at most.
    if (width == 0) return;
    int levels = 0, joined = width;
    for (; levels < 3 && joined <= 32; levels++) joined *= 2;
    alignas(64) uint64_t lane[3][8], shift[3][8];
    for (int j = 0; j < 8; j++)
        for (int t = 0, start = 64 * j / joined; t < 3; t++) {  // lane j takes joined words start, start + 1, start + 2
            lane[t][j] = uint64_t(start + t) << levels;
            shift[t][j] = uint64_t(t ? (start + t) * joined - 64 * j : 64 * j - start * joined);
        }
    const __m512i first = _mm512_load_si512(lane[0]), second = _mm512_load_si512(lane[1]),
                  third = _mm512_load_si512(lane[2]);
    const __m512i right = _mm512_load_si512(shift[0]), left = _mm512_load_si512(shift[1]),
                  far_left = _mm512_load_si512(shift[2]);
    const __m128i one = _mm_cvtsi32_si128(width), two = _mm_cvtsi32_si128(2 * width),
                  four = _mm_cvtsi32_si128(4 * width);
    const __m512i low = _mm512_set1_epi64(int64_t(low_bits(width)));
    const int64_t bytes = (n * width + 7) / 8;
    for (int64_t i = 0, at = 0; i < n; i += 8, at += width) {
        Eight words = {};
        if (n - i >= 8) {
            source.read(words, i, sizeof words);
        } else {
            source.read(words, i, size_t(n - i) * 8);
            words &= Eight(kLane < uint64_t(n - i));  // spare bits are 0
        }
        __m512i x = _mm512_and_si512((__m512i)words, low);
        if (levels > 0) x = _mm512_or_si512(x, _mm512_sll_epi64(_mm512_unpackhi_epi64(x, x), one));
        if (levels > 1) x = _mm512_or_si512(x, _mm512_sll_epi64(_mm512_permutex_epi64(x, 0xEE), two));
        if (levels > 2) x = _mm512_or_si512(x, _mm512_sll_epi64(_mm512_shuffle_i64x2(x, x, 0xEE), four));
        __m512i packed = _mm512_srlv_epi64(_mm512_permutexvar_epi64(first, x), right);
        packed = _mm512_or_si512(packed, _mm512_sllv_epi64(_mm512_permutexvar_epi64(second, x), left));
        packed = _mm512_or_si512(packed, _mm512_sllv_epi64(_mm512_permutexvar_epi64(third, x), far_left));
        if (at + 64 <= bytes)
            _mm512_storeu_si512(out + at, packed);  // what lies behind `width` bytes is written again by later steps
        else
            _mm512_mask_storeu_epi8(out + at, low_bits(int(bytes - at < width ? bytes - at : width)), packed);
    }
}
#endif

// ---- open: the sum of packed words

BODY uint64_t word_at(const uint8_t* data, uint64_t bit) {  // the 64 bits that begin there
    uint64_t word;
    memcpy(&word, data + bit / 8, sizeof word);
    return word >> (bit % 8) | uint64_t(data[bit / 8 + 8]) << 1 << (63 - bit % 8);
}

BODY void open(Portable, const uint8_t* const* frames, int count, int64_t n, int width, uint64_t* out) {
    const uint64_t low = low_bits(width), bytes = (uint64_t(n) * uint64_t(width) + 7) / 8;
    uint64_t bit = 0;
    int64_t i = 0;
    for (; i < n && bit / 8 + 9 <= bytes; i++, bit += uint64_t(width)) {
        uint64_t total = word_at(frames[0], bit);
        for (int f = 1; f < count; f++) total += word_at(frames[f], bit);
        out[i] = total & low;
    }
    for (; i < n; i++, bit += uint64_t(width)) {
        uint64_t total = 0;
        for (int f = 0; f < count; f++) {
            uint8_t rest[9] = {};
            if (width) memcpy(rest, frames[f] + bit / 8, bytes - bit / 8 < 9 ? bytes - bit / 8 : 9);
            total += word_at(rest, bit % 8);
        }
        out[i] = total & low;
    }
}

#if X86
AVX512 inline void open(Avx512, const uint8_t* const* frames, int count, int64_t n, int width, uint64_t* out) {
    const __m512i bit = _mm512_mullo_epi64((__m512i)kLane, _mm512_set1_epi64(width));  // below 7 * 64
    const __m512i first = _mm512_srli_epi64(bit, 6), second = _mm512_add_epi64(first, (__m512i)kOne);
    const __m512i right = _mm512_and_si512(bit, _mm512_set1_epi64(63));
    const __m512i left = _mm512_sub_epi64(_mm512_set1_epi64(64), right);
    const __m512i low = _mm512_set1_epi64(int64_t(low_bits(width)));
    for (int64_t i = 0, at = 0; i < n; i += 8, at += width) {
        const int64_t here = n - i < 8 ? n - i : 8;
        const __mmask64 bytes = low_bits(int(here * width + 7) / 8);
        __m512i total = _mm512_setzero_si512();
        for (int f = 0; f < count; f++) {
            const __m512i x = _mm512_maskz_loadu_epi8(bytes, frames[f] + at);
            total = _mm512_add_epi64(total, _mm512_srlv_epi64(_mm512_permutexvar_epi64(first, x), right));
            total = _mm512_add_epi64(total, _mm512_sllv_epi64(_mm512_permutexvar_epi64(second, x), left));
        }
        _mm512_mask_storeu_epi64(out + i, __mmask8(low_bits(int(here))), _mm512_and_si512(total, low));
    }
}
#endif

// ---- words read in runs; each run begins at a whole byte, for a step table at a whole line

constexpr int64_t kRun = 512;
constexpr int kSigned = -32;  // the width of words of 32 bits with sign

struct Words {
    const uint8_t* data;
    int width;  // bits of a word, up to 64
};

// Words start .. start + n - 1, n <= kRun: in place if they have 64 bits, else unpacked in `room`.
template <class Target>
BODY const uint64_t* run_of(Target, Words from, int64_t start, int64_t n, uint64_t* room) {
    if (from.width == kSigned) {
        const int32_t* const x = reinterpret_cast<const int32_t*>(from.data) + start;
        for (int64_t i = 0; i < n; i++) room[i] = uint64_t(int64_t(x[i]));
        return room;
    }
    const uint8_t* const at = from.data + start / 8 * from.width;
    if (from.width == 64) return reinterpret_cast<const uint64_t*>(at);
    open(Target{}, &at, 1, n, from.width, room);
    return room;
}

// ---- step tables

template <int kBytes>
BODY void wide_steps(Portable, const uint64_t* x, int64_t n, uint8_t* out) {
    // A window of these constants whose start puts the step at the right byte.
    static const struct Bytes {
        uint8_t at[2 * kBytes];
        constexpr Bytes() : at() {
            for (int j = kBytes; j < 2 * kBytes; j++) at[j] = 0xFF;
        }
    } bytes;
#pragma GCC unroll 4  // or else the speed depends on where so short a loop comes to lie in memory
    for (int64_t i = 0; i < n; i++, out += kBytes) {
        const uint64_t step = x[i] % (8 * kBytes);
        memcpy(out, bytes.at + kBytes - step / 8, kBytes);
        out[step / 8] = uint8_t(0xFF << (step % 8));
    }
}

template <class Target>
BODY void step_table(Target, const uint64_t* x, int64_t n, int bits, uint8_t* out) {
    if (bits == 8) return wide_steps<32>(Target{}, x, n, out);
    if (bits == 7) return wide_steps<16>(Target{}, x, n, out);
    pack(Target{}, n, 1 << bits, out, Steps{x, low_bits(bits)});
}

}  // namespace
