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
  $<INSTALL_INTERFACE:PkgConfig::TARPON_URING> $<INSTALL_INTERFACE:PkgConfig::TARPON_ISAL>)
target_link_libraries(tarpon_xdp INTERFACE
  $<INSTALL_INTERFACE:PkgConfig::TARPON_BPF> $<INSTALL_INTERFACE:PkgConfig::TARPON_NL>)

# Headers include each other as "transport/port.h", so this folder is the include path.
set(TARPON_HEADER_DIR ${CMAKE_INSTALL_INCLUDEDIR}/tarpon)
set(TARPON_PACKAGE_DIR ${CMAKE_INSTALL_LIBDIR}/cmake/tarpon)

install(TARGETS tarpon_bpf tarpon_xdp tarpon_codec tarpon_transport tarpon_collectives tarpon_umbrella
        EXPORT tarpon-targets
        ARCHIVE DESTINATION ${CMAKE_INSTALL_LIBDIR}
        INCLUDES DESTINATION ${TARPON_HEADER_DIR})
install(TARGETS tarpon RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
install(DIRECTORY ${TARPON_PAGES_DIR}/man1 DESTINATION ${CMAKE_INSTALL_MANDIR})
install(FILES ${TARPON_PAGES_DIR}/tarpon DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
# By itself: who links the C interface needs no other package.
if(TARGET tarpon_shared)
  install(TARGETS tarpon_shared EXPORT tarpon-shared-targets
          LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
          INCLUDES DESTINATION ${TARPON_HEADER_DIR})
  install(EXPORT tarpon-shared-targets NAMESPACE tarpon:: DESTINATION ${TARPON_PACKAGE_DIR})
endif()

# Public headers sit directly in their folder; of bpf/ and transport/ports/ only these are for callers.
install(FILES bpf/packet.h bpf/wire.h DESTINATION ${TARPON_HEADER_DIR}/bpf)
install(FILES transport/ports/fault_port.h DESTINATION ${TARPON_HEADER_DIR}/transport/ports)
foreach(folder IN ITEMS xdp codec transport collectives)
  file(GLOB headers CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/${folder}/*.h)
  install(FILES ${headers} DESTINATION ${TARPON_HEADER_DIR}/${folder})
endforeach()
install(FILES LICENSE PROTOCOL.md DESTINATION ${CMAKE_INSTALL_DOCDIR})
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
