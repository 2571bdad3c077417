// The parts of the kernel's AF_XDP interface that 6.6 and later added, and that Debian 12's headers
// (6.1) lack. Values: include/uapi/linux/if_xdp.h of Linux 6.18.
#pragma once

#if __cplusplus < 202002L
#error "Tarpon needs C++20: compile with -std=c++20"
#endif

#include <linux/if_xdp.h>
#include <sys/socket.h>

#ifndef AF_XDP
#define AF_XDP 44
#endif
#ifndef SOL_XDP
#define SOL_XDP 283
#endif
#ifndef SO_PREFER_BUSY_POLL
#define SO_PREFER_BUSY_POLL 69
#define SO_BUSY_POLL_BUDGET 70
#endif

namespace tarpon::xdp {

inline constexpr unsigned kUseSg = 1u << 4;       // XDP_USE_SG: frames of several buffers
inline constexpr unsigned kPacketContinues = 1u;  // XDP_PKT_CONTD, in xdp_desc::options
inline constexpr int kMaxTxSkbBudget = 9;         // XDP_MAX_TX_SKB_BUDGET, since 6.17

}  // namespace tarpon::xdp
