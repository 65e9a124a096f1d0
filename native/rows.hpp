// What happens to single rows between the matrix products: norms, rotary embedding, soft caps. (Activations and the
// plain residual are part of the products.) All float32, each output a fixed function of its own row; threads take
// rows.
#pragma once

#include <cstdint>

#include "pool.hpp"

namespace taslak {

// out = x / √(mean(x²) + eps) · weight. x, out: [rows, width]; out may be x.
void rms_norm(const float* x, const float* weight, float eps, int rows, int width, float* out, Pool& pool);

// out = (x − mean) / √(variance + eps) · weight + bias. x, out: [rows, width]; out may be x.
void layer_norm(const float* x, const float* weight, const float* bias, float eps, int rows, int width, float* out,
                Pool& pool);

// x = scale · x, and cap · tanh(x / cap) of that where cap isn't 0.
void scale_and_cap(float* x, std::int64_t count, float scale, float cap, Pool& pool);

// x += scale · added
void add_scaled(float* x, const float* added, std::int64_t count, float scale);

// x[:size] · cos + halves_swapped(x[:size]) · sin of every head, in place; dimensions past `size` stay as they are.
// x: [rows, heads, head_size]; cos, sin: [rows, size], the sign of the rotation in sin.
void rotate(float* x, const float* cos, const float* sin, int rows, int heads, int head_size, int size, Pool& pool);

}  // namespace taslak
