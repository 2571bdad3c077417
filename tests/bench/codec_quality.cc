// What lost packets cost, with the codec, without, and with a transform of the whole vector: many
// trials of stage 2 and of stage 1, on gradients and on made data. Prints JSON.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "codec/hadamard.h"
#include "tests/bench/full_length.h"
#include "tools/collective/npy.h"

namespace tarpon {
namespace {

using Floats = std::vector<float>;
using Random = std::mt19937_64;

constexpr std::uint32_t kRow = 352;  // elements of a packet at MTU 1500
constexpr double kBurst = 8;         // packets, mean

// -- data
// ------------------------------------------------------------------------------------------

struct Data {
  std::string name;
  std::vector<Floats> workers;
  std::vector<std::uint64_t> layers;  // elements of each
  Floats mean() const {
    Floats result(workers[0].size());
    for (std::size_t i = 0; i < result.size(); ++i) {
      double sum = 0;
      for (const Floats& worker : workers) sum += worker[i];
      result[i] = static_cast<float>(sum / static_cast<double>(workers.size()));
    }
    return result;
  }
};

/// Layers as networks have them: long and short, their scales a factor of 100 apart.
std::vector<std::uint64_t> made_layers() {
  return {1728, 64, 36864, 64, 73728, 128, 147456, 128, 32768, 256, 2560, 10};
}

/// `layers`: made_layers() if there are none.
Data made(const std::string& name, std::uint32_t workers,
          const std::vector<std::uint64_t>& layers) {
  Random random(11);
  Data data{name, {}, layers.empty() ? made_layers() : layers};
  std::uniform_real_distribution<double> exponent(-2, 0);
  std::vector<double> scales;
  for (std::size_t i = 0; i < data.layers.size(); ++i) {
    scales.push_back(std::pow(10, exponent(random)));
  }
  std::exponential_distribution<double> exponential(1);
  std::lognormal_distribution<double> lognormal(0, 1);
  for (std::uint32_t worker = 0; worker < workers; ++worker) {
    Floats one;
    for (std::size_t layer = 0; layer < data.layers.size(); ++layer) {
      for (std::uint64_t i = 0; i < data.layers[layer]; ++i) {
        const double size = name.starts_with("laplace") ? exponential(random) : lognormal(random);
        one.push_back(static_cast<float>((random() & 1 ? size : -size) * scales[layer]));
      }
    }
    data.workers.push_back(std::move(one));
  }
  return data;
}

Data from_files(const std::string& name, const std::vector<std::string>& files,
                const std::vector<std::uint64_t>& layers) {
  Data data{name, {}, layers};
  for (const std::string& file : files) {
    const auto array = read_npy(file);
    if (!array) throw std::runtime_error(array.error().message);
    if (array->type != NpyType::float32) throw std::runtime_error(file + ": not float32");
    Floats one(array->elements());
    std::memcpy(one.data(), array->data.data(), array->data.size());
    if (!data.workers.empty() && one.size() != data.workers[0].size()) {
      throw std::runtime_error(file + ": another length than the file before it");
    }
    data.workers.push_back(std::move(one));
  }
  std::uint64_t covered = 0;
  for (const std::uint64_t layer : data.layers) covered += layer;
  if (covered != data.workers[0].size()) data.layers = {data.workers[0].size()};
  return data;
}

// -- losses
// ----------------------------------------------------------------------------------------

/// One message of each sender to this receiver, by slots: which are lost. At least one is.
std::vector<std::vector<bool>> lose(const std::vector<std::uint64_t>& messages,
                                    const std::string& pattern, double share, Random& random) {
  std::vector<std::vector<bool>> lost;
  std::uint64_t slots = 0;
  for (const std::uint64_t length : messages) {
    lost.emplace_back(length, false);
    slots += length;
  }
  const auto wanted = std::max<std::uint64_t>(
      1, static_cast<std::uint64_t>(std::llround(share * static_cast<double>(slots))));
  std::geometric_distribution<std::uint64_t> burst(1 / kBurst);
  // Whom a tail hits loses a share of its message that varies; so others may lose nothing.
  for (std::uint64_t done = 0; done < wanted;) {
    std::vector<bool>& message = lost[random() % lost.size()];
    if (message.empty()) continue;
    std::uint64_t first = random() % message.size(), count = 1;
    if (pattern == "burst") count = 1 + burst(random);
    if (pattern == "tail") {
      count = 1 + random() % (wanted - done);
      const auto end = std::find(message.begin(), message.end(), true);
      const auto left = static_cast<std::uint64_t>(end - message.begin());
      count = std::min(count, left);
      first = left - count;
    }
    for (std::uint64_t i = first; i < std::min<std::uint64_t>(first + count, message.size()); ++i) {
      if (message[i] || done == wanted) continue;
      message[i] = true;
      ++done;
    }
  }
  return lost;
}

// -- what is sent
// ----------------------------------------------------------------------------------

double energy(const Floats& x, std::uint64_t first, std::uint64_t count) {
  double sum = 0;
  for (std::uint64_t i = first; i < first + count; ++i) sum += double{x[i]} * x[i];
  return sum;
}

double error(const Floats& got, const Floats& expected, std::uint64_t first, std::uint64_t count) {
  double sum = 0;
  for (std::uint64_t i = first; i < first + count; ++i) {
    sum += std::pow(double{got[i]} - double{expected[i]}, 2);
  }
  return sum;
}

/// A way of sending: `slots` packets, each for one of `world` owners, packed and unpacked.
class Way {
 public:
  virtual ~Way() = default;
  virtual std::uint64_t slots() const = 0;
  virtual std::uint32_t owner(std::uint64_t slot) const = 0;
  virtual void pack(const Floats& in, std::uint32_t trial) = 0;
  virtual Floats& packed() = 0;
  virtual std::pair<std::uint64_t, std::uint64_t> place(std::uint64_t slot) const = 0;
  /// Slots that are lost have been zeroed.
  virtual Floats unpack(const std::vector<bool>& lost) = 0;
};

/// Elements as they are, in packets in order, in contiguous shards.
class Plain : public Way {
 public:
  Plain(std::uint64_t count, std::uint32_t world) : count_(count), world_(world) {}
  std::uint64_t slots() const override { return (count_ + kRow - 1) / kRow; }
  std::uint32_t owner(std::uint64_t slot) const override {
    return static_cast<std::uint32_t>(slot * world_ / slots());
  }
  void pack(const Floats& in, std::uint32_t) override { packed_ = in; }
  Floats& packed() override { return packed_; }
  std::pair<std::uint64_t, std::uint64_t> place(std::uint64_t slot) const override {
    return {slot * kRow, std::min<std::uint64_t>(kRow, packed_.size() - slot * kRow)};
  }
  Floats unpack(const std::vector<bool>&) override { return packed_; }

