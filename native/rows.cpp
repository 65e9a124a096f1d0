#include "rows.hpp"

#include <algorithm>

#include "ops_kernels.hpp"

namespace taslak {

namespace {

constexpr std::int64_t kWorthSharing = 8192;  // with fewer floats, waking a thread takes longer than the work

// fn(first, last) over [0, count), in pieces where they are large enough.
template <class F>
void split(std::int64_t count, std::int64_t floats_each, Pool& pool, const F& fn) {
    const std::int64_t most = std::min<std::int64_t>(count, 2 * count * floats_each / kWorthSharing);
    const std::int64_t pieces = std::clamp<std::int64_t>(most, 1, 4 * pool.threads());
    pool.parallel_for(pieces, [&](std::int64_t i) { fn(count * i / pieces, count * (i + 1) / pieces); });
}

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, int rows, int width, float* out, Pool& pool) {
    split(rows, width, pool, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) ops_kernels().norm(x + r * width, weight, eps, width, out + r * width);
    });
}

void rotate(float* x, const float* cos, const float* sin, int rows, int heads, int head_size, int size, Pool& pool) {
    split(rows, std::int64_t(heads) * head_size, pool, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            for (int h = 0; h < heads; ++h) {
                ops_kernels().rotate(x + (r * heads + h) * head_size, cos + r * size, sin + r * size, size);
            }
        }
    });
}

void silu_times(float* gate, const float* up, std::int64_t count, Pool& pool) {
    split(count, 2, pool, [&](std::int64_t first, std::int64_t last) {
        ops_kernels().silu_times(gate + first, up + first, last - first);
    });
}

void add(float* x, const float* y, std::int64_t count, Pool& pool) {
    split(count, 1, pool, [&](std::int64_t first, std::int64_t last) {
        ops_kernels().add(x + first, y + first, last - first);
    });
}

}  // namespace taslak
