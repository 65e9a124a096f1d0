// Quantised products for AVX-VNNI.
#include "linear_vnni.hpp"

namespace taslak {
namespace {

inline __m256i dot(__m256i sum, __m256i a, __m256i b) { return _mm256_dpbusd_avx_epi32(sum, a, b); }

}  // namespace

const QuantisedProducts avxvnni_products = quantised<Vnni<dot>>;

}  // namespace taslak
