# install() rules: libraries, public headers, the tool, find_package(tarpon), pkg-config.
include(CMakePackageConfigHelpers)
