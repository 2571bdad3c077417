# install() rules: libraries, public headers, the tool with its pages, find_package(tarpon), pkg-config.
include(CMakePackageConfigHelpers)

# tarpon::tarpon is all that a caller needs; the executable has the plain name.
add_library(tarpon_umbrella INTERFACE)
target_link_libraries(tarpon_umbrella INTERFACE tarpon_collectives)
set_target_properties(tarpon_umbrella PROPERTIES EXPORT_NAME tarpon)
foreach(folder IN ITEMS bpf xdp codec transport collectives)
  set_target_properties(tarpon_${folder} PROPERTIES EXPORT_NAME ${folder})
endforeach()
target_compile_features(tarpon_xdp INTERFACE cxx_std_20)
# Archives do not carry their own dependencies; tarpon-config.cmake makes these targets.
target_link_libraries(tarpon_transport INTERFACE
  $<INSTALL_INTERFACE:PkgConfig::TARPON_URING> $<INSTALL_INTERFACE:PkgConfig::TARPON_ISAL>
  $<INSTALL_INTERFACE:PkgConfig::TARPON_SSL>)
target_link_libraries(tarpon_xdp INTERFACE
  $<INSTALL_INTERFACE:PkgConfig::TARPON_BPF> $<INSTALL_INTERFACE:PkgConfig::TARPON_NL>)

# Programs include <tarpon/communicator.h>. The second folder is for programs that include
# "collectives/communicator.h", as they had to before 0.2.
set(TARPON_HEADER_DIR ${CMAKE_INSTALL_INCLUDEDIR}/tarpon)
set(TARPON_INCLUDE_PATH ${CMAKE_INSTALL_INCLUDEDIR} ${TARPON_HEADER_DIR})
set(TARPON_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/tarpon)

install(TARGETS tarpon_bpf tarpon_xdp tarpon_codec tarpon_transport tarpon_collectives tarpon_umbrella
        EXPORT tarpon-targets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${TARPON_INCLUDE_PATH})
install(TARGETS tarpon RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${TARPON_PAGES_DIR}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
install(FILES ${TARPON_PAGES_DIR}/tarpon DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
# By itself: who links the C interface needs no other package.
if(TARGET tarpon_shared)
  install(TARGETS tarpon_shared EXPORT tarpon-shared-targets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${TARPON_INCLUDE_PATH})
  if(TARGET tarpon_gloo)
    set_target_properties(tarpon_gloo PROPERTIES EXPORT_NAME gloo)
    install(TARGETS tarpon_gloo EXPORT tarpon-shared-targets
            LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
  install(EXPORT tarpon-shared-targets NAMESPACE tarpon:: DESTINATION ${TARPON_PACKAGE_DIR})
endif()

# Callers include these headers; the headers that they include are installed with them. Installed headers
# include each other relative to their own folder, so that they need no include path but the prefix's.
# Each header of collectives/ can be included without its folder too: <tarpon/communicator.h>.
set(TARPON_PUBLIC_HEADERS
  collectives/tarpon.h collectives/communicator.h collectives/report_text.h
  collectives/environment/environment_options.h
  collectives/version.h codec/hadamard.h xdp/queue.h xdp/program.h transport/endpoint.h transport/port.h)
set(headers ${TARPON_PUBLIC_HEADERS})
file(REMOVE_RECURSE ${PROJECT_BINARY_DIR}/installed_headers)
while(headers)
  list(POP_FRONT headers header)
  if(header IN_LIST installed_headers)
    continue()
  endif()
  list(APPEND installed_headers ${header})
  get_filename_component(folder ${header} DIRECTORY)
  get_filename_component(name ${header} NAME)
  file(READ ${header} text)
  string(REGEX REPLACE "[^/]+" ".." up ${folder})
  string(REGEX REPLACE "#include \"(bpf|xdp|codec|transport|collectives)/" "#include \"${up}/\\1/" text "${text}")
  file(WRITE ${PROJECT_BINARY_DIR}/installed_headers/${header} "${text}")
  if(folder MATCHES "^collectives")
    file(WRITE ${PROJECT_BINARY_DIR}/installed_headers/${name} "#include \"${header}\"\n")
  endif()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${header})
  file(STRINGS ${header} lines REGEX "^#include \"(bpf|xdp|codec|transport|collectives)/")
  foreach(line IN LISTS lines)
    string(REGEX REPLACE "^#include \"(.*)\".*" "\\1" included "${line}")
    list(APPEND headers ${included})
  endforeach()
endwhile()
install(DIRECTORY ${PROJECT_BINARY_DIR}/installed_headers/ DESTINATION ${TARPON_HEADER_DIR})
configure_file(tools/xdp/tarpon-xdp@.service.in tarpon-xdp@.service @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/tarpon-xdp@.service DESTINATION lib/systemd/system)
install(FILES LICENSE DESTINATION ${CMAKE_INSTALL_DOCDIR})
# What they link to is among them (tests/install/install_test.sh).
foreach(page README.md ARCHITECTURE.md CHANGELOG.md CONTRIBUTING.md PROTOCOL.md REPRODUCE.md SECURITY.md
             collectives/CONTROL_MESH.md
             collectives/README.md collectives/USAGE.md collectives/gloo/README.md
             tests/bench/README.md transport/RELIABILITY.md tools/LOSS_TARGET.md tools/README.md tools/RECIPES.md
             tools/simulation/README.md tools/USAGE.md
             tools/tail.svg tools/scale/README.md tools/torch/README.md tools/torch/example.py)
  get_filename_component(folder ${page} DIRECTORY)
  install(FILES ${page} DESTINATION ${CMAKE_INSTALL_DOCDIR}/${folder})
endforeach()
install(DIRECTORY tools/examples DESTINATION ${CMAKE_INSTALL_DOCDIR})

install(EXPORT tarpon-targets NAMESPACE tarpon:: DESTINATION ${TARPON_PACKAGE_DIR})
configure_package_config_file(tools/cmake/tarpon-config.cmake.in tarpon-config.cmake
  INSTALL_DESTINATION ${TARPON_PACKAGE_DIR}
  NO_SET_AND_CHECK_MACRO)
write_basic_package_version_file(tarpon-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/tarpon-config.cmake
              ${PROJECT_BINARY_DIR}/tarpon-config-version.cmake
        DESTINATION ${TARPON_PACKAGE_DIR})

# Relative to the .pc file, so that `cmake --install --prefix` may choose another place.
file(RELATIVE_PATH TARPON_PC_PREFIX
  ${CMAKE_INSTALL_FULL_LIBDIR}/pkgconfig ${CMAKE_INSTALL_PREFIX})
foreach(name IN ITEMS tarpon tarpon-shared)
  configure_file(tools/cmake/${name}.pc.in ${name}.pc @ONLY)
  install(FILES ${PROJECT_BINARY_DIR}/${name}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
endforeach()
