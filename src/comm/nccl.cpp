// Collectives between GPUs over NCCL, put into a stream of the GPU. What passes between hosts goes
// by the transport beneath: small values, what it takes to set up, and who has failed.
#include "comm/nccl_rank.hpp"

#include <lamina/base/host.hpp>
#include <lamina/comm/detail/gather_values.hpp>
#include <lamina/comm/detail/group_pool.hpp>
#include <lamina/comm/nccl.hpp>

#include <algorithm>
#include <cstring>
#include <utility>

namespace lamina {

namespace detail {

namespace {

ncclDataType_t type_of(DType t) {
  switch (t) {
    case DType::f64:
      return ncclFloat64;
    case DType::f32:
      return ncclFloat32;
    case DType::bf16:
      return ncclBfloat16;
    case DType::f16:
      return ncclFloat16;
    case DType::i32:
      break;
  }
  return ncclInt32;
}
ncclRedOp_t op_of(ReduceOp op) {
  return op == ReduceOp::sum ? ncclSum : op == ReduceOp::max ? ncclMax : ncclMin;
}

/// Its calls return before they are done.
ncclConfig_t config() {
  ncclConfig_t c = NCCL_CONFIG_INITIALIZER;
  c.blocking = 0;
  return c;
}

/// Where a rank computes.
struct Seat {
  char host[256] = "", gpu[256] = "";
  char uuid[16] = "";  ///< of the GPU: containers may number theirs alike
  std::int32_t number = 0;

  static Seat of(int device) {
    Seat seat;
    cudaDeviceProp gpu;
    cuda::ok(cudaGetDeviceProperties(&gpu, device), "ask for a GPU's name");
    host_name().copy(seat.host, sizeof seat.host - 1);
    std::string(gpu.name).copy(seat.gpu, sizeof seat.gpu - 1);
    std::memcpy(seat.uuid, &gpu.uuid, sizeof seat.uuid);
    seat.number = device;
    return seat;
  }
  bool same_gpu(const Seat& other) const { return std::memcmp(uuid, other.uuid, sizeof uuid) == 0; }
};

/// Throws Error where two ranks have the same GPU.
void check_seats(const std::vector<Seat>& seats) {
  std::string table = "  rank  GPU  host";
  int first = -1, second = -1;
  for (std::size_t r = 0; r < seats.size(); ++r) {
    const Seat& seat = seats[r];
    const auto same = std::ranges::find_if(seats, [&](const Seat& s) { return s.same_gpu(seat); });
    const int other = int(same - seats.begin());
    if (other < int(r) && first < 0) first = other, second = int(r);
    append(table, text('\n', format("%6d  %3d  ", int(r), seat.number), seat.host, ", ", seat.gpu,
                       other < int(r) ? text(", that of rank ", other) : std::string()));
  }
  check(first < 0, "NCCL needs a GPU for each rank, but ranks ", first, " and ", second,
        " have the same one; MPI works there (--comm mpi)\n", table);
}

class NcclTransport final : public Transport {
 public:
  /// `comm` is null for a group of this rank alone.
  NcclTransport(std::shared_ptr<Transport> peers, std::shared_ptr<NcclRank> mine, ncclComm_t comm)
      : peers_(std::move(peers)), mine_(std::move(mine)), comm_(comm) {}

  int rank() const override { return peers_->rank(); }
  int size() const override { return peers_->size(); }
  std::span<const int> members() const override { return peers_->members(); }
  void run(const Operation& op) override { peers_->run(op); }
  bool reaches(const MemorySpace& space) const override { return comm_ && mine_->reaches(space); }
  Event put(const Operation& op) override {
    return mine_->put(comm_, op, [&](cudaStream_t stream) { return begin(op, stream); });
  }
  std::optional<std::pair<double, double>> times(const Event& done) override {
    return mine_->times(done);
  }
  std::string carrier() const override { return text("NCCL, and ", peers_->carrier()); }
  std::shared_ptr<Transport> plain() override { return peers_->plain(); }
  std::shared_ptr<void> allocate(MemorySpace& space, std::size_t bytes, bool touched) override {
    auto memory = peers_->allocate(space, bytes, touched);  // others may have theirs on the host
    return reaches(space) ? mine_->allocate(space, bytes) : memory;
  }
  void post(int to, const std::string& note) override { peers_->post(to, note); }
  std::string collect() override { return peers_->collect(); }
  void poll() override {
    peers_->poll();
    mine_->poll();
  }
  void give_up(const std::exception_ptr& error) noexcept override {
    mine_->give_up(error);
    peers_->give_up(error);
  }
  double time_limit() const override { return peers_->time_limit(); }

