// What every file of kernels shares: targets, the choice among them, eight elements as one value.
//
// Each function is compiled for AVX-512 (F, BW, DQ, VL), AVX2 and the baseline; the processor chooses at run time.

#pragma once

#include <atomic>
#include <cstdint>
#include <cstring>

#if defined(__GNUC__) && !defined(__clang__)  // gcc's own AVX-512 header sets it off (gcc bug 105593)
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif

#if defined(__x86_64__)
#include <immintrin.h>
#define X86 1
#define AVX2 __attribute__((target("avx2")))
#define AVX512 __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#else
#define X86 0
#endif
// A body inlined into functions of several targets is compiled anew for each of them.
#define BODY inline __attribute__((always_inline))
#define API extern "C" __attribute__((visibility("default")))

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bytes of a word are taken to be least significant first");

enum Isa : int { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };

// Defined in kernels.cpp.
extern __attribute__((visibility("hidden"))) std::atomic<int> current_isa;

// The function of this name for the processor at hand: `name` ends in the name of a target.
#if X86
#define CHOOSE(name)                                                                                \
    (current_isa == kAvx512 ? name##_avx512 : current_isa == kAvx2 ? name##_avx2 : name##_portable)
#else
#define CHOOSE(name) (name##_portable)
#endif

// Eight elements; the compiler maps them to one, two or four registers of the target at hand.
typedef uint64_t Eight __attribute__((vector_size(64)));
constexpr Eight kLane = {0, 1, 2, 3, 4, 5, 6, 7};
constexpr Eight kOne = {1, 1, 1, 1, 1, 1, 1, 1};

// Arrays are read and written eight elements at a time; the last step may hold fewer.
#define LOAD(name, array) \
    Eight name = {};      \
    memcpy(&name, array + i, step)
#define PICK(mask, yes, no) ((no) ^ (((no) ^ (yes)) & (mask)))
