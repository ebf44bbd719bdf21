// The choice among the targets of dispatch.h: by the processor, and by requests of tests and benchmarks.

#include "dispatch.h"

#if X86
#include <cpuid.h>
#endif

namespace {

int best_isa() {
#if X86
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    if (avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return kAvx512;
    if (avx2) return kAvx2;
#endif
    return kPortable;
}

bool has_gfni() {
#if X86
    __builtin_cpu_init();
    return __builtin_cpu_supports("gfni");
#else
    return false;
#endif
}

// Bits of ecx, or of ebx; compilers differ in the names that they know for them.
bool has_bit([[maybe_unused]] unsigned leaf, [[maybe_unused]] unsigned bit, [[maybe_unused]] bool of_ebx = false) {
#if X86
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(leaf, 0, &a, &b, &c, &d) && ((of_ebx ? b : c) >> bit & 1);
#else
    return false;
#endif
}

}  // namespace

std::atomic<int> current_isa{best_isa()};
std::atomic<bool> use_gfni{has_gfni()};
const bool has_aes = has_bit(1, 25), has_vaes = has_aes && has_bit(7, 9);
const bool has_ifma = has_bit(7, 21, true);

// Increased whenever a signature of the library changes; Python refuses a library with another number.
API int hb_abi() { return 20; }

API int hb_isa() { return current_isa; }

API int hb_set_isa(int isa) {  // 0, or -1 where this processor lacks it
    if (isa < kPortable || isa > best_isa()) return -1;
    current_isa = isa;
    return 0;
}

API int hb_gfni() { return use_gfni; }

API int hb_set_gfni(int on) {  // 0, or -1 where this processor lacks it
    if (on && !has_gfni()) return -1;
    use_gfni = on != 0;
    return 0;
}
