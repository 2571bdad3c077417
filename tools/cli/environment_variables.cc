#include "tools/cli/environment_variables.h"

#include <sstream>

namespace tarpon {

std::vector<cli::Variable> environment_variables() {
  return {
      {"RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT, TORCHELASTIC_RUN_ID",
       "torchrun: which rank of which job this is, unless --local-ranks or --rank says so"},
      {"OMPI_COMM_WORLD_*, PMI_*, MPI_LOCALNRANKS, PMIX_*, SLURM_*", "mpirun and srun: the same"},
      {"TARPON_RENDEZVOUS", "where the ranks meet, as --rendezvous"},
      {"TARPON_PORT", "port of the rendezvous at MASTER_ADDR (else MASTER_PORT + 1)"},
      {"TARPON_INTERFACE", "the interface that carries the job, as --interface"},
      {"TARPON_SOCKET_IFNAME",
       "interfaces to choose from, as NCCL_SOCKET_IFNAME: names or their beginnings with commas "
       "between; ^ in front excludes them, = means whole names"},
      {"GLOO_SOCKET_IFNAME", "the same with whole names only, where the other is not set"},
      {"TARPON_DATAPATH", "auto, xdp, uring or mmsg, as --datapath"},
      {"TARPON_CODEC", "auto, on or off, as --codec"},
      {"TARPON_LOSS_TARGET", "as --loss-target, but a --bound stays what it is"},
      {"TARPON_FLIGHT", "directory for flight recordings, as --flight"},
      {"TARPON_DEBUG", "VERSION, WARN, INFO or TRACE: what was read and chosen, to standard error"},
      {"TARPON_DEBUG_SUBSYS", "only these of INIT,NET,CALL"},
      {"TARPON_DEBUG_FILE", "to this file instead; %h is the host, %p the process"},
  };
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
