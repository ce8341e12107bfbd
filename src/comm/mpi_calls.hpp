// The words of MPI for ours, and its errors.
#pragma once

#include <lamina/comm/transport.hpp>

#include <mpi.h>

#include <string_view>

namespace lamina::detail {

inline void check_mpi(int status, const char* call) {
  if (status == MPI_SUCCESS) return;
  char reason[MPI_MAX_ERROR_STRING] = "";
  int length = 0;
  MPI_Error_string(status, reason, &length);
  throw Error(text(call, ": ", std::string_view(reason, std::size_t(length))));
}

inline MPI_Datatype type_of(DType t) {
  return t == DType::f32 ? MPI_FLOAT : t == DType::f64 ? MPI_DOUBLE : MPI_INT32_T;
}
inline MPI_Op op_of(ReduceOp op) {
  return op == ReduceOp::sum ? MPI_SUM : op == ReduceOp::max ? MPI_MAX : MPI_MIN;
}

/// Each collective as one blocking call of MPI: what others are compared with.
std::shared_ptr<Transport> plain_mpi(MPI_Comm comm);

/// Looks around for a rank that waits, about ten times a second.
class Lookout {
 public:
  virtual ~Lookout() = default;
  /// Throws if a peer has failed or is gone, or if `operation` has been waited for too long.
  virtual void look(const Operation& operation, double waited) = 0;
};

}  // namespace lamina::detail
