// Ranks that are lost, where MPI goes on without them: user-level failure mitigation (ULFM), a part
// of MPI's standard to come that Open MPI has from version 5 on.
#pragma once

#include <mpi.h>

#include <vector>

namespace lamina::detail {

/// Whether it is built in, and mpirun has turned it on (--with-ft ulfm).
bool mpi_outlives_ranks();

/// Whether a call failed since ranks are lost, or since another rank has revoked the communicator.
bool tells_of_loss(int status);

/// The ranks of `comm` that MPI knows to be lost. From then on messages from any of the others
/// arrive as before.
std::vector<int> lost_ranks(MPI_Comm comm);

/// Whoever waits in `comm`, or calls it later, gets an error. Not collective.
void revoke(MPI_Comm comm);

/// The ranks of `comm` that are left, in the same order. Collective over these.
MPI_Comm those_left(MPI_Comm comm);

/// Whether none of `comm` is lost, and all say yes; the same on all that are left. Collective over
/// these, also where it is revoked. Throws Error where one does not answer within so many seconds.
bool all_agree(MPI_Comm comm, bool yes, double seconds);

}  // namespace lamina::detail
