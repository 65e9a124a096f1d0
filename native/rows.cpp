#include "rows.hpp"

#include <algorithm>
#include <cmath>

#include "pool.hpp"
#include "vec.hpp"

namespace taslak {

namespace {

// Under this many floats waking the other threads takes longer than the work.
constexpr std::int64_t kWorthSharing = 8192;

// f(first, last) over [0, count) in pieces; one piece where the whole is small.
template <class F>
void split(std::int64_t count, std::int64_t floats_each, Pool& pool, F f) {
    const std::int64_t most = count * floats_each / (kWorthSharing / 2);
    const std::int64_t pieces = std::clamp<std::int64_t>(std::min<std::int64_t>(most, 4 * pool.threads()), 1, count);
    if (count * floats_each < kWorthSharing || pieces == 1) return f(0, count);
    pool.run(int(pieces), [&](int i) { f(count * i / pieces, count * (i + 1) / pieces); });
}

// The first `count` < 8 lanes; zeros behind them.
template <class V>
V load_part(const float* p, int count) {
    float lanes[8] = {};
    std::copy(p, p + count, lanes);
    return V::load(lanes);
}

template <class V>
void store_part(V v, float* p, int count) {
    float lanes[8];
    v.store(lanes);
    std::copy(lanes, lanes + count, p);
}

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
void norm_row(const float* x, const float* weight, float eps, int width, float* out) {
    const V scale = V::set(1.0f / std::sqrt(squares<V>(x, width) / float(width) + eps));
    map<V>(x, weight, width, out, [scale](V a, V w) { return a * scale * w; });
}

template <class V>
void rotate_head(float* x, const float* cos, const float* sin, int size) {
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
void silu_part(float* gate, const float* up, std::int64_t count) {
    map<V>(gate, up, count, gate, [](V g, V u) {
        return g / (V::set(1.0f) + steady_exp(V::set(0.0f) - g)) * u;
    });
}

template <class V>
void add_part(float* x, const float* y, std::int64_t count) {
    map<V>(x, y, count, x, [](V a, V b) { return a + b; });
}

#ifdef TASLAK_AVX2
#define TASLAK_EITHER(kernel, ...) (scalar ? kernel<Scalar8>(__VA_ARGS__) : kernel<Avx8>(__VA_ARGS__))
#else
#define TASLAK_EITHER(kernel, ...) ((void)scalar, kernel<Scalar8>(__VA_ARGS__))
#endif

}  // namespace

void rms_norm(const float* x, const float* weight, float eps, int rows, int width, float* out, Pool& pool,
              bool scalar) {
    split(rows, width, pool, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            TASLAK_EITHER(norm_row, x + r * width, weight, eps, width, out + r * width);
        }
    });
}

void rotate(float* x, const float* cos, const float* sin, int rows, int heads, int head_size, int size, Pool& pool,
            bool scalar) {
    split(rows, std::int64_t(heads) * head_size, pool, [&](std::int64_t first, std::int64_t last) {
        for (std::int64_t r = first; r < last; ++r) {
            for (int h = 0; h < heads; ++h) {
                TASLAK_EITHER(rotate_head, x + (r * heads + h) * head_size, cos + r * size, sin + r * size, size);
            }
        }
    });
}

void silu_times(float* gate, const float* up, std::int64_t count, Pool& pool, bool scalar) {
    // lanes don't meet here, so a piece may begin anywhere
    split(count, 2, pool, [&](std::int64_t first, std::int64_t last) {
        TASLAK_EITHER(silu_part, gate + first, up + first, last - first);
    });
}

void add(float* x, const float* y, std::int64_t count, Pool& pool, bool scalar) {
    split(count, 1, pool, [&](std::int64_t first, std::int64_t last) {
        TASLAK_EITHER(add_part, x + first, y + first, last - first);
    });
}

}  // namespace taslak
