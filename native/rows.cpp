#include "rows.hpp"

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

void rotate(float* x, const float* cos, const float* sin, int rows, int heads, int head_size, int size, Pool& pool) {
    const OpsKernels& use = ops_kernels();
    each_row(rows, std::int64_t(heads) * head_size, pool, [&](std::int64_t r) {
        for (int h = 0; h < heads; ++h) {
            use.rotate(x + (r * heads + h) * head_size, cos + r * size, sin + r * size, size);
        }
    });
}

}  // namespace taslak
