// The extension module `taslak._native`. Each file of kernels binds its own.
#include <nanobind/nanobind.h>

namespace nb = nanobind;

void bind_linear(nb::module_& m);
void bind_ops(nb::module_& m);

NB_MODULE(_native, m) {
    m.doc() = "Kernels of the CPU path. Use `taslak.native`.";
    bind_linear(m);
    bind_ops(m);
}
