// The UDP port over io_uring: a multishot receive and batched sends, one system call a batch.
#pragma once

#include <netinet/in.h>

#include <memory>
#include <string>
#include <vector>

#include "transport/port.h"
#include "transport/ports/udp_flows.h"
#include "transport/ports/udp_options.h"
#include "transport/ports/udp_socket.h"

namespace tarpon {

/// A port over `socket`, named "uring". `peers`: where each rank receives, by rank.
/// Behaves as the mmsg port does, and costs one io_uring_enter where that one needs two or three
/// calls. The driving thread may change between calls, and may exit. A thread that drives for the
/// first time uses an io_uring of its own with room for 2 MiB of received datagrams; the latest
/// eight of them are kept, so that threads that take turns pay nothing for a change. The
/// io_uring of an exited thread is closed when another thread drives for the first time. The first
/// two are opened here. If the kernel refuses a later one, its thread goes by recvmmsg and
/// sendmmsg, as the mmsg port does, and so do all threads that drive for the first time from then
/// on. The port never interrupts a system call of a thread that does not drive, except once when
/// the kernel takes apart a ring that the thread has used: when the port is destroyed, or a ninth
/// thread drives it. Errors: invalid_argument (names the option), unavailable (io_uring is
/// forbidden, older than Linux 6.1, or lacks lockable memory: says which, with the remedy), io.
Result<std::unique_ptr<Port>> make_uring_port(UdpSocket socket, std::vector<sockaddr_in> peers,
                                              UdpPortOptions options = {}, UdpFlows flows = {});

/// make_uring_port(); where the kernel refuses its io_urings, make_mmsg_port(), and `against_uring`
/// gets the reason in one line.
Result<std::unique_ptr<Port>> make_uring_or_mmsg_port(UdpSocket socket,
                                                      std::vector<sockaddr_in> peers,
                                                      UdpPortOptions options, UdpFlows flows,
                                                      std::string& against_uring);

/// Whether a port can have its io_urings here at this moment; the error (unavailable) says why not,
/// with the remedy. Takes 100 ms where lockable memory lacks.
Result<void> check_uring();

}  // namespace tarpon
