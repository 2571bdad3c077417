#include "tools/testbed/loss_program.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>

#include <cerrno>

extern "C" {
extern const unsigned char tarpon_bpf_loss_object[];
extern const unsigned char tarpon_bpf_loss_object_end[];
}

namespace tarpon {

void LossProgram::Closer::operator()(bpf_object* object) const {
  bpf_object__close(object);
}

Result<LossProgram> LossProgram::load(const tarpon_loss_config& config) {
  const auto size = static_cast<std::size_t>(tarpon_bpf_loss_object_end - tarpon_bpf_loss_object);
  bpf_object_open_opts options{};
  options.sz = sizeof options;
  options.object_name = "tarpon_loss";
  LossProgram program(std::unique_ptr<bpf_object, Closer>(
      bpf_object__open_mem(tarpon_bpf_loss_object, size, &options)));
  if (!program.object_) return fail_system(errno, "cannot read the loss programs");
  if (const int error = bpf_object__load(program.object_.get()); error != 0) {
    return fail_system(-error, "cannot load the loss programs into the kernel");
  }
  const std::uint32_t zero = 0;
  if (const int error = bpf_map_update_elem(program.map("loss_config"), &zero, &config, BPF_ANY);
      error != 0) {
    return fail_system(-error, "cannot set the loss");
  }
  return program;
}

int LossProgram::map(const char* name) const {
  return bpf_object__find_map_fd_by_name(object_.get(), name);
}

Result<void> LossProgram::police(std::uint32_t port, const tarpon_loss_limit& limit) const {
  if (const int error = bpf_map_update_elem(map("loss_police"), &port, &limit, BPF_ANY);
      error != 0) {
    return fail_system(-error, fmt::format("cannot police port {}", port));
  }
  return {};
}

Result<void> LossProgram::attach(std::uint32_t port) const {
  bpf_tc_hook hook{};
  hook.sz = sizeof hook;
  hook.ifindex = static_cast<int>(TARPON_LOSS_FIRST_IFINDEX + port);
  hook.attach_point = static_cast<bpf_tc_attach_point>(BPF_TC_INGRESS | BPF_TC_EGRESS);
  if (const int error = bpf_tc_hook_create(&hook); error != 0) {
    return fail_system(-error, fmt::format("cannot add clsact to port {}", port));
  }
  for (const auto& [name, point] :
       {std::pair("tarpon_loss", BPF_TC_INGRESS), std::pair("tarpon_police", BPF_TC_EGRESS)}) {
    hook.attach_point = point;
    bpf_tc_opts options{};
    options.sz = sizeof options;
    options.prog_fd = bpf_program__fd(bpf_object__find_program_by_name(object_.get(), name));
    if (const int error = bpf_tc_attach(&hook, &options); error != 0) {
      return fail_system(-error, fmt::format("cannot attach {} to port {}", name, port));
    }
  }
  return {};
}

Result<tarpon_loss_port> LossProgram::counters(std::uint32_t port) const {
  tarpon_loss_port out{};
  if (const int error = bpf_map_lookup_elem(map("loss_ports"), &port, &out); error != 0) {
    return fail_system(-error, fmt::format("cannot read the loss of port {}", port));
  }
  return out;
}

}  // namespace tarpon
