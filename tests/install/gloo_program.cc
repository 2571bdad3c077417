// A program of Gloo without a word of Tarpon. Its two ranks are threads, and add their numbers.
#include <gloo/allreduce.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/hash_store.h>
#include <gloo/transport/tcp/device.h>

#include <cstdio>
#include <memory>
#include <thread>
#include <vector>

namespace {

void run(int rank, gloo::rendezvous::HashStore& store, float& sum) {
  gloo::transport::tcp::attr attributes;
  attributes.iface = "lo";
  auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
  auto device = gloo::transport::tcp::CreateDevice(attributes);
  context->connectFullMesh(store, device);
  std::vector<float> values(1000, static_cast<float>(rank + 1));
  gloo::AllreduceOptions options(context);
  options.setOutput(values.data(), values.size());
  options.setReduceFunction(
      static_cast<void (*)(void*, const void*, const void*, std::size_t)>(&gloo::sum<float>));
  gloo::allreduce(options);
  sum = values[999];
}

}  // namespace

int main() {
  gloo::rendezvous::HashStore store;
  float sums[2] = {};
  std::thread other([&] { run(1, store, sums[1]); });
  run(0, store, sums[0]);
  other.join();
  std::printf("sums %g %g\n", sums[0], sums[1]);
  return sums[0] == 3 && sums[1] == 3 ? 0 : 1;
}
