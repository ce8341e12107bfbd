// Telltale: a device that tells on whoever treats it as the host. It computes as the reference back
// end does, but its memory has no access rights where it was handed out: only its kernels, which
// see it through another mapping, can read or write it. Views of it refuse to be read; who follows
// the address of one all the same meets a segmentation fault.
//
// A program that has this file has this device wherever it asks for the reference back end.
#include "support/peek.hpp"

#include <lamina/kernels/backends.hpp>
#include <lamina/kernels/reference.hpp>

#include <sys/mman.h>
#include <unistd.h>

#include <mutex>
#include <vector>

namespace lamina::test {

namespace {

/// One file in memory, mapped twice: where addresses are handed out, without access; and `reach`
/// bytes away, where kernels get at it.
class TelltaleMemory final : public MemorySpace {
 public:
  TelltaleMemory() {
    file_ = memfd_create("telltale", 0);
    check(file_ >= 0 && ftruncate(file_, off_t(size)) == 0, "memfd_create failed");
    outside_ = map(PROT_NONE), inside_ = map(PROT_READ | PROT_WRITE);
  }
  ~TelltaleMemory() override {
    munmap(outside_, size), munmap(inside_, size);
    close(file_);
  }
  TelltaleMemory(const TelltaleMemory&) = delete;
  TelltaleMemory& operator=(const TelltaleMemory&) = delete;

  std::string name() const override { return "telltale"; }

  /// Never twice at the same place, so that what is freed and used all the same is found: it reads
  /// as zeros. A page without access lies between any two.
  std::shared_ptr<void> allocate(std::size_t bytes) override {
    constexpr std::size_t page = 4096;
    const std::size_t padded = (bytes + page - 1) / page * page;
    const std::lock_guard lock(mutex_);
    if (bytes == 0 || used_ + padded + page > size) return nullptr;
    const std::size_t at = used_;
    used_ += padded + page;
    return {outside_ + at, [this, at, padded](void*) {
              madvise(inside_ + at, padded, MADV_REMOVE);
            }};
  }
  void zero(void* to, std::size_t bytes) override { std::memset(reach(to), 0, bytes); }
  void copy(const void* from, void* to, std::size_t bytes) override {
    if (bytes > 0) std::memmove(reach(to), reach(const_cast<void*>(from)), bytes);
  }
  std::size_t total_bytes() const override { return size; }
  std::size_t free_bytes() const override { return size - used_; }

  bool has(const void* p) const { return p >= outside_ && p < outside_ + size; }
  /// Where a kernel finds what lies at an address that was handed out.
  void* reach(void* p) const { return has(p) ? inside_ + (static_cast<char*>(p) - outside_) : p; }

 private:
  static constexpr std::size_t size = std::size_t(64) << 30;  // of addresses: pages come with use

  char* map(int access) const {
    void* const at = mmap(nullptr, size, access, MAP_SHARED | MAP_NORESERVE, file_, 0);
    check(at != MAP_FAILED, "mmap of the telltale device failed");
    return static_cast<char*>(at);
  }

  int file_ = -1;
  char *outside_ = nullptr, *inside_ = nullptr;
  std::size_t used_ = 0;
  std::mutex mutex_;
};

/// What all kernels of a device share.
struct Device {
  std::shared_ptr<const Backend> host = std::make_shared<const Reference>();
  std::shared_ptr<TelltaleMemory> memory = std::make_shared<TelltaleMemory>();

  /// An operand of a kernel, as that sees it.
  View in(const View& v) const {
    if (!v) return v;
    check(v.space == memory.get(), "telltale: an operand ", v.form(), " lies ",
          v.space ? "on another device" : "on the host");
    return {memory->reach(v.data), v.form()};
  }
  /// What may lie on the host as well.
  View any(const View& v) const { return v.space ? in(v) : v; }
  std::vector<View> in(std::span<const View> vs) const {
    std::vector<View> all;
    for (const View& v : vs) all.push_back(in(v));
    return all;
  }
};

using DevicePointer = std::shared_ptr<const Device>;

/// A kernel of the device around one of the host.
template <class Base>
class On : public Base {
 public:
  On(DevicePointer device, std::unique_ptr<Base> kernel)
      : Base(*kernel), d(std::move(device)), k(std::move(kernel)) {}

