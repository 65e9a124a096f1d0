// Quantised products for AVX-512 VNNI and VL: 256-bit vectors, which never slow the clock, and 32 of them.
#include "linear_vnni.hpp"

namespace taslak {
namespace {

inline __m256i dot(__m256i sum, __m256i a, __m256i b) { return _mm256_dpbusd_epi32(sum, a, b); }

}  // namespace

const QuantisedProducts avx512vnni_products = quantised<Vnni<dot>>;

}  // namespace taslak
