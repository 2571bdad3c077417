// Values for the benchmarks' peers of collectives: what a rank puts in, and what has to come out.
//
// The collectives have the names of the tool's commands. The root is rank 0. Values are small
// integers, so every order of addition gives the same bits.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace tarpon::bench {

class CollectiveValues {
 public:
  /// `bytes`: of the whole, as the tool's size; REQUIRES: a multiple of 4 times `ranks`. Throws
  /// std::invalid_argument if it does not know the collective.
  CollectiveValues(std::string collective, int rank, int ranks, std::size_t bytes);

  const std::string& collective() const { return collective_; }
  std::size_t part() const { return whole_ / ranks_; }  // elements of a rank's part
  std::size_t whole() const { return whole_; }          // elements

  /// Empty: this rank has none.
  std::vector<float> input() const { return input_of(rank_); }
  std::vector<float> output() const;

 private:
  std::vector<float> input_of(std::size_t rank) const;
  std::vector<float> sum() const;
  std::vector<float> part_of(const std::vector<float>& whole) const;  // this rank's

  std::string collective_;
  std::size_t rank_, ranks_, whole_;
};

}  // namespace tarpon::bench
