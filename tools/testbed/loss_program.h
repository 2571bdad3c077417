// The loss programs (bpf/loss.bpf.c), loaded and attached to the ports of a bridge.
#pragma once

#include <cstdint>
#include <memory>

#include "bpf/loss.h"
#include "xdp/base/result.h"

struct bpf_object;

namespace tarpon {

/// Owns programs and maps; the attachments end with the namespace of the ports.
class LossProgram {
 public:
  static Result<LossProgram> load(const tarpon_loss_config& config);

  /// Limits the packets that go to port `port`. Call it before or after attach().
  Result<void> police(std::uint32_t port, const tarpon_loss_limit& limit) const;

  /// Attaches them to port `port` (interface index TARPON_LOSS_FIRST_IFINDEX + port): the losses
  /// where it receives, the policer where it sends. Call it on a thread inside the ports'
  /// namespace.
  Result<void> attach(std::uint32_t port) const;

  Result<tarpon_loss_port> counters(std::uint32_t port) const;

 private:
  struct Closer {
    void operator()(bpf_object* object) const;
  };
  explicit LossProgram(std::unique_ptr<bpf_object, Closer> object) : object_(std::move(object)) {}

  int map(const char* name) const;

  std::unique_ptr<bpf_object, Closer> object_;
};

}  // namespace tarpon
