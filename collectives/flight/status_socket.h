// The listening side of the status socket.
#pragma once

#include <functional>
#include <string>

#include "xdp/base/file_descriptor.h"

namespace tarpon {

/// Listens on `name` in the abstract name space; does not block. Empty when that does not work.
FileDescriptor listen_abstract(const std::string& name);

/// Writes the answer; false: the client has gone.
using Reply = std::function<bool(const void* data, std::size_t bytes)>;

/// Answers one client of `listener`, if it belongs to this user or root. `answer` gets its request,
/// or "" if none came in time. Bounded: a silent client costs 200 ms, and one that does not read
/// costs a second.
void serve_client(const FileDescriptor& listener,
                  const std::function<void(const std::string& request, const Reply&)>& answer);

}  // namespace tarpon