 protected:
  const std::uint64_t count_;
  const std::uint32_t world_;
  Floats packed_;
};

/// The transform of the whole vector, padded to a power of two; what came stands for all of it.
class FullLength : public Plain {
 public:
  FullLength(std::uint64_t count, std::uint32_t world)
      : Plain(std::bit_ceil(count), world), elements_(count) {}
  void pack(const Floats& in, std::uint32_t trial) override {
    key_ = codec::sign_key(2, 0, trial);
    packed_.assign(count_, 0.0f);
    for (std::uint64_t i = 0; i < in.size(); ++i) packed_[i] = minus(i) ? -in[i] : in[i];
    transform();
  }
  Floats unpack(const std::vector<bool>& lost) override {
    std::uint64_t came = 0;
    for (std::uint64_t slot = 0; slot < lost.size(); ++slot) {
      if (!lost[slot]) came += place(slot).second;
    }
    transform();
    const auto gain = static_cast<float>(static_cast<double>(count_) / static_cast<double>(came));
    Floats out(elements_);
    for (std::uint64_t i = 0; i < elements_; ++i) out[i] = (minus(i) ? -gain : gain) * packed_[i];
    return out;
  }

 private:
  bool minus(std::uint64_t i) const {
    return codec::negative(key_, i / codec::kUsualBlock, codec::kUsualBlock,
                           static_cast<std::uint32_t>(i % codec::kUsualBlock));
  }
  void transform() {
    full_length_hadamard(packed_.data(), packed_.size());
    const float scale = 1 / std::sqrt(static_cast<float>(packed_.size()));
    for (float& value : packed_) value *= scale;
  }
  const std::uint64_t elements_;
  codec::SignKey key_;
};

class Coded : public Way {
 public:
  Coded(std::uint64_t count, std::uint32_t world)
      : layout_(codec::strided_layout(count, kRow, world)), world_(world) {}
  std::uint64_t slots() const override { return layout_.rows(); }
  std::uint32_t owner(std::uint64_t slot) const override {
    return static_cast<std::uint32_t>(slot % world_);
  }
  void pack(const Floats& in, std::uint32_t trial) override {
    key_ = codec::sign_key(1, 0, trial);
    packed_.resize(layout_.room());
    if (!codec::encode(layout_, key_, in, packed_)) throw std::runtime_error("input not finite");
  }
  Floats& packed() override { return packed_; }
  std::pair<std::uint64_t, std::uint64_t> place(std::uint64_t slot) const override {
    return {slot * layout_.row_pitch(), layout_.row_elements()};
  }
  Floats unpack(const std::vector<bool>& lost) override {
    std::vector<std::uint32_t> came(layout_.groups, layout_.block);
    for (std::uint64_t row = 0; row < lost.size(); ++row) {
      if (lost[row]) came[layout_.group_of(row)] -= layout_.coefficients_in(row);
    }
    Floats gains;
    for (const std::uint32_t one : came) {
      gains.push_back(one == 0 ? 0.0f
                               : static_cast<float>(layout_.block) / static_cast<float>(one));
    }
    Floats out(layout_.count, 0.0f);
    codec::decode(layout_, key_, packed_, gains, out);
    return out;
  }

