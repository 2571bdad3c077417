// A peer of the benchmarks: MPI_Allreduce in place by the timing rule of `tarpon allreduce`: an
// untimed refill and barrier before each iteration, from call to return, the slowest rank counts.
//
// Usage: mpirun -np RANKS mpi_allreduce ITERATIONS WARMUP SIZE
// with the size in bytes of float32. Rank 0 prints a line of JSON: `times_us`, `wrong` elements of
// the last call on all ranks, and `rss_kib` of the largest rank beyond its buffer.
#include <mpi.h>
#include <sys/resource.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

// Small integers: every order of addition gives the same bits.
float element(std::size_t i, int rank) {
  return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 13) % 101);
}

void fill(std::vector<float>& data, int rank) {
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = element(i, rank);
}

std::uint64_t count_wrong(const std::vector<float>& data, int ranks) {
  std::uint64_t wrong = 0;
  for (std::size_t i = 0; i < data.size(); ++i) {
    float sum = 0;
    for (int rank = 0; rank < ranks; ++rank) sum += element(i, rank);
    wrong += data[i] != sum ? 1 : 0;
  }
  return wrong;
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0, ranks = 1;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  if (argc != 4) {
    if (rank == 0) std::fprintf(stderr, "usage: mpi_allreduce ITERATIONS WARMUP SIZE\n");
    MPI_Finalize();
    return 2;
  }
  const int iterations = std::atoi(argv[1]), warmup = std::atoi(argv[2]);
  const std::size_t bytes = std::strtoull(argv[3], nullptr, 10);
  std::vector<float> data(bytes / sizeof(float));
  std::vector<double> times;
  for (int i = 0; i < warmup + iterations; ++i) {
    fill(data, rank);
    MPI_Barrier(MPI_COMM_WORLD);
    const double start = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, data.data(), static_cast<int>(data.size()), MPI_FLOAT, MPI_SUM,
                  MPI_COMM_WORLD);
    const double took = MPI_Wtime() - start;
    double slowest = 0;
    MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    if (i >= warmup) times.push_back(1e6 * slowest);
  }
  const std::uint64_t wrong = count_wrong(data, ranks);
  std::uint64_t all_wrong = 0;
  MPI_Reduce(&wrong, &all_wrong, 1, MPI_UINT64_T, MPI_SUM, 0, MPI_COMM_WORLD);
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const long beyond = usage.ru_maxrss - static_cast<long>(bytes >> 10);
  long most = 0;
  MPI_Reduce(&beyond, &most, 1, MPI_LONG, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) {
    std::printf("{\"wrong\": %llu, \"rss_kib\": %ld, \"times_us\": [",
                static_cast<unsigned long long>(all_wrong), most);
    for (std::size_t i = 0; i < times.size(); ++i)
      std::printf("%s%.2f", i == 0 ? "" : ", ", times[i]);
    std::printf("]}\n");
  }
  MPI_Finalize();
  return 0;
}
