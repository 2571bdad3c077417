#include "tools/cli/environment_variables.h"

#include <sstream>
#include <utility>

namespace tarpon {

std::vector<cli::Variable> place_variables() {
  return {
      {"RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID",
       "torchrun: which rank of which job this is, unless --local-ranks or --rank says so"},
      {"OMPI_COMM_WORLD_*, PMI_*, MPI_LOCALNRANKS, PMIX_*, SLURM_*", "mpirun and srun: the same"},
      {"TARPON_RENDEZVOUS", "where the ranks meet, as --rendezvous"},
      {"TARPON_RENDEZVOUS_TIMEOUT", "how long to wait for all ranks, as --rendezvous-timeout"},
      {"TARPON_PORT", "port of the rendezvous at MASTER_ADDR (else MASTER_PORT + 1)"},
  };
}

std::vector<cli::Variable> network_variables() {
  return {
      {"TARPON_INTERFACE", "the interface that carries the job, as --interface"},
      {"TARPON_SOCKET_IFNAME",
       "interfaces to choose from, as NCCL_SOCKET_IFNAME: names or their beginnings with commas "
       "between; ^ in front excludes them, = means whole names"},
      {"GLOO_SOCKET_IFNAME", "the same with whole names only, where the other is not set"},
      {"TARPON_PORTS", "UDP and TCP ports to use, as --ports"},
      {"TARPON_DATAPATH", "auto, xdp, uring or mmsg, as --datapath"},
      {"TARPON_CODEC", "auto, on or off, as --codec"},
      {"TARPON_LOSS_TARGET", "as --loss-target, but a --bound stays what it is"},
      {"TARPON_ORDER", "rotating or fixed, as --order: fixed repeats results bit by bit"},
      {"TARPON_MULTICAST", "on or off: results to all ranks at once, as --multicast"},
      {"TARPON_HOSTS", "on or off: memory that ranks of a host share, as --hosts"},
      {"TARPON_LANES", "auto, or 1 to 4: threads that work for a rank, as --lanes"},
      {"TARPON_SECRET_FILE", "the file with the secret of the job, as --secret-file"},
      {"TARPON_SECRET_FD",
       "an inherited descriptor to read it from: a memfd, or a file that no other user may read"},
      {"TARPON_INTEGRITY", "with a secret: keyed, or sealed to encrypt payloads, as --integrity"},
      {"TARPON_FLIGHT", "directory for flight recordings, as --flight"},
      {"TARPON_DEBUG", "VERSION, WARN, INFO or TRACE: what was read and chosen, to standard error"},
      {"TARPON_DEBUG_SUBSYS", "only these of INIT,NET,CALL"},
      {"TARPON_DEBUG_FILE", "to this file instead; %h is the host, %p the process"},
  };
}

std::vector<cli::Variable> call_variables() {
  return {
      {"TARPON_MODE", "exact or bounded: how programs under tarpon run and tarpon_torch call"},
      {"TARPON_BOUND",
       "of these calls, as 50ms: time of a bounded call; else TARPON_LOSS_TARGET "
       "decides"},
      {"TARPON_BOUNDED_MIN", "of these calls, as 1M: up to this size they stay exact"},
      {"TARPON_DEADLINE", "of these calls, as 10s: hard limit of a bounded call"},
      {"TARPON_SHARES",
       "of these calls, and of programs that take their options from the environment: even, or "
       "auto: a rank's share of the work follows the speed of its link, and how late it begins; "
       "alike on all ranks"},
      {"TARPON_REQUIRE",
       "under tarpon run, 1: where Tarpon cannot carry the calls the program fails, as in any job "
       "with a secret; 0: it goes on over Gloo, without protection"},
      {"TARPON_SECRET_FROM_STORE",
       "tarpon_torch, 1: without a secret the ranks take one from PyTorch's store, which has to be "
       "trusted"},
      {"TARPON_LIBRARY", "tarpon_torch: the file libtarpon.so.0 to load instead of its own"},
  };
}

std::vector<cli::Variable> environment_variables() {
  std::vector<cli::Variable> all = place_variables();
  for (auto* const rows : {network_variables, call_variables}) {
    for (cli::Variable& one : rows()) all.push_back(std::move(one));
  }
  return all;
}

std::vector<std::string> environment_names() {
  std::vector<std::string> names;
  for (const cli::Variable& variable : environment_variables()) {
    std::istringstream words(variable.names);
    for (std::string word; words >> word;) {
      if (word.ends_with(',')) word.pop_back();
      if (word.find('*') == std::string::npos) names.push_back(word);
    }
  }
  return names;
}

}  // namespace tarpon
