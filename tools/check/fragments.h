// Packets that this host cuts into IP fragments on their way out.
#pragma once

#include <cstdint>
#include <istream>

namespace tarpon {

/// How many packets have been cut so far, from the text of /proc/net/snmp; 0 if it does not say.
std::uint64_t fragmented_packets(std::istream& snmp);

/// The same of this thread's network namespace.
std::uint64_t fragmented_packets();

}  // namespace tarpon