 private:
  const codec::CodedLayout layout_;
  const std::uint32_t world_;
  codec::SignKey key_;
  Floats packed_;
};

std::map<std::string, std::unique_ptr<Way>> ways(std::uint64_t count, std::uint32_t world) {
  std::map<std::string, std::unique_ptr<Way>> result;
  result["without"] = std::make_unique<Plain>(count, world);
  result["codec"] = std::make_unique<Coded>(count, world);
  result["full length"] = std::make_unique<FullLength>(count, world);
  return result;
}

/// Slots by owner, in the order in which they are sent.
std::vector<std::vector<std::uint64_t>> messages_of(const Way& way, std::uint32_t world) {
  std::vector<std::vector<std::uint64_t>> result(world);
  for (std::uint64_t slot = 0; slot < way.slots(); ++slot) result[way.owner(slot)].push_back(slot);
  return result;
}

// -- trials
// ----------------------------------------------------------------------------------------

/// Squared error of the mean of all trials' results, relative to the data's energy.
double error_of_mean(const std::vector<double>& mean, const Floats& exact) {
  const Floats averaged(mean.begin(), mean.end());
  return error(averaged, exact, 0, exact.size()) / energy(exact, 0, exact.size());
}

/// Stage 2: a receiver loses rows of the others' shards. Errors relative to the data's energy.
nlohmann::json stage2(const Data& data, const std::string& pattern, double share, Way& way,
                      std::uint32_t trials) {
  const Floats exact = data.mean();
  const auto world = static_cast<std::uint32_t>(data.workers.size());
  const auto messages = messages_of(way, world);
  const double whole = energy(exact, 0, exact.size());
  nlohmann::json result;
  std::vector<double> mean(exact.size());
  std::vector<double> layers(data.layers.size(), 0), worst_layers(data.layers.size(), 0);
  Random random(5);
  for (std::uint32_t trial = 0; trial < trials; ++trial) {
    way.pack(exact, trial);
    std::vector<std::uint64_t> lengths;
    for (std::uint32_t owner = 0; owner < world; ++owner) {
      lengths.push_back(owner == trial % world ? 0 : messages[owner].size());
    }
    const auto lost = lose(lengths, pattern, share * world / (world - 1), random);
    std::vector<bool> slots(way.slots(), false);
    std::uint64_t count = 0;
    for (std::uint32_t owner = 0; owner < world; ++owner) {
      for (std::size_t i = 0; i < lost[owner].size(); ++i) {
        if (!lost[owner][i]) continue;
        const std::uint64_t slot = messages[owner][i];
        slots[slot] = true;
        ++count;
        const auto [first, length] = way.place(slot);
        std::fill_n(way.packed().begin() + static_cast<std::ptrdiff_t>(first), length, 0.0f);
      }
    }
    const Floats got = way.unpack(slots);
    result["share"].push_back(static_cast<double>(count) / static_cast<double>(slots.size()));
    result["error"].push_back(error(got, exact, 0, exact.size()) / whole);
    std::uint64_t first = 0;
    for (std::size_t layer = 0; layer < data.layers.size(); ++layer) {
      const double own = energy(exact, first, data.layers[layer]);
      const double off = own == 0 ? 0 : error(got, exact, first, data.layers[layer]) / own;
      layers[layer] += off / trials;
      worst_layers[layer] = std::max(worst_layers[layer], off);
      first += data.layers[layer];
    }
    for (std::size_t i = 0; i < got.size(); ++i) mean[i] += double{got[i]} / trials;
  }
  result["error of the mean"] = error_of_mean(mean, exact);
  result["layers"] = layers;
  result["worst layers"] = worst_layers;
  return result;
}

/// Stage 1: owners lack contributions of the others, and weigh what they have.
nlohmann::json stage1(const Data& data, double share, const std::string& rescale, Way& way,
                      std::uint32_t trials) {
  const Floats exact = data.mean();
  const auto world = static_cast<std::uint32_t>(data.workers.size());
  const auto messages = messages_of(way, world);
  const double whole = energy(exact, 0, exact.size());
  nlohmann::json result;
  std::vector<double> mean(exact.size());
  Random random(6);
  for (std::uint32_t trial = 0; trial < trials; ++trial) {
    std::vector<Floats> packed;
    for (const Floats& worker : data.workers) {
      way.pack(worker, trial);
      packed.push_back(way.packed());
    }
    Floats& sum = way.packed();
    for (std::uint32_t owner = 0; owner < world; ++owner) {
      std::vector<std::uint64_t> lengths(world, messages[owner].size());
      const std::uint32_t self = (owner + trial) % world;  // rotation
      lengths[self] = 0;
      const auto lost = lose(lengths, "random", share, random);
      for (std::size_t i = 0; i < messages[owner].size(); ++i) {
        const auto [first, length] = way.place(messages[owner][i]);
        std::uint32_t came = 1;
        for (std::uint32_t rank = 0; rank < world; ++rank) {
          came += rank != self && !lost[rank][i] ? 1 : 0;
        }
        for (std::uint64_t at = first; at < first + length; ++at) {
          double value = packed[self][at];
          for (std::uint32_t rank = 0; rank < world; ++rank) {
            if (rank == self || lost[rank][i]) continue;
            value += packed[rank][at];
          }
          sum[at] = static_cast<float>(value / (rescale == "count" ? came : world));
        }
      }
    }
    const Floats got = way.unpack(std::vector<bool>(way.slots(), false));
    result["error"].push_back(error(got, exact, 0, exact.size()) / whole);
    for (std::size_t i = 0; i < got.size(); ++i) mean[i] += double{got[i]} / trials;
  }
  result["error of the mean"] = error_of_mean(mean, exact);
  return result;
}

}  // namespace
}  // namespace tarpon

