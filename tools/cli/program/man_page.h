// Manual pages as troff with the macros of man(7). Pure functions.
#pragma once

#include <string>

#include "tools/cli/program/catalogue.h"

namespace tarpon::cli {

/// tarpon.1
std::string program_page(const Catalogue& catalogue);

/// tarpon-xdp-load.1
std::string command_page(const Catalogue& catalogue, const Entry& entry);

/// "tarpon-xdp-load.1"
std::string page_file(const Catalogue& catalogue, const Entry& entry);

}  // namespace tarpon::cli
