#include "tools/namespaces/network_namespace.h"

#include <fcntl.h>
#include <sched.h>

#include <cerrno>
#include <string>
#include <system_error>
#include <thread>

namespace tarpon {
namespace {

Result<void> on_own_thread(const std::function<Result<void>()>& work) {
  Result<void> result;
  try {
    std::thread([&] { result = work(); }).join();
  } catch (const std::system_error& error) {
    return fail_system(error.code().value(), "cannot start a thread");
  }
  return result;
}

/// Router solicitations and duplicate address detection would be noise in every counter.
void switch_ipv6_off() {
  for (const char* path : {"/proc/sys/net/ipv6/conf/all/disable_ipv6",
                           "/proc/sys/net/ipv6/conf/default/disable_ipv6"}) {
    const FileDescriptor file(::open(path, O_WRONLY | O_CLOEXEC));
    // No such file: no IPv6. Read-only /proc: IPv6 stays on, which only causes noise.
    if (file && ::write(file.get(), "1", 1) != 1) return;
  }
}

Result<FileDescriptor> make_one() {
  if (::unshare(CLONE_NEWNET) != 0) {
    if (errno == EPERM) {
      return fail(Error{Error::Code::permission, EPERM,
                        "network namespaces need root (or CAP_SYS_ADMIN+CAP_NET_ADMIN): run as "
                        "root"});
    }
    if (errno == EINVAL) {
      return fail(Error{Error::Code::unavailable, EINVAL,
                        "this kernel has no network namespaces (CONFIG_NET_NS)"});
    }
    return fail_system(errno, "cannot make a network namespace");
  }
  switch_ipv6_off();
  FileDescriptor fd(::open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  if (!fd) return fail_system(errno, "/proc/thread-self/ns/net");
  return fd;
}

}  // namespace

Result<std::vector<FileDescriptor>> make_network_namespaces(std::size_t count) {
  std::vector<FileDescriptor> made;
  // The thread ends in the last namespace; then only the descriptors hold the namespaces.
  auto done = on_own_thread([&]() -> Result<void> {
    for (std::size_t i = 0; i < count; ++i) {
      auto fd = make_one();
      if (!fd) return fail(fd.error());
      made.push_back(std::move(*fd));
    }
    return {};
  });
  if (!done) return fail(done.error());
  return made;
}

Result<void> enter_network_namespace(int fd) {
  if (::setns(fd, CLONE_NEWNET) != 0) return fail_system(errno, "cannot enter a network namespace");
  return {};
}

Result<void> in_network_namespace(int fd, const std::function<Result<void>()>& work) {
  return on_own_thread([&]() -> Result<void> {
    if (auto entered = enter_network_namespace(fd); !entered) return entered;
    return work();
  });
}

}  // namespace tarpon
