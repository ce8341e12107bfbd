// Each collective as one blocking call of MPI, on the whole buffer.
#include "comm/mpi_calls.hpp"

#include <climits>

namespace lamina::detail {
namespace {

class PlainTransport final : public Transport {
 public:
  explicit PlainTransport(MPI_Comm comm) : comm_(comm) {
    MPI_Comm_rank(comm_, &rank_);
    MPI_Comm_size(comm_, &size_);
  }

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string carrier() const override { return "MPI, plain"; }
  std::shared_ptr<Transport> group(const std::vector<int>&) override {
    throw Error("plain MPI makes no groups: expected the group that it was made from");
  }

  void run(const Operation& op) override {
    check(op.count <= INT_MAX / std::size_t(size_), op, ": more elements than MPI can count");
    check_mpi(call(op), name(op.collective));
  }

 private:
  int call(const Operation& op) const {
    const MPI_Datatype type = type_of(op);
    const int n = int(op.count);
    const auto peer = [](int rank) { return rank < 0 ? MPI_PROC_NULL : rank; };
    switch (op.collective) {
      case Collective::all_reduce:
        return MPI_Allreduce(MPI_IN_PLACE, op.out, n, type, op_of(op.reduce), comm_);
      case Collective::reduce_scatter:
        return MPI_Reduce_scatter_block(op.in, op.out, n, type, op_of(op.reduce), comm_);
      case Collective::all_gather: {
        const auto* own =
            static_cast<char*>(op.out) + std::size_t(rank_) * op.count * size_of(op.dtype);
        return MPI_Allgather(op.in == own ? MPI_IN_PLACE : op.in, n, type, op.out, n, type, comm_);
      }
      case Collective::broadcast:
        return MPI_Bcast(op.out, n, type, op.from, comm_);
      case Collective::all_to_all:
        return MPI_Alltoall(op.in, n, type, op.out, n, type, comm_);
      case Collective::halo:
        return MPI_Sendrecv(op.in, n, type, peer(op.to), 0, op.out, int(op.received), type,
                            peer(op.from), 0, comm_, MPI_STATUS_IGNORE);
      case Collective::barrier:
        break;
    }
    return MPI_Barrier(comm_);
  }

  MPI_Comm comm_;
  int rank_ = 0, size_ = 1;
};

}  // namespace

std::shared_ptr<Transport> plain_mpi(MPI_Comm comm) {
  return std::make_shared<PlainTransport>(comm);
}

}  // namespace lamina::detail
