// A peer of the benchmarks: MPI's collectives beside AllReduce by the timing rule of the tool: an
// untimed refill and barrier before each iteration, from call to return, the slowest rank counts.
// broadcast, reduce and reduce_scatter work in place.
//
// Usage: mpirun -np RANKS mpi_collective COLLECTIVE ITERATIONS WARMUP SIZE...
// with the tool's names of collectives, and sizes as the tool counts them, in bytes of float32.
// Rank 0 prints a line of JSON for each size: `size`, `times_us`, and `wrong`, on how many ranks
// the result of the last call is wrong.
#include <mpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <string>
#include <vector>

#include "tests/bench/collective_values.h"

namespace {

using tarpon::bench::CollectiveValues;
using Floats = std::vector<float>;

constexpr int kRoot = 0;

/// One rank's calls of one size.
class MpiCollective {
 public:
  MpiCollective(const std::string& collective, int rank, int ranks, std::size_t bytes)
      : values_(collective, rank, ranks, bytes),
        rank_(rank),
        in_place_(collective == "broadcast" || collective == "reduce" ||
                  collective == "reduce_scatter"),
        input_(values_.input()),
        right_(values_.output()),
        output_(in_place_ ? values_.whole() : right_.size()) {}

  void refill() {
    std::fill(output_.begin(), output_.end(), -1.0f);
    if (in_place_) std::copy(input_.begin(), input_.end(), output_.begin());
  }

  void run() {
    const std::string& name = values_.collective();
    const int part = static_cast<int>(values_.part()), whole = static_cast<int>(values_.whole());
    float* const in = input_.data();
    float* const out = output_.data();
    if (name == "all_gather") {
      MPI_Allgather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
    } else if (name == "reduce_scatter") {
      MPI_Reduce_scatter_block(MPI_IN_PLACE, out, part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (name == "broadcast") {
      MPI_Bcast(out, whole, MPI_FLOAT, kRoot, MPI_COMM_WORLD);
    } else if (name == "reduce" && rank_ == kRoot) {
      MPI_Reduce(MPI_IN_PLACE, out, whole, MPI_FLOAT, MPI_SUM, kRoot, MPI_COMM_WORLD);
    } else if (name == "reduce") {
      MPI_Reduce(out, nullptr, whole, MPI_FLOAT, MPI_SUM, kRoot, MPI_COMM_WORLD);
    } else if (name == "alltoall") {
      MPI_Alltoall(in, part, MPI_FLOAT, out, part, MPI_FLOAT, MPI_COMM_WORLD);
    } else if (name == "gather") {
      MPI_Gather(in, part, MPI_FLOAT, out, part, MPI_FLOAT, kRoot, MPI_COMM_WORLD);
    } else {
      MPI_Scatter(in, part, MPI_FLOAT, out, part, MPI_FLOAT, kRoot, MPI_COMM_WORLD);
    }
  }

  /// Behind its part, reduce_scatter leaves values that mean nothing.
  bool right() const { return std::equal(right_.begin(), right_.end(), output_.begin()); }

 private:
  CollectiveValues values_;
  int rank_;
  bool in_place_;
  Floats input_, right_, output_;
};

/// The slowest rank's time of each timed call, in us.
std::vector<double> timed(MpiCollective& collective, int iterations, int warmup) {
  std::vector<double> times;
  for (int i = 0; i < warmup + iterations; ++i) {
    collective.refill();
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    collective.run();
    const double took = MPI_Wtime() - start;
    double slowest = 0;
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (i >= warmup) times.push_back(1e6 * slowest);
  }
  return times;
}

void print(std::size_t bytes, int wrong, const std::vector<double>& times) {
  std::printf("{\"size\": %zu, \"wrong\": %d, \"times_us\": [", bytes, wrong);
  for (std::size_t i = 0; i < times.size(); ++i) {
    std::printf("%s%.2f", i == 0 ? "" : ", ", times[i]);
  }
  std::printf("]}\n");
}

void measure(int argc, char** argv) {
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  for (int i = 4; i < argc; ++i) {
    const std::size_t bytes = std::strtoull(argv[i], nullptr, 10);
    MpiCollective collective(argv[1], rank, ranks, bytes);
    const std::vector<double> times = timed(collective, std::atoi(argv[2]), std::atoi(argv[3]));
    const int wrong = collective.right() ? 0 : 1;
    int all_wrong = 0;
    MPI_Reduce(&wrong, &all_wrong, 1, MPI_INT, MPI_SUM, kRoot, MPI_COMM_WORLD);
    if (rank == kRoot) print(bytes, all_wrong, times);
  }
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int code = 0;
  if (argc < 5) {
    std::fprintf(stderr, "usage: mpi_collective COLLECTIVE ITERATIONS WARMUP SIZE...\n");
    code = 2;
  } else {
    try {
      measure(argc, argv);
    } catch (const std::exception& error) {
      std::fprintf(stderr, "mpi_collective: %s\n", error.what());
      code = 1;
    }
  }
  MPI_Finalize();
  return code;
}
