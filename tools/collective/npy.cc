#include "tools/collective/npy.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <new>
#include <optional>

#include "xdp/base/file_descriptor.h"

namespace tarpon {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr std::size_t kMaxHeaderBytes = 64 << 10;

struct Header {
  std::string element;  // "<f4"
  bool fortran = false;
  std::vector<std::size_t> shape;
};

tl::unexpected<Error> refuse(const std::string& path, std::string_view why) {
  return fail(Error::Code::invalid_argument, fmt::format("{}: {}", path, why));
}

/// Reads the Python literal of the header: one dictionary with three known keys in any order.
class HeaderScanner {
 public:
  explicit HeaderScanner(std::string_view text) : rest_(text) {}

  std::optional<Header> scan() {
    Header header;
    unsigned seen = 0;
    if (!take('{')) return std::nullopt;
    while (!take('}')) {
      const auto key = string();
      const unsigned bit = !key                      ? 0U
                           : *key == "descr"         ? 1U
                           : *key == "fortran_order" ? 2U
                           : *key == "shape"         ? 4U
                                                     : 0U;
      if (bit == 0 || (seen & bit) != 0 || !take(':')) return std::nullopt;
      seen |= bit;
      const bool good = bit == 1 ? element(header) : bit == 2 ? order(header) : shape(header);
      if (!good || (!take(',') && !peek('}'))) return std::nullopt;
    }
    skip_space();
    if (seen != 7 || !rest_.empty()) return std::nullopt;
    return header;
  }

 private:
  void skip_space() { rest_.remove_prefix(std::min(rest_.find_first_not_of(" \n"), rest_.size())); }

  bool peek(char c) {
    skip_space();
    return rest_.starts_with(c);
  }

  bool take(char c) {
    if (!peek(c)) return false;
    rest_.remove_prefix(1);
    return true;
  }

  bool take_word(std::string_view word) {
    skip_space();
    if (!rest_.starts_with(word)) return false;
    rest_.remove_prefix(word.size());
    return true;
  }

  std::optional<std::string> string() {
    skip_space();
    const char quote = rest_.starts_with('"') ? '"' : '\'';
    if (!take(quote)) return std::nullopt;
    const std::size_t end = rest_.find(quote);
    if (end == std::string_view::npos) return std::nullopt;
    std::string out(rest_.substr(0, end));
    rest_.remove_prefix(end + 1);
    return out;
  }

  bool element(Header& header) {
    const auto text = string();
    if (text) header.element = *text;
    return text.has_value();
  }

  bool order(Header& header) {
    header.fortran = take_word("True");
    return header.fortran || take_word("False");
  }

  bool shape(Header& header) {
    if (!take('(')) return false;
    while (!take(')')) {
      std::uint64_t value = 0;
      std::size_t digits = 0;
      skip_space();
      for (; digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9'; ++digits) {
        if (digits == 18) return false;
        value = value * 10 + static_cast<std::uint64_t>(rest_[digits] - '0');
      }
      if (digits == 0) return false;
      rest_.remove_prefix(digits);
      header.shape.push_back(value);
      if (!take(',') && !peek(')')) return false;
    }
    return true;
  }

