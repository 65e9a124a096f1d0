// Python's view of attention, the row operations, the draw and whole layers. Tensors arrive as addresses:
// `taslak.models.native_ops` checks their shapes and types and keeps them alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "address.hpp"
#include "draw.hpp"
#include "layers.hpp"
#include "rows.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace taslak {
namespace {

// (pages, committed length, parents of the nodes, nodes, base)
using ShareTuple = std::tuple<std::vector<std::int32_t>, std::int64_t, std::vector<std::int32_t>,
                              std::vector<std::int32_t>, std::int64_t>;

Plan make_plan(std::vector<ShareTuple> tuples) {
    std::vector<Share> shares;
    for (auto& [pages, length, parents, nodes, base] : tuples) {
        shares.push_back({std::move(pages), length, std::move(parents), std::move(nodes), base});
    }
    return Plan(shares);
}

// A norm's weight and bias, or 0.
using NormTuple = std::pair<Address, Address>;

// ([input, post, q, k, behind attention, behind MLP] norms, [q, k, v, o, gate, up, down], their biases or 0, window,
// rotation). Where there is no gate it is left out, of the biases too.
using LayerTuple = std::tuple<std::vector<NormTuple>, std::vector<const Packed*>, std::vector<Address>, int, int>;

Norm make_norm(const NormTuple& tuple) { return {in(tuple.first), in(tuple.second)}; }

std::vector<Layer> make_layers(const std::vector<LayerTuple>& tuples) {
    std::vector<Layer> layers;
    for (const auto& [norms, weights, biases, window, rotation] : tuples) {
        if (norms.size() != 6) throw std::invalid_argument("a layer has six norms, or none in their places");
        const std::size_t count = weights.size();
        if (count < 6 || count > 7 || biases.size() != count) {
            throw std::invalid_argument("a layer has seven products, or six without a gate");
        }
        const auto at = [&, &w = weights, &b = biases](std::size_t i) { return Linear{w[i], in(b[i])}; };
        const auto norm = [&, &n = norms](std::size_t i) { return make_norm(n[i]); };
        layers.push_back({norm(0), norm(1), norm(2), norm(3), norm(4), norm(5), at(0), at(1), at(2), at(3),
                          count == 7 ? at(4) : Linear{}, at(count - 2), at(count - 1), window, rotation});
    }
    return layers;
}

Activation make_activation(const std::string& name) {
    if (name == "silu") return Activation::silu;
    if (name == "gelu") return Activation::gelu;
    if (name == "gelu-tanh") return Activation::gelu_tanh;
    throw std::invalid_argument("activation is " + name + "; expected silu, gelu or gelu-tanh");
}

using Pair = std::pair<std::vector<std::int64_t>, std::vector<double>>;

Pair pair(Chosen chosen) { return {std::move(chosen.ids), std::move(chosen.scores)}; }

}  // namespace
}  // namespace taslak

