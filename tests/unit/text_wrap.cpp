// Wrapping: what a terminal is too narrow for goes on in the next line.
#include "catch.hpp"

#include <lamina/base/detail/wrap.hpp>

using lamina::detail::wrap;

TEST_CASE("lines are wrapped at blanks") {
  CHECK(wrap("", 10, "#   ") == "");
  CHECK(wrap("# short\n", 10, "#   ") == "# short\n");
  CHECK(wrap("# just ten\n", 10, "#   ") == "# just ten\n");
  CHECK(wrap("# just eleven\n", 10, "#   ") == "# just\n#   eleven\n");
  CHECK(wrap("# a b c d e f g h i j\n# next\n", 10, "#   ") ==
        "# a b c d\n#   e f g\n#   h i j\n# next\n");
  CHECK(wrap("# rank 0  host a", 16, "#   ") == "# rank 0  host a");  // blanks stay
  CHECK(wrap("# rank 0  host a  device cpu", 16, "#   ") == "# rank 0  host a\n#   device cpu");
  // A word that is longer than a line stays whole: a path can still be copied.
  CHECK(wrap("# LAMINA_CACHE=/a/very/long/path x", 10, "#   ") ==
        "# LAMINA_CACHE=/a/very/long/path\n#   x");
}
