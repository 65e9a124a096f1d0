// Python's view of the products, the packing and the threads. Tensors arrive as addresses: `taslak.native` checks them.
#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "cpu.hpp"
#include "pool.hpp"

namespace nb = nanobind;
using namespace nb::literals;

void bind_linear(nb::module_& m) {
    m.def("threads", [] { return taslak::default_pool().threads(); });
    m.def("set_threads", [](int threads) { taslak::default_pool().set_threads(threads); }, "threads"_a,
          nb::call_guard<nb::gil_scoped_release>());
    m.def("available_cores", &taslak::available_cores);
    m.def("paths", [] {
        std::vector<std::string> names;
        for (const taslak::Path path : taslak::paths()) names.push_back(taslak::name(path));
        return names;
    });
    m.def("path", [] { return taslak::name(taslak::path()); });
    m.def("use", &taslak::use, "path"_a);
}
