// Which kernels run: chosen once from what the processor can do, and by name in tests.
#pragma once

#include <string>
#include <vector>

namespace taslak {

// AVX-VNNI is known to the products of weights alone, AVX-512 to those and attention; for the rest they are AVX2.
enum class Path { scalar, avx2, avxvnni, avx512vnni };

// What this build and this processor have, the best first. Never empty.
const std::vector<Path>& paths();
// The path in use: the best, unless `use` said otherwise.
Path path();
// Throws std::invalid_argument for a name `paths` doesn't have.
void use(const std::string& name);
std::string name(Path path);

}  // namespace taslak
