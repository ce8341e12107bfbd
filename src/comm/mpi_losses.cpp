#include "comm/mpi_losses.hpp"

#include "comm/mpi_calls.hpp"

#include <lamina/base/clock.hpp>
#include <lamina/comm/mpi.hpp>

#if __has_include(<mpi-ext.h>)
#include <mpi-ext.h>
#endif

#include <cstdlib>
#include <string_view>

namespace lamina {

bool mpi_outlives() {
#ifdef OMPI_HAVE_MPI_EXT_FTMPI
  return true;
#else
  return false;
#endif
}

namespace detail {

bool mpi_outlives_ranks() {
  const char* const on = std::getenv("OMPI_MCA_mpi_ft_enable");  // set by mpirun
  return mpi_outlives() && on && std::string_view(on) == "1";
}

#ifdef OMPI_HAVE_MPI_EXT_FTMPI

bool tells_of_loss(int status) {
  if (status == MPI_SUCCESS) return false;
  int kind = MPI_SUCCESS;
  MPI_Error_class(status, &kind);
  return kind == MPIX_ERR_PROC_FAILED || kind == MPIX_ERR_PROC_FAILED_PENDING ||
         kind == MPIX_ERR_REVOKED;
}

std::vector<int> lost_ranks(MPI_Comm comm) {
  MPI_Group failed = MPI_GROUP_NULL;
  int size = 0, known = 0;
  check_mpi(MPIX_Comm_get_failed(comm, &failed), "MPIX_Comm_get_failed");
  MPI_Group_size(failed, &size);
  MPIX_Comm_ack_failed(comm, size, &known);
  return ranks_in(comm, failed);
}

void revoke(MPI_Comm comm) { MPIX_Comm_revoke(comm); }

MPI_Comm those_left(MPI_Comm comm) {
  MPI_Comm left = MPI_COMM_NULL;
  check_mpi(MPIX_Comm_shrink(comm, &left), "MPIX_Comm_shrink");
  MPI_Comm_set_errhandler(left, MPI_ERRORS_RETURN);
  return left;
}

bool all_agree(MPI_Comm comm, bool yes, double seconds) {
  static int all;  // MPI may still write to it when it is given up
  all = yes;
  MPI_Request request = MPI_REQUEST_NULL;
  check_mpi(MPIX_Comm_iagree(comm, &all, &request), "MPIX_Comm_iagree");
  const double end = now() + seconds;
  int done = 0, status = MPI_SUCCESS;
  while ((status = MPI_Test(&request, &done, MPI_STATUS_IGNORE)) == MPI_SUCCESS && !done) {
    check(now() < end, "a rank does not answer ", seconds, " s after the loss of another");
    pause(1e-3);
  }
  if (!tells_of_loss(status)) check_mpi(status, "MPIX_Comm_iagree");
  return status == MPI_SUCCESS && all != 0;
}

#else

bool tells_of_loss(int) { return false; }
std::vector<int> lost_ranks(MPI_Comm) { return {}; }
void revoke(MPI_Comm) {}
MPI_Comm those_left(MPI_Comm comm) { return comm; }
bool all_agree(MPI_Comm, bool, double) { return false; }

#endif

}  // namespace detail
}  // namespace lamina