int main(int argc, char** argv) try {
  using namespace tarpon;
  CLI::App app("What lost packets cost, with the codec and without");
  std::vector<std::string> files;
  std::string data_name;
  std::vector<std::uint64_t> layers;
  std::vector<double> shares{0.001, 0.01, 0.02, 0.05, 0.1};
  std::uint32_t trials = 50;
  app.add_option("--files", files, "gradients of the workers, .npy; without: made data");
  app.add_option("--name", data_name, "of the data; without files: laplace... or lognormal")
      ->required();
  app.add_option("--layers", layers, "elements of the layers, in order")->delimiter(',');
  app.add_option("--trials", trials, "of each loss");
  CLI11_PARSE(app, argc, argv);
  const Data data =
      files.empty() ? made(data_name, 8, layers) : from_files(data_name, files, layers);
  const auto world = static_cast<std::uint32_t>(data.workers.size());
  nlohmann::json cells = nlohmann::json::array();
  for (const auto& [name, way] : ways(data.workers[0].size(), world)) {
    for (const double share : shares) {
      for (const std::string pattern : {"random", "burst", "tail"}) {
        cells.push_back({{"stage", 2}, {"way", name}, {"pattern", pattern}, {"share", share}});
        cells.back().update(stage2(data, pattern, share, *way, trials));
        cells.back()["nominal"] = share;
      }
    }
    for (const std::string rescale : {"count", "none"}) {
      if (name == "full length") break;
      cells.push_back({{"stage", 1}, {"way", name}, {"rescale", rescale}, {"nominal", 0.05}});
      cells.back().update(stage1(data, 0.05, rescale, *way, trials));
    }
  }
  std::cout << nlohmann::json{{"name", data.name},
                              {"elements", data.workers[0].size()},
                              {"workers", world},
                              {"layers", data.layers},
                              {"cells", cells}}
            << '\n';
  return 0;
} catch (const std::exception& failure) {
  std::cerr << "codec_quality: " << failure.what() << '\n';
  return 1;
}
