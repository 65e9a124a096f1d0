// The portable products: one row and one output at a time, each number by the definition in pack.hpp and the same
// operations in the same order as the vector paths, so that every path gives the same bits.
#include <cmath>
#include <cstring>

#include "linear_kernels.hpp"
#include "rows_kernel.hpp"

namespace taslak {
namespace {

float bfloat16_dot(const std::uint8_t* panel, int output, const float* x, std::int64_t k) {
    float sum = 0.0f;
    for (std::int64_t i = 0; i < k; ++i) sum = std::fma(bfloat16_at(panel, output, i), x[i], sum);
    return sum;
}

float quantised_dot(Kind kind, const std::uint8_t* panel, int output, const Activations& x, int first, int rows,
                    int row) {
    float sum = 0.0f;
    for (std::int64_t group = 0; group < x.k / kGroup; ++group) {
        const Activations::Group own = x.group(first, rows, group).from(row - first);
        const std::uint8_t* w = group_at(kind, panel, group);
        std::int32_t dot = 0;
        for (int i = 0; i < kGroup; ++i) dot += code_at(kind, w, output, i) * own.codes[i];
        sum = std::fma(float(dot), scale_at(kind, panel, group, output) * *own.scales, sum);
        if (is_int4(kind)) sum = std::fma(minimum_at(kind, panel, group, output), *own.sums, sum);
    }
    return sum;
}

// dot(panel, output, row) for each of them.
template <class F>
void each(const std::uint8_t* a, const std::uint8_t* b, int width, int first, int rows, float* out, const F& dot) {
    for (const std::uint8_t* panel : {a, b}) {
        for (int row = first; row < first + rows; ++row) {
            for (int output = 0; output < width; ++output) *out++ = dot(panel, output, row);
        }
    }
}

void bfloat16_products(const std::uint8_t* a, const std::uint8_t* b, const Activations& x, int first, int rows,
                       float* out) {
    each(a, b, width(Kind::bfloat16), first, rows, out, [&](const std::uint8_t* panel, int output, int row) {
        return bfloat16_dot(panel, output, x.x + row * x.ldx, x.k);
    });
}

void quantised(Kind kind, const std::uint8_t* a, const std::uint8_t* b, const Activations& x, int first, int rows,
               float* out) {
    each(a, b, width(kind), first, rows, out, [&](const std::uint8_t* panel, int output, int row) {
        return quantised_dot(kind, panel, output, x, first, rows, row);
    });
}

void quantise(const float* x, std::int64_t k, std::int64_t rows, Activations::OwnGroup to) {
    for (std::int64_t group = 0; group < k / kGroup; ++group, x += kGroup, to = to.from(rows)) {
        float amax = 0.0f;
        bool finite = true;
        for (int i = 0; i < kGroup; ++i) {
            if (std::abs(x[i]) > amax) amax = std::abs(x[i]);
            finite = finite && std::isfinite(x[i]);
        }
        const float inverse = amax > kTiny && finite ? 127.0f / amax : 0.0f;
        int total = 0;
        for (int i = 0; i < kGroup; ++i) {
            const int code = finite ? int(std::nearbyint(x[i] * inverse)) : 0;
            total += code;
            to.codes[i] = std::int8_t(code);
            to.wide[i] = std::int16_t(code);
        }
        *to.scales = finite ? amax / 127.0f : bits_to_float(0x7FC00000);
        *to.offsets = -128 * total;
        *to.sums = float(total) * *to.scales;
    }
}

}  // namespace

const LinearKernels linear_scalar{quantise, bfloat16_products, quantised, activate<Scalar8>};

}  // namespace taslak
