#include "ops_kernels.hpp"

#include "cpu.hpp"

namespace taslak {

const OpsKernels& ops_kernels() {
#ifdef TASLAK_HAVE_VNNI
    if (path() == Path::avx512vnni) return avx512_ops;
#endif
#ifdef TASLAK_HAVE_AVX2
    if (path() != Path::scalar) return avx2_ops;
#endif
    return scalar_ops;
}

}  // namespace taslak
