// The gradient of a bias beside sums in f64.
#include "kernels/bias.hpp"

#include "made.hpp"

using namespace lamina;
using namespace lamina::test;

namespace {

template <class T, class G>
Values on_gpu(std::int64_t rows, int channels, const There<T>& dy, std::size_t first) {
  const There<double> workspace(cuda::bias_workspace(dtype_of<T>, rows, channels) / sizeof(double),
                                std::nan(""));
  const There<G> db(std::size_t(channels), G(std::nan("")));
  ok(cuda::bias_grad(nullptr, dtype_of<T>, rows, channels, dy.data() + first, dtype_of<G>,
                     db.data(), workspace.data()));
  return wide(db);
}

template <class T, class G = Wide<T>>
void compare(std::int64_t rows, int channels, std::size_t first = 0) {
  CAPTURE(name(dtype_of<T>), name(dtype_of<G>), rows, channels, first);
  const auto dy = as<T>(random_of<T>(std::size_t(rows * channels) + first, 1, 0.5));
  Values right(std::size_t(channels), 0);
  for (std::size_t i = first; i < dy.size(); ++i)
    right[(i - first) % right.size()] += double(dy[i]);
  const There<T> operand(dy);
  const Values got = on_gpu<T, G>(rows, channels, operand, first);
  CHECK(difference(got, right) < roundoff(dtype_of<G>) + 1e-13);
  CHECK(got == on_gpu<T, G>(rows, channels, operand, first));  // blocks in another order
}

template <class T>
void compare_all() {
  compare<T>(1, 1), compare<T>(5, 3), compare<T>(77, 17), compare<T>(2500, 8), compare<T>(41, 72);
  compare<T>(33, 264), compare<T>(2100, 1), compare<T>(640, 64), compare<T>(6, 1030);
  compare<T>(77, 64, 1);                          // not aligned
  compare<T>(1300, 24), compare<T>(1300, 24, 1);  // whole batches of rows, and what is left
  compare<T, T>(50, 16);
}

}  // namespace

TEST_CASE("the gradient of a bias on a GPU is a sum in f64") {
  compare_all<double>(), compare_all<float>(), compare_all<BF16>(), compare_all<F16>();
}
