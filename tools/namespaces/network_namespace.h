// Network namespaces without a name: they live as long as a file descriptor or a process holds
// them.
#pragma once

#include <functional>
#include <vector>

#include "xdp/base/file_descriptor.h"
#include "xdp/base/result.h"

namespace tarpon {

/// Makes `count` namespaces with IPv6 switched off. The caller stays in its own namespace. Errors:
/// permission, unavailable (a kernel without namespaces).
Result<std::vector<FileDescriptor>> make_network_namespaces(std::size_t count);

/// Moves the calling thread into a namespace, for good.
Result<void> enter_network_namespace(int fd);

/// Runs `work` on a thread of its own inside the namespace and waits for it. Sockets made there
/// stay there. `work` must not fork children with a parent-death signal that are to outlive it.
Result<void> in_network_namespace(int fd, const std::function<Result<void>()>& work);

}  // namespace tarpon
