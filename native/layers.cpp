#include "layers.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "rows.hpp"

namespace taslak {

namespace {

void check(const Linear& linear, const char* name, std::int64_t n, std::int64_t k) {
    if (linear.weight->n == n && linear.weight->k == k) return;
    throw std::invalid_argument(std::string(name) + " is " + std::to_string(linear.weight->n) + " x " +
                                std::to_string(linear.weight->k) + "; expected " + std::to_string(n) + " x " +
                                std::to_string(k));
}

}  // namespace

Layers::Layers(Shape shape, std::vector<Layer> layers) : shape_(shape), layers_(std::move(layers)) {
    const std::int64_t q = std::int64_t(shape.heads) * shape.head_size;
    const std::int64_t kv = std::int64_t(shape.kv_heads) * shape.head_size;
    if (shape.kv_heads < 1 || shape.heads % shape.kv_heads || shape.rotary > shape.head_size || shape.rotary % 2) {
        throw std::invalid_argument("the heads don't share the K/V heads evenly, or can't be rotated so");
    }
    if (!layers_.empty()) beside_ = std::max(0, int(layers_[0].q.weight->k) - shape.hidden);
    for (const Layer& layer : layers_) {
        check(layer.q, "q", q, shape.hidden + beside_);
        check(layer.k, "k", kv, shape.hidden + beside_);
        check(layer.v, "v", kv, shape.hidden + beside_);
        check(layer.o, "o", shape.hidden, q);
        check(layer.gate, "gate", shape.inner, shape.hidden);
        check(layer.up, "up", shape.inner, shape.hidden);
        check(layer.down, "down", shape.hidden, shape.inner);
    }
}

void Layers::run(int first, int last, const Pass& pass, Pool& pool) {
    if (first < 0 || last > int(layers_.size())) throw std::invalid_argument("there are no such layers");
    if (beside_ && !pass.beside) throw std::invalid_argument("q, k and v are wider than the rows, and nothing is beside");
    if (pass.plan->slots() > pass.slots) throw std::invalid_argument("the plan's slots lie past the cache's end");
    const std::size_t rows = std::size_t(pass.plan->rows());
    const std::size_t q = std::size_t(shape_.heads) * shape_.head_size;
    const std::size_t kv = std::size_t(shape_.kv_heads) * shape_.head_size;
    normed_.resize(rows * shape_.hidden);
    q_.resize(rows * q);
    mixed_.resize(rows * q);
    k_.resize(rows * kv);
    v_.resize(rows * kv);
    inner_.resize(rows * shape_.inner);

    const std::int64_t layer_bytes = pass.slots * std::int64_t(kv) * (pass.half ? 2 : 4);
    for (int i = first; i < last; ++i) {
        const auto of_layer = [&](void* tensor) { return static_cast<char*>(tensor) + i * layer_bytes; };
        const Cache cache{of_layer(pass.keys), of_layer(pass.values), pass.half, shape_.kv_heads, shape_.head_size};
        attention(layers_[std::size_t(i)], cache, pass, pool);
        mlp(layers_[std::size_t(i)], pass, pool);
        if (i < int(pass.captures.size()) && pass.captures[std::size_t(i)]) {
            std::copy_n(pass.x, rows * shape_.hidden, pass.captures[std::size_t(i)]);
        }
    }
}

const float* Layers::input(const Layer& layer, const Pass& pass, Pool& pool) {
    const int rows = pass.plan->rows(), hidden = shape_.hidden;
    const float* own = pass.x;
    if (layer.input_norm) {
        rms_norm(pass.x, layer.input_norm, shape_.eps, rows, hidden, normed_.data(), pool);
        own = normed_.data();
    }
    if (!beside_) return own;
    wide_.resize(std::size_t(rows) * std::size_t(beside_ + hidden));
    for (int r = 0; r < rows; ++r) {
        float* to = &wide_[std::size_t(r) * std::size_t(beside_ + hidden)];
        std::copy_n(own + std::size_t(r) * hidden, hidden, std::copy_n(pass.beside + std::size_t(r) * beside_, beside_, to));
    }
    return wide_.data();
}

void Layers::attention(const Layer& layer, const Cache& cache, const Pass& pass, Pool& pool) {
    const Shape& s = shape_;
    const int rows = pass.plan->rows(), q_size = s.heads * s.head_size, kv_size = s.kv_heads * s.head_size;
    activations_.set(input(layer, pass, pool), rows, beside_ + s.hidden, beside_ + s.hidden);
    const Product products[] = {
        {layer.q.weight, layer.q.bias, nullptr, q_.data(), q_size},
        {layer.k.weight, layer.k.bias, nullptr, k_.data(), kv_size},
        {layer.v.weight, layer.v.bias, nullptr, v_.data(), kv_size},
    };
    linear(activations_, products, 3, pool);
    rotate(q_.data(), pass.cos, pass.sin, rows, s.heads, s.head_size, s.rotary, pool);
    rotate(k_.data(), pass.cos, pass.sin, rows, s.kv_heads, s.head_size, s.rotary, pool);
    for (int r = 0; r < rows; ++r) {
        ops_kernels().write(cache, pass.plan->slot(r), &k_[std::size_t(r) * kv_size], &v_[std::size_t(r) * kv_size]);
    }
    const float scale = 1.0f / std::sqrt(float(s.head_size));
    attend(*pass.plan, q_.data(), cache, s.heads, scale, mixed_.data(), pool);
    activations_.set(mixed_.data(), rows, q_size, q_size);
    linear(activations_, {layer.o.weight, layer.o.bias, pass.x, pass.x, s.hidden}, pool);
}

void Layers::mlp(const Layer& layer, const Pass& pass, Pool& pool) {
    const Shape& s = shape_;
    const int rows = pass.plan->rows();
    rms_norm(pass.x, layer.post_norm, s.eps, rows, s.hidden, normed_.data(), pool);
    activations_.set(normed_.data(), rows, s.hidden, s.hidden);
    gated(activations_, *layer.gate.weight, layer.gate.bias, *layer.up.weight, layer.up.bias, inner_.data(), s.inner,
          pool);
    activations_.set(inner_.data(), rows, s.inner, s.inner);
    linear(activations_, {layer.down.weight, layer.down.bias, pass.x, pass.x, s.hidden}, pool);
}

}  // namespace taslak
