#include "support/reserved.hpp"

#include <lamina/kernels/reference.hpp>

namespace lamina::test {

namespace {

struct Reserved final : Reference {
  std::string name() const override { return "reserved"; }
  bool fuses(Fusible kernel, const Epilogue& e) const override {
    return kernel != Fusible::batch_norm && Reference::fuses(kernel, e);
  }
};

}  // namespace

std::shared_ptr<const Backend> reserved_backend() { return std::make_shared<Reserved>(); }

}  // namespace lamina::test
