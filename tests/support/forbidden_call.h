// Forbids system calls in a test's child, as a seccomp profile of a container or a service does.
#pragma once

#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <optional>

namespace tarpon::testing_support {

/// Makes system call `number` fail with `error` in this process, for good; with `first`, only if
/// that is its first argument. False if the kernel refuses.
inline bool forbid_call(std::uint32_t number, std::uint32_t error,
                        std::optional<std::uint32_t> first = std::nullopt) {
  const std::uint8_t skip = first ? 0 : 2;  // the check of the argument
  sock_filter code[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, skip, 3),
                        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
                        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, first.value_or(0), 0, 1),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | error),
                        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
  const sock_fprog program{.len = std::size(code), .filter = code};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

}  // namespace tarpon::testing_support
