// What happens to single rows between the matrix products: RMSNorm, rotary embedding, SiLU(gate) · up, residual.
//
// All float32, each output a fixed function of its own row. Threads take whole rows, or elements where the elements
// of a row don't meet.
#pragma once

#include <cstdint>

#include "pool.hpp"

namespace taslak {

// out = x / √(mean(x²) + eps) · weight. x, out: [rows, width]; out may be x.
void rms_norm(const float* x, const float* weight, float eps, int rows, int width, float* out, Pool& pool);

// x[:size] · cos + halves_swapped(x[:size]) · sin of every head, in place; dimensions past `size` stay as they are.
// x: [rows, heads, head_size]; cos, sin: [rows, size], the sign of the rotation in sin.
void rotate(float* x, const float* cos, const float* sin, int rows, int heads, int head_size, int size, Pool& pool);

// gate = gate / (1 + exp(−gate)) · up. gate, up: [count].
void silu_times(float* gate, const float* up, std::int64_t count, Pool& pool);

// x += y. x, y: [count].
void add(float* x, const float* y, std::int64_t count, Pool& pool);

}  // namespace taslak
