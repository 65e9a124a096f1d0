// One row, one head or one stretch of elements; see rows.hpp for what they compute.
#pragma once

#include <cmath>
#include <cstdint>

#include "activation.hpp"
#include "vec.hpp"

namespace taslak {
namespace {

// out[i] = f(a[i], b[i])
template <class V, class F>
void map(const float* a, const float* b, std::int64_t count, float* out, F f) {
    std::int64_t i = 0;
    for (; i + 8 <= count; i += 8) f(V::load(a + i), V::load(b + i)).store(out + i);
    const int rest = int(count - i);
    if (rest) store_part(f(load_part<V>(a + i, rest), load_part<V>(b + i, rest)), out + i, rest);
}

// Σ of a row, each step add(what was summed, eight more); add must do nothing to the sum for zeros.
template <class V, class F>
float sum_of(const float* x, int width, F add) {
    V acc[4] = {V::set(0.0f), V::set(0.0f), V::set(0.0f), V::set(0.0f)};  // four: the latency of one would show
    int i = 0;
    while (i + 32 <= width) {
        for (V& a : acc) a = add(a, V::load(x + i)), i += 8;
    }
    for (; i + 8 <= width; i += 8) acc[0] = add(acc[0], V::load(x + i));
    if (i < width) acc[0] = add(acc[0], load_part<V>(x + i, width - i));
    return sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
}

template <class V>
float squares(const float* x, int width) {
    return sum_of<V>(x, width, [](V a, V v) { return fma(v, v, a); });
}

template <class V>
float total(const float* x, int width) {
    return sum_of<V>(x, width, [](V a, V v) { return a + v; });
}

template <class V>
void norm(const float* x, const float* weight, float eps, int width, float* out) {
    const V scale = V::set(1.0f / std::sqrt(squares<V>(x, width) / float(width) + eps));
    map<V>(x, weight, width, out, [scale](V a, V w) { return a * scale * w; });
}

template <class V>
void rotate(float* x, const float* cos, const float* sin, int size) {
    const int half = size / 2;
    const auto turn = [](V x, V other, V c, V s) { return fma(x, c, other * s); };
    int i = 0;
    for (; i + 8 <= half; i += 8) {
        const V low = V::load(x + i), high = V::load(x + half + i);
        turn(low, high, V::load(cos + i), V::load(sin + i)).store(x + i);
        turn(high, low, V::load(cos + half + i), V::load(sin + half + i)).store(x + half + i);
    }
    const int rest = half - i;
    if (rest) {
        const auto part = [rest](const float* p) { return load_part<V>(p, rest); };
        const V low = part(x + i), high = part(x + half + i);
        store_part(turn(low, high, part(cos + i), part(sin + i)), x + i, rest);
        store_part(turn(high, low, part(cos + half + i), part(sin + half + i)), x + half + i, rest);
    }
}

// (x − mean) / √(variance + eps) · weight + bias
template <class V>
void layer_norm(const float* x, const float* weight, const float* bias, float eps, int width, float* out) {
    const V mean = V::set(total<V>(x, width) / float(width));
    map<V>(x, x, width, out, [mean](V a, V) { return a - mean; });
    const V scale = V::set(1.0f / std::sqrt(squares<V>(out, width) / float(width) + eps));
    map<V>(out, weight, width, out, [scale](V a, V w) { return a * scale * w; });
    map<V>(out, bias, width, out, [](V a, V b) { return a + b; });
}

// x / (1 + exp(−slope)): x · sigmoid(slope)
template <class V>
V gated_by(V x, V slope) {
    return x / (V::set(1.0f) + steady_exp(V::set(0.0f) - slope));
}

template <class V>
V silu(V x) {
    return gated_by(x, x);
}

// Hendrycks and Gimpel 2016, with tanh: x · sigmoid(2 √(2/π) (x + 0.044715 x³)).
template <class V>
V gelu_tanh(V x) {
    return gated_by(x, V::set(1.5957691216057308f) * fma(V::set(0.044715f) * x * x, x, x));
}

// The same with erf, that to 1.5e-7 (Abramowitz and Stegun 1964, 7.1.26). With e = 1 − erf(|x| / √2) it is
// max(x, 0) − |x| e / 2 on both sides of zero.
template <class V>
V gelu(V x) {
    const V size = max(V::set(0.0f) - x, x), s = size * V::set(0.70710678f);
    const V t = V::set(1.0f) / fma(s, V::set(0.3275911f), V::set(1.0f));
    V p = V::set(1.061405429f);
    for (float term : {-1.453152027f, 1.421413741f, -0.284496736f, 0.254829592f}) p = fma(p, t, V::set(term));
    const V e = p * t * steady_exp(V::set(0.0f) - s * s);
    return max(x, V::set(0.0f)) - V::set(0.5f) * size * e;
}

// x = f(x), or f(x) · up.
template <class V, class F>
void map_activation(float* x, const float* up, std::int64_t count, F f) {
    if (up) return map<V>(x, up, count, x, [f](V g, V u) { return f(g) * u; });
    map<V>(x, x, count, x, [f](V g, V) { return f(g); });
}

template <class V>
void activate(Activation kind, float* x, const float* up, std::int64_t count) {
    switch (kind) {
        case Activation::silu: return map_activation<V>(x, up, count, [](V v) { return silu(v); });
        case Activation::gelu: return map_activation<V>(x, up, count, [](V v) { return gelu(v); });
        case Activation::gelu_tanh: return map_activation<V>(x, up, count, [](V v) { return gelu_tanh(v); });
    }
}

// cap · tanh(x / cap)
template <class V>
V soft_cap(V x, V cap) {
    const V e = steady_exp(x * (V::set(2.0f) / cap)), one = V::set(1.0f);
    return (e - one) / (e + one) * cap;
}

// x = scale · x, and soft-capped where there is a cap.
template <class V>
void scale_and_cap(float* x, std::int64_t count, float scale, float cap) {
    const V s = V::set(scale), c = V::set(cap);
    if (cap == 0.0f) return map<V>(x, x, count, x, [s](V v, V) { return v * s; });
    map<V>(x, x, count, x, [s, c](V v, V) { return soft_cap(v * s, c); });
}

}  // namespace
}  // namespace taslak
