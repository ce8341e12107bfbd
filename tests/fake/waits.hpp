// Waits that are left out on purpose, to see that tests notice: see tests/fake/waits.py.
#pragma once

namespace lamina::test {

/// Whether the wait that calls this is to do nothing. LAMINA_FAKE_WAITS=FILE appends the callers
/// of each wait, once, as offsets in the program, innermost first, with a space between;
/// LAMINA_FAKE_WITHOUT=CALLERS[;CALLERS]... leaves out those whose innermost callers are these.
bool left_out();

}  // namespace lamina::test
