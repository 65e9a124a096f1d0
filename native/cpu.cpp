#include "cpu.hpp"

#include <atomic>
#include <stdexcept>

namespace taslak {
namespace {

std::vector<Path> find_paths() {
    std::vector<Path> found;
#ifdef TASLAK_HAVE_AVX2
    __builtin_cpu_init();
    // F16C came before AVX2 in every processor that has either
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) found.push_back(Path::avx2);
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

std::string name(Path path) { return path == Path::avx2 ? "avx2" : "scalar"; }

}  // namespace taslak
