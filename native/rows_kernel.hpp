// One row, one head or one stretch of elements; see rows.hpp for what they compute.
#pragma once

#include <cmath>
#include <cstdint>

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

template <class V>
float squares(const float* x, int width) {
    V acc[4] = {V::set(0.0f), V::set(0.0f), V::set(0.0f), V::set(0.0f)};  // four: the latency of one would show
    int i = 0;
    const auto take = [&](V& a) {
        const V v = V::load(x + i);
        a = fma(v, v, a);
        i += 8;
    };
    while (i + 32 <= width) {
        for (V& a : acc) take(a);
    }
    while (i + 8 <= width) take(acc[0]);
    if (i < width) {
        const V v = load_part<V>(x + i, width - i);
        acc[0] = fma(v, v, acc[0]);
    }
    return sum((acc[0] + acc[1]) + (acc[2] + acc[3]));
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

template <class V>
void silu_times(float* gate, const float* up, std::int64_t count) {
    map<V>(gate, up, count, gate, [](V g, V u) {
        return g / (V::set(1.0f) + steady_exp(V::set(0.0f) - g)) * u;
    });
}

}  // namespace
}  // namespace taslak
