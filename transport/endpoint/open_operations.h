// The open operations of an endpoint, oldest first, and their memory, which later ones use again.
//
// Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "transport/operation/open_operation.h"

namespace tarpon {

class OpenOperations {
 public:
  /// Returns memory for an operation that is to begin: add() or the next spare() takes it. Throws
  /// std::bad_alloc; then nothing has changed. `parts` outlive the operations.
  OpenOperation& spare(const OperationParts& parts);
  /// The operation that spare() has returned is open now.
  void add(OpenOperation& operation) noexcept;
  /// The operation has ended. Its handle is no longer valid.
  void remove(OpenOperation& operation);

  /// nullptr: no such operation is open.
  OpenOperation* find(OperationHandle handle) const;
  std::span<OpenOperation* const> all() const { return open_; }
  /// The states of all.
  const std::vector<Operation*>& states() const { return states_; }

 private:
  std::vector<std::unique_ptr<OpenOperation>> memory_;  // by handle index
  std::vector<std::uint32_t> free_;
  std::vector<OpenOperation*> open_;
  std::vector<Operation*> states_;
};

}  // namespace tarpon