 protected:
  DevicePointer d;
  std::unique_ptr<Base> k;
};

struct Weighted final : On<WeightedKernel> {
  using On::On;
  void forward(Stream& s, const View& x, const View& w, const View& b, const View& y) override {
    k->forward(s, d->in(x), d->in(w), d->in(b), d->in(y));
  }
  void input_grad(Stream& s, const View& w, const View& dy, const View& dx) override {
    k->input_grad(s, d->in(w), d->in(dy), d->in(dx));
  }
  void weight_grad(Stream& s, const View& x, const View& dy, const View& dw,
                   const View& db) override {
    k->weight_grad(s, d->in(x), d->in(dy), d->in(dw), d->in(db));
  }
};

struct Unary final : On<UnaryKernel> {
  using On::On;
  void forward(Stream& s, const View& x, const View& y) override {
    k->forward(s, d->in(x), d->in(y));
  }
  void input_grad(Stream& s, const View& x, const View& y, const View& dy,
                  const View& dx) override {
    k->input_grad(s, d->in(x), d->in(y), d->in(dy), d->in(dx));
  }
};

struct Nary final : On<NaryKernel> {
  using On::On;
  void forward(Stream& s, std::span<const View> xs, const View& y) override {
    k->forward(s, d->in(xs), d->in(y));
  }
  void input_grad(Stream& s, const View& dy, std::span<const View> dxs) override {
    k->input_grad(s, d->in(dy), d->in(dxs));
  }
};

struct Norm final : On<NormKernel> {
  using On::On;
  void statistics(Stream& s, const View& x, const View& sums) override {
    k->statistics(s, d->in(x), d->in(sums));
  }
  void finish(Stream& s, const View& sums, double count, double epsilon, double momentum,
              const View& mean, const View& inv_std, const View& running_mean,
              const View& running_var) override {
    k->finish(s, d->in(sums), count, epsilon, momentum, d->in(mean), d->in(inv_std),
              d->in(running_mean), d->in(running_var));
  }
  void running(Stream& s, const View& running_mean, const View& running_var,
               const View& sums) override {
    k->running(s, d->in(running_mean), d->in(running_var), d->in(sums));
  }
  void from_running(Stream& s, const View& sums, int variants, double epsilon, const View& mean,
                    const View& inv_std) override {
    k->from_running(s, d->in(sums), variants, epsilon, d->in(mean), d->in(inv_std));
  }
  void normalize(Stream& s, const View& x, const View& mean, const View& inv_std, const View& w,
                 const View& b, const View& y) override {
    k->normalize(s, d->in(x), d->in(mean), d->in(inv_std), d->in(w), d->in(b), d->in(y));
  }
  void gradients(Stream& s, const View& x, const View& mean, const View& inv_std, const View& dy,
                 const View& sums, const View& dw, const View& db) override {
    k->gradients(s, d->in(x), d->in(mean), d->in(inv_std), d->in(dy), d->in(sums), d->in(dw),
                 d->in(db));
  }
  void input_grad(Stream& s, const View& x, const View& mean, const View& inv_std, const View& w,
                  const View& dy, const View& sums, double count, const View& dx) override {
    k->input_grad(s, d->in(x), d->in(mean), d->in(inv_std), d->in(w), d->in(dy), d->in(sums), count,
                  d->in(dx));
  }
};

struct Dropped final : On<DropoutKernel> {
  using On::On;
  void apply(Stream& s, Pass pass, std::uint64_t key, std::uint64_t skip, const View& x,
             const View& y) override {
    k->apply(s, pass, key, skip, d->in(x), d->in(y));
  }
};

struct Loss final : On<LossKernel> {
  using On::On;
  void largest(Stream& s, const View& x, const View& labels, bool flag,
               const View& largest) override {
    k->largest(s, d->in(x), d->in(labels), flag, d->in(largest));
  }
  void sums(Stream& s, const View& x, const View& labels, const View& largest, const View& p,
            const View& sums) override {
    k->sums(s, d->in(x), d->in(labels), d->in(largest), d->in(p), d->in(sums));
  }
  void finish(Stream& s, const View& labels, const View& largest, const View& sums, const View& p,
              const View& totals) override {
    k->finish(s, d->in(labels), d->in(largest), d->in(sums), d->in(p), d->in(totals));
  }
  void mean(Stream& s, const View& totals, const View& rows) override {
    k->mean(s, d->in(totals), d->in(rows));
  }
  void input_grad(Stream& s, const View& p, const View& labels, const View& rows, double samples,
                  const View& dx) override {
    k->input_grad(s, d->in(p), d->in(labels), d->in(rows), samples, d->in(dx));
  }
};

class Telltale final : public Backend {
 public:
  std::string name() const override { return "telltale"; }
  std::string description() const override { return "the reference back end behind a wall"; }
  bool supports(DType t) const override { return host().supports(t); }
  MemorySpace& memory() const override { return *device_->memory; }
  View inside(const View& v) const { return device_->in(v); }

