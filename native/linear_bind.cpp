// Python's view of the products, the packing and the threads. Tensors arrive as addresses: `taslak.native` checks
// their shapes and types and keeps them alive.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <stdexcept>
#include <utility>

#include "address.hpp"
#include "cpu.hpp"
#include "linear.hpp"
#include "pack.hpp"
#include "pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace taslak {
namespace {

constexpr std::pair<const char*, Kind> kKinds[] = {
    {"bfloat16", Kind::bfloat16}, {"int8", Kind::int8_half},           {"int8-float32", Kind::int8_single},
    {"int4", Kind::int4_half},    {"int4-float32", Kind::int4_single}, {"int4-factors", Kind::int4_factors},
};

Kind kind_of(const std::string& name) {
    for (const auto& [known, kind] : kKinds) {
        if (name == known) return kind;
    }
    throw std::invalid_argument("there is no kind \"" + name + "\"");
}

// Two streams at once, as the products have: one alone leaves some of the memory's bandwidth unused.
std::uint64_t read_bytes(const std::uint8_t* data, std::int64_t bytes) {
    const std::int64_t half = bytes / 128 * 64;
    std::uint64_t sums[2][8] = {};
    for (std::int64_t i = 0; i < half; i += 64) {
        for (int stream = 0; stream < 2; ++stream) {
            std::uint64_t words[8];
            std::memcpy(words, data + stream * half + i, sizeof words);
            for (int j = 0; j < 8; ++j) sums[stream][j] ^= words[j];
        }
    }
    std::uint64_t total = 0;
    for (const auto& stream : sums) {
        for (std::uint64_t sum : stream) total ^= sum;
    }
    return total;
}

// Reads a block end to end with every thread: what the machine's memory can deliver.
std::uint64_t read_all(Address data, std::int64_t bytes) {
    constexpr std::int64_t piece = 256 * 1024;
    std::atomic<std::uint64_t> total{0};
    default_pool().parallel_for((bytes + piece - 1) / piece, [&](std::int64_t i) {
        total ^= read_bytes(in<std::uint8_t>(data) + i * piece, std::min(piece, bytes - i * piece));
    });
    return total;
}

}  // namespace
}  // namespace taslak

