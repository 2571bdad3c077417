# What every target of the project has in common.
include(CheckCXXCompilerFlag)
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(tl-expected REQUIRED)

add_library(tarpon_common INTERFACE)
target_compile_options(tarpon_common INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Werror
  # g++ 12 sees overlaps and overruns in std::string that are not there (GCC bug 105651). It reports more of
  # them in precompiled headers, which it does not take for system headers. clang and the sanitizers find real ones.
  "$<$<CXX_COMPILER_ID:GNU>:-Wno-restrict;-Wno-array-bounds;-Wno-stringop-overflow;-Wno-stringop-overread>")
if(TARPON_SANITIZE)
  target_compile_options(tarpon_common INTERFACE
    -fsanitize=${TARPON_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(tarpon_common INTERFACE -fsanitize=${TARPON_SANITIZE})
endif()
if(TARPON_FUZZ)
  target_compile_options(tarpon_common INTERFACE -fsanitize=fuzzer-no-link)
  target_link_options(tarpon_common INTERFACE -fsanitize=fuzzer-no-link)
endif()
# -iquote, not -I: the folders xdp/ and bpf/ would shadow <xdp/xsk.h> and <bpf/bpf.h>.
target_compile_options(tarpon_common INTERFACE
  "$<BUILD_INTERFACE:SHELL:-iquote ${PROJECT_SOURCE_DIR}>"
  "$<BUILD_INTERFACE:SHELL:-iquote ${PROJECT_BINARY_DIR}>")

# What most sources include, read once a library: half of the time of a build goes into headers.
set(TARPON_COMMON_HEADERS
  <algorithm> <array> <atomic> <chrono> <cstdint> <cstring> <functional> <memory> <mutex> <optional> <span>
  <string> <string_view> <tuple> <unordered_map> <utility> <variant> <vector> <fmt/format.h> <fmt/ranges.h>
  <tl/expected.hpp>)
