#include "layers.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "pack.hpp"
#include "rows.hpp"

namespace taslak {

namespace {

void check(const Packed& weight, const char* name, std::int64_t n, std::int64_t k) {
    if (weight.n == n && weight.k == k) return;
    throw std::invalid_argument(std::string(name) + " is " + std::to_string(weight.n) + " x " +
                                std::to_string(weight.k) + "; expected " + std::to_string(n) + " x " +
                                std::to_string(k));
}

void check(bool good, const char* what) {
    if (!good) throw std::invalid_argument(what);
}

// The output behind `number` of the layers; 0 is the embedding's.
float* capture(const Pass& pass, std::size_t number) {
    return number < pass.captures.size() ? pass.captures[number] : nullptr;
}

}  // namespace

Layers::Layers(Shape shape, std::vector<Layer> layers, Ends ends)
    : shape_(shape), layers_(std::move(layers)), ends_(ends) {
    const std::int64_t q = std::int64_t(shape.heads) * shape.head_size;
    const std::int64_t kv = std::int64_t(shape.kv_heads) * shape.head_size;
    if (shape.kv_heads < 1 || shape.heads % shape.kv_heads || shape.rotary > shape.head_size || shape.rotary % 2) {
        throw std::invalid_argument("the heads don't share the K/V heads evenly, or can't be rotated so");
    }
    if (!layers_.empty()) beside_ = std::max(0, int(layers_[0].q.weight->k) - shape.hidden);
    for (const Layer& layer : layers_) {
        check(*layer.q.weight, "q", q, shape.hidden + beside_);
        check(*layer.k.weight, "k", kv, shape.hidden + beside_);
        check(*layer.v.weight, "v", kv, shape.hidden + beside_);
        check(*layer.o.weight, "o", shape.hidden, q);
        check(*layer.gate.weight, "gate", shape.inner, shape.hidden);
        check(*layer.up.weight, "up", shape.inner, shape.hidden);
        check(*layer.down.weight, "down", shape.hidden, shape.inner);
    }
    if (ends_.fuse.weight) check(*ends_.fuse.weight, "fuse", shape.hidden, 2 * shape.hidden);
    if (ends_.embedding) check(*ends_.embedding, "embedding", ends_.embedding->n, shape.hidden);
    if (ends_.head) check(*ends_.head, "head", ends_.head->n, shape.hidden);
}

void Layers::run(int first, int last, const Pass& pass, Pool& pool) {
    check(first >= 0 && last <= int(layers_.size()), "there are no such layers");
    check(!beside_ || pass.beside, "q, k and v are wider than the rows, and nothing is beside");
    check(pass.plan->slots() <= pass.slots, "the plan's slots lie past the cache's end");
    check(pass.plan->positions() <= pass.positions, "the plan's positions lie past the rotations' end");
    check(pass.tokens || pass.x || !pass.plan->rows(), "there are neither tokens nor hidden states");
    const std::size_t rows = std::size_t(pass.plan->rows());
    const std::size_t q = std::size_t(shape_.heads) * shape_.head_size;
    const std::size_t kv = std::size_t(shape_.kv_heads) * shape_.head_size;
    x_.resize(rows * shape_.hidden);
    normed_.resize(rows * shape_.hidden);
    q_.resize(rows * q);
    mixed_.resize(rows * q);
    k_.resize(rows * kv);
    v_.resize(rows * kv);
    inner_.resize(rows * shape_.inner);
    cos_.resize(rows * shape_.rotary);
    sin_.resize(rows * shape_.rotary);
    for (std::size_t r = 0; r < rows; ++r) {
        const std::int64_t at = pass.plan->position(int(r)) * shape_.rotary;
        std::copy_n(pass.cos + at, shape_.rotary, &cos_[r * shape_.rotary]);
        std::copy_n(pass.sin + at, shape_.rotary, &sin_[r * shape_.rotary]);
    }

    start(pass, pool);
    if (float* to = capture(pass, 0)) std::copy(x_.begin(), x_.end(), to);
    const std::int64_t layer_bytes = pass.slots * std::int64_t(kv) * (pass.half ? 2 : 4);
    for (int i = first; i < last; ++i) {
        const auto of_layer = [&](void* tensor) { return static_cast<char*>(tensor) + i * layer_bytes; };
        const Cache cache{of_layer(pass.keys), of_layer(pass.values), pass.half, shape_.kv_heads, shape_.head_size};
        attention(layers_[std::size_t(i)], cache, pass, pool);
        mlp(layers_[std::size_t(i)], pass, pool);
        if (float* to = capture(pass, std::size_t(i) + 1)) std::copy(x_.begin(), x_.end(), to);
    }
    finish(pass, pool);
}

void Layers::start(const Pass& pass, Pool& pool) {
    if (!pass.tokens) {
        std::copy_n(pass.x, x_.size(), x_.data());
        return;
    }
    check(ends_.embedding, "there is no embedding");
    const int rows = pass.plan->rows(), hidden = shape_.hidden;
    unpack_rows(*ends_.embedding, pass.tokens, rows, x_.data());
    if (!pass.x) return;
    check(ends_.fuse.weight, "there is nothing that fuses tokens and hidden states");
    wide_.resize(std::size_t(rows) * 2 * std::size_t(hidden));
    for (int r = 0; r < rows; ++r) {
        float* to = &wide_[std::size_t(r) * 2 * std::size_t(hidden)];
        std::copy_n(&pass.x[std::size_t(r) * hidden], hidden, std::copy_n(&x_[std::size_t(r) * hidden], hidden, to));
    }
    activations_.set(wide_.data(), rows, 2 * hidden, 2 * hidden);
    linear(activations_, {ends_.fuse.weight, ends_.fuse.bias, nullptr, x_.data(), hidden}, pool);
}

void Layers::finish(const Pass& pass, Pool& pool) {
    const int rows = pass.plan->rows(), wanted = int(pass.wanted.size()), hidden = shape_.hidden;
    float* all = capture(pass, layers_.size() + 1);
    check(ends_.norm || !all, "there is no last norm");
    if (all) rms_norm(x_.data(), ends_.norm, shape_.eps, rows, hidden, all, pool);
    if (!wanted) return;
    check(ends_.head && pass.logits, "there is no head, or nowhere to put its logits");
    check(wanted <= rows, "more rows are wanted than there are");
    for (int i = 0; i < wanted; ++i) {
        check(pass.wanted[i] >= 0 && pass.wanted[i] < rows, "a wanted row isn't one of the pass");
        std::copy_n((all ? all : x_.data()) + std::size_t(pass.wanted[i]) * hidden, hidden, &normed_[std::size_t(i) * hidden]);
    }
    if (ends_.norm && !all) rms_norm(normed_.data(), ends_.norm, shape_.eps, wanted, hidden, normed_.data(), pool);
    activations_.set(normed_.data(), wanted, hidden, hidden);
    linear(activations_, {ends_.head, nullptr, nullptr, pass.logits, ends_.head->n}, pool);
}

const float* Layers::input(const Layer& layer, const Pass& pass, Pool& pool) {
    const int rows = pass.plan->rows(), hidden = shape_.hidden;
    const float* own = x_.data();
    if (layer.input_norm) {
        rms_norm(x_.data(), layer.input_norm, shape_.eps, rows, hidden, normed_.data(), pool);
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
    rotate(q_.data(), cos_.data(), sin_.data(), rows, s.heads, s.head_size, s.rotary, pool);
    rotate(k_.data(), cos_.data(), sin_.data(), rows, s.kv_heads, s.head_size, s.rotary, pool);
    for (int r = 0; r < rows; ++r) {
        ops_kernels().write(cache, pass.plan->slot(r), &k_[std::size_t(r) * kv_size], &v_[std::size_t(r) * kv_size]);
    }
    const float scale = 1.0f / std::sqrt(float(s.head_size));
    attend(*pass.plan, q_.data(), cache, s.heads, scale, mixed_.data(), pool);
    activations_.set(mixed_.data(), rows, q_size, q_size);
    linear(activations_, {layer.o.weight, layer.o.bias, x_.data(), x_.data(), s.hidden}, pool);
}

void Layers::mlp(const Layer& layer, const Pass& pass, Pool& pool) {
    const Shape& s = shape_;
    const int rows = pass.plan->rows();
    rms_norm(x_.data(), layer.post_norm, s.eps, rows, s.hidden, normed_.data(), pool);
    activations_.set(normed_.data(), rows, s.hidden, s.hidden);
    gated(activations_, *layer.gate.weight, layer.gate.bias, *layer.up.weight, layer.up.bias, inner_.data(), s.inner,
          pool);
    activations_.set(inner_.data(), rows, s.inner, s.inner);
    linear(activations_, {layer.down.weight, layer.down.bias, x_.data(), x_.data(), s.hidden}, pool);
}

}  // namespace taslak