void bind_linear(nb::module_& m) {
    using namespace taslak;
    const auto free_gil = nb::call_guard<nb::gil_scoped_release>();

    m.def("threads", [] { return default_pool().threads(); });
    m.def("set_threads", [](int threads) { default_pool().set_threads(threads); }, "threads"_a, free_gil);
    m.def("available_cores", &available_cores);
    m.def("paths", [] {
        std::vector<std::string> names;
        for (const Path path : paths()) names.push_back(name(path));
        return names;
    });
    m.def("path", [] { return name(path()); });
    m.def("kinds", [] {
        std::vector<std::string> names;
        for (const auto& [known, kind] : kKinds) names.push_back(known);
        return names;
    });
    m.def("use", &use, "path"_a);

    // `data` is an address; the Python object that owns the bytes must outlive this one.
    nb::class_<Packed>(m, "PackedMatrix")
        .def("__init__",
             [](Packed* self, const std::string& kind, std::int64_t n, std::int64_t k, Address data) {
                 new (self) Packed{kind_of(kind), n, k, in<std::uint8_t>(data)};
             },
             "kind"_a, "n"_a, "k"_a, "data"_a)
        .def_ro("n", &Packed::n)
        .def_ro("k", &Packed::k)
        .def_prop_ro("nbytes", &packed_bytes)
        .def_prop_ro("granule", [](const Packed& w) { return granule(w.kind); });

    m.def("pack_bfloat16",
          [](const Packed& w, Address weights) {
              pack_bfloat16(in<std::uint16_t>(weights), w, const_cast<std::uint8_t*>(w.data), default_pool());
          },
          "packed"_a, "weights"_a, free_gil);
    m.def("pack_codes",
          [](const Packed& w, Address codes, Address scales, Address minima) {
              pack_codes(in<std::uint8_t>(codes), in<void>(scales), in<void>(minima), w,
                         const_cast<std::uint8_t*>(w.data), default_pool());
          },
          "packed"_a, "codes"_a, "scales"_a, "minima"_a, free_gil);
    m.def("pack_factors",
          [](const Packed& w, Address codes, Address d, Address dmin, Address a, Address b) {
              pack_factors(in<std::uint8_t>(codes), in<std::uint16_t>(d), in<std::uint16_t>(dmin),
                           in<std::uint8_t>(a), in<std::uint8_t>(b), w, const_cast<std::uint8_t*>(w.data),
                           default_pool());
          },
          "packed"_a, "codes"_a, "d"_a, "dmin"_a, "a"_a, "b"_a, free_gil);
    m.def("unpack", [](const Packed& w, Address to) { unpack(w, out(to), default_pool()); }, "packed"_a, "out"_a,
          free_gil);
    m.def("unpack_rows",
          [](const Packed& w, Address ids, std::int64_t count, Address to) {
              unpack_rows(w, in<std::int64_t>(ids), count, out(to));
          },
          "packed"_a, "ids"_a, "count"_a, "out"_a, free_gil);

    // x: [rows, k], rows ldx floats apart; y (and residual): [rows, n], rows ldy floats apart. 0 = no bias, no residual.
    m.def("linear",
          [](Address x, int rows, std::int64_t ldx, const Packed& w, Address bias, Address residual, Address y,
             std::int64_t ldy) {
              thread_local Activations activations;
              activations.set(in(x), rows, w.k, ldx);
              linear(activations, Product{&w, in(bias), in(residual), out(y), ldy}, default_pool());
          },
          "x"_a, "rows"_a, "ldx"_a, "packed"_a, "bias"_a, "residual"_a, "y"_a, "ldy"_a, free_gil);
    // Several weights with one x: biases and ys one a weight.
    m.def("linear_many",
          [](Address x, int rows, std::int64_t ldx, const std::vector<const Packed*>& weights,
             const std::vector<Address>& biases, const std::vector<Address>& ys) {
              nb::gil_scoped_release release;
              thread_local Activations activations;
              activations.set(in(x), rows, weights[0]->k, ldx);
              std::vector<Product> products;
              for (std::size_t i = 0; i < weights.size(); ++i) {
                  products.push_back({weights[i], in(biases[i]), nullptr, out(ys[i]), weights[i]->n});
              }
              linear(activations, products.data(), int(products.size()), default_pool());
          },
          "x"_a, "rows"_a, "ldx"_a, "weights"_a, "biases"_a, "ys"_a);
    m.def("gated",
          [](Address x, int rows, std::int64_t ldx, const Packed& gate, Address gate_bias, const Packed& up,
             Address up_bias, Address y) {
              thread_local Activations activations;
              activations.set(in(x), rows, gate.k, ldx);
              gated(activations, gate, in(gate_bias), up, in(up_bias), out(y), gate.n, default_pool());
          },
          "x"_a, "rows"_a, "ldx"_a, "gate"_a, "gate_bias"_a, "up"_a, "up_bias"_a, "y"_a, free_gil);
    m.def("quantise",
          [](Address x, int rows, std::int64_t k, Address codes, Address scales) {
              Activations a;
              a.set(in(x), rows, k, k);
              a.quantise(default_pool());
              for (int r = 0; r < rows; ++r) {
                  const int first = r / kRows * kRows, count = std::min(kRows, rows - first);
                  for (std::int64_t g = 0; g < k / kGroup; ++g) {
                      const Activations::Group group = a.group(first, count, g).from(r - first);
                      std::copy_n(group.codes, kGroup, out<std::int8_t>(codes) + r * k + g * kGroup);
                      out(scales)[r * (k / kGroup) + g] = *group.scales;
                  }
              }
          },
          "x"_a, "rows"_a, "k"_a, "codes"_a, "scales"_a, free_gil);

    m.def("read_all", &read_all, "data"_a, "bytes"_a, free_gil);
    // A job of nothing but counting, `times` over: how often each task ran. Shows what threading itself costs.
    m.def("run_counted",
          [](std::int64_t tasks, int times) {
              std::vector<int> counts(std::size_t(tasks), 0);
              nb::gil_scoped_release release;
              for (int i = 0; i < times; ++i) {
                  default_pool().parallel_for(tasks, [&](std::int64_t task) { ++counts[std::size_t(task)]; });
              }
              return counts;
          },
          "tasks"_a, "times"_a);
}