  std::shared_ptr<Transport> group(const std::vector<int>& members) override {
    const auto make = [this](const std::vector<int>& fresh) { return make_group(fresh); };
    return pool_.group(*peers_, members, make);
  }

 private:
  std::shared_ptr<Transport> make_group(const std::vector<int>& members) {
    std::shared_ptr<Transport> below = peers_->group(members);
    const auto me = std::ranges::find(members, rank()) - members.begin();
    const int color = members.size() > 1 ? members[0] : NCCL_SPLIT_NOCOLOR;
    ncclComm_t part = nullptr;
    if (comm_)
      part = mine_->make("making a group of ranks", comm_, [&](ncclComm_t* to) {
        ncclConfig_t c = config();
        return nccl().split(comm_, color, int(me), to, &c);
      });
    if (!below) return nullptr;
    return std::make_shared<NcclTransport>(std::move(below), mine_, part);
  }
  ncclResult_t begin(const Operation& op, cudaStream_t stream) const {
    const ncclDataType_t type = type_of(op.dtype);
    switch (op.collective) {
      case Collective::all_reduce:
        return nccl().all_reduce(op.in, op.out, op.count, type, op_of(op.reduce), comm_, stream);
      case Collective::reduce_scatter:
        return nccl().reduce_scatter(op.in, op.out, op.count, type, op_of(op.reduce), comm_,
                                     stream);
      case Collective::all_gather:
        return nccl().all_gather(op.in, op.out, op.count, type, comm_, stream);
      case Collective::broadcast:
        return nccl().broadcast(op.in, op.out, op.count, type, op.from, comm_, stream);
      case Collective::all_to_all:
      case Collective::halo:
        return begin_messages(op, stream);
      case Collective::barrier:
        break;
    }
    return ncclInvalidUsage;
  }

  /// All of them at once: those of a pair of ranks may cross.
  ncclResult_t begin_messages(const Operation& op, cudaStream_t stream) const {
    const ncclDataType_t type = type_of(op.dtype);
    ncclResult_t first = nccl().group_start();
    const auto note = [&](ncclResult_t status) {
      if (first == ncclSuccess || first == ncclInProgress) first = status;
    };
    const auto send = [&](const void* from, std::size_t count, int to) {
      if (to >= 0 && count > 0) note(nccl().send(from, count, type, to, comm_, stream));
    };
    const auto receive = [&](void* to, std::size_t count, int from) {
      if (from >= 0 && count > 0) note(nccl().receive(to, count, type, from, comm_, stream));
    };
    if (op.collective == Collective::halo) {
      send(op.in, op.count, op.to);
      receive(op.out, op.received, op.from);
    } else {
      const std::size_t bytes = op.count * size_of(op.dtype);
      for (int r = 0; r < size(); ++r) {
        send(static_cast<const char*>(op.in) + std::size_t(r) * bytes, op.count, r);
        receive(static_cast<char*>(op.out) + std::size_t(r) * bytes, op.count, r);
      }
    }
    note(nccl().group_end());
    return first;
  }

  std::shared_ptr<Transport> peers_;
  std::shared_ptr<NcclRank> mine_;
  ncclComm_t comm_;
  GroupPool pool_;
};

}  // namespace

}  // namespace detail

bool has_nccl() { return true; }

std::shared_ptr<Transport> nccl_transport(std::shared_ptr<Transport> peers, Device device) {
  check(device.kind == Device::Kind::cuda, "NCCL carries what lies on GPUs, but not on ", device);
  auto mine = std::make_shared<detail::NcclRank>(peers, device.index);
  detail::check_seats(detail::gather_values(*peers, detail::Seat::of(device.index)));
  if (peers->size() == 1) return std::make_shared<detail::NcclTransport>(peers, mine, nullptr);
  ncclUniqueId key = {};
  if (peers->rank() == 0) {
    const ncclResult_t status = detail::nccl().get_unique_id(&key);
    check(status == ncclSuccess, "NCCL: making a key: ", detail::nccl().get_error_string(status));
  }
  key = detail::gather_values(*peers, key)[0];
  const auto begin = [&](ncclComm_t* to) {
    ncclConfig_t c = detail::config();
    return detail::nccl().init(to, peers->size(), key, peers->rank(), &c);
  };
  ncclComm_t comm = nullptr;
  try {
    comm = mine->make("finding all ranks (--comm mpi does without)", nullptr, begin);
  } catch (...) {  // those that are not found are not waited for
    mine->give_up(std::current_exception());
    throw;
  }
  return std::make_shared<detail::NcclTransport>(std::move(peers), std::move(mine), comm);
}

}  // namespace lamina
