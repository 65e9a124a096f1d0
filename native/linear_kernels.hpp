// What a path (the kernels for one instruction set) provides to the products; linear.cpp chooses.
#pragma once

#include <cstdint>

#include "activation.hpp"
#include "linear.hpp"
#include "pack.hpp"

namespace taslak {

constexpr int kWidest = 32;       // outputs of the widest panel
constexpr float kTiny = 1e-30f;  // a group of activations that stays under this is zeros: 127 / it might overflow

// Products of two panels (they may be the same) with rows [first, first + rows) of x, 1 ≤ rows ≤ kRows.
// out: [2, rows, width of the kind].
using QuantisedProducts = void (*)(Kind kind, const std::uint8_t* a, const std::uint8_t* b, const Activations& x,
                                   int first, int rows, float* out);
using Bfloat16Products = void (*)(const std::uint8_t* a, const std::uint8_t* b, const Activations& x, int first,
                                  int rows, float* out);

struct LinearKernels {
    // One row; `to`: its place in the first group. Places of neighbouring groups are `rows` rows apart.
    void (*quantise)(const float* x, std::int64_t k, std::int64_t rows, Activations::OwnGroup to);
    Bfloat16Products bfloat16;
    QuantisedProducts quantised;
    // x = activation(x), times up where that isn't null.
    void (*activate)(Activation kind, float* x, const float* up, std::int64_t count);

    void products(Kind kind, const std::uint8_t* a, const std::uint8_t* b, const Activations& x, int first, int rows,
                  float* out) const {
        if (is_quantised(kind)) return quantised(kind, a, b, x, first, rows, out);
        bfloat16(a, b, x, first, rows, out);
    }
};

extern const LinearKernels linear_scalar;
extern const LinearKernels linear_avx2;
// What these do better than AVX2; the rest of those paths is AVX2's.
extern const QuantisedProducts avxvnni_products;
extern const QuantisedProducts avx512vnni_products;
extern const Bfloat16Products avx512_bfloat16_products;

}  // namespace taslak
