// The main() of all test programs but those under mpirun.
#include "catch.hpp"

int main(int argc, char** argv) { return lamina::test::run_cases(argc, argv); }
