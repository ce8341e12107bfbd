// Golden files: what a test expects, word for word, in tests/golden/. `./dev approve` writes them
// anew; look at the difference before you commit it.
#pragma once

#include <string>

namespace lamina::test {

/// Fails the running test where `content` differs from tests/golden/`name`, or where there is no
/// such file, and leaves what was found beside the test programs. With LAMINA_APPROVE set, writes
/// the file instead.
void golden(const std::string& name, const std::string& content);

}  // namespace lamina::test
