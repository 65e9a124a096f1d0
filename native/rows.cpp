#include "rows.hpp"

#include <algorithm>

#include "ops_kernels.hpp"

namespace taslak {

namespace {

constexpr std::int64_t kWorthSharing = 16384;  // with fewer floats one thread is done before another has begun

template <class F>
void each_row(int rows, std::int64_t width, Pool& pool, const F& fn) {
    if (rows * width >= kWorthSharing) return pool.parallel_for(rows, fn);
    for (std::int64_t r = 0; r < rows; ++r) fn(r);
}

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, int rows, int width, float* out, Pool& pool) {
    const OpsKernels& use = ops_kernels();
    each_row(rows, width, pool, [&](std::int64_t r) { use.norm(x + r * width, weight, eps, width, out + r * width); });
}

void layer_norm(const float* x, const float* weight, const float* bias, float eps, int rows, int width, float* out,
                Pool& pool) {
    const OpsKernels& use = ops_kernels();
    each_row(rows, width, pool,
             [&](std::int64_t r) { use.layer_norm(x + r * width, weight, bias, eps, width, out + r * width); });
}

void scale_and_cap(float* x, std::int64_t count, float scale, float cap, Pool& pool) {
    if (scale == 1.0f && cap == 0.0f) return;
    const OpsKernels& use = ops_kernels();
    const std::int64_t parts = (count + kWorthSharing - 1) / kWorthSharing;
    pool.parallel_for(parts, [&](std::int64_t part) {
        const std::int64_t first = part * kWorthSharing;
        use.scale_and_cap(x + first, std::min(kWorthSharing, count - first), scale, cap);
    });
}

void add_scaled(float* x, const float* added, std::int64_t count, float scale) {
    for (std::int64_t i = 0; i < count; ++i) x[i] += scale * added[i];
}

void rotate(float* x, const float* cos, const float* sin, int rows, int heads, int head_size, int size, Pool& pool) {
    const OpsKernels& use = ops_kernels();
    each_row(rows, std::int64_t(heads) * head_size, pool, [&](std::int64_t r) {
        for (int h = 0; h < heads; ++h) {
            use.rotate(x + (r * heads + h) * head_size, cos + r * size, sin + r * size, size);
        }
    });
}

}  // namespace taslak
