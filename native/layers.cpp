#include "layers.hpp"

#include <algorithm>
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
        if (layer.gate.weight) check(*layer.gate.weight, "gate", shape.inner, shape.hidden);
        check(*layer.up.weight, "up", shape.inner, shape.hidden);
        check(*layer.down.weight, "down", shape.hidden, shape.inner);
        check(layer.window >= 0, "a window is negative");
        check(layer.post.weight || !shape.parallel, "side by side with attention, the MLP needs a norm of its own");
    }
    if (ends_.fuse.weight) check(*ends_.fuse.weight, "fuse", shape.hidden, 2 * shape.hidden);
    if (ends_.embedding) check(*ends_.embedding, "embedding", ends_.embedding->n, shape.hidden);
    if (ends_.head) check(*ends_.head, "head", ends_.head->n, shape.hidden);
}

void Layers::run(int first, int last, const Pass& pass, Pool& pool) {
    check(first >= 0 && last <= int(layers_.size()), "there are no such layers");
    check(!beside_ || pass.beside, "q, k and v are wider than the rows, and nothing is beside");
    check(pass.plan->slots() <= pass.slots, "the plan's slots lie past the cache's end");
    check(pass.plan->positions() <= pass.positions || pass.rotations.empty(),
          "the plan's positions lie past the rotations' end");
    check(pass.tokens || pass.x || !pass.plan->rows(), "there are neither tokens nor hidden states");
    const std::size_t rows = std::size_t(pass.plan->rows()), rotary = std::size_t(shape_.rotary);
    const std::size_t q = std::size_t(shape_.heads) * shape_.head_size;
    const std::size_t kv = std::size_t(shape_.kv_heads) * shape_.head_size;
    x_.resize(rows * shape_.hidden);
    normed_.resize(rows * shape_.hidden);
    q_.resize(rows * q);
    mixed_.resize(rows * q);
    k_.resize(rows * kv);
    v_.resize(rows * kv);
    inner_.resize(rows * shape_.inner);
    cos_.resize(pass.rotations.size());
    sin_.resize(pass.rotations.size());
    for (std::size_t i = 0; i < pass.rotations.size(); ++i) {
        cos_[i].resize(rows * rotary);
        sin_[i].resize(rows * rotary);
        for (std::size_t r = 0; r < rows; ++r) {
            const std::int64_t at = pass.plan->position(int(r)) * shape_.rotary;
            std::copy_n(pass.rotations[i].cos + at, rotary, cos_[i].data() + r * rotary);
            std::copy_n(pass.rotations[i].sin + at, rotary, sin_[i].data() + r * rotary);
        }
    }

    start(pass, pool);
    if (float* to = capture(pass, 0)) std::copy(x_.begin(), x_.end(), to);
    const std::int64_t layer_bytes = pass.slots * std::int64_t(kv) * (pass.half ? 2 : 4);
    for (int i = first; i < last; ++i) {
        const Layer& layer = layers_[std::size_t(i)];
        check(layer.rotation < int(pass.rotations.size()), "a layer's rotation isn't there");
        const auto of_layer = [&](void* tensor) { return static_cast<char*>(tensor) + i * layer_bytes; };
        const Cache cache{of_layer(pass.keys), of_layer(pass.values), pass.half, shape_.kv_heads, shape_.head_size};
        run(layer, cache, pass, pool);
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
    scale_and_cap(x_.data(), std::int64_t(x_.size()), ends_.embedding_scale, 0.0f, pool);
    if (ends_.positions) {
        check(pass.plan->positions() <= ends_.position_count, "the plan's positions lie past the learned ones");
        for (int r = 0; r < rows; ++r) {
            const float* position = ends_.positions + pass.plan->position(r) * hidden;
            add_scaled(&x_[std::size_t(r) * std::size_t(hidden)], position, hidden, 1.0f);
        }
    }
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
    check(ends_.norm.weight || !all, "there is no last norm");
    if (all) normed(ends_.norm, x_.data(), rows, hidden, all, pool);
    if (!wanted) return;
    check(ends_.head && pass.logits, "there is no head, or nowhere to put its logits");
    check(wanted <= rows, "more rows are wanted than there are");
    for (int i = 0; i < wanted; ++i) {
        check(pass.wanted[i] >= 0 && pass.wanted[i] < rows, "a wanted row isn't one of the pass");
        std::copy_n((all ? all : x_.data()) + std::size_t(pass.wanted[i]) * hidden, hidden, &normed_[std::size_t(i) * hidden]);
    }
    if (!all) normed(ends_.norm, normed_.data(), wanted, hidden, normed_.data(), pool);
    activations_.set(normed_.data(), wanted, hidden, hidden);
    linear(activations_, {ends_.head, nullptr, nullptr, pass.logits, ends_.head->n}, pool);
    scale_and_cap(pass.logits, wanted * ends_.head->n, ends_.logit_scale, ends_.logit_cap, pool);
}

const float* Layers::normed(const Norm& norm, const float* x, int rows, int width, float* to, Pool& pool) {
    if (!norm.weight) return x;
    if (norm.bias) {
        layer_norm(x, norm.weight, norm.bias, shape_.eps, rows, width, to, pool);
    } else {
        rms_norm(x, norm.weight, shape_.eps, rows, width, to, pool);
    }
    return to;
}

const float* Layers::input(const Layer& layer, const Pass& pass, Pool& pool) {
    const int rows = pass.plan->rows(), hidden = shape_.hidden;
    const float* own = normed(layer.input, x_.data(), rows, hidden, normed_.data(), pool);
    if (!beside_) return own;
    wide_.resize(std::size_t(rows) * std::size_t(beside_ + hidden));
    for (int r = 0; r < rows; ++r) {
        float* to = &wide_[std::size_t(r) * std::size_t(beside_ + hidden)];
        std::copy_n(own + std::size_t(r) * hidden, hidden, std::copy_n(pass.beside + std::size_t(r) * beside_, beside_, to));
    }
    return wide_.data();
}

void Layers::run(const Layer& layer, const Cache& cache, const Pass& pass, Pool& pool) {
    const int rows = pass.plan->rows(), width = shape_.heads * shape_.head_size;
    attention(layer, cache, pass, pool);
    const auto mlp_input = [&] { return normed(layer.post, x_.data(), rows, shape_.hidden, normed_.data(), pool); };
    // side by side, the MLP reads the rows as they were before attention is added
    const float* early = shape_.parallel ? mlp_input() : nullptr;
    activations_.set(mixed_.data(), rows, width, width);
    add(layer.o, layer.behind_attention, rows, pool);
    mlp(layer, early ? early : mlp_input(), pass, pool);
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
    const int q_norms = s.whole_qk_norm ? 1 : s.heads, k_norms = s.whole_qk_norm ? 1 : s.kv_heads;
    normed(layer.q_norm, q_.data(), rows * q_norms, q_size / q_norms, q_.data(), pool);
    normed(layer.k_norm, k_.data(), rows * k_norms, kv_size / k_norms, k_.data(), pool);
    if (layer.rotation >= 0) {
        const float *cos = cos_[std::size_t(layer.rotation)].data(), *sin = sin_[std::size_t(layer.rotation)].data();
        rotate(q_.data(), cos, sin, rows, s.heads, s.head_size, s.rotary, pool);
        rotate(k_.data(), cos, sin, rows, s.kv_heads, s.head_size, s.rotary, pool);
    }
    for (int r = 0; r < rows; ++r) {
        ops_kernels().write(cache, pass.plan->slot(r), &k_[std::size_t(r) * kv_size], &v_[std::size_t(r) * kv_size]);
    }
    const Scoring scoring{s.heads, s.attention_scale, s.attention_cap, layer.window};
    attend(*pass.plan, q_.data(), cache, scoring, mixed_.data(), pool);
}

void Layers::mlp(const Layer& layer, const float* input, const Pass& pass, Pool& pool) {
    const Shape& s = shape_;
    const int rows = pass.plan->rows();
    activations_.set(input, rows, s.hidden, s.hidden);
    if (layer.gate.weight) {
        gated(activations_, *layer.gate.weight, layer.gate.bias, *layer.up.weight, layer.up.bias, inner_.data(), s.inner,
              pool, s.activation);
    } else {
        activated(activations_, *layer.up.weight, layer.up.bias, inner_.data(), s.inner, s.activation, pool);
    }
    activations_.set(inner_.data(), rows, s.inner, s.inner);
    add(layer.down, layer.behind_mlp, rows, pool);
}

void Layers::add(const Linear& linear_, const Norm& norm, int rows, Pool& pool) {
    const int hidden = shape_.hidden;
    if (!norm.weight && shape_.residual_scale == 1.0f) {
        linear(activations_, {linear_.weight, linear_.bias, x_.data(), x_.data(), hidden}, pool);
        return;
    }
    added_.resize(x_.size());
    linear(activations_, {linear_.weight, linear_.bias, nullptr, added_.data(), hidden}, pool);
    normed(norm, added_.data(), rows, hidden, added_.data(), pool);
    add_scaled(x_.data(), added_.data(), std::int64_t(x_.size()), shape_.residual_scale);
}

}  // namespace taslak
