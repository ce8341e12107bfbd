// Blocks of tensors: where the runs of one lie in others.
#include "catch.hpp"

#include <lamina/tensor/box.hpp>

#include <algorithm>
#include <vector>

using namespace lamina;

TEST_CASE("runs go over each element of a box once, and tell where it lies in two blocks") {
  const Box whole = Box::of({3, 4, 5, 6});
  const std::vector<Box> boxes = {whole,
                                  {{1, 2}, {0, 4}, {0, 5}, {0, 6}},
                                  {{0, 3}, {1, 2}, {0, 5}, {0, 6}},
                                  {{0, 3}, {1, 2}, {2, 3}, {0, 6}},
                                  {{1, 1}, {3, 1}, {4, 1}, {5, 1}},
                                  {{1, 2}, {1, 3}, {0, 4}, {2, 3}}};
  for (const Box& box : boxes)
    for (const Box& other : {box, whole})
      for (const std::int64_t piece : {std::int64_t(1), std::int64_t(7), box.size()}) {
        std::vector<std::int64_t> ones, others;
        std::size_t runs = 0;
        for (std::int64_t first = 0; first < box.size(); first += piece)
          for_runs(box, {first, std::min(piece, box.size() - first)}, whole, other,
                   [&](std::int64_t at, std::int64_t to, std::int64_t length) {
                     ++runs;
                     for (std::int64_t i = 0; i < length; ++i)
                       ones.push_back(at + i), others.push_back(to + i);
                   });
        INFO(box.text() << " in " << other.text() << " by " << piece);
        CHECK((runs == 1) == (box.size() <= piece && (box.c == whole.c || box.size() == 1)));
        std::vector<std::int64_t> want, want_other;
        for (std::int64_t n = box.n.begin; n < box.n.end(); ++n)
          for (std::int64_t c = box.c.begin; c < box.c.end(); ++c)
            for (std::int64_t h = box.h.begin; h < box.h.end(); ++h)
              for (std::int64_t w = box.w.begin; w < box.w.end(); ++w) {
                want.push_back(((n * 4 + c) * 5 + h) * 6 + w);
                want_other.push_back(other.offset(n, c, h, w));
              }
        CHECK(ones == want);
        CHECK(others == want_other);
      }
  for_runs(Box(), whole, whole, [](auto, auto, auto) { FAIL("an empty box has no runs"); });
}
