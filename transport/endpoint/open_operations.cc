#include "transport/endpoint/open_operations.h"

namespace tarpon {

OpenOperation& OpenOperations::spare(const OperationParts& parts) {
  if (free_.empty()) {
    auto fresh = std::make_unique<OpenOperation>(parts);
    fresh->state().handle.index = static_cast<std::uint32_t>(memory_.size());
    const std::size_t most = memory_.size() + 1;
    free_.reserve(most);
    open_.reserve(most);
    states_.reserve(most);
    memory_.push_back(std::move(fresh));
    free_.push_back(memory_.back()->state().handle.index);
  }
  return *memory_[free_.back()];
}

void OpenOperations::add(OpenOperation& operation) noexcept {
  free_.pop_back();
  open_.push_back(&operation);
  states_.push_back(&operation.state());
}

void OpenOperations::remove(OpenOperation& operation) {
  std::erase(open_, &operation);
  std::erase(states_, &operation.state());
  OperationHandle& handle = operation.state().handle;
  ++handle.generation;
  free_.push_back(handle.index);
}

OpenOperation* OpenOperations::find(OperationHandle handle) const {
  if (handle.index >= memory_.size()) return nullptr;
  OpenOperation* const operation = memory_[handle.index].get();
  return operation->state().handle == handle ? operation : nullptr;
}

}  // namespace tarpon
