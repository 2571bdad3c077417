// The loss program (bpf/loss.bpf.c), loaded and attached to the ports of a bridge.
#pragma once

#include <cstdint>
#include <memory>

#include "bpf/loss.h"
#include "xdp/result.h"

struct bpf_object;

namespace tarpon {

/// Owns program and maps; the attachments end with the namespace of the ports.
class LossProgram {
 public:
  /// REQUIRES: 0 <= probability <= 1.
  static Result<LossProgram> load(double probability, std::uint64_t seed);

  /// Attaches it where port `port` (interface index TARPON_LOSS_FIRST_IFINDEX + port) receives.
  /// Call it on a thread inside the ports' namespace.
  Result<void> attach(std::uint32_t port) const;

  Result<tarpon_loss_port> counters(std::uint32_t port) const;

 private:
  struct Closer {
    void operator()(bpf_object* object) const;
  };
  explicit LossProgram(std::unique_ptr<bpf_object, Closer> object) : object_(std::move(object)) {}

  std::unique_ptr<bpf_object, Closer> object_;
};

}  // namespace tarpon
