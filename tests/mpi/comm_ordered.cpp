// Ordered sums and notes between the processes of mpirun.
#include "catch.hpp"
#include "mpi/world.hpp"
#include "support/ordered.hpp"

using namespace lamina;
using namespace lamina::test;

TEST_CASE("ordered sums of processes are those of the definition") {
  const Communicator all = world().comm().ordered();
  const std::int64_t count = GENERATE(1, 9, 700, 2000, 5000, 70000);  // beside where ways change
  CAPTURE(count);
  CHECK(wrong_in_order<float>(all, count) == 0);
  CHECK(wrong_in_order<double>(all, count) == 0);
  CHECK(wrong_in_order<BF16>(all, count) == 0);
}

TEST_CASE("notes are collected in their order") {
  const Communicator& all = world().comm();
  const int to = (all.rank() + 1) % all.size();
  for (int i = 0; i < 20; ++i)
    all.post(to, text("note ", i, ' ', std::string(std::size_t(50 * i), '.')));
  for (int i = 0; i < 20; ++i) {
    std::string note;
    while (note.empty()) note = all.collect();
    CHECK(note == text("note ", i, ' ', std::string(std::size_t(50 * i), '.')));
  }
  all.barrier();
  CHECK(all.collect().empty());
}
