#include "tools/system/shared_program.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <fmt/format.h>
#include <linux/bpf.h>
#include <unistd.h>
#include <xdp/libxdp.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>

#include "xdp/base/file_descriptor.h"
#include "xdp/pins.h"

// Made by tarpon_embed_bpf().
extern "C" {
extern const char tarpon_bpf_xdp_object[];
extern const char tarpon_bpf_xdp_object_end[];
}

namespace tarpon {
namespace {

using xdp::Attached;
using xdp::attached_to;
using xdp::AttachMode;
using xdp::interface_text;

constexpr const char* kRecordName = "tarpon_owner";

/// The value of the pinned map.
struct FileRecord {
  std::uint32_t interface;
  std::uint32_t program;
  std::uint64_t process;  // 0: kept
  std::uint64_t started;  // clock ticks after boot: process numbers are reused
};

struct Closer {
  void operator()(xdp_program* program) const { ::xdp_program__close(program); }
  void operator()(xdp_multiprog* all) const { ::xdp_multiprog__close(all); }
  void operator()(bpf_object* object) const { ::bpf_object__close(object); }
};
using ProgramHandle = std::unique_ptr<xdp_program, Closer>;
using All = std::unique_ptr<xdp_multiprog, Closer>;
using Object = std::unique_ptr<bpf_object, Closer>;

/// Silences both libraries, which explain on standard error what our own error says in one line.
class Quiet {
 public:
  Quiet() : bpf_(::libbpf_set_print(nullptr)), xdp_(::libxdp_set_print(nullptr)) {}
  ~Quiet() {
    ::libbpf_set_print(bpf_);
    ::libxdp_set_print(xdp_);
  }
  Quiet(const Quiet&) = delete;
  Quiet& operator=(const Quiet&) = delete;

