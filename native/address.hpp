// How tensors arrive from Python: as addresses, whose type and size the Python side has checked.
#pragma once

#include <cstdint>

namespace taslak {

using Address = std::uintptr_t;

template <class T = float>
inline const T* in(Address address) {
    return reinterpret_cast<const T*>(address);
}
template <class T = float>
inline T* out(Address address) {
    return reinterpret_cast<T*>(address);
}

}  // namespace taslak
