// Runs a fuzz target without libFuzzer: on every file of its corpus, then on mutations of them that
// a fixed seed draws. The same build and arguments run the same inputs.
//
//   fuzz_NAME CORPUS [MUTATIONS [SEED]]
//
// Ends with 1 at the first input that breaks the target, and leaves it in ./finding-NAME.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/fuzz.h"
#include "transport/random.h"

// Of the sanitizers' runtime, where there is one.
extern "C" __attribute__((weak)) void __sanitizer_set_death_callback(void (*callback)());

namespace tarpon::fuzz {
namespace {

using Bytes = std::vector<std::uint8_t>;

constexpr std::size_t kMaxBytes = 4096;  // of a mutated input

// For keep_input(), which runs where nothing else can be relied on.
Bytes current;
std::string finding_path;

void keep_input() {
  const int fd = ::open(finding_path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  const bool kept = fd >= 0 && ::write(fd, current.data(), current.size()) ==
                                   static_cast<ssize_t>(current.size());
  std::fprintf(stderr, "finding: %s %s\n", kept ? "its input is" : "cannot keep its input in",
               finding_path.c_str());
}

void on_signal(int /*number*/) {
  keep_input();
  ::_exit(1);
}

void run(const Bytes& input) {
  current = input;
  LLVMFuzzerTestOneInput(current.data(), current.size());
}

std::vector<Bytes> read_corpus(const std::string& directory) {
  std::vector<std::filesystem::path> paths;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(directory, error)) {
    paths.push_back(entry.path());
  }
  std::sort(paths.begin(), paths.end());  // the order of a directory is not fixed
  std::vector<Bytes> corpus;
  for (const auto& path : paths) {
    std::ifstream file(path, std::ios::binary);
    corpus.emplace_back(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return corpus;
}

void mutate_once(Bytes& input, const std::vector<Bytes>& corpus, Random& random) {
  constexpr std::uint8_t kEdges[] = {0,    1,    7,    8,    0x0a, 0x20, 0x22,
                                     0x39, 0x5b, 0x7b, 0x7f, 0x80, 0xff};
  const std::size_t at = random.below(input.size() + 1);
  const auto position = input.begin() + static_cast<std::ptrdiff_t>(at);
  switch (random.below(6)) {
    case 0:
      if (at < input.size()) input[at] ^= static_cast<std::uint8_t>(1u << random.below(8));
      break;
    case 1:
      if (at < input.size()) input[at] = kEdges[random.below(std::size(kEdges))];
      break;
    case 2:
      input.insert(position, static_cast<std::uint8_t>(random.next()));
      break;
    case 3:
      input.erase(position,
                  input.end() - static_cast<std::ptrdiff_t>(random.below(input.size() - at + 1)));
      break;
    case 4:
      for (std::size_t i = at; i < std::min(input.size(), at + 4); ++i) {
        input[i] = static_cast<std::uint8_t>(random.next());
      }
      break;
    default: {  // the rest of another input
      const Bytes& other = corpus[random.below(corpus.size())];
      input.resize(at);
      const auto from = static_cast<std::ptrdiff_t>(random.below(other.size() + 1));
      input.insert(input.end(), other.begin() + from, other.end());
      break;
    }
  }
  if (input.size() > kMaxBytes) input.resize(kMaxBytes);
}

int replay(const std::string& directory, std::uint64_t mutations, std::uint64_t seed) {
  std::vector<Bytes> corpus = read_corpus(directory);
  if (corpus.empty()) {
    std::fprintf(stderr, "%s: holds no corpus\n", directory.c_str());
    return 2;
  }
  std::printf("%zu inputs of %s, then %llu mutations, seed %llu\n", corpus.size(),
              directory.c_str(), static_cast<unsigned long long>(mutations),
              static_cast<unsigned long long>(seed));
  for (const Bytes& input : corpus) run(input);
  run({});
  Random random(seed);
  for (std::uint64_t i = 0; i < mutations; ++i) {
    Bytes input = corpus[random.below(corpus.size())];
    for (std::uint64_t steps = 1 + random.below(4); steps > 0; --steps) {
      mutate_once(input, corpus, random);
    }
    run(input);
  }
  std::puts("nothing found");
  return 0;
}

}  // namespace
}  // namespace tarpon::fuzz

int main(int argc, char** argv) {
  using namespace tarpon::fuzz;
  if (argc < 2 || argc > 4) {
    std::fprintf(stderr, "usage: %s CORPUS [MUTATIONS [SEED]]\n", argv[0]);
    return 2;
  }
  finding_path = "finding-" + std::filesystem::path(argv[0]).filename().string();
  for (const int number : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) {
    std::signal(number, on_signal);
  }
  if (__sanitizer_set_death_callback != nullptr) __sanitizer_set_death_callback(keep_input);
  return replay(argv[1], argc > 2 ? std::strtoull(argv[2], nullptr, 10) : 0,
                argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 1);
}