 private:
  libbpf_print_fn_t bpf_;
  libxdp_print_fn_t xdp_;
};

xdp_attach_mode libxdp_mode(AttachMode mode) {
  return mode == AttachMode::generic ? XDP_MODE_SKB : XDP_MODE_NATIVE;
}

/// Field 22 of /proc/PID/stat; 0 when there is no such process, or one that is dead and not reaped.
std::uint64_t start_of(std::uint64_t process) {
  std::ifstream file(fmt::format("/proc/{}/stat", process));
  std::string text;
  std::getline(file, text);
  const std::size_t name_end = text.rfind(')');  // the name may hold anything
  if (name_end == std::string::npos) return 0;
  std::istringstream words(text.substr(name_end + 1));
  std::string word;
  words >> word;  // field 3, its state
  if (word == "Z" || word == "X") return 0;
  for (int field = 4; field < 22; ++field) words >> word;
  std::uint64_t start = 0;
  words >> start;
  return start;
}

std::string record_path(const std::string& directory) {
  return fmt::format("{}/{}", directory, kRecordName);
}

FileDescriptor open_record(const std::string& directory, FileRecord& record) {
  FileDescriptor map(::bpf_obj_get(record_path(directory).c_str()));
  const std::uint32_t zero = 0;
  bpf_map_info info{};
  std::uint32_t length = sizeof info;
  if (!map || ::bpf_obj_get_info_by_fd(map.get(), &info, &length) != 0 ||
      info.value_size != sizeof record || ::bpf_map_lookup_elem(map.get(), &zero, &record) != 0) {
    return {};
  }
  return map;
}

Result<void> write_record(const std::string& directory, const FileRecord& record) {
  FileRecord before{};
  FileDescriptor map = open_record(directory, before);
  if (!map) {
    if (auto made = xdp::make_pin_directory(directory); !made) return made;
    map = FileDescriptor(
        ::bpf_map_create(BPF_MAP_TYPE_ARRAY, kRecordName, 4, sizeof record, 1, nullptr));
    if (!map) return fail_system(errno, "a map for the record of the shared program");
    if (::bpf_obj_pin(map.get(), record_path(directory).c_str()) != 0) {
      return fail_system(errno, "pinning " + record_path(directory));
    }
  }
  const std::uint32_t zero = 0;
  if (::bpf_map_update_elem(map.get(), &zero, &record, BPF_ANY) != 0) {
    return fail_system(errno, "writing " + record_path(directory));
  }
  return {};
}

/// The dispatcher calls programs of type ext; without them libxdp would attach ours alone.
Result<void> check_kernel() {
  bpf_prog_load_opts options{};
  options.sz = sizeof options;
  options.attach_btf_id = 1;
  const std::array<bpf_insn, 2> nothing{
      bpf_insn{.code = BPF_ALU64 | BPF_MOV | BPF_K, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0},
      bpf_insn{.code = BPF_JMP | BPF_EXIT, .dst_reg = 0, .src_reg = 0, .off = 0, .imm = 0}};
  const FileDescriptor program(
      ::bpf_prog_load(BPF_PROG_TYPE_EXT, "probe", "GPL", nothing.data(), nothing.size(), &options));
  // A kernel that has the type refuses to replace one of its own functions (EINVAL).
  if (program || errno == EINVAL) return {};
  return fail(Error::Code::unavailable,
              fmt::format("--shared needs BPF programs of type ext (libxdp's dispatcher), which "
                          "this kernel refuses: {}; load without --shared",
                          std::strerror(errno)));
}

/// Checks that what is attached is libxdp's, in the same mode.
Result<void> check_company(unsigned interface, AttachMode mode) {
  const auto attached = attached_to(interface);
  if (!attached) return fail(attached.error());
  if (!*attached) return {};
  const Attached& there = **attached;
  if (!there.dispatcher) {
    return fail(Error::Code::unavailable,
                fmt::format("{} has the XDP program {} (id {}), which is attached without libxdp's "
                            "dispatcher and cannot be shared with: unload it first",
                            interface_text(interface), there.name, there.id));
  }
  if (there.mode != mode) {
    return fail(Error::Code::unavailable,
                fmt::format("{} has programs in {} mode: add --mode {}", interface_text(interface),
                            xdp::name(there.mode), xdp::name(there.mode)));
  }
  return {};
}

std::string explain(int error) {
  std::array<char, 256> text{};
  ::libxdp_strerror(error, text.data(), text.size());
  return text.data();
}

/// Attaches by the dispatcher, and checks that libxdp used it.
Result<std::uint32_t> attach(unsigned interface, AttachMode mode) {
  const auto size = static_cast<std::size_t>(tarpon_bpf_xdp_object_end - tarpon_bpf_xdp_object);
  Object object(::bpf_object__open_mem(tarpon_bpf_xdp_object, size, nullptr));
  if (object == nullptr) return fail_system(errno, "opening the embedded XDP program");
  xdp_program* opened = ::xdp_program__from_bpf_obj(object.get(), nullptr);
  if (const long error = ::libxdp_get_error(opened); error != 0) {
    return fail(Error::Code::io, "libxdp: " + explain(static_cast<int>(error)));
  }
  const ProgramHandle program(opened);  // declared after the object, so closed before it
  ::xdp_program__set_xdp_frags_support(opened, true);
  const int index = static_cast<int>(interface);
  if (const int error = ::xdp_program__attach(opened, index, libxdp_mode(mode), 0); error != 0) {
    return fail(
        error == -EPERM ? Error::Code::permission : Error::Code::unavailable,
        fmt::format("libxdp cannot attach to {}: {}", interface_text(interface), explain(error)));
  }
  const std::uint32_t id = ::xdp_program__id(opened);
  xdp_multiprog* all = ::xdp_multiprog__get_from_ifindex(index);
  const All owner(::libxdp_get_error(all) == 0 ? all : nullptr);
  if (owner != nullptr && !::xdp_multiprog__is_legacy(all)) return id;
  // Ours is the only program there, so detaching removes nothing else.
  ::xdp_program__detach(opened, index, libxdp_mode(mode), 0);
  return fail(Error::Code::unavailable,
              "--shared: libxdp cannot use its dispatcher on this kernel; load without --shared");
}

}  // namespace

Result<void> check_sharing(unsigned interface, AttachMode mode) {
  const Quiet quiet;
  if (auto good = check_kernel(); !good) return good;
  return check_company(interface, mode);
}

Result<std::uint32_t> attach_shared(unsigned interface, AttachMode mode,
                                    const std::string& directory) {
  if (auto good = check_sharing(interface, mode); !good) return fail(good.error());
  const Quiet quiet;
  const auto self = static_cast<std::uint64_t>(::getpid());
  FileRecord record{
      .interface = interface, .program = 0, .process = self, .started = start_of(self)};
  // Written before the program is attached, so that its owner is known whatever happens to us.
  if (auto mounted = xdp::mount_bpf_file_system(); !mounted) return fail(mounted.error());
  if (auto written = write_record(directory, record); !written) {
    xdp::remove_pin_directory(directory);
    return fail(written.error());
  }
  auto id = attach(interface, mode);
  if (!id) {
    xdp::remove_pin_directory(directory);
    return id;
  }
  record.program = *id;
  if (auto written = write_record(directory, record); !written) {
    (void)detach_shared(interface, *id, directory);
    return fail(written.error());
  }
  return id;
}

Result<void> keep_shared(const std::string& directory) {
  FileRecord record{};
  if (!open_record(directory, record)) {
    return fail(Error::Code::unavailable, record_path(directory) + " is gone");
  }
  record.process = 0;
  record.started = 0;
  return write_record(directory, record);
}

Result<void> detach_shared(unsigned interface, std::uint32_t id, const std::string& directory) {
  const Quiet quiet;
  xdp_program* opened = ::xdp_program__from_id(id);
  if (const long error = ::libxdp_get_error(opened); error != 0) {
    return fail(Error::Code::io,
                fmt::format("XDP program {}: {}", id, explain(static_cast<int>(error))));
  }
  const ProgramHandle program(opened);
  const auto attached = attached_to(interface);
  if (!attached) return fail(attached.error());
  const AttachMode mode = *attached ? (*attached)->mode : AttachMode::native;
  const int index = static_cast<int>(interface);
  if (const int error = ::xdp_program__detach(opened, index, libxdp_mode(mode), 0); error != 0) {
    return fail(error == -EPERM ? Error::Code::permission : Error::Code::io,
                fmt::format("libxdp cannot detach program {} from {}: {}", id,
                            interface_text(interface), explain(error)));
  }
  xdp::remove_pin_directory(directory);
  return {};
}

std::vector<SharedRecord> shared_records() {
  std::vector<SharedRecord> records;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(xdp::pin_root(), error)) {
    const std::string directory = entry.path().string();
    FileRecord record{};
    if (!xdp::is_of_this_namespace(directory) || !open_record(directory, record)) continue;
    const std::uint64_t started = record.process == 0 ? 0 : start_of(record.process);
    records.push_back({.directory = directory,
                       .interface = record.interface,
                       .program = record.program,
                       .kept = record.process == 0,
                       .owner_alive = started != 0 && started == record.started});
  }
  return records;
}

}  // namespace tarpon
