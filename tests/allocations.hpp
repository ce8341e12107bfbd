// Counts the allocations of a test program, for tests that there are none in the steady state.
#pragma once

/// Calls of operator new so far, by any thread.
long allocations();
