// Buffers in layouts of a back end: summed only where they were shown to lie alike on all ranks.
#include "catch.hpp"

#include <lamina/comm/threads.hpp>

using namespace lamina;

namespace {

class Numbered final : public LayoutKind {
 public:
  explicit Numbered(std::uint64_t number) : number_(number) {}
  std::string name() const override { return "one name for all"; }
  std::int64_t elements() const override { return 4; }
  bool equals(const LayoutKind&) const override { return true; }
  std::uint64_t fingerprint() const override { return number_; }

 private:
  std::uint64_t number_;
};

Form form(std::uint64_t number) {
  return {{1, 3, 1, 1}, DType::f32, Layout(std::make_shared<Numbered>(number))};
}

}  // namespace

TEST_CASE("forms are alike where shape, dtype and layout are, whatever the layout's name") {
  CHECK(form(2).fingerprint() == form(2).fingerprint());
  CHECK(form(2).fingerprint() != form(3).fingerprint());
  CHECK(form(0).fingerprint() == 0);
  const Form plain{{1, 3, 1, 1}, DType::f32, {}};
  CHECK(plain.fingerprint() != Form{{3, 1, 1, 1}, DType::f32, {}}.fingerprint());
  CHECK(plain.fingerprint() != Form{{1, 3, 1, 1}, DType::f64, {}}.fingerprint());

  run_ranks(3, [](World& world) {
    const Communicator& ranks = world.comm();
    const auto rank = std::uint64_t(world.rank());
    check(ranks.alike(form(5)), "alike ones");
    check(!ranks.alike(form(5 + rank / 2)), "unlike ones");
    check(!ranks.alike(form(0)), "what nobody knows");
    check(Communicator().alike(form(0)), "one rank");
  });
}

TEST_CASE("collectives refuse layouts that were not shown to be alike") {
  run_ranks(2, [](World& world) {
    const Communicator& ranks = world.comm();
    Stream stream;
    const Tensor data(form(5)), other(form(6));
    const auto refuses = [](auto&& work) {
      try {
        work();
      } catch (const Error& e) {
        return std::string(e.what()).find("not shown to lie alike on all 2 ranks") !=
               std::string::npos;
      }
      return false;
    };
    check(refuses([&] { ranks.all_reduce(stream, Pass::forward, data).wait(stream); }), "before");
    check(ranks.alike(form(5)), "alike");
    ranks.all_reduce(stream, Pass::forward, data).wait(stream);
    check(refuses([&] { ranks.all_reduce(stream, Pass::forward, other).wait(stream); }), "other");
    check(refuses([&] { ranks.broadcast(stream, Pass::forward, other, 0).wait(stream); }), "too");
    Communicator().all_reduce(stream, Pass::forward, other).wait(stream);  // one rank
  });
}
