#pragma once
#include "xdp/interface.h"
namespace tarpon::xdp {
struct InterfaceFeatures { bool zero_copy = false; std::uint32_t zero_copy_segments = 0; };
inline Result<InterfaceFeatures> interface_features(const std::string&) { return InterfaceFeatures{}; }
}
