#include "cpu.hpp"

#include <atomic>
#include <stdexcept>

#ifdef TASLAK_HAVE_VNNI
#include <cpuid.h>
#endif

namespace taslak {
namespace {

#ifdef TASLAK_HAVE_VNNI
bool has_avxvnni() {  // no name in __builtin_cpu_supports of older compilers
    unsigned a = 0, b, c, d;
    return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 4 & 1);
}
#endif

std::vector<Path> find_paths() {
    std::vector<Path> found;
#ifdef TASLAK_HAVE_AVX2
    __builtin_cpu_init();
    // F16C came before AVX2 in every processor that has either
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
#ifdef TASLAK_HAVE_VNNI
        if (__builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni")) {
            found.push_back(Path::avx512vnni);
        }
        if (has_avxvnni()) found.push_back(Path::avxvnni);
#endif
        found.push_back(Path::avx2);
    }
#endif
    found.push_back(Path::scalar);
    return found;
}

std::atomic<Path>& chosen() {
    static std::atomic<Path> path{paths().front()};
    return path;
}

}  // namespace

const std::vector<Path>& paths() {
    static const std::vector<Path> found = find_paths();
    return found;
}

Path path() { return chosen().load(std::memory_order_relaxed); }

void use(const std::string& wanted) {
    for (const Path path : paths()) {
        if (name(path) == wanted) {
            chosen() = path;
            return;
        }
    }
    throw std::invalid_argument("there is no path \"" + wanted + "\" here");
}

std::string name(Path path) {
    switch (path) {
        case Path::avx2: return "avx2";
        case Path::avxvnni: return "avxvnni";
        case Path::avx512vnni: return "avx512vnni";
        default: return "scalar";
    }
}

}  // namespace taslak
