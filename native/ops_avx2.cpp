// The kernels for AVX2 and FMA; this file alone is compiled with them switched on.
#include "attention_kernel.hpp"
#include "draw_kernel.hpp"
#include "ops_kernels.hpp"
#include "rows_kernel.hpp"

namespace taslak {

const OpsKernels avx2_ops = {
    attend<Avx8>, write<Avx8>, norm<Avx8>, layer_norm<Avx8>, rotate<Avx8>, scale_and_cap<Avx8>, largest_avx2,
    exp_sum<Avx8>, above_avx2, find_avx2,
};

}  // namespace taslak
