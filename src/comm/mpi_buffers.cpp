// Buffers that the ranks of a node can reach, each its own and its peers'.
#include "comm/mpi_buffers.hpp"

#include "base/descriptor.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <utility>

namespace lamina::detail {
namespace {

constexpr std::size_t large_page = std::size_t(2) << 20;

int new_file(std::size_t bytes) {
  rlimit limit = {};
  getrlimit(RLIMIT_FSIZE, &limit);
  if (bytes > limit.rlim_cur) return -1;  // or else the kernel ends the process
  const int file = memfd_create("lamina", MFD_CLOEXEC);
  if (file < 0 || ftruncate(file, off_t(bytes)) == 0) return file;
  close(file);
  return -1;
}

/// What a rank tells its peers of its file. Numbers of processes mean nothing in another container:
/// the file tells whether it is the right one.
struct Offer {
  std::int64_t process = 0;
  int file = -1;
  unsigned last = 0;  ///< number of its last buffer
  std::uint64_t device = 0, inode = 0, bytes = 0;

  int open() const {
    char path[64];
    std::snprintf(path, sizeof path, "/proc/%lld/fd/%d", (long long)(process), file);
    const int opened = ::open(path, O_RDWR | O_CLOEXEC);
    struct stat found = {};
    if (opened < 0 ||
        (fstat(opened, &found) == 0 && found.st_dev == device && found.st_ino == inode))
      return opened;
    close(opened);
    return -1;
  }
};

/// Memory behind a file.
class Mapping {
 public:
  Mapping() = default;
  Mapping(int file, std::size_t bytes) : all_(bytes + large_page) {
    // Large pages need an address that is a multiple of theirs; the rest is only reserved.
    base_ = mmap(nullptr, all_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base_ == MAP_FAILED) return;
    const auto aligned = (std::uintptr_t(base_) + large_page - 1) / large_page * large_page;
    void* const at = mmap(reinterpret_cast<void*>(aligned), bytes, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_FIXED, file, 0);
    if (at != MAP_FAILED) data = static_cast<char*>(at);
  }
  Mapping(Mapping&& other) noexcept
      : data(std::exchange(other.data, nullptr)),
        base_(std::exchange(other.base_, MAP_FAILED)),
        all_(other.all_) {}
  Mapping& operator=(Mapping&&) = delete;
  ~Mapping() {
    if (base_ != MAP_FAILED) munmap(base_, all_);
  }

  char* data = nullptr;  ///< null where that failed

 private:
  void* base_ = MAP_FAILED;
  std::size_t all_ = 0;
};

/// Takes the memory now, so that it lies near the rank that will use it.
void touch(char* data, std::size_t bytes) {
#ifdef MADV_COLLAPSE
  constexpr int collapse = MADV_COLLAPSE;
#else
  constexpr int collapse = 25;
#endif
  // Many systems give memory behind files no large pages of themselves, but do where asked for a
  // page that is there. What cannot be had is no error.
  for (std::size_t at = 0; at + large_page <= bytes; at += large_page) data[at] = 0;
  if (bytes >= large_page) madvise(data, bytes, collapse);
  std::memset(data, 0, bytes);
}

}  // namespace

struct SharedBuffers::Buffer {
  unsigned id;
  std::size_t bytes;
  char* own = nullptr;
  std::vector<int> places;
  std::vector<Mapping> mappings;  // by index in places
};

SharedBuffers::SharedBuffers() = default;
SharedBuffers::~SharedBuffers() = default;

std::shared_ptr<void> SharedBuffers::make(MPI_Comm comm, Lookout& lookout,
                                          const std::vector<int>& ranks,
                                          const std::vector<int>& places, std::size_t bytes,
                                          bool touched) {
  Offer mine{.process = getpid()};
  {
    const std::lock_guard lock(mutex_);  // another thread may start more ranks
    mine.last = last_;
  }
  const std::size_t page = bytes >= large_page ? large_page : 4096;
  mine.bytes = (std::max<std::size_t>(bytes, 1) + page - 1) / page * page;
  const Descriptor file(new_file(mine.bytes));
  struct stat made = {};
  if (file && fstat(file.get(), &made) == 0) {
    mine.file = file.get();
    mine.device = made.st_dev, mine.inode = made.st_ino;
  }
  const auto offers = gather(comm, mine, {}, lookout);

  auto buffer = std::make_unique<Buffer>();
  unsigned last = 0;
  int rank = 0;
  MPI_Comm_rank(comm, &rank);
  bool reached = true;
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    const Offer& offer = offers[std::size_t(ranks[i])];
    last = std::max(last, offer.last);
    const Descriptor theirs(ranks[i] == rank || offer.file < 0 ? -1 : offer.open());
    const int number = ranks[i] == rank ? file.get() : theirs.get();
    buffer->places.push_back(places[i]);
    buffer->mappings.push_back(number < 0 ? Mapping() : Mapping(number, offer.bytes));
    reached = reached && buffer->mappings.back().data;
    if (ranks[i] == rank) buffer->own = buffer->mappings.back().data;
  }
  if (reached && touched) touch(buffer->own, mine.bytes);
  const auto all_reached =
      gather(comm, int(reached), {}, lookout);  // nobody needs the files any more
  for (const int r : ranks) reached = reached && all_reached[std::size_t(r)];
  if (!reached) return nullptr;

  // A number that no member has given yet. Two buffers of one rank thus never have the same; and a
  // rank that finds all members of a group in its buffer of a number knows that they mean the same.
  const std::lock_guard lock(mutex_);
  last_ = std::max(last_, last) + 1;
  const unsigned id = buffer->id = last_;
  buffer->bytes = mine.bytes;
  char* const own = buffer->own;
  buffers_.push_back(std::move(buffer));
  return {own, [all = shared_from_this(), id](void*) { all->remove(id); }};
}

void SharedBuffers::remove(unsigned id) {
  const std::lock_guard lock(mutex_);
  std::erase_if(buffers_, [&](const auto& b) { return b->id == id; });
}

SharedBuffers::Address SharedBuffers::find(const void* data) const {
  const std::lock_guard lock(mutex_);
  for (const auto& b : buffers_)
    if (b->own <= data && data < b->own + b->bytes)
      return {b->id, std::size_t(static_cast<const char*>(data) - b->own)};
  return {};
}

char* SharedBuffers::at(int place, Address address) const {
  const std::lock_guard lock(mutex_);
  for (const auto& b : buffers_)
    if (b->id == address.buffer)
      for (std::size_t i = 0; i < b->places.size(); ++i)
        if (b->places[i] == place) return b->mappings[i].data + address.offset;
  return nullptr;
}

}  // namespace lamina::detail
