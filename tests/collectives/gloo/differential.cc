// AllReduces by Gloo's public interface over the grid of Gloo's own tests; a line of text for each
// case, with a hash of its results. Run plain and with the shim: both print the same.
//
// Usage: gloo_differential [CASE]      CASE: grid, tags, contexts, reuse, failures (default all);
//                                      with the shim alone: leave, children,
//                                      memory
//
// The ranks are threads of this process, on loopback. Values are small integers, whose sums every
// type holds exactly in any order. A result that is wrong ends it with code 1.
#include <gloo/allreduce.h>
#include <gloo/common/error.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace {

// Of this thread: the allocation after these is refused; -1: none is.
thread_local long allocations_left = -1;

}  // namespace

void* operator new(std::size_t bytes) {
  if (allocations_left >= 0 && allocations_left-- == 0) throw std::bad_alloc();
  if (void* const memory = std::malloc(bytes)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::size_t) noexcept {
  std::free(memory);
}

namespace {

using Context = std::shared_ptr<gloo::rendezvous::Context>;
using Reduce = std::function<void(void*, const void*, const void*, std::size_t)>;
using Function = void (*)(void*, const void*, const void*, std::size_t);
using namespace std::chrono_literals;

/// Runs `body` as each rank of a new context.
void on_ranks(int ranks, const std::function<void(const Context&)>& body) {
  gloo::rendezvous::HashStore store;
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      gloo::transport::tcp::attr attributes;
      attributes.iface = "lo";
      auto device = gloo::transport::tcp::CreateDevice(attributes);
      auto context = std::make_shared<gloo::rendezvous::Context>(rank, ranks);
      context->setTimeout(20s);
      context->connectFullMesh(store, device);
      body(context);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

template <typename T>
struct Kind {
  const char* name;
  Reduce reduce;
};

struct Shape {
  int pointers = 1;
  std::size_t elements = 0;
  bool in_place = true;
  std::size_t segment = 0;  // bytes; 0: Gloo's own
  std::uint32_t tag = 0;
};

// AllReduces that Tarpon is to carry: of several ranks, of something, of elements that it has types
// for.
std::atomic<int> carried{0};

void count(const gloo::Context& context, std::size_t elements, std::size_t element_bytes) {
  if (context.size > 1 && elements > 0 && element_bytes <= 8) ++carried;
}

std::uint64_t hash_of(const void* data, std::size_t size) {
  std::uint64_t hash = 14695981039346656037ull;
  const auto* const bytes = static_cast<const unsigned char*>(data);
  for (std::size_t i = 0; i < size; ++i) hash = (hash ^ bytes[i]) * 1099511628211ull;
  return hash;
}

template <typename T>
T value(int rank, int pointer, std::size_t i) {
  return static_cast<T>((rank + 2 * pointer + static_cast<int>(i % 3)) % 5);
}

void fail(const std::string& why) {
  std::printf("FAIL: %s\n", why.c_str());
  std::fflush(stdout);
  std::_Exit(1);
}

/// One AllReduce; the hash of its first output. All outputs are equal, and inputs unchanged.
template <typename T>
std::uint64_t reduce_once(const Context& context, const Reduce& reduce, const Shape& shape) {
  const auto pointers = static_cast<std::size_t>(shape.pointers);
  std::vector<std::vector<T>> inputs(pointers), outputs(pointers);
  std::vector<T*> in, out;
  for (std::size_t p = 0; p < pointers; ++p) {
    inputs[p].resize(shape.elements);
    for (std::size_t i = 0; i < shape.elements; ++i) {
      inputs[p][i] = value<T>(context->rank, static_cast<int>(p), i);
    }
    outputs[p] = shape.in_place ? inputs[p] : std::vector<T>(shape.elements, T(77));
    in.push_back(inputs[p].data());
    out.push_back(outputs[p].data());
  }
  const auto before = inputs;
  gloo::AllreduceOptions options(context);
  if (!shape.in_place) options.setInputs(in, shape.elements);
  options.setOutputs(out, shape.elements);
  options.setReduceFunction(reduce);
  options.setTag(shape.tag);
  if (shape.segment > 0) options.setMaxSegmentSize(shape.segment);
  count(*context, shape.elements, sizeof(T));
  gloo::allreduce(options);
  const std::size_t bytes = shape.elements * sizeof(T);
  for (std::size_t p = 0; p < pointers; ++p) {
    if (bytes > 0 && std::memcmp(out[0], out[p], bytes) != 0) fail("outputs of a rank differ");
    if (bytes > 0 && std::memcmp(inputs[p].data(), before[p].data(), bytes) != 0) {
      fail("an input has changed");
    }
  }
  return hash_of(out[0], bytes);
}

/// The same on all ranks of `contexts`: one line, and every rank has the same bits.
template <typename T>
void show(const std::string& name, int ranks, const Reduce& reduce, const Shape& shape,
          const std::vector<Context>& contexts) {
  std::vector<std::uint64_t> hashes(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < hashes.size(); ++rank) {
    threads.emplace_back(
        [&, rank] { hashes[rank] = reduce_once<T>(contexts[rank], reduce, shape); });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::uint64_t hash : hashes) {
    if (hash != hashes[0]) fail(name + ": the ranks' results differ");
  }
  std::printf("%s: %d ranks, %d pointers, %zu elements, %s: %016llx\n", name.c_str(), ranks,
              shape.pointers, shape.elements, shape.in_place ? "in place" : "apart",
              static_cast<unsigned long long>(hashes[0]));
}

/// A context a rank, kept open.
std::vector<Context> connect(int ranks) {
  std::vector<Context> contexts(static_cast<std::size_t>(ranks));
  on_ranks(ranks, [&](const Context& context) {
    contexts[static_cast<std::size_t>(context->rank)] = context;
  });
  return contexts;
}

template <typename T>
std::vector<Kind<T>> arithmetic() {
  return {{"sum", Function(&gloo::sum<T>)},
          {"product", Function(&gloo::product<T>)},
          {"min", Function(&gloo::min<T>)},
          {"max", Function(&gloo::max<T>)}};
}

template <typename T>
void show_type(const std::string& type, const std::vector<Context>& contexts, std::uint32_t& tag) {
  const int ranks = static_cast<int>(contexts.size());
  for (const Kind<T>& kind : arithmetic<T>()) {
    for (const bool in_place : {true, false}) {
      show<T>(type + " " + kind.name, ranks, kind.reduce, {1, 100, in_place, 0, tag++}, contexts);
    }
  }
}

/// Elementwise functions that Gloo has not.
template <typename T, typename Op>
Reduce lambda(Op op) {
  return [op](void* out, const void* a, const void* b, std::size_t n) {
    for (std::size_t i = 0; i < n; ++i) {
      static_cast<T*>(out)[i] =
          static_cast<T>(op(static_cast<const T*>(a)[i], static_cast<const T*>(b)[i]));
    }
  };
}

struct Pair {
  float weight = 0;
  std::int32_t index = 0;
  std::int32_t more = 0;

  Pair() = default;
  explicit Pair(int number) : weight(static_cast<float>(number)), index(number), more(1) {}
};

void show_grid() {
  for (const int ranks : {1, 2, 3, 4, 5, 8, 16}) {
    const auto contexts = connect(ranks);
    std::uint32_t tag = 0;
    for (const int pointers : {1, 2, 3}) {
      for (const std::size_t elements :
           std::initializer_list<std::size_t>{0, 1, 2, 7, 100, 1000, 10000, 300000}) {
        if (elements > 10000 && ranks > 4) continue;
        for (const bool in_place : {true, false}) {
          show<float>("float sum", ranks, Function(&gloo::sum<float>),
                      {pointers, elements, in_place, 0, tag++}, contexts);
        }
      }
    }
    show<float>("float sum, small segments", ranks, Function(&gloo::sum<float>),
                {1, 10000, true, 128, tag++}, contexts);
    if (ranks > 4) continue;
    show_type<std::int8_t>("int8", contexts, tag);
    show_type<std::uint8_t>("uint8", contexts, tag);
    show_type<std::int32_t>("int32", contexts, tag);
    show_type<std::uint32_t>("uint32", contexts, tag);
    show_type<std::int64_t>("int64", contexts, tag);
    show_type<std::uint64_t>("uint64", contexts, tag);
    show_type<gloo::float16>("float16", contexts, tag);
    show_type<double>("double", contexts, tag);
    show<std::uint32_t>("lambda or", ranks,
                        lambda<std::uint32_t>([](auto a, auto b) { return a | b; }),
                        {1, 1000, true, 0, tag++}, contexts);
    show<double>("lambda hypot", ranks,
                 lambda<double>([](double a, double b) { return a < b ? b : a; }),
                 {3, 1001, false, 0, tag++}, contexts);
    show<Pair>("struct of 12 bytes", ranks, lambda<Pair>([](const Pair& a, const Pair& b) {
                 return a.weight < b.weight ? b : a;
               }),
               {1, 50, true, 0, tag++}, contexts);
  }
}

/// Many ranks at once, each with calls of its own tags on threads of its own.
void show_tags() {
  const auto contexts = connect(4);
  std::vector<std::thread> threads;
  std::vector<std::vector<std::uint64_t>> hashes(4, std::vector<std::uint64_t>(3 * 20));
  for (std::size_t rank = 0; rank < 4; ++rank) {
    for (std::uint32_t tag = 0; tag < 3; ++tag) {
      threads.emplace_back([&, rank, tag] {
        for (std::uint32_t call = 0; call < 20; ++call) {
          hashes[rank][tag * 20 + call] =
              reduce_once<float>(contexts[rank], Function(&gloo::sum<float>),
                                 {1, 1000 + 10 * tag + call, true, 0, tag});
        }
      });
    }
  }
  for (std::thread& thread : threads) thread.join();
  for (std::size_t rank = 1; rank < 4; ++rank) {
    if (hashes[rank] != hashes[0]) fail("tags: the ranks' results differ");
  }
  std::printf("tags: %016llx\n", static_cast<unsigned long long>(hash_of(
                                     hashes[0].data(), hashes[0].size() * sizeof(std::uint64_t))));
}

/// Several contexts, used in turn; and one after another.
void show_contexts() {
  const auto first = connect(3), second = connect(2);
  for (std::uint32_t call = 0; call < 5; ++call) {
    show<float>("first context", 3, Function(&gloo::sum<float>), {1, 500, true, 0, call}, first);
    show<float>("second context", 2, Function(&gloo::sum<float>), {1, 500, true, 0, call}, second);
  }
  for (int round = 0; round < 10; ++round) {
    show<float>("a fresh context", 2, Function(&gloo::sum<float>), {1, 10, true, 0, 0}, connect(2));
  }
}

/// Options that are used more than once.
void show_reuse() {
  std::vector<std::uint64_t> hashes(3);
  on_ranks(3, [&](const Context& context) {
    std::vector<float> data(1000, static_cast<float>(context->rank + 1));
    gloo::AllreduceOptions options(context);
    options.setOutput(data.data(), data.size());
    options.setReduceFunction(Function(&gloo::sum<float>));
    for (int i = 0; i < 5; ++i) {
      count(*context, data.size(), sizeof(float));
      gloo::allreduce(options);
    }
    hashes[static_cast<std::size_t>(context->rank)] = hash_of(data.data(), data.size() * 4);
  });
  std::printf("reused options: %016llx %s\n", static_cast<unsigned long long>(hashes[0]),
              hashes[0] == hashes[1] && hashes[1] == hashes[2] ? "alike" : "different");
}

/// A new function, which the shim has not classified yet.
void memory_sum(void* out, const void* a, const void* b, std::size_t count) {
  gloo::sum<float>(out, a, b, count);
}

constexpr float kThrown = 12345;

/// A sum that throws where the first element of `b` is kThrown.
void throwing_sum(void* out, const void* a, const void* b, std::size_t count) {
  if (*static_cast<const float*>(b) == kThrown) throw std::domain_error("thrown by the callback");
  gloo::sum<float>(out, a, b, count);
}

/// The exceptions that end an AllReduce of three ranks: the callback of rank 1 throws when it adds
/// that rank's own two inputs.
void show_thrown(const char* name, const Reduce& reduce) {
  std::vector<std::string> ends(3, "no exception");
  on_ranks(3, [&](const Context& context) {
    std::vector<float> first(100), second(100, context->rank == 1 ? kThrown : 0);
    gloo::AllreduceOptions options(context);
    options.setOutputs(std::vector<float*>{first.data(), second.data()}, first.size());
    options.setReduceFunction(reduce);
    options.setTimeout(300ms);
    auto& end = ends[static_cast<std::size_t>(context->rank)];
    try {
      gloo::allreduce(options);
    } catch (const gloo::IoException&) {
      end = "IoException";
    } catch (const std::domain_error& error) {
      end = error.what();
    }
  });
  std::printf("a %s that throws: %s, %s, %s\n", name, ends[0].c_str(), ends[1].c_str(),
              ends[2].c_str());
}

/// The second call of three ranks, after one with a callback to which rank 2 came too late: some
/// ranks may have a result of the first one.
void show_call_after_failed_callback() {
  std::vector<std::string> ends(3, "no exception");
  const auto start = std::chrono::steady_clock::now();
  on_ranks(3, [&](const Context& context) {
    auto& end = ends[static_cast<std::size_t>(context->rank)];
    std::vector<float> data(1000);
    gloo::AllreduceOptions options(context);
    options.setOutput(data.data(), data.size());
    options.setReduceFunction([context](void* out, const void* a, const void* b,
                                        std::size_t count) { gloo::sum<float>(out, a, b, count); });
    options.setTimeout(300ms);
    for (const auto begin : {context->rank == 2 ? 1000ms : 0ms, 2000ms}) {
      std::this_thread::sleep_until(start + begin);
      try {
        end = "no exception";
        gloo::allreduce(options);
      } catch (const gloo::IoException&) {
        end = "IoException";
      }
    }
  });
  std::printf("a call after a callback that failed: %s, %s, %s\n", ends[0].c_str(), ends[1].c_str(),
              ends[2].c_str());
}

/// Two calls of ranks 0 and 1 after rank 2 has left: one with a callback, which needs that rank,
/// and a sum that Tarpon may bound. With the shim alone: some ranks may have a result of the first.
void show_call_after_leave() {
  std::vector<std::string> ends(3, "no exception");
  on_ranks(3, [&](const Context& context) {
    if (context->rank == 2) return;
    std::vector<float> data(1000);
    gloo::AllreduceOptions options(context);
    options.setOutput(data.data(), data.size());
    options.setTimeout(20s);
    auto& end = ends[static_cast<std::size_t>(context->rank)];
    for (const bool first : {true, false}) {
      if (first) {
        options.setReduceFunction(
            [](auto* out, auto* a, auto* b, auto n) { gloo::sum<float>(out, a, b, n); });
      } else {
        options.setReduceFunction(Function(&gloo::sum<float>));
      }
      try {
        end = "no exception";
        gloo::allreduce(options);
      } catch (const gloo::IoException& error) {
        end = "IoException";
        std::fprintf(stderr, "rank %d: %s\n", context->rank, error.what());
      }
    }
  });
  std::printf("a sum after a callback without a rank: %s, %s\n", ends[0].c_str(), ends[1].c_str());
}

/// Calls of three ranks, of which rank 1 meets a refused allocation in the first ones, a later one
/// in each. With the shim alone: each call takes its number on all ranks.
void show_refused_memory() {
  std::vector<std::string> ends(3);
  std::atomic<int> refused{0};
  on_ranks(3, [&](const Context& context) {
    auto& end = ends[static_cast<std::size_t>(context->rank)];
    for (long call = 0; call < 12; ++call) {
      std::vector<float> data(1000, 1.0f);
      gloo::AllreduceOptions options(context);
      options.setOutput(data.data(), data.size());
      options.setReduceFunction(Function(&memory_sum));
      options.setTimeout(20s);
      try {
        if (context->rank == 1 && call < 3) allocations_left = call;
        gloo::allreduce(options);
        end += data[999] == 3 ? "3 " : "wrong ";
      } catch (const gloo::IoException&) {
        end += "aborted ";
      } catch (const std::bad_alloc&) {
        ++refused;
        end += "aborted ";
      }
      allocations_left = -1;
    }
  });
  const bool alike = ends[0] == ends[1] && ends[1] == ends[2];
  std::printf("memory refused %d times: %s: %s\n", refused.load(), alike ? "alike" : "different",
              ends[0].c_str());
}

/// Rank `rank` of two, which are processes: one call together, then rank 1 ends with its context
/// open, and rank 0 makes another call.
[[noreturn]] void run_child(int rank, const std::string& directory) {
  gloo::rendezvous::FileStore store(directory);
  gloo::transport::tcp::attr attributes;
  attributes.iface = "lo";
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  auto& context = *new Context(std::make_shared<gloo::rendezvous::Context>(rank, 2));
  context->setTimeout(20s);
  context->connectFullMesh(store, device);
  std::vector<float> data(1000);
  gloo::AllreduceOptions options(context);
  options.setOutput(data.data(), data.size());
  options.setReduceFunction(Function(&gloo::sum<float>));
  gloo::allreduce(options);
  if (rank == 1) std::exit(0);
  try {
    gloo::allreduce(options);
  } catch (const gloo::IoException& error) {
    std::fprintf(stderr, "rank 0: %s\n", error.what());
  }
  std::exit(0);
}

/// Children of a process that has had a context. With the shim alone.
void show_children() {
  connect(2);
  std::string directory = "/tmp/gloo-differential-XXXXXX";
  if (::mkdtemp(directory.data()) == nullptr) fail("mkdtemp");
  for (int rank = 0; rank < 2; ++rank) {
    if (::fork() == 0) run_child(rank, directory);
  }
  for (int rank = 0; rank < 2; ++rank) {
    int status = 0;
    if (::wait(&status) < 0 || status != 0) fail("a child");
  }
  std::filesystem::remove_all(directory);
}

/// A rank that does not come. Of Gloo's ranks one may hear of the other's end before its own time
/// is over, so their texts go to standard error.
void show_failures() {
  std::vector<std::string> ends(3, "no exception");
  on_ranks(3, [&](const Context& context) {
    if (context->rank == 2) {
      std::this_thread::sleep_for(1s);
      return;
    }
    std::vector<float> data(1000);
    gloo::AllreduceOptions options(context);
    options.setOutput(data.data(), data.size());
    options.setReduceFunction(Function(&gloo::sum<float>));
    options.setTimeout(300ms);
    try {
      gloo::allreduce(options);
    } catch (const gloo::IoException& error) {
      ends[static_cast<std::size_t>(context->rank)] = "IoException";
      std::fprintf(stderr, "rank %d: %s\n", context->rank, error.what());
    }
  });
  std::printf("a missing rank: %s, %s\n", ends[0].c_str(), ends[1].c_str());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string only = argc > 1 ? argv[1] : "";
  const auto runs = [&](const char* name) { return only.empty() || only == name; };
  if (runs("grid")) show_grid();
  if (runs("tags")) show_tags();
  if (runs("contexts")) show_contexts();
  if (runs("reuse")) show_reuse();
  if (runs("failures")) show_failures();
  if (runs("failures")) show_thrown("function", Function(&throwing_sum));
  if (runs("failures")) {
    show_thrown("callback",
                [](auto* out, auto* a, auto* b, auto n) { throwing_sum(out, a, b, n); });
  }
  if (runs("failures")) show_call_after_failed_callback();
  if (only == "memory") show_refused_memory();
  if (only == "children") show_children();
  if (only == "leave") show_call_after_leave();
  std::fprintf(stderr, "carried are %d\n", carried.load());
  return 0;
}
