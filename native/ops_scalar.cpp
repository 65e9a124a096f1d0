// The portable form of the kernels.
#include "attention_kernel.hpp"
#include "draw_kernel.hpp"
#include "ops_kernels.hpp"
#include "rows_kernel.hpp"

namespace taslak {

const OpsKernels scalar_ops = {
    attend<Scalar8>, write<Scalar8>, norm<Scalar8>, layer_norm<Scalar8>, rotate<Scalar8>, scale_and_cap<Scalar8>, largest_scalar,
    exp_sum<Scalar8>, above_scalar, find_scalar,
};

}  // namespace taslak
