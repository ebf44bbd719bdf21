// The targets for which kernels are compiled, and the choice among them at run time.
//
// A target is a set of vector instructions: a struct whose `usable` asks the processor (and hb_set_isa), and whose
// `call` is compiled with these instructions. A kernel is a function whose first argument is the target, with an
// overload for each target that has a version of its own:
//
//     BODY void add(Portable, const uint64_t* x, int64_t n, uint64_t* out) { .. }    // plain C++, for any target
//     AVX512 void add(Avx512, const uint64_t* x, int64_t n, uint64_t* out) { .. }    // intrinsics
//
//     dispatch(OVERLOADS(add), x, n, out);    // runs the best version that the processor has
//
// A target derives from the targets that it contains, so that overload resolution finds the nearest version. A BODY is
// inlined into the target's `call`: it is compiled again for each target, and may use its registers,
// Vector<double, Target>. Any other function is compiled once, for the instructions that it names or else for the
// baseline. A function that calls kernels in an inner loop is dispatched itself, as a `template <class Target>`, and
// passes its target on.
//
// Arguments reach `call` by reference. Kernels take numbers, pointers and small structs by value, so that the compiler
// need not read these again after each store.
//
// NEON would be a struct `Neon` below, before Portable in the lists of targets, with overloads beside those for x86: in
// the same file, or in a file *_neon.h beside *_x86.h. Until then aarch64 runs the portable versions.

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
#else
#define X86 0
#endif

#define API extern "C" __attribute__((visibility("default")))
#define HIDDEN __attribute__((visibility("hidden")))
#define INLINE __attribute__((always_inline))  // of a lambda
#define BODY inline INLINE                     // of a function

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "bytes of a word are taken to be least significant first");

enum Isa : int { kPortable = 0, kAvx2 = 1, kAvx512 = 2 };

// The choice so far, in dispatch.cpp.
HIDDEN extern std::atomic<int> current_isa;
HIDDEN extern std::atomic<bool> use_gfni;
HIDDEN extern const bool has_aes, has_vaes, has_ifma;  // of the processor

namespace {

// ---- targets

struct Portable {
    static constexpr int kBytes = 16;  // of a register: SSE2 and NEON are baselines
    static bool usable() { return true; }
    template <class F, class... A>
    static auto call(const F& f, const A&... a) {
        return f(Portable{}, a...);
    }
};

#if X86
// AVX2 includes FMA here, as in x86-64-v3. AES, GFNI and IFMA are targets of their own: some processors lack them, some
// hypervisors hide them.
#define WITH_AVX2 "avx2,fma"
#define WITH_AVX512 WITH_AVX2 ",avx512f,avx512bw,avx512dq,avx512vl"
#define AVX2 __attribute__((target(WITH_AVX2)))
#define AVX2_AES __attribute__((target(WITH_AVX2 ",aes")))
#define AVX2_GFNI __attribute__((target(WITH_AVX2 ",gfni")))
#define AVX512 __attribute__((target(WITH_AVX512)))
#define AVX512_IFMA __attribute__((target(WITH_AVX512 ",avx512ifma")))
#define AVX512_AES __attribute__((target(WITH_AVX512 ",aes,vaes")))
#define AVX512_GFNI __attribute__((target(WITH_AVX512 ",gfni")))

// A macro, as an attribute cannot be a parameter of a template.
#define TARGET(Name, Base, attribute, bytes, test)              \
    struct Name : Base {                                        \
        static constexpr int kBytes = bytes;                    \
        static bool usable() { return test; }                   \
        template <class F, class... A>                          \
        attribute static auto call(const F& f, const A&... a) { \
            return f(Name{}, a...);                             \
        }                                                       \
    };
TARGET(Avx2, Portable, AVX2, 32, current_isa >= kAvx2)
TARGET(Avx2Aes, Avx2, AVX2_AES, 32, current_isa >= kAvx2 && has_aes)
TARGET(Avx2Gfni, Avx2, AVX2_GFNI, 32, current_isa >= kAvx2 && use_gfni)
TARGET(Avx512, Avx2, AVX512, 64, current_isa == kAvx512)
TARGET(Avx512Ifma, Avx512, AVX512_IFMA, 64, current_isa == kAvx512 && has_ifma)
TARGET(Avx512Aes, Avx2Aes, AVX512_AES, 64, current_isa == kAvx512 && has_vaes)
TARGET(Avx512Gfni, Avx2Gfni, AVX512_GFNI, 64, current_isa == kAvx512 && use_gfni)
#undef TARGET
#endif

// ---- the choice: the first usable target of a list, whose last one always is

template <class...>
struct List {};

#if X86
using Targets = List<Avx512, Avx2, Portable>;
using IfmaTargets = List<Avx512Ifma, Avx512, Avx2, Portable>;
using AesTargets = List<Avx512Aes, Avx2Aes, Portable>;
using GfniTargets = List<Avx512Gfni, Avx2Gfni, Avx2, Portable>;
#else
using Targets = List<Portable>;
using IfmaTargets = Targets;
using AesTargets = Targets;
using GfniTargets = Targets;
#endif

template <class Target, class... Others, class F, class... A>
auto first_usable(List<Target, Others...>, const F& f, const A&... a) {
    if constexpr (sizeof...(Others) > 0)
        if (!Target::usable()) return first_usable(List<Others...>{}, f, a...);
    return Target::call(f, a...);
}

template <class Choice = Targets, class F, class... A>
auto dispatch(const F& f, const A&... a) {
    return first_usable(Choice{}, f, a...);
}

// All functions of one name, as one argument; variadic for the commas between template arguments.
#define OVERLOADS(...) [](const auto&... a) INLINE { return __VA_ARGS__(a...); }

// ---- a register of the target, as a vector of T

template <class T, int bytes>
struct VectorOf {
    typedef T type __attribute__((vector_size(bytes)));
};
template <class T, class Target>
using Vector = typename VectorOf<T, Target::kBytes>::type;

}  // namespace
