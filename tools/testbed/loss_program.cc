#include "tools/testbed/loss_program.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>

#include <cerrno>
#include <cmath>

extern "C" {
extern const unsigned char tarpon_bpf_loss_object[];
extern const unsigned char tarpon_bpf_loss_object_end[];
}

namespace tarpon {

void LossProgram::Closer::operator()(bpf_object* object) const {
  bpf_object__close(object);
}

Result<LossProgram> LossProgram::load(double probability, std::uint64_t seed) {
  const auto size = static_cast<std::size_t>(tarpon_bpf_loss_object_end - tarpon_bpf_loss_object);
  bpf_object_open_opts options{};
  options.sz = sizeof options;
  options.object_name = "tarpon_loss";
  std::unique_ptr<bpf_object, Closer> object(
      bpf_object__open_mem(tarpon_bpf_loss_object, size, &options));
  if (!object) return fail_system(errno, "cannot read the loss program");
  if (const int error = bpf_object__load(object.get()); error != 0) {
    return fail_system(-error, "cannot load the loss program into the kernel");
  }
  const tarpon_loss_config config{
      static_cast<std::uint64_t>(std::llround(std::ldexp(probability, 32))), seed};
  const int map = bpf_object__find_map_fd_by_name(object.get(), "loss_config");
  const std::uint32_t zero = 0;
  if (const int error = bpf_map_update_elem(map, &zero, &config, BPF_ANY); error != 0) {
    return fail_system(-error, "cannot set the loss");
  }
  return LossProgram(std::move(object));
}

Result<void> LossProgram::attach(std::uint32_t port) const {
  bpf_tc_hook hook{};
  hook.sz = sizeof hook;
  hook.ifindex = static_cast<int>(TARPON_LOSS_FIRST_IFINDEX + port);
  hook.attach_point = BPF_TC_INGRESS;
  if (const int error = bpf_tc_hook_create(&hook); error != 0) {
    return fail_system(-error, fmt::format("cannot add clsact to port {}", port));
  }
  bpf_tc_opts options{};
  options.sz = sizeof options;
  options.prog_fd = bpf_program__fd(bpf_object__find_program_by_name(object_.get(), "tarpon_loss"));
  if (const int error = bpf_tc_attach(&hook, &options); error != 0) {
    return fail_system(-error, fmt::format("cannot attach the loss program to port {}", port));
  }
  return {};
}

Result<tarpon_loss_port> LossProgram::counters(std::uint32_t port) const {
  tarpon_loss_port out{};
  const int map = bpf_object__find_map_fd_by_name(object_.get(), "loss_ports");
  if (const int error = bpf_map_lookup_elem(map, &port, &out); error != 0) {
    return fail_system(-error, fmt::format("cannot read the loss of port {}", port));
  }
  return out;
}

}  // namespace tarpon
