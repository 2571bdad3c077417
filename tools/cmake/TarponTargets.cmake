# What every target of the project has in common.
include(CheckCXXCompilerFlag)
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(fmt REQUIRED)
find_package(tl-expected REQUIRED)

add_library(tarpon_common INTERFACE)
target_compile_options(tarpon_common INTERFACE
  -Wall -Wextra -Wpedantic -Wconversion -Werror
  # g++ 12 sees overlaps in std::string at -O3 that are not there (GCC bug 105651).
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict>)
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