  std::string_view rest_;
};

Result<std::size_t> read_full(int fd, std::byte* to, std::size_t bytes, const std::string& path) {
  std::size_t done = 0;
  while (done < bytes) {
    const ssize_t got = ::read(fd, to + done, std::min<std::size_t>(bytes - done, 1 << 30));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail_system(errno, path + ": cannot read");
    if (got == 0) break;
    done += static_cast<std::size_t>(got);
  }
  return done;
}

/// The header's text; leaves `fd` at the data and sets `data_at` to that offset.
Result<std::string> read_header_text(int fd, const std::string& path, std::size_t& data_at) {
  std::array<std::byte, 12> lead{};
  auto got = read_full(fd, lead.data(), 10, path);
  if (!got) return fail(got.error());
  if (*got < 8 || !std::equal(kMagic.begin(), kMagic.end(), lead.begin(),
                              [](char c, std::byte b) { return static_cast<std::byte>(c) == b; })) {
    return refuse(path, "not a .npy file (it does not start with \\x93NUMPY)");
  }
  const auto major = std::to_integer<unsigned>(lead[6]);
  if (major < 1 || major > 3) return refuse(path, fmt::format("unknown .npy version {}", major));
  std::size_t lead_bytes = 10;
  if (major > 1) {
    auto more = read_full(fd, lead.data() + 10, 2, path);
    if (!more) return fail(more.error());
    *got += *more;
    lead_bytes = 12;
  }
  std::size_t length = 0;
  for (std::size_t i = lead_bytes; i-- > 8;)
    length = length << 8 | std::to_integer<unsigned>(lead[i]);
  if (*got == lead_bytes && length > kMaxHeaderBytes) {
    return refuse(path,
                  fmt::format("the header claims {} bytes, more than any array needs", length));
  }
  std::string text(*got == lead_bytes ? length : 0, '\0');
  auto body = read_full(fd, reinterpret_cast<std::byte*>(text.data()), text.size(), path);
  if (!body) return fail(body.error());
  if (*got < lead_bytes || *body < length) return refuse(path, "truncated inside the header");
  data_at = lead_bytes + length;
  return text;
}

Result<NpyType> element_type(const std::string& element, const std::string& path) {
  if (element == "<f4") return NpyType::float32;
  if (element == "<f8") return NpyType::float64;
  if (element == ">f4" || element == ">f8") {
    return refuse(path, fmt::format("big-endian elements ('{}'): save a.astype('<{}')", element,
                                    element.substr(1)));
  }
  if (element == "|O" || element == "O") {
    return refuse(path, "holds Python objects: save an array of float32 or float64");
  }
  return refuse(path, fmt::format("element type '{}': only float32 ('<f4') and float64 ('<f8') are "
                                  "read, save a.astype('<f4')",
                                  element));
}

/// Product of the shape in elements; nullopt when its bytes do not fit a size.
std::optional<std::size_t> count_elements(const std::vector<std::size_t>& shape,
                                          std::size_t bytes) {
  std::size_t count = 1;
  for (const std::size_t extent : shape) {
    if (__builtin_mul_overflow(count, extent, &count)) return std::nullopt;
  }
  std::size_t total = 0;
  if (__builtin_mul_overflow(count, bytes, &total)) return std::nullopt;
  return count;
}

/// The type and shape of a readable header; the array's data is still empty.
Result<NpyArray> interpret(const std::string& text, const std::string& path) {
  // The descr of a record type is a list. Say so rather than "cannot be read".
  if (text.find("'descr': [") != std::string::npos) {
    return refuse(path, "holds records: save one field of type float32 or float64");
  }
  auto header = HeaderScanner(text).scan();
  if (!header) return refuse(path, "its header cannot be read: save it again with numpy.save");
  const auto type = element_type(header->element, path);
  if (!type) return fail(type.error());
  if (header->fortran && header->shape.size() > 1) {
    return refuse(path, "is in Fortran order: save numpy.ascontiguousarray(a)");
  }
  return NpyArray{*type, std::move(header->shape), {}};
}

std::string encode_header(NpyType type, const std::vector<std::size_t>& shape) {
  const std::string extents = shape.size() == 1 ? fmt::format("({},)", shape[0])
                                                : fmt::format("({})", fmt::join(shape, ", "));
  std::string text = fmt::format("{{'descr': '<f{}', 'fortran_order': False, 'shape': {}, }}",
                                 npy_type_bytes(type), extents);
  text.resize((text.size() + 11 + 63) / 64 * 64 - 11, ' ');  // aligns the data to 64
  text += '\n';
  std::string out(kMagic);
  out += {'\1', '\0', static_cast<char>(text.size() & 0xff), static_cast<char>(text.size() >> 8)};
  return out + text;
}

}  // namespace

std::size_t npy_type_bytes(NpyType type) {
  return type == NpyType::float32 ? 4 : 8;
}

std::string_view npy_type_name(NpyType type) {
  return type == NpyType::float32 ? "float32" : "float64";
}

Result<NpyArray> read_npy(const std::string& path) {
  // O_NONBLOCK: opening a FIFO must not block, so that it can be refused.
  const FileDescriptor fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat status {};
  if (!fd || ::fstat(fd.get(), &status) != 0) return fail_system(errno, path + ": cannot open");
  if (!S_ISREG(status.st_mode)) return refuse(path, "is not a regular file");
  std::size_t data_at = 0;
  const auto text = read_header_text(fd.get(), path, data_at);
  if (!text) return fail(text.error());
  auto array = interpret(*text, path);
  if (!array) return array;

  const std::size_t width = npy_type_bytes(array->type);
  const auto promised = count_elements(array->shape, width);
  const auto name = npy_type_name(array->type);
  const std::size_t held = static_cast<std::size_t>(status.st_size) - data_at;
  if (!promised) return refuse(path, "the header promises more values than memory can address");
  if (held < *promised * width) {
    return refuse(path,
                  fmt::format("truncated: the header promises {} {} values, the file holds {}",
                              *promised, name, held / width));
  }
  if (held > *promised * width) {
    return refuse(path, fmt::format("{} bytes follow the {} {} values that the header promises",
                                    held - *promised * width, *promised, name));
  }
  try {
    array->data.resize(held);
  } catch (const std::bad_alloc&) {
    return fail(Error::Code::unavailable, fmt::format("{}: no memory for {} bytes", path, held));
  }
  const auto got = read_full(fd.get(), array->data.data(), held, path);
  if (!got) return fail(got.error());
  if (*got < held) return refuse(path, "truncated while it was read");
  return array;
}

Result<void> check_npy_output(const std::string& path) {
  if (WholeFile::is_direct(path)) {
    return refuse(path, "is not a regular file: name a file to write");
  }
  return WholeFile::check(path);
}

Result<WholeFile> write_npy(const std::string& path, NpyType type,
                            const std::vector<std::size_t>& shape,
                            std::span<const std::byte> data) {
  const auto count = count_elements(shape, npy_type_bytes(type));
  if (!count || *count * npy_type_bytes(type) != data.size()) {
    return refuse(path, fmt::format("a shape of ({}) does not describe {} bytes of {}",
                                    fmt::join(shape, ", "), data.size(), npy_type_name(type)));
  }
  const std::string header = encode_header(type, shape);
  if (header.size() > kMaxHeaderBytes) return refuse(path, "too many dimensions");
  if (auto good = check_npy_output(path); !good) return fail(good.error());
  auto file = WholeFile::create(path);
  if (!file) return file;
  if (auto put = file->write(std::as_bytes(std::span(header))); !put) return fail(put.error());
  if (auto put = file->write(data); !put) return fail(put.error());
  return file;
}

}  // namespace tarpon
