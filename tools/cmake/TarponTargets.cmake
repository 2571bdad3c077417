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
# g++ collects its garbage less often: 12 % of its time for a fifth more memory.
target_compile_options(tarpon_common INTERFACE
  "$<$<COMPILE_LANG_AND_ID:CXX,GNU>:SHELL:--param ggc-min-heapsize=2000000>")
if(TARPON_SANITIZE)
  # Tests, which have the property, are compiled without UndefinedBehaviorSanitizer: it takes a third of their time,
  # and the library is what it shall look at.
  target_compile_options(tarpon_common INTERFACE
    -fsanitize=${TARPON_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all
    $<$<BOOL:$<TARGET_PROPERTY:TARPON_IS_TEST>>:-fno-sanitize=undefined>)
  target_link_options(tarpon_common INTERFACE -fsanitize=${TARPON_SANITIZE})
  # AddressSanitizer finds most of what these three find, and they take a seventh of the time.
  if(TARPON_SHORT)
    target_compile_options(tarpon_common INTERFACE -fno-sanitize=null,object-size,vptr)
  endif()
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

# tarpon_batches(TARGET [ACROSS] [APART SOURCE...]): compiles the sources of a folder together, or with ACROSS
# those of all folders, up to twelve at a time, because most of the time of a build goes into headers. Names in
# an unnamed namespace are therefore unique in a folder, or with ACROSS in the target, but for overloads. Sources
# named APART are compiled alone. -D TARPON_BATCHES=OFF compiles every source alone.
option(TARPON_BATCHES "Compile sources of a folder together" ON)
function(tarpon_batches target)
  if(NOT TARPON_BATCHES)
    return()
  endif()
  cmake_parse_arguments(ARG "ACROSS" "" "APART" ${ARGN})
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "\\.cc$")
  list(REMOVE_ITEM sources ${ARG_APART})
  foreach(source IN LISTS sources)
    cmake_path(GET source PARENT_PATH folder)
    string(MAKE_C_IDENTIFIER "_${folder}" folder)
    if(ARG_ACROSS)
      set(folder _)
    endif()
    list(APPEND folders ${folder})
    list(APPEND in_${folder} ${source})
  endforeach()
  list(REMOVE_DUPLICATES folders)
  foreach(folder IN LISTS folders)
    list(LENGTH in_${folder} count)
    math(EXPR batches "(${count} + 11) / 12")
    set(index 0)
    foreach(source IN LISTS in_${folder})
      math(EXPR batch "${index} * ${batches} / ${count}")
      math(EXPR index "${index} + 1")
      set_source_files_properties(${source} PROPERTIES UNITY_GROUP room${folder}_${batch})
    endforeach()
  endforeach()
endfunction()
