// CLI11's names for headers that only pass them on: CLI11 itself takes seconds to compile.
#pragma once

namespace CLI {
class App;
class Option;
}  // namespace CLI
