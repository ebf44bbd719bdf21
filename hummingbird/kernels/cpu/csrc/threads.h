// Threads that share independent pieces of work.

#pragma once

#include <algorithm>
#include <cstdint>
#include <thread>
#include <vector>

namespace {

constexpr double kThread = 50e3;   // nanoseconds: one thread more, with its start and its cold caches
constexpr double kProduct = 0.05;  // nanoseconds: one number of a vector product, with its sum

// Calls run(first, last) for runs of the pieces 0 .. count - 1, of nearly equal size, by at most `threads` threads.
// `work`: an estimate of nanoseconds for all pieces, by which no more threads start than are worth it.
template <class F>
void share(int64_t count, int threads, double work, const F& run) {
    const int64_t most = std::max<int64_t>(1, std::min<int64_t>({threads, count, int64_t(work / kThread) + 1}));
    std::vector<std::thread> others;
    for (int64_t i = 1; i < most; i++)
        others.emplace_back([&, i] { run(count * i / most, count * (i + 1) / most); });
    run(0, count / most);
    for (auto& other : others) other.join();
}

}  // namespace