void bind_ops(nb::module_& m) {
    using namespace taslak;
    const auto free_gil = nb::call_guard<nb::gil_scoped_release>();

    nb::class_<Plan>(m, "Plan")
        .def("__init__",
             [](Plan* self, std::vector<ShareTuple> shares) { new (self) Plan(make_plan(std::move(shares))); },
             "shares"_a)
        .def_prop_ro("rows", &Plan::rows)
        .def_prop_ro("positions", &Plan::positions);

    // keys, values: [slots, kv heads, head size]; q, out: [rows, heads · head size]
    m.def("attend",
          [](const Plan& plan, Address q, Address keys, Address values, bool half, std::int64_t slots, int kv_heads,
             int head_size, int heads, float scale, Address to, std::int64_t window, float cap) {
              if (plan.slots() > slots) throw std::invalid_argument("the plan's slots lie past the cache's end");
              const Cache cache{out<void>(keys), out<void>(values), half, kv_heads, head_size};
              attend(plan, in(q), cache, {heads, scale, cap, window}, out(to), default_pool());
          },
          "plan"_a, "q"_a, "keys"_a, "values"_a, "half"_a, "slots"_a, "kv_heads"_a, "head_size"_a, "heads"_a,
          "scale"_a, "out"_a, "window"_a = 0, "cap"_a = 0.0f, free_gil);
    m.def("write",
          [](Address keys, Address values, bool half, int kv_heads, int head_size, std::int64_t slot, Address k,
             Address v) {
              ops_kernels().write({out<void>(keys), out<void>(values), half, kv_heads, head_size}, slot,
                                  in(k), in(v));
          },
          "keys"_a, "values"_a, "half"_a, "kv_heads"_a, "head_size"_a, "slot"_a, "k"_a, "v"_a, free_gil);

    m.def("rms_norm",
          [](Address x, Address weight, float eps, int rows, int width, Address to) {
              rms_norm(in(x), in(weight), eps, rows, width, out(to), default_pool());
          },
          "x"_a, "weight"_a, "eps"_a, "rows"_a, "width"_a, "out"_a, free_gil);
    m.def("layer_norm",
          [](Address x, Address weight, Address bias, float eps, int rows, int width, Address to) {
              layer_norm(in(x), in(weight), in(bias), eps, rows, width, out(to), default_pool());
          },
          "x"_a, "weight"_a, "bias"_a, "eps"_a, "rows"_a, "width"_a, "out"_a, free_gil);
    m.def("scale_and_cap",
          [](Address x, std::int64_t count, float scale, float cap) {
              scale_and_cap(out(x), count, scale, cap, default_pool());
          },
          "x"_a, "count"_a, "scale"_a, "cap"_a, free_gil);
    m.def("rotate",
          [](Address x, Address cos, Address sin, int rows, int heads, int head_size, int size) {
              rotate(out(x), in(cos), in(sin), rows, heads, head_size, size, default_pool());
          },
          "x"_a, "cos"_a, "sin"_a, "rows"_a, "heads"_a, "head_size"_a, "size"_a, free_gil);
    // -> (ids, scores); ids: address, 0 = every logit is its own
    m.def("draw_row",
          [](Address logits, Address ids, std::int64_t count, double temperature, std::uint64_t state, int k) {
              return pair(draw(in(logits), in<std::int64_t>(ids), count, temperature, state, k, default_pool()));
          },
          "logits"_a, "ids"_a, "count"_a, "temperature"_a, "state"_a, "k"_a, free_gil);
    m.def("draw_support",
          [](Address ids, Address z, std::int64_t count, std::uint64_t state, int k) {
              return pair(draw(in<std::int64_t>(ids), in<double>(z), count, state, k, default_pool()));
          },
          "ids"_a, "z"_a, "count"_a, "state"_a, "k"_a, free_gil);
    // logits: [rows, count] -> a row's (indices, shares) each
    m.def("rank",
          [](Address logits, std::int64_t rows, std::int64_t count, int k) {
              std::vector<Pair> ranked;
              for (std::int64_t row = 0; row < rows; ++row) ranked.push_back(pair(rank(in(logits) + row * count, count, k)));
              return ranked;
          },
          "logits"_a, "rows"_a, "count"_a, "k"_a, free_gil);

    nb::class_<Shape>(m, "Shape")
        .def("__init__",
             [](Shape* self, int hidden, int inner, int heads, int kv_heads, int head_size, int rotary, float eps,
                const std::string& activation, bool parallel, bool whole_qk_norm, float attention_scale,
                float attention_cap, float residual_scale) {
                 new (self) Shape{hidden, inner, heads, kv_heads, head_size, rotary, eps, make_activation(activation),
                                  parallel, whole_qk_norm, attention_scale, attention_cap, residual_scale};
             },
             "hidden"_a, "inner"_a, "heads"_a, "kv_heads"_a, "head_size"_a, "rotary"_a, "eps"_a, "activation"_a,
             "parallel"_a, "whole_qk_norm"_a, "attention_scale"_a, "attention_cap"_a, "residual_scale"_a);

    nb::class_<Ends>(m, "Ends")
        .def("__init__",
             [](Ends* self, const Packed* embedding, const Packed* fuse, Address fuse_bias, const NormTuple& norm,
                const Packed* head, Address positions, std::int64_t position_count, float embedding_scale,
                float logit_scale, float logit_cap) {
                 new (self) Ends{embedding, {fuse, in(fuse_bias)}, make_norm(norm), head, in(positions),
                                 position_count, embedding_scale, logit_scale, logit_cap};
             },
             "embedding"_a.none(), "fuse"_a.none(), "fuse_bias"_a, "norm"_a, "head"_a.none(), "positions"_a,
             "position_count"_a, "embedding_scale"_a, "logit_scale"_a, "logit_cap"_a);

    nb::class_<Layers>(m, "Layers")
        .def("__init__",
             [](Layers* self, const Shape& shape, const std::vector<LayerTuple>& layers, const Ends& ends) {
                 new (self) Layers(shape, make_layers(layers), ends);
             },
             "shape"_a, "layers"_a, "ends"_a)
        // tokens: may be empty; rotations: (cosines, sines); captures: (layers behind which, address of [rows, hidden])
        .def("run",
             [](Layers& self, int first, int last, const Plan& plan, const std::vector<std::int64_t>& tokens, Address x,
                const std::vector<std::pair<Address, Address>>& rotations, std::int64_t positions, Address keys,
                Address values, bool half, std::int64_t slots,
                const std::vector<std::pair<std::size_t, Address>>& captures, Address beside, std::vector<int> wanted,
                Address logits) {
                 if (!tokens.empty() && int(tokens.size()) != plan.rows()) {
                     throw std::invalid_argument("there are not as many tokens as rows");
                 }
                 Pass pass{&plan, tokens.empty() ? nullptr : tokens.data(), in(x), {}, positions, out<void>(keys),
                           out<void>(values), half, slots, {}, in(beside), std::move(wanted), out(logits)};
                 for (const auto& [cos, sin] : rotations) pass.rotations.push_back({in(cos), in(sin)});
                 for (const auto& [number, address] : captures) {
                     if (pass.captures.size() <= number) pass.captures.resize(number + 1);
                     pass.captures[number] = out(address);
                 }
                 nb::gil_scoped_release release;
                 self.run(first, last, pass, default_pool());
             },
             "first"_a, "last"_a, "plan"_a, "tokens"_a, "x"_a, "rotations"_a, "positions"_a, "keys"_a, "values"_a,
             "half"_a, "slots"_a, "captures"_a, "beside"_a, "wanted"_a, "logits"_a);
}