  std::unique_ptr<WeightedKernel> conv(const ConvGeometry& g, const Form& x) const override {
    return on<Weighted>(host().conv(g, x));
  }
  std::unique_ptr<WeightedKernel> linear(std::int64_t features, bool bias,
                                         const Form& x) const override {
    return on<Weighted>(host().linear(features, bias, x));
  }
  std::unique_ptr<UnaryKernel> activation(const Activation& a, const Form& x) const override {
    return on<Unary>(host().activation(a, x));
  }
  std::unique_ptr<UnaryKernel> pool(const PoolGeometry& g, const Form& x) const override {
    return on<Unary>(host().pool(g, x));
  }
  std::unique_ptr<UnaryKernel> lrn(const LrnGeometry& g, const Form& x) const override {
    return on<Unary>(host().lrn(g, x));
  }
  std::unique_ptr<UnaryKernel> softmax(const Form& x) const override {
    return on<Unary>(host().softmax(x));
  }
  std::unique_ptr<UnaryKernel> reorder(const Form& x, const Form& y) const override {
    return on<Unary>(host().reorder(x, y));
  }
  std::unique_ptr<UnaryKernel> reorder_rows(const Form& x, std::int64_t first, const Form& y,
                                            std::int64_t to, std::int64_t count) const override {
    return on<Unary>(host().reorder_rows(x, first, y, to, count));
  }
  std::unique_ptr<NaryKernel> sum(std::span<const Form> xs) const override {
    return on<Nary>(host().sum(xs));
  }
  std::unique_ptr<NaryKernel> concat(std::span<const Form> xs) const override {
    return on<Nary>(host().concat(xs));
  }
  std::unique_ptr<NormKernel> batch_norm(const Form& x) const override {
    return on<Norm>(host().batch_norm(x));
  }
  std::unique_ptr<DropoutKernel> dropout(double rate, const Form& x, const Shape& whole,
                                         const Box& box) const override {
    return on<Dropped>(host().dropout(rate, x, whole, box));
  }
  std::unique_ptr<LossKernel> softmax_cross_entropy(const LossGeometry& g,
                                                    const Form& x) const override {
    return on<Loss>(host().softmax_cross_entropy(g, x));
  }

  void copy(const View& from, const View& to) const override {
    host().copy(device_->any(from), device_->any(to));
  }
  void move(Stream& stream, Pass pass, const char* what,
            std::span<const BoxMove> moves) const override {
    std::vector<BoxMove> inside(moves.begin(), moves.end());
    for (BoxMove& m : inside) m.from = device_->in(m.from), m.to = device_->in(m.to);
    host().move(stream, pass, what, inside);
  }
  void update(Stream& stream, const UpdateRule& rule, const UpdateStep& step, const View& w,
              const View& dw, std::span<const View> states) const override {
    host().update(stream, rule, step, device_->in(w), device_->in(dw), device_->in(states));
  }
  double squared_norm(Stream& stream, Pass pass, const View& x) const override {
    return host().squared_norm(stream, pass, device_->in(x));
  }

 private:
  const Backend& host() const { return *device_->host; }
  template <class K, class Base>
  std::unique_ptr<Base> on(std::unique_ptr<Base> kernel) const {
    return std::make_unique<K>(device_, std::move(kernel));
  }

  DevicePointer device_ = std::make_shared<const Device>();
};

/// All ranks that are threads of one process share it.
const std::shared_ptr<const Telltale>& telltale() {
  static const auto device = [] {
    device_peek = [](const View& v) { return telltale()->inside(v); };
    return std::make_shared<const Telltale>();
  }();
  return device;
}

}  // namespace

}  // namespace lamina::test

namespace lamina {

std::shared_ptr<const Backend> reference_backend() { return test::telltale(); }

}  // namespace lamina
